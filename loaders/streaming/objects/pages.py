"""A shard of an object store, of which the cache has some blocks, as the daemon reads it."""

from __future__ import annotations

from typing import Any

import numpy as np

from loaders.streaming.daemon.mapped_file import PAGES_BLOCK, Pages
from loaders.streaming.objects.block_cache import BlockCache, Pin
from loaders.streaming.objects.fetcher import Fetcher


class CachedPages(Pages):
    """The pages of a sparse file: absent blocks are fetched, and those of a view stay until the view is gone."""

    keeps_loaded = True

    def __init__(self, view: memoryview, name: str, shard: int, cache: BlockCache, fetcher: Fetcher) -> None:
        """Show a view of the sparse file of the shard at this place."""
        super().__init__(view, name)
        self._shard, self._cache, self._fetcher = shard, cache, fetcher

    def view(self, start: int, end: int) -> memoryview:
        """Return the bytes from `start` to `end`, not copied and not fetched yet."""
        pinned = np.frombuffer(super().view(start, end), np.uint8).view(_Pinned)
        pinned.pin = self._cache.pin(self._cache.blocks(self._shard, start, end))
        return memoryview(pinned)  # type: ignore[arg-type]  # an array has the buffer protocol

    def is_resident(self, start: int, end: int) -> bool:
        """Return whether the bytes from `start` to `end` are in the cache, and were in memory a few seconds ago."""
        return self._is_cached(start, end) and super().is_resident(start, end)

    def has_blocks(self, first: int, last: int) -> bool:
        """Return whether all of the blocks from `first` to `last` are in the cache and in memory."""
        start, end = first * PAGES_BLOCK, min((last + 1) * PAGES_BLOCK, self._nbytes)
        return self._is_cached(start, end) and super().has_blocks(first, last)

    def begin(self, start: int, end: int) -> None:
        """Have the bytes from `start` to `end` fetched; do not wait for them."""
        self._fetcher.begin(self._shard, start, end)

    def load(self, start: int, end: int) -> memoryview | None:
        """Wait until the bytes from `start` to `end` are in memory; return them where the cache has no room for them.

        Raises ObjectStoreError naming the object that cannot be had, OSError naming the file that cannot be read.
        """
        loaded = self._fetcher.load(self._shard, start, end)
        return super().load(start, end) if loaded is None else loaded

    def renew(self, start: int, end: int) -> bool:
        """Fetch the bytes from `start` to `end`, which are damaged, once more; return False where that fails."""
        return self._fetcher.renew(self._shard, start, end)

    def _is_cached(self, start: int, end: int) -> bool:
        return self._cache.has(self._cache.blocks(self._shard, start, end))


class _Pinned(np.ndarray[Any, np.dtype[np.uint8]]):
    """Bytes of the cache; their blocks stay while a view of them exists."""

    pin: Pin
