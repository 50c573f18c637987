"""The streaming service's own typed errors."""

from __future__ import annotations

from loaders.errors import LoaderError, StreamError

__all__ = ["ShardError", "WireError"]


class ShardError(LoaderError):
    """A shard folder, a TFRecord file or its index is missing, malformed or damaged."""


class WireError(StreamError):
    """A message does not follow the protocol; the receiving side counts and drops it."""
