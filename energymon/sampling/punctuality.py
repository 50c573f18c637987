"""How punctual ticks are: how late they were, and which were missed."""

from __future__ import annotations

from collections import deque
from typing import Final, NamedTuple

from energymon.clock.monotonic import NS

_TICKS: Final = 100_000
"""The latest ticks that the summary is of."""
_QUIET_NS: Final = NS
_MAX_QUIET_NS: Final = 10 * NS


class Jitter:
    """Collects ticks and sums them up."""

    def __init__(self) -> None:
        self._late_ns: deque[int] = deque(maxlen=_TICKS)
        self._skew_ns: deque[int] = deque(maxlen=_TICKS)
        self._ticks = 0
        self._missed = 0

    def add(self, late_ns: int, skew_ns: int) -> None:
        """Take a tick: from the tick to its first sample, and from there to the end of its last, ns."""
        self._late_ns.append(late_ns)
        self._skew_ns.append(skew_ns)
        self._ticks += 1

    def miss(self, ticks: int) -> None:
        """Take ticks that no sample was taken at."""
        self._missed += ticks

    def summary(self) -> dict[str, float | int]:
        """Return quantiles of both, µs, and how many ticks were sampled and missed."""
        found: dict[str, float | int] = {"ticks": self._ticks, "missed": self._missed}
        for name, values_ns in (("late", sorted(self._late_ns)), ("skew", sorted(self._skew_ns))):
            if values_ns:
                for quantile, label in ((0.5, "p50"), (0.99, "p99"), (1.0, "max")):
                    at = min(len(values_ns) - 1, int(quantile * len(values_ns)))
                    found[f"{name}_{label}_us"] = values_ns[at] / 1e3
        return found


class Portion(NamedTuple):
    """Missed ticks that one event reports."""

    first_ns: int
    """The first of them, UTC ns."""
    ticks: int
    longest: int
    """How many followed each other at most."""


class Missed:
    """Collects missed ticks; rare ones are reported each, those that do not cease every ten seconds."""

    def __init__(self) -> None:
        self._first_ns = self._end_ns = 0
        self._count = self._longest = self._run = 0
        self._reported_ns: int | None = None
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
        """Return what to report at `now_ns` of the monotonic clock, once; `last` leaves nothing for later."""
        since_ns = _MAX_QUIET_NS if self._reported_ns is None else now_ns - self._reported_ns
        if not self._count or (since_ns < self._quiet_ns and not last):
            return None
        self._quiet_ns = min(2 * self._quiet_ns, _MAX_QUIET_NS) if since_ns < 2 * self._quiet_ns else _QUIET_NS
        self._reported_ns = now_ns
        portion = Portion(self._first_ns, self._count, self._longest)
        self._count = self._longest = 0
        return portion
