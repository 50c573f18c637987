"""The C library's allocator, told to keep what received frames needed."""

from __future__ import annotations

import ctypes
import functools
from typing import Final

__all__ = ["keep_freed_memory"]

_M_TRIM_THRESHOLD: Final = -1
_M_TOP_PAD: Final = -2
_M_MMAP_THRESHOLD: Final = -3
_MIB: Final = 2**20


@functools.cache
def keep_freed_memory() -> bool:
    """Have frames allocated from memory that is kept, up to 512 MiB; return whether the C library can do so.

    ZeroMQ allocates every frame. glibc maps large ones anew each time, and the kernel clears their pages, which
    costs as much as receiving a third of them (mallopt(3)). 32 MiB is the most that glibc takes as the threshold.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    settings = {_M_MMAP_THRESHOLD: 32 * _MIB, _M_TRIM_THRESHOLD: 512 * _MIB, _M_TOP_PAD: 64 * _MIB}
    return all([bool(mallopt(name, value)) for name, value in settings.items()])
