"""How soon the kernel wakes a thread: its priority, and the slack of its timers."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

_PR_SET_TIMERSLACK: Final = 29
_PR_GET_TIMERSLACK: Final = 30
_libc = ctypes.PyDLL(None)
"""Its calls keep the interpreter's lock: prctl(2) returns at once, and to get the lock again may take long."""


def raise_priority(nice: int) -> str:
    """Ask for the lowest real-time priority, else for a negative `nice`; return which was granted.

    Threads that are started later inherit it.
    """
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(os.sched_get_priority_min(os.SCHED_FIFO)))
    except OSError:
        try:
            os.setpriority(os.PRIO_PROCESS, 0, nice)
        except OSError:
            return "normal"
        return f"nice {nice}"
    return "realtime"


@contextmanager
def exact_timers() -> Iterator[None]:
    """Let timers of the calling thread be late by 1 ns at most; Linux allows 50 us by default (prctl(2)).

    The slack is put back at the end, because threads that are started later inherit it.
    """
    slack = _libc.prctl(_PR_GET_TIMERSLACK, 0, 0, 0, 0)
    _libc.prctl(_PR_SET_TIMERSLACK, 1, 0, 0, 0)
    try:
        yield
    finally:
        if slack > 0:
            _libc.prctl(_PR_SET_TIMERSLACK, slack, 0, 0, 0)
