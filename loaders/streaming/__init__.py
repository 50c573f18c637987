"""A streaming service: TFRecord shards on a storage node, batches on a compute node."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from loaders.streaming.batch import RawBatch
    from loaders.streaming.client import Fetch, StreamClient
    from loaders.streaming.daemon import Daemon
    from loaders.streaming.errors import ShardError, WireError
    from loaders.streaming.index import ShardSet
    from loaders.streaming.loader import StreamingLoader
    from loaders.streaming.planner import BatchPlan, Slice, plan

__all__ = [
    "BatchPlan",
    "Daemon",
    "Fetch",
    "RawBatch",
    "ShardError",
    "ShardSet",
    "Slice",
    "StreamClient",
    "StreamingLoader",
    "WireError",
    "plan",
]

# Imported when asked for: the daemon has no use for torch and DALI, which take seconds to import.
_MODULES: Final = {
    "BatchPlan": "planner",
    "Daemon": "daemon",
    "Fetch": "client",
    "RawBatch": "batch",
    "ShardError": "errors",
    "ShardSet": "index",
    "Slice": "planner",
    "StreamClient": "client",
    "StreamingLoader": "loader",
    "WireError": "errors",
    "plan": "planner",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
