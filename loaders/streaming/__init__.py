"""A streaming service: TFRecord shards on a storage node, batches on a compute node."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from loaders.streaming.daemon.daemon import Daemon
    from loaders.streaming.errors import ShardError, WireError
    from loaders.streaming.keys import make_keys
    from loaders.streaming.loader import StreamingLoader
    from loaders.streaming.options import DaemonOptions
    from loaders.streaming.planner import BatchPlan, EpochPlan, Slice, plan
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
    "plan",
]

# Imported when asked for: the daemon has no use for torch and DALI, which take seconds to import.
_MODULES: Final = {
    "BatchPlan": "planner",
    "Daemon": "daemon.daemon",
    "DaemonOptions": "options",
    "EpochPlan": "planner",
    "Fetch": "receiver.fetch",
    "RawBatch": "receiver.batch",
    "Session": "receiver.session",
    "ShardError": "errors",
    "ShardSet": "shards.index",
    "Slice": "planner",
    "StreamClient": "receiver.client",
    "StreamDataset": "torch_data",
    "StreamingLoader": "loader",
    "TimestampLogger": "timestamps",
    "WireError": "errors",
    "health": "receiver.session",
    "make_keys": "keys",
    "plan": "planner",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
