"""Memory that the workers and the consumer share, without a name: one file of the kernel's, cut into blocks.

A block that comes back is used again as it is, for pages that are there cost a tenth of new ones. Blocks that nobody
needs give their pages back to the kernel when the arena holds more than it may.

Before this process forks, the blocks that are lent become its private memory, at the same addresses. The child then has
a copy-on-write copy of them, which stays as it is when the block comes back here and is used again.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import resource
import weakref
from collections import deque
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from loaders.errors import LoaderError

_MOST_BYTES: Final = 1 << 38
"""Addresses, which cost nothing; pages come when they are written."""
_LEAST_BYTES: Final = 1 << 26
"""Of addresses, below which there is no arena: it would hold few batches."""
_PART: Final = 4
"""An arena takes one in so many parts of the addresses that a limit leaves: a worker maps it twice."""
_PAGE: Final = mmap.PAGESIZE
_POPULATE_WRITE: Final = 23
"""MADV_POPULATE_WRITE (madvise(2)), which mmap does not name: as if each page were written, with the bytes it has."""
_FIXED: Final = 0x10
"""MAP_FIXED (mmap(2))."""

_TURNS: Final = 2
"""How often as much as the arena holds has to be allocated in other sizes until one's free pages are taken away."""


class ArenaBlock:
    """A range of the arena."""

    __slots__ = ("ahead", "lent", "offset", "private", "size", "users")

    def __init__(self, offset: int, size: int) -> None:
        self.offset, self.size = offset, size
        self.users = 1
        """How often it has to be freed."""
        self.ahead = True
        """Whether it counts as held ahead of the consumer."""
        self.lent = False
        """Whether it comes back by itself."""
        self.private = False
        """Whether its addresses have private pages in the place of the file's."""


class Arena:
    """Allocates blocks; all methods belong to one thread."""

    def __init__(self, max_bytes: int, reserved: int) -> None:
        """Keep pages of at most `max_bytes` beyond those in use; the first `reserved` bytes are no block's.

        Raises LoaderError where the process may not have enough addresses.
        """
        self.nbytes = _addresses()
        """Of addresses."""
        self.descriptor = os.memfd_create("sample-aware", os.MFD_CLOEXEC)
        os.ftruncate(self.descriptor, self.nbytes)
        self.map = mmap.mmap(self.descriptor, self.nbytes)
        self.memory = np.frombuffer(self.map, np.uint8)
        """All of it, as bytes."""
        self.returns = _Returns(self.map, self.memory, self.descriptor)
        self._max_bytes = max_bytes
        self._next = -(-reserved // _PAGE) * _PAGE
        self._live: set[ArenaBlock] = set()
        self._free: dict[int, list[int]] = {}
        """Where blocks of each size begin whose pages may be there."""
        self._cold: dict[int, list[int]] = {}
        """Those whose pages have gone."""
        self._free_bytes = 0
        self._allocated = self._look_at = 0
        self._last_of: dict[int, int] = {}
        """Bytes that were allocated in all by the time of a size's last allocation, by size."""
        self.live = 0
        """Bytes in blocks that are in use."""
        self.ahead = 0
        """Those of them that the consumer does not hold."""

    def allocate(self, nbytes: int) -> ArenaBlock:
        """Return a block of at least so many bytes: a free one that is up to twice as large before a new one.

        Raises MemoryError when all addresses are used.
        """
        minimum = _size_class(nbytes)
        size = min(
            (free for free, begins in self._free.items() if begins and minimum <= free <= 2 * minimum), default=minimum
        )
        self._allocated += size
        self._last_of[size] = self._allocated
        if self._allocated >= self._look_at:
            self._drop_idle()
        if self._free.get(size):
            offset = self._free[size].pop()
            self._free_bytes -= size
        elif self._cold.get(size):
            offset = self._cold[size].pop()
        else:
            offset, self._next = self._next, self._next + size
            if self._next > self.nbytes:
                raise MemoryError(
                    f"the shared memory's {self.nbytes >> 20} MiB of addresses are used up; let the process have more "
                    "(ulimit -v, RLIMIT_AS), or keep fewer or smaller batches"
                )
        block = ArenaBlock(offset, size)
        self._live.add(block)
        self.live += size
        self.ahead += size
        return block

    def free(self, block: ArenaBlock) -> None:
        """Take a block back from one of its users; it is used again when it was the last one."""
        block.users -= 1
        if block.users:
            return
        self.returns.make_shared(block)
        self._live.discard(block)
        self.release(block)
        self.live -= block.size
        self._free.setdefault(block.size, []).append(block.offset)
        self._free_bytes += block.size
        if self.live + self._free_bytes > self._max_bytes:
            for size in self._free:
                self._drop(size, self._max_bytes)

    def release(self, block: ArenaBlock) -> None:
        """Note that a block is the consumer's now."""
        if block.ahead:
            block.ahead = False
            self.ahead -= block.size

    def view(self, block: ArenaBlock) -> npt.NDArray[np.uint8]:
        """Return the block as bytes, shape (size,); it comes back by itself when nothing refers to them any more."""
        block.lent = True
        owner = np.frombuffer(self.map, np.uint8, block.size, block.offset)
        ending = weakref.finalize(owner, self.returns.give_back, block, os.getpid())
        ending.atexit = False
        _LENT[self.returns, block] = owner
        return owner

    def collect(self) -> bool:
        """Free the blocks that have come back; return whether there was one."""
        found = False
        while self.returns.blocks:
            self.free(self.returns.blocks.popleft())
            found = True
        return found

    def close(self) -> None:
        """Give all pages back but those of blocks that are lent."""
        self.collect()
        self.returns.closed = True
        for block in self._live:
            if not block.lent:
                self.returns.drop(block.offset, block.size)
        for size, begins in self._free.items():
            for offset in begins:
                self.returns.drop(offset, size)

    def _drop_idle(self) -> None:
        held = self.live + self._free_bytes
        for size in self._free:
            if self._allocated - self._last_of[size] > _TURNS * held:
                self._drop(size, 0)
        self._look_at = self._allocated + held

    def _drop(self, size: int, max_bytes: int) -> None:
        begins = self._free[size]
        while begins and self.live + self._free_bytes > max_bytes:
            # The last ones are the first to be used again.
            offset = begins.pop(0)
            self.returns.drop(offset, size)
            self._cold.setdefault(size, []).append(offset)
            self._free_bytes -= size


class _Returns:
    """Collects the blocks that come back, from any thread; it outlives the arena, because a lent block may."""

    def __init__(self, whole: mmap.mmap, memory: npt.NDArray[np.uint8], descriptor: int) -> None:
        self._map, self._begin, self._descriptor = whole, memory.ctypes.data, descriptor
        self.blocks: deque[ArenaBlock] = deque()
        self.wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        """Written when a block has come back."""
        self.closed = False

    def give_back(self, block: ArenaBlock, pid: int) -> None:
        """Take a block back; called by the garbage collector, whatever the thread is about."""
        if os.getpid() != pid:
            # A copy of the tensor in a process that was forked off.
            return
        if self.closed:
            self.make_shared(block)
            self.drop(block.offset, block.size)
            return
        self.blocks.append(block)
        os.eventfd_write(self.wake, 1)

    def drop(self, offset: int, size: int) -> None:
        """Give the pages of a range back to the kernel; the addresses stay."""
        self._map.madvise(mmap.MADV_REMOVE, offset, size)

    def make_private(self, block: ArenaBlock, view: npt.NDArray[np.uint8]) -> None:
        """Put private pages with the same bytes in the place of the file's, and give those back to the kernel.

        `view` keeps the block from coming back meanwhile. Other threads may read and write it.
        """
        self._remap(block, mmap.MAP_PRIVATE)
        block.private = True
        try:
            self._map.madvise(_POPULATE_WRITE, block.offset, block.size)
        except OSError:  # before Linux 5.14
            view[::_PAGE] |= 0
        with mmap.mmap(self._descriptor, block.size, offset=block.offset) as pages:
            pages.madvise(mmap.MADV_REMOVE)

    def make_shared(self, block: ArenaBlock) -> None:
        """Undo `make_private`, without the bytes."""
        if block.private:
            block.private = False
            self._remap(block, mmap.MAP_SHARED)

    def _remap(self, block: ArenaBlock, flags: int) -> None:
        protection, begin = mmap.PROT_READ | mmap.PROT_WRITE, self._begin + block.offset
        if _LIBC.mmap(begin, block.size, protection, flags | _FIXED, self._descriptor, block.offset) != begin:
            raise OSError(ctypes.get_errno(), f"mmap of {block.size} bytes of shared memory failed")

    def __del__(self) -> None:
        # Not before: a block may come back while the arena is being closed.
        os.close(self.wake)
        os.close(self._descriptor)


_LENT: Final[weakref.WeakValueDictionary[tuple[_Returns, ArenaBlock], npt.NDArray[np.uint8]]] = (
    weakref.WeakValueDictionary()
)
"""The views of the blocks that are lent, of all arenas of this process."""


def _make_lent_private() -> None:
    # The list is made at once: other threads lend blocks meanwhile, which the child cannot reach.
    for reference in _LENT.valuerefs():
        view = reference()
        returns, block = reference.key
        if view is not None and not block.private:
            returns.make_private(block, view)


# The child's copies are private for good, and the file's pages are none of its own.
os.register_at_fork(before=_make_lent_private, after_in_child=_LENT.clear)

_LIBC: Final = ctypes.CDLL(None, use_errno=True)
_LIBC.mmap.restype = ctypes.c_void_p
_LIBC.mmap.argtypes = (
    ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_int64,
)  # fmt: skip


def _addresses() -> int:
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit == resource.RLIM_INFINITY:
        return _MOST_BYTES
    used = int(Path("/proc/self/statm").read_text().split()[0]) * _PAGE
    found = min(_MOST_BYTES, (limit - used) // _PART // _PAGE * _PAGE)
    if found < _LEAST_BYTES:
        raise LoaderError(
            f"the process may have {limit >> 20} MiB of addresses (ulimit -v, RLIMIT_AS) and has {used >> 20}; the "
            f"sample-aware loader needs {_PART * _LEAST_BYTES >> 20} more: raise the limit"
        )
    return found


def _size_class(nbytes: int) -> int:
    """Round up to one of eight sizes per power of two, whole pages; a page that is not written takes no memory."""
    shift = max(_PAGE.bit_length() - 1, nbytes.bit_length() - 4)
    return -(-max(nbytes, 1) >> shift) << shift
