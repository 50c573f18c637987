"""The C library's freed memory, which a process keeps for its next frames."""

from __future__ import annotations

import ctypes
import functools
from typing import Final

_M_TRIM_THRESHOLD: Final = -1
_M_TOP_PAD: Final = -2
_M_MMAP_THRESHOLD: Final = -3
_M_ARENA_MAX: Final = -8
_MAX_BLOCK: Final = 32 * 2**20
"""The largest threshold that glibc takes."""
_TOP_PAD: Final = 64 * 2**20


@functools.cache
def keep_freed_memory(nbytes: int, *, arenas: int | None = None) -> bool:
    """Have the C library keep so many bytes of freed memory in each of its arenas; return whether it can do so.

    The setting is of the whole process: it holds for all of its threads, and for blocks of up to 32 MiB.

    glibc maps large blocks each time, and the kernel clears their pages, which costs as much as receiving a third of
    them (mallopt(3)), and delays other threads. `arenas` is the most that there may be (default: glibc's choice).
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    settings = {_M_MMAP_THRESHOLD: _MAX_BLOCK, _M_TRIM_THRESHOLD: nbytes, _M_TOP_PAD: _TOP_PAD}
    if arenas is not None:
        settings[_M_ARENA_MAX] = arenas
    return all([bool(mallopt(name, value)) for name, value in settings.items()])
