"""The streaming service's own typed errors."""

from __future__ import annotations

from loaders.errors import LoaderError, StreamError

__all__ = ["DamagedError", "NoAnswerError", "ShardError", "WireError"]


class ShardError(LoaderError):
    """A shard folder, a TFRecord file or its index is missing, malformed or damaged."""


class NoAnswerError(StreamError):
    """Nothing came from a daemon for as long as it was waited for."""


class WireError(StreamError):
    """A message does not follow the protocol; the receiving side counts and drops it."""


class DamagedError(WireError):
    """A message is not what the other side sent."""
