"""Short time slices for threads that do little and are waited for, where the kernel has them."""

from __future__ import annotations

import ctypes
import os
import platform
import struct
import threading
from typing import Final

__all__ = ["be_prompt"]

_SYSCALL: Final = {"x86_64": 314, "aarch64": 274}
"""sched_setattr(2)."""
_ATTR: Final = struct.Struct("=IIQiIQQQ")
_SLICE_NS: Final = 100_000
"""The shortest that there is."""


def be_prompt() -> None:
    """Ask for the calling thread to run soon after it is woken beside workers that use all processors.

    Since Linux 6.12 a thread of the usual policy may ask for shorter time slices, which come sooner and are no more
    processor time in all (sched(7), the EEVDF scheduler). Other kernels ignore it or refuse it, and nothing changes.
    """
    number = _SYSCALL.get(platform.machine())
    if number is None or os.sched_getscheduler(0) != os.SCHED_OTHER:
        return
    nice = os.getpriority(os.PRIO_PROCESS, threading.get_native_id())
    attributes = _ATTR.pack(_ATTR.size, os.SCHED_OTHER, 0, nice, 0, _SLICE_NS, 0, 0)
    ctypes.CDLL(None).syscall(number, 0, attributes, 0)
