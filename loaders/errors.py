"""The loaders' typed errors."""

from __future__ import annotations


class LoaderError(Exception):
    """Base of every error that a loader raises on purpose."""


class LoaderConfigError(LoaderError):
    """A loader was asked for something that it cannot do."""


class SampleError(LoaderError):
    """A sample cannot be read or decoded; the message names its id and file."""


class SampleTimeoutError(SampleError):
    """A sample has not come back within `sample_timeout_s`; the message names it, its stage and its worker."""


class WorkerError(LoaderError, RuntimeError):
    """A worker process or thread of a loader died; a RuntimeError, as PyTorch's DataLoader raises."""


class StreamError(LoaderError):
    """The streaming service failed: refused, unreachable, or a malformed answer."""


class NoAnswerError(StreamError):
    """A daemon sent nothing within the timeout."""


class WireError(StreamError):
    """A message does not follow the streaming protocol; the side that receives it counts and drops it."""


class DamagedError(WireError):
    """A message was changed on its way."""


class ShardError(LoaderError):
    """A shard folder, a TFRecord file or its index is missing, malformed or damaged."""


class SplitError(LoaderError):
    """Splits of a dataset cannot be made as asked, or stored ones are missing, malformed or damaged."""
