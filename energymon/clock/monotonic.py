"""One clock for every reading, which nobody sets, its offset to the wall clock, and the grid of ticks on it."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from energymon.errors import OptionError

NS: Final = 1_000_000_000
"""Nanoseconds in a second."""
LAST_NS: Final = 2**62
"""The last instant that can be asked for, UTC ns: sums with it stay within what a store holds."""

UNNOTICED_NS: Final = 100_000
"""A wall clock this close to where it should be was not set."""
_64_BITS: Final = 2**64 - 1


def duration_ns(option: str, text: str) -> int:
    """Return ns from a number of seconds, minutes, hours or days, 60s, 5m, 2h or 1d; raises OptionError."""
    seconds = {"s": 1, "m": 60, "h": 3600, "d": 86_400}.get(text[-1:], 0)
    try:
        found_ns = round(float(text[:-1]) * seconds * 1e9)
    except (ValueError, OverflowError):
        found_ns = 0
    if not 0 < found_ns <= LAST_NS:
        raise OptionError(f"{option} {text!r}: expected a duration, 60s, 5m, 2h or 1d")
    return found_ns


def tick_at(utc_ns: int, interval_ns: int) -> int:
    """Return the latest tick k·interval that is not after `utc_ns`, UTC ns."""
    return utc_ns - utc_ns % interval_ns


def next_tick(utc_ns: int, interval_ns: int) -> int:
    """Return the first tick k·interval after `utc_ns`, UTC ns."""
    return tick_at(utc_ns, interval_ns) + interval_ns


def dither_ns(tick_ns: int, within_ns: int) -> int:
    """Return how long after a tick it is taken where ticks are dithered, 0 to `within_ns`, as ticker.c does.

    Random from tick to tick and the same for the same tick: splitmix64 (Steele, Lea and Flood, OOPSLA 2014).
    """
    if not within_ns:
        return 0
    mixed = (tick_ns + 0x9E3779B97F4A7C15) & _64_BITS
    mixed = (mixed ^ mixed >> 30) * 0xBF58476D1CE4E5B9 & _64_BITS
    mixed = (mixed ^ mixed >> 27) * 0x94D049BB133111EB & _64_BITS
    return (mixed ^ mixed >> 31) % within_ns


class Clock:
    """An agent's clock: UTC when the first agent of a store starts, and the time that passes from then on.

    Nobody sets it. It counts as CLOCK_BOOTTIME does, the time that the machine is suspended included. Linux disciplines
    all of its clocks at the same rate, so the offsets between them move only when the wall clock is set or the machine
    is suspended.
    """

    def __init__(self, boot_offset_ns: int | None = None) -> None:
        """Take the offset to CLOCK_BOOTTIME, ns, of an agent before this one, whose time goes on."""
        self.asleep_ns, _ = _ahead_of_monotonic(boot_ns, good_ns=0)
        """How long the machine has been suspended since it was booted, ns, as of the last `sync`."""
        wall_offset_ns, self._bracket_ns = _ahead_of_monotonic(time.time_ns)
        self.boot_offset_ns = wall_offset_ns - self.asleep_ns if boot_offset_ns is None else boot_offset_ns
        """This clock minus CLOCK_BOOTTIME, ns; it stays what it is."""
        self.wall_ns = wall_offset_ns - self.offset_ns
        """The wall clock minus this one, ns, as of the last `sync`."""

    @property
    def offset_ns(self) -> int:
        """This clock minus the monotonic one, ns; it changes when the machine was suspended, in `sync`."""
        return self.boot_offset_ns + self.asleep_ns

    def now_ns(self) -> int:
        """Return the time now, ns since 1970."""
        return time.monotonic_ns() + self.offset_ns

    def step_ns(self) -> int:
        """Return the step of the wall clock since the last call, ns, as `sync` does, at the price of two reads."""
        beside_ns = time.time_ns() - time.monotonic_ns() - self.offset_ns - self.wall_ns
        return 0 if -UNNOTICED_NS < beside_ns < UNNOTICED_NS else self.sync()

    def sync(self) -> int:
        """Measure the offsets again; return the step of the wall clock since, ns, 0 for a change within the noise."""
        asleep_ns, _ = _ahead_of_monotonic(boot_ns, good_ns=0)
        if abs(asleep_ns - self.asleep_ns) >= UNNOTICED_NS:
            self.asleep_ns = asleep_ns
        offset_ns, bracket_ns = _ahead_of_monotonic(time.time_ns)
        wall_ns = offset_ns - self.offset_ns
        change_ns = wall_ns - self.wall_ns
        stepped = abs(change_ns) > self._bracket_ns + bracket_ns
        if stepped or bracket_ns < self._bracket_ns:
            self.wall_ns, self._bracket_ns = wall_ns, bracket_ns
        return change_ns if stepped else 0


def utc_text(ns: int) -> str:
    """Return UTC ns as ISO 8601, to the microsecond."""
    from datetime import UTC, datetime

    return datetime.fromtimestamp(ns // 1000 / 1e6, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def boot_ns() -> int:
    """Return the time since the machine was booted, suspended time included, ns."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


@functools.cache
def boot_id() -> str:
    """Return which start of the machine, and which time namespace, `boot_ns` counts in."""
    started = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    try:
        return f"{started} {Path('/proc/self/ns/time').stat().st_ino}"
    except FileNotFoundError:
        # Linux before 5.6 has one for all.
        return started


def _ahead_of_monotonic(read_ns: Callable[[], int], good_ns: int = 20_000) -> tuple[int, int]:
    """Return how far a clock is ahead of the monotonic one, and the time between the two reads around its own, ns.

    That is of the first attempt that took no longer than `good_ns`, else of the best.
    """
    attempts: list[tuple[int, int]] = []
    while len(attempts) < 5 and (not attempts or attempts[-1][1] > good_ns):
        before_ns, shown_ns, after_ns = time.monotonic_ns(), read_ns(), time.monotonic_ns()
        attempts.append((shown_ns - (before_ns + after_ns) // 2, after_ns - before_ns))
    return min(attempts, key=lambda attempt: attempt[1])
