"""Sleeping until an instant, to within a tenth of a millisecond and without a loop."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

__all__ = ["least_lateness_ns", "sleep_until"]

_PR_SET_TIMERSLACK: Final = 29
_PR_GET_TIMERSLACK: Final = 30
_TRIALS: Final = 10
_TRIAL_NS: Final = 20_000_000
"""About a step: the longer a core sleeps, the deeper, and the longer it takes to wake."""
_MOST_LATENESS_NS: Final = 150_000
"""More than this is a busy machine, not what waking up takes."""
_libc = ctypes.CDLL(None)


def sleep_until(monotonic_ns: int, lateness_ns: int = 0) -> None:
    """Sleep until time.monotonic_ns() reaches the value; `lateness_ns` is what waking up is known to take."""
    with _exact_timers():
        _sleep(monotonic_ns - lateness_ns)


def least_lateness_ns() -> int:
    """Measure by how much this machine wakes a sleeper late at the least, in ns; takes some 0.2 s."""
    found = _MOST_LATENESS_NS
    with _exact_timers():
        for _ in range(_TRIALS):
            instant = time.monotonic_ns() + _TRIAL_NS
            _sleep(instant)
            found = min(found, time.monotonic_ns() - instant)
    return max(0, found)


def _sleep(monotonic_ns: int) -> None:
    left = monotonic_ns - time.monotonic_ns()
    if left > 0:
        time.sleep(left / 1e9)


@contextmanager
def _exact_timers() -> Iterator[None]:
    # Linux lets a thread's timers be late by its slack, 50 us by default (prctl(2), PR_SET_TIMERSLACK). It is put
    # back because threads that are started later inherit it.
    slack = _libc.prctl(_PR_GET_TIMERSLACK, 0, 0, 0, 0)
    _libc.prctl(_PR_SET_TIMERSLACK, 1, 0, 0, 0)
    try:
        yield
    finally:
        if slack > 0:
            _libc.prctl(_PR_SET_TIMERSLACK, slack, 0, 0, 0)
