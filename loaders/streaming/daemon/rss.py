"""How much memory this process has, and how much of it belongs to no file."""

from __future__ import annotations

import ctypes
import os
from functools import cache

__all__ = ["anonymous_bytes", "resident_bytes", "trim"]

_PAGE = os.sysconf("SC_PAGE_SIZE")
_libc = ctypes.CDLL(None)


def resident_bytes() -> int:
    """Return the resident bytes, mapped files included."""
    return _statm()[1] * _PAGE


def anonymous_bytes() -> int:
    """Return the resident bytes that belong to no file."""
    statm = _statm()
    # proc(5): resident, then what of it is shared, which is what is mapped from files.
    return (statm[1] - statm[2]) * _PAGE


def trim() -> None:
    """Give what was freed back to the kernel."""
    _libc.malloc_trim(0)


def _statm() -> list[int]:
    return [int(value) for value in os.pread(_statm_descriptor(), 200, 0).split()]


@cache
def _statm_descriptor() -> int:
    """Open the file once: later there may be no descriptor left."""
    return os.open("/proc/self/statm", os.O_RDONLY | os.O_CLOEXEC)
