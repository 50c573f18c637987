"""A file mapped into memory without keeping a descriptor of it, which Python's own mmap does."""

from __future__ import annotations

import ctypes
import mmap
import os
import weakref

__all__ = ["map_file"]

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long)
_libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
_FAILED = ctypes.c_void_p(-1).value


def map_file(descriptor: int, nbytes: int) -> memoryview:
    """Return the first `nbytes` of an open file, to read; they stay mapped as long as a view of them is left.

    Raises OSError where the kernel cannot map it.
    """
    address = _libc.mmap(None, nbytes, mmap.PROT_READ, mmap.MAP_SHARED, descriptor, 0)
    if address == _FAILED:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    mapped = (ctypes.c_ubyte * nbytes).from_address(address)
    weakref.finalize(mapped, _libc.munmap, address, nbytes).atexit = False
    return memoryview(mapped).cast("B").toreadonly()
