"""Shards mapped into memory, and which of their pages are there."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import time
import weakref
from collections.abc import Sequence

import numpy as np

# Python's own mmap.madvise keeps the interpreter's lock while the kernel reads, and its mmap keeps a descriptor.
_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long)
_libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
_libc.mincore.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p)
_libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
_FAILED = ctypes.c_void_p(-1).value
_MADV_POPULATE_READ = 22  # madvise(2), since Linux 5.14
_PAGE = mmap.PAGESIZE
PAGES_BLOCK = 2 * 2**20
"""Checking every page of every request costs a tenth of sending it, so whole blocks are checked ..."""
_TRUSTED_S = 5.0
"""... and the result is used again for so long."""


def map_file(descriptor: int, nbytes: int) -> memoryview:
    """Return the first `nbytes` of an open file, to read; they stay mapped while a view of them exists.

    Raises OSError where the kernel cannot map it.
    """
    address = _libc.mmap(None, nbytes, mmap.PROT_READ, mmap.MAP_SHARED, descriptor, 0)
    if address == _FAILED:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    mapped = (ctypes.c_ubyte * nbytes).from_address(address)
    weakref.finalize(mapped, _libc.munmap, address, nbytes).atexit = False
    return memoryview(mapped).cast("B").toreadonly()


class Pages:
    """The pages of one mapped file; one thread asks `is_resident`, any thread may `load`."""

    def __init__(self, view: memoryview, name: str) -> None:
        """Show a view of the whole file of this name."""
        self._name, self._view = name, view
        self.address = int(np.frombuffer(view, np.uint8).ctypes.data)
        """Where the file begins in memory."""
        self._nbytes = len(view)
        self._blocks: dict[int, tuple[float, bool]] = {}

    def view(self, start: int, end: int) -> memoryview:
        """Return the bytes from `start` to `end`, not copied and not read yet."""
        return self._view[start:end]

    def is_resident(self, start: int, end: int) -> bool:
        """Return whether the bytes from `start` to `end` are in memory, or were a few seconds ago."""
        return self.has_blocks(start // PAGES_BLOCK, (end - 1) // PAGES_BLOCK) or self._look(start, end)

    def has_blocks(self, first: int, last: int) -> bool:
        """Return whether all of the blocks from `first` to `last` are in memory, or were a few seconds ago."""
        now = time.monotonic()
        return all(self._has_block(block, now) for block in range(first, last + 1))

    def begin(self, start: int, end: int) -> None:
        """Have the bytes from `start` to `end` read; do not wait for them."""
        _libc.madvise(*_align(self.address + start, end - start), mmap.MADV_WILLNEED)

    def load(self, start: int, end: int) -> None:
        """Wait until the bytes from `start` to `end` are in memory.

        Raises OSError naming the file if reading fails.
        """
        address, nbytes = _align(self.address + start, end - start)
        # An older kernel has no such advice, and reads a page when it is touched.
        if _libc.madvise(address, nbytes, _MADV_POPULATE_READ) and ctypes.get_errno() != errno.EINVAL:
            # EFAULT: a page cannot be read, because the file is shorter now or the disk fails.
            raise OSError(ctypes.get_errno(), "it became shorter, or its disk fails", self._name)

    def _has_block(self, block: int, now: float) -> bool:
        until, whole = self._blocks.get(block, (0.0, False))
        if now > until:
            whole = self._look(block * PAGES_BLOCK, min(block * PAGES_BLOCK + PAGES_BLOCK, self._nbytes))
            self._blocks[block] = now + _TRUSTED_S, whole
        return whole

    def _look(self, start: int, end: int) -> bool:
        address, nbytes = _align(self.address + start, end - start)
        count = -(-nbytes // _PAGE)
        found = ctypes.create_string_buffer(count)
        if _libc.mincore(address, nbytes, found):
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
        # Bit 0 says it; the others are reserved (mincore(2)).
        return found.raw.count(1) == count or all(page & 1 for page in found.raw)


def are_resident(spans: Sequence[tuple[Pages, int, int]]) -> bool:
    """Return whether the bytes of every span, pages with a start and an end, are in memory."""
    # Few, of many small spans.
    blocks = {(pages, start // PAGES_BLOCK, (end - 1) // PAGES_BLOCK) for pages, start, end in spans}
    if all(pages.has_blocks(first, last) for pages, first, last in blocks):
        return True
    return all(pages.is_resident(start, end) for pages, start, end in spans)


def _align(address: int, nbytes: int) -> tuple[int, int]:
    start = address - address % _PAGE
    return start, address + nbytes - start
