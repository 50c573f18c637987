"""A streaming service: TFRecord shards on a storage node, batches on a compute node."""

from __future__ import annotations

from typing import TYPE_CHECKING

from loaders.shared.lazy import lazy_names

if TYPE_CHECKING:
    from loaders.records.raw_batch import RawBatch
    from loaders.streaming.daemon.daemon import Daemon
    from loaders.streaming.keys import make_keys
    from loaders.streaming.loader import StreamingLoader
    from loaders.streaming.receiver.remote_daemon import health
    from loaders.streaming.settings import DaemonOptions
    from loaders.streaming.timestamps import TimestampLogger
    from loaders.streaming.torch_data import StreamDataset

__all__ = [
    "Daemon",
    "DaemonOptions",
    "RawBatch",
    "StreamDataset",
    "StreamingLoader",
    "TimestampLogger",
    "health",
    "make_keys",
]

# Imported when asked for: the daemon has no use for torch and DALI, which take seconds to import.
__getattr__ = lazy_names(
    __name__,
    {
        "Daemon": "streaming.daemon.daemon",
        "DaemonOptions": "streaming.settings",
        "RawBatch": "records.raw_batch",
        "StreamDataset": "streaming.torch_data",
        "StreamingLoader": "streaming.loader",
        "TimestampLogger": "streaming.timestamps",
        "health": "streaming.receiver.remote_daemon",
        "make_keys": "streaming.keys",
    },
)
