"""Pages of mapped files: whether they are in memory, and reading them while other threads go on."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import time
from collections.abc import Sequence

import numpy as np

__all__ = ["Pages", "resident"]

# Python's own mmap.madvise keeps the interpreter's lock while the kernel reads; ctypes gives it up.
_libc = ctypes.CDLL(None, use_errno=True)
_libc.mincore.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p)
_libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
_MADV_POPULATE_READ = 22  # madvise(2), since Linux 5.14
_PAGE = mmap.PAGESIZE
_BLOCK = 2 * 2**20
"""Looking at every page of every request costs a tenth of sending it, so whole blocks are looked at ..."""
_TRUSTED_S = 5.0
"""... and what was seen is believed for so long."""


class Pages:
    """The pages of one mapped file."""

    def __init__(self, view: memoryview, name: str) -> None:
        """Look after the pages of a view of the whole file of this name."""
        self._name = name
        self._address = int(np.frombuffer(view, np.uint8).ctypes.data)
        self._nbytes = len(view)
        self._blocks: dict[int, tuple[float, bool]] = {}

    def resident(self, start: int, end: int) -> bool:
        """Return whether the bytes from `start` to `end` are in memory, or were a few seconds ago; one thread asks."""
        return self._blocks_whole(start // _BLOCK, (end - 1) // _BLOCK) or self._found(start, end)

    def _blocks_whole(self, first: int, last: int) -> bool:
        now = time.monotonic()
        return all(self._whole(block, now) for block in range(first, last + 1))

    def load(self, start: int, end: int) -> None:
        """Read the bytes from `start` to `end` from disk, and return when they are in memory.

        Raises OSError naming the file if it fails.
        """
        address, nbytes = _whole_pages(self._address + start, end - start)
        _libc.madvise(address, nbytes, mmap.MADV_WILLNEED)
        # An older kernel has no such advice, and reads a page when it is touched.
        if _libc.madvise(address, nbytes, _MADV_POPULATE_READ) and ctypes.get_errno() != errno.EINVAL:
            # EFAULT is a page that cannot be read, for the file has become shorter or the disk fails.
            raise OSError(ctypes.get_errno(), "it became shorter, or its disk fails", self._name)

    def _whole(self, block: int, now: float) -> bool:
        """Return whether all of a block was in memory when it was last looked at."""
        until, whole = self._blocks.get(block, (0.0, False))
        if now > until:
            whole = self._found(block * _BLOCK, min(block * _BLOCK + _BLOCK, self._nbytes))
            self._blocks[block] = now + _TRUSTED_S, whole
        return whole

    def _found(self, start: int, end: int) -> bool:
        address, nbytes = _whole_pages(self._address + start, end - start)
        count = -(-nbytes // _PAGE)
        found = ctypes.create_string_buffer(count)
        if _libc.mincore(address, nbytes, found):
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
        # Bit 0 says it; the others are reserved (mincore(2)).
        return found.raw.count(1) == count or all(page & 1 for page in found.raw)


def resident(spans: Sequence[tuple[Pages, int, int]]) -> bool:
    """Return whether the bytes of every span, pages with a start and an end, are in memory; one thread asks."""
    blocks = {(pages, start // _BLOCK, (end - 1) // _BLOCK) for pages, start, end in spans}  # few, of many small spans
    if all(pages._blocks_whole(first, last) for pages, first, last in blocks):
        return True
    return all(pages.resident(start, end) for pages, start, end in spans)


def _whole_pages(address: int, nbytes: int) -> tuple[int, int]:
    start = address - address % _PAGE
    return start, address + nbytes - start
