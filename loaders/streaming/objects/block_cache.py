"""A cache on disk: sparse copies of shards, of which some blocks are there, bounded in bytes."""

from __future__ import annotations

import ctypes
import errno
import os
import threading
from bisect import bisect_right
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from energymon.system.closing import Closing
from loaders.errors import LoaderConfigError
from loaders.streaming.daemon.counters import Log

BLOCK = 256 * 2**10
"""Bytes of a block; of a shard's last one there may be fewer."""
_FREED_SHARE = 16
"""When there is no room, one of so many bytes of the limit is freed: finding the oldest blocks looks at all of them."""
_FULL = (errno.ENOSPC, errno.EDQUOT)
_PUNCH, _KEEP_SIZE = 2, 1  # fallocate(2)
_libc = ctypes.CDLL(None, use_errno=True)
_libc.fallocate.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_long, ctypes.c_long)


class Pin:
    """Blocks that stay in the cache until the last reference to this is gone."""

    __slots__ = ("_blocks", "_unpinned")

    def __init__(self, blocks: slice, unpinned: deque[slice]) -> None:
        self._blocks, self._unpinned = blocks, unpinned

    def __del__(self) -> None:
        # Any thread may come here, at any time, so without the lock.
        self._unpinned.append(self._blocks)


class BlockCache(Closing):
    """Which blocks of which shards are on disk, and which of them go first; threads may share it."""

    def __init__(
        self, paths: Sequence[Path], sizes: Sequence[int], present: npt.NDArray[np.uint8], limit: int, log: Log
    ) -> None:
        """Take over sparse files of these sizes.

        Args:
            paths: the files.
            sizes: their bytes.
            present: 1 for each block that is there, shape (blocks of all files,); it is kept up to date.
            limit: most bytes of blocks on disk.
            log: takes an event and its fields.

        Raises LoaderConfigError where the file system cannot free a part of a file.
        """
        counts = [-(-size // BLOCK) for size in sizes]
        self._base = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64).tolist()
        self._paths, self._present, self._log = paths, np.asarray(present), log
        self.limit = limit
        self._is_shrunk = False
        self.evicted = 0
        """Blocks that made room for others."""
        self._lock = threading.Lock()
        self._pins = np.zeros(len(present), np.int32)
        self._unpinned: deque[slice] = deque()
        self._used = np.zeros(len(present), np.int64)
        """When each block was last asked for, counted in requests."""
        self._clock = 0
        self._count = int(np.count_nonzero(present))
        """Blocks that are there, or on their way."""
        self._coming = np.zeros(len(present), np.bool_)
        _check_punching(paths[0])
        if self._count * BLOCK > limit:
            self._evict(self._count - limit // BLOCK)

    @property
    def nbytes(self) -> int:
        """Bytes of the blocks that are there, or on their way."""
        return self._count * BLOCK

    def blocks(self, shard: int, start: int, end: int) -> slice:
        """Return the blocks that the bytes from `start` to `end` of a shard lie in."""
        base = self._base[shard]
        return slice(base + start // BLOCK, base + (end - 1) // BLOCK + 1)

    def pin(self, blocks: slice) -> Pin:
        """Keep blocks that are there, or that come, until the returned object is gone."""
        with self._lock:
            self._count_unpinned()
            self._pins[blocks] += 1
            self._clock += 1
            self._used[blocks] = self._clock
        return Pin(blocks, self._unpinned)

    def has(self, blocks: slice) -> bool:
        """Return whether all of these blocks are there."""
        return bool(self._present[blocks].all())

    def claim(self, blocks: slice) -> list[int] | None:
        """Return the blocks that neither are there nor come, for which there is room now; None without room.

        The caller stores each of them with `write`, or gives it back with `give_back`.
        """
        with self._lock:
            absent = (~self._coming[blocks] & (self._present[blocks] == 0)).nonzero()[0] + blocks.start
            count = len(absent)
            if not count:
                return []
            if self.limit < BLOCK:
                return None
            excess = self._count + count - self.limit // BLOCK
            if excess > 0:
                self._evict(max(excess, self.limit // BLOCK // _FREED_SHARE))
                if self._count + count > self.limit // BLOCK:
                    return None
            self._count += count
            self._coming[absent] = True
            self._clock += 1
            self._used[absent] = self._clock
            return [int(block) for block in absent]

    def write(self, shard: int, first: int, data: memoryview) -> bool:
        """Store claimed blocks from `first` on; return whether they are there now. If not, they are still claimed."""
        blocks = slice(first, first + -(-len(data) // BLOCK))
        offset = (first - self._base[shard]) * BLOCK
        try:
            _write(self._paths[shard], offset, data)
        except OSError as error:
            with self._lock:
                with suppress(OSError):
                    _punch(self._paths[shard], offset, len(data))
                self._shrink(error, self._paths[shard], int(np.count_nonzero(self._present)) * BLOCK)
            return False
        with self._lock:
            self._coming[blocks] = False
            self._present[blocks] = 1
        return True

    def rewrite(self, shard: int, start: int, data: memoryview) -> None:
        """Store bytes of blocks that are there once more; raises OSError."""
        _write(self._paths[shard], start, data)

    def give_back(self, blocks: slice) -> None:
        """Give up claimed blocks that could not be had."""
        with self._lock:
            self._count -= int(np.count_nonzero(self._coming[blocks]))
            self._coming[blocks] = False

    def close(self) -> None:
        """Write down which blocks are there."""
        if isinstance(self._present, np.memmap):
            self._present.flush()

    def _shrink(self, error: OSError, path: Path, limit: int) -> None:
        """Go on with a smaller cache, after a write to one of its files has failed; the first time is logged."""
        self.limit, is_first, self._is_shrunk = min(limit, self.limit), not self._is_shrunk, True
        if is_first:
            why = "the disk is full" if error.errno in _FULL else f"{path.name} cannot be written: {error.strerror}"
            remedy = "mend it and restart the daemon; until then the cache is as large as it is now"
            self._log("cache_full", folder=str(path.parent), reason=why, cached_bytes=limit, remedy=remedy)

    def _count_unpinned(self) -> None:
        while self._unpinned:
            self._pins[self._unpinned.popleft()] -= 1

    def _evict(self, count: int) -> None:
        """Free the `count` blocks that were asked for the longest ago, or as many as are not pinned."""
        self._count_unpinned()
        free = ((self._present == 1) & (self._pins == 0)).nonzero()[0]
        if len(free) > count:
            free = free[np.argpartition(self._used[free], count)[:count]]
        free.sort()
        for run in _runs(free):
            begin = run.start
            while begin < run.stop:
                shard = bisect_right(self._base, begin) - 1
                end = min(run.stop, self._base[shard + 1])
                # First unset: a reader must not find a block whose bytes are gone.
                self._present[begin:end] = 0
                try:
                    _punch(self._paths[shard], (begin - self._base[shard]) * BLOCK, (end - begin) * BLOCK)
                except OSError as error:
                    self._shrink(error, self._paths[shard], 0)
                begin = end
        self._count -= len(free)
        self.evicted += len(free)


def _runs(blocks: npt.NDArray[np.int64]) -> list[slice]:
    """Return the runs of sorted numbers."""
    if not len(blocks):
        return []
    parts: list[npt.NDArray[Any]] = np.split(blocks, (np.diff(blocks) != 1).nonzero()[0] + 1)
    return [slice(int(part[0]), int(part[-1]) + 1) for part in parts]


def _write(path: Path, offset: int, data: memoryview) -> None:
    # Opened each time: of many shards the daemon would have no descriptors left for its clients.
    file = os.open(path, os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        while data:
            written = os.pwrite(file, data, offset)
            data, offset = data[written:], offset + written
    finally:
        os.close(file)


def _punch(path: Path, offset: int, nbytes: int) -> None:
    """Free a part of a file; it keeps its size. Raises OSError."""
    file = os.open(path, os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        if _libc.fallocate(file, _PUNCH | _KEEP_SIZE, offset, nbytes):
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
    finally:
        os.close(file)


def _check_punching(path: Path) -> None:
    """Raise LoaderConfigError where the file system cannot free a part of a file."""
    # Beyond the end nothing is lost.
    try:
        _punch(path, -(-path.stat().st_size // BLOCK) * BLOCK, BLOCK)
    except OSError as error:
        raise LoaderConfigError(
            f"--cache {path.parent}: a part of a file cannot be freed there ({error.strerror}); choose a folder on "
            "ext4, XFS, Btrfs or tmpfs"
        ) from error
