"""One clock for every reading, monotonic with a measured offset to UTC, and the grid of ticks on it."""

from __future__ import annotations

import time
from typing import Final

__all__ = ["NS", "UNNOTICED_NS", "Clock", "next_tick", "tick_at"]

NS: Final = 1_000_000_000
"""Nanoseconds in a second."""

_GOOD_BRACKET_NS: Final = 20_000
UNNOTICED_NS: Final = 100_000
"""A wall clock this close to where it should be was not set."""
_ATTEMPTS: Final = 5


def tick_at(utc_ns: int, interval_ns: int) -> int:
    """Return the latest tick k·interval that is not after `utc_ns`, UTC ns."""
    return utc_ns - utc_ns % interval_ns


def next_tick(utc_ns: int, interval_ns: int) -> int:
    """Return the first tick k·interval after `utc_ns`, UTC ns."""
    return tick_at(utc_ns, interval_ns) + interval_ns


class Clock:
    """UTC as the monotonic clock plus an offset that changes only in `sync`.

    Linux disciplines both clocks at the same rate, so the offset moves only when the wall clock is stepped;
    readings taken between two syncs keep their order and distance whatever happens to the wall clock.
    """

    __slots__ = ("_bracket_ns", "offset_ns")

    def __init__(self) -> None:
        self.offset_ns, self._bracket_ns = self._best()

    def utc_ns(self) -> int:
        """Return the time now, UTC ns."""
        return time.monotonic_ns() + self.offset_ns

    def step_ns(self) -> int:
        """Return the step of the wall clock since the last call, ns, as `sync` does, at the price of two reads."""
        if -UNNOTICED_NS < time.time_ns() - time.monotonic_ns() - self.offset_ns < UNNOTICED_NS:
            return 0
        return self.sync()

    def sync(self) -> int:
        """Measure the offset anew and return the step of the wall clock since, ns; 0 if there was none.

        The wall clock is read between two reads of the monotonic one; a change within the brackets is noise.
        """
        offset_ns, bracket_ns = self._best()
        change_ns = offset_ns - self.offset_ns
        stepped = abs(change_ns) > self._bracket_ns + bracket_ns
        if stepped or bracket_ns < self._bracket_ns:
            self.offset_ns, self._bracket_ns = offset_ns, bracket_ns
        return change_ns if stepped else 0

    def _best(self) -> tuple[int, int]:
        """Return offset and bracket, ns, of the first attempt that nothing interrupted, else of the best."""
        best = self._measure()
        for _ in range(_ATTEMPTS - 1):
            if best[1] <= _GOOD_BRACKET_NS:
                break
            best = min(best, self._measure(), key=lambda attempt: attempt[1])
        return best

    @staticmethod
    def _measure() -> tuple[int, int]:
        before = time.monotonic_ns()
        wall = time.time_ns()
        after = time.monotonic_ns()
        return wall - (before + after) // 2, after - before
