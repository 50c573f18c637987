"""A streaming service: TFRecord shards on a storage node, batches on a compute node."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from loaders.errors import ShardError, WireError
    from loaders.streaming.daemon.daemon import Daemon
    from loaders.streaming.keys import make_keys
    from loaders.streaming.loader import StreamingLoader
    from loaders.streaming.options import DaemonOptions
    from loaders.streaming.planner import BatchPlan, EpochPlan, Slice, plan_epoch
    from loaders.streaming.receiver.batch import RawBatch
    from loaders.streaming.receiver.client import StreamClient
    from loaders.streaming.receiver.fetch import Fetch
    from loaders.streaming.receiver.session import Session, health
    from loaders.streaming.shards.index import ShardSet
    from loaders.streaming.timestamps import TimestampLogger
    from loaders.streaming.torch_data import StreamDataset

__all__ = [
    "BatchPlan",
    "Daemon",
    "DaemonOptions",
    "EpochPlan",
    "Fetch",
    "RawBatch",
    "Session",
    "ShardError",
    "ShardSet",
    "Slice",
    "StreamClient",
    "StreamDataset",
    "StreamingLoader",
    "TimestampLogger",
    "WireError",
    "health",
    "make_keys",
    "plan_epoch",
]

# Imported when asked for: the daemon has no use for torch and DALI, which take seconds to import.
_MODULES: Final = {
    "BatchPlan": "streaming.planner",
    "Daemon": "streaming.daemon.daemon",
    "DaemonOptions": "streaming.options",
    "EpochPlan": "streaming.planner",
    "Fetch": "streaming.receiver.fetch",
    "RawBatch": "streaming.receiver.batch",
    "Session": "streaming.receiver.session",
    "ShardError": "errors",
    "ShardSet": "streaming.shards.index",
    "Slice": "streaming.planner",
    "StreamClient": "streaming.receiver.client",
    "StreamDataset": "streaming.torch_data",
    "StreamingLoader": "streaming.loader",
    "TimestampLogger": "streaming.timestamps",
    "WireError": "errors",
    "health": "streaming.receiver.session",
    "make_keys": "streaming.keys",
    "plan_epoch": "streaming.planner",
}


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"loaders.{_MODULES[name]}"), name)
