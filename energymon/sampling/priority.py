"""Raises the scheduling priority of the calling thread, as far as the host lets it."""

from __future__ import annotations

import os
from typing import Final

__all__ = ["raise_priority"]

_NICE: Final = -10


def raise_priority() -> str:
    """Ask for the lowest real-time priority, else for a negative nice; return which was granted.

    Threads started afterwards inherit it. A sampler runs for well under a millisecond a tick, so even the
    real-time class cannot starve anybody.
    """
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(os.sched_get_priority_min(os.SCHED_FIFO)))
    except OSError:
        try:
            os.setpriority(os.PRIO_PROCESS, 0, _NICE)
        except OSError:
            return "normal"
        return f"nice {_NICE}"
    return "realtime"
