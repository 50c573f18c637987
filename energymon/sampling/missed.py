"""Ticks that were missed for one reason: told at once, and in portions where they go on."""

from __future__ import annotations

from typing import Final, NamedTuple

from energymon.clock.monotonic import NS

__all__ = ["Missed", "Portion"]

_QUIET_NS: Final = NS
_MAX_QUIET_NS: Final = 10 * NS


class Portion(NamedTuple):
    """Missed ticks that one event tells."""

    first_ns: int
    """The first of them, UTC ns."""
    ticks: int
    longest: int
    """How many followed each other at most."""


class Missed:
    """Collects missed ticks; those that come rarely are told each, those that do not cease every ten seconds."""

    def __init__(self) -> None:
        self._first_ns = self._end_ns = 0
        self._count = self._longest = self._run = 0
        self._told_ns: int | None = None
        self._quiet_ns = _QUIET_NS

    def add(self, first_ns: int, count: int, interval_ns: int) -> None:
        """Take `count` ticks from `first_ns` on, UTC ns."""
        if not self._count:
            self._first_ns = first_ns
        self._run = count + (self._run if first_ns == self._end_ns else 0)
        self._longest = max(self._longest, self._run)
        self._count += count
        self._end_ns = first_ns + count * interval_ns

    def portion(self, now_ns: int, *, last: bool = False) -> Portion | None:
        """Return what is to be told at `now_ns` of the monotonic clock, once; `last` leaves nothing for later."""
        since_ns = _MAX_QUIET_NS if self._told_ns is None else now_ns - self._told_ns
        if not self._count or (since_ns < self._quiet_ns and not last):
            return None
        self._quiet_ns = min(2 * self._quiet_ns, _MAX_QUIET_NS) if since_ns < 2 * self._quiet_ns else _QUIET_NS
        self._told_ns = now_ns
        told = Portion(self._first_ns, self._count, self._longest)
        self._count = self._longest = 0
        return told
