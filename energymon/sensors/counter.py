"""From what a sensor shows to joules that only grow: counters unwrapped and vetted, watts integrated."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from energymon.clock.monotonic import NS
from energymon.errors import CounterError
from energymon.reading import INTERPOLATED, START

_FROZEN_NS: Final = 2 * NS
"""No package, DRAM or board that is powered stays within one count for this long."""
_BRIDGED_INTERVALS: Final = 3
"""Readings of power up to this many ticks apart have a straight line between them."""


class Counter:
    """Unwraps one hardware counter of energy.

    A change is accepted when it implies no more than `max_w`. One reading that does not fit is refused and
    waited out; when the next one continues from the refused one, the counter was reset, and a new segment
    begins.
    """

    __slots__ = (
        "_changed_ns",
        "_last",
        "_last_ns",
        "_max_per_ns",
        "_slack_ns",
        "_suspect",
        "_total",
        "_unit_j",
        "_wrap_ns",
        "max_w",
        "wrap",
    )

    def __init__(self, *, unit_j: float, wrap: int | None, max_w: float, lag_s: float) -> None:
        self._unit_j = unit_j
        self.wrap = wrap
        self.max_w = max_w
        self._max_per_ns = max_w / unit_j / NS
        # In an outage this long the counter may have wrapped twice.
        self._wrap_ns = None if wrap is None else wrap / self._max_per_ns
        # Two updates of the counter may fall between readings that are closer together than that.
        self._slack_ns = 0
        self.allow_lag(lag_s)
        self._total = 0
        self._last: int | None = None
        self._last_ns = 0
        self._changed_ns = 0
        self._suspect: tuple[int, int] | None = None

    def allow_lag(self, lag_s: float) -> None:
        """Take how old the value may be that the counter shows."""
        self._slack_ns = round(2 * lag_s * NS)

    @property
    def wrap_s(self) -> float | None:
        """How long it may go unread, s: the time in which it wraps at `max_w`; None when it does not wrap."""
        return None if self._wrap_ns is None else self._wrap_ns / NS

    def update(self, raw: int, now_ns: int, before_ns: int | None = None) -> tuple[float, str]:
        """Take the value `raw`, in the counter's own units, read by `now_ns` of the monotonic clock.

        `before_ns` is when the reading started, where that matters. Returns cumulative joules and flags. Raises
        CounterError for a value that cannot be true, and for one that has not moved for two seconds.
        """
        if before_ns is None:
            before_ns = now_ns
        wrap, last = self.wrap, self._last
        if raw < 0 or (wrap is not None and raw > wrap):
            raise CounterError(f"shows {raw}, expected 0 to {wrap}")
        if last is None:
            return self._restart(raw, before_ns)
        delta = raw - last
        if delta < 0 and wrap is not None:
            delta += wrap
        elapsed_ns = now_ns - self._last_ns
        if self._wrap_ns is not None and elapsed_ns >= self._wrap_ns:
            return self._restart(raw, before_ns)
        if not 0 <= delta <= self._max_per_ns * (elapsed_ns + self._slack_ns):
            return self._doubt(raw, delta, now_ns, before_ns)
        self._suspect = None
        if delta:
            self._changed_ns = now_ns
            self._total += delta
        elif before_ns - self._changed_ns > _FROZEN_NS:
            raise CounterError(f"has shown {raw} for {(before_ns - self._changed_ns) / NS:.1f} s: it is frozen")
        self._last, self._last_ns = raw, before_ns
        return self._total * self._unit_j, ""

    def advance(
        self, raws: Iterable[int], nows_ns: Sequence[int], befores_ns: Sequence[int] | None = None
    ) -> list[float] | None:
        """Take several values as `update` does; return None, with nothing changed, when one is not simply more.

        Arguments and joules are those of `update`.
        """
        last, unit_j = self._last, self._unit_j
        if last is None or self._suspect is not None:
            return None
        last_ns, changed_ns, total = self._last_ns, self._changed_ns, self._total
        most, slack_ns = self._max_per_ns, self._slack_ns
        wrap_ns = float("inf") if self._wrap_ns is None else self._wrap_ns
        joules: list[float] = []
        for raw, now_ns, before_ns in zip(raws, nows_ns, befores_ns or nows_ns, strict=True):
            delta = raw - last
            if now_ns - last_ns >= wrap_ns or not 0 <= delta <= most * (now_ns - last_ns + slack_ns):
                return None
            if delta:
                total += delta
                last, changed_ns = raw, now_ns
            elif before_ns - changed_ns > _FROZEN_NS:
                return None
            last_ns = before_ns
            joules.append(total * unit_j)
        if self.wrap is not None and last > self.wrap:
            return None
        self._last, self._last_ns, self._changed_ns, self._total = last, last_ns, changed_ns, total
        return joules

    def mark(self) -> tuple[int | None, int, int, int, tuple[int, int] | None]:
        """Return what `back_to` takes."""
        return self._last, self._last_ns, self._changed_ns, self._total, self._suspect

    def back_to(self, mark: tuple[int | None, int, int, int, tuple[int, int] | None]) -> None:
        """Undo all updates since `mark`."""
        self._last, self._last_ns, self._changed_ns, self._total, self._suspect = mark

    def _restart(self, raw: int, now_ns: int) -> tuple[float, str]:
        self._last, self._last_ns, self._changed_ns, self._suspect = raw, now_ns, now_ns, None
        return self._total * self._unit_j, START

    def _doubt(self, raw: int, delta: int, now_ns: int, before_ns: int) -> tuple[float, str]:
        suspect, self._suspect = self._suspect, (raw, before_ns)
        if suspect is not None:
            since = raw - suspect[0]
            if since < 0 and self.wrap is not None:
                since += self.wrap
            if 0 <= since <= self._max_per_ns * (now_ns - suspect[1] + self._slack_ns):
                return self._restart(raw, before_ns)
        if delta < 0:
            raise CounterError(f"went back from {self._last} to {raw}")
        watts = delta * self._unit_j / max(now_ns - self._last_ns, 1) * NS
        raise CounterError(
            f"went from {self._last} to {raw}: that is {watts:.3g} W, and {self.max_w:.0f} W is possible"
        )


class PowerIntegral:
    """Joules from watts by the trapezoid rule, for a device that shows power alone.

    A tick or two that were missed are bridged and flagged; across a longer outage nobody knows what the power was,
    and a new segment begins.
    """

    __slots__ = ("_gap_ns", "_joules", "_last_ns", "_outage_ns", "_read_ns", "_watts")

    def __init__(self, *, interval_ns: int) -> None:
        """Take the time between ticks."""
        self.strew(interval_ns, 0)
        self._joules = 0.0
        self._watts = 0.0
        self._last_ns: int | None = None
        self._read_ns = 0

    def update(self, watts: float, now_ns: int, read_ns: int | None = None) -> tuple[float, str]:
        """Take the power at `now_ns` of the monotonic clock; return cumulative joules and flags.

        `read_ns` is when it was asked for, where the device gives its own time; whether ticks were missed goes by it.
        """
        asked_ns = now_ns if read_ns is None else read_ns
        since_ns = asked_ns - self._read_ns
        if self._last_ns is None or since_ns > self._outage_ns:
            flags = START
        else:
            self._joules += (self._watts + watts) * (now_ns - self._last_ns) / (2 * NS)
            flags = INTERPOLATED if since_ns > self._gap_ns else ""
        self._watts, self._last_ns, self._read_ns = watts, now_ns, asked_ns
        return self._joules, flags

    def advance(self, watts: Iterable[float], nows_ns: Iterable[int], reads_ns: Iterable[int]) -> list[float] | None:
        """Take several values as `update` does; return None, with nothing changed, when ticks were missed."""
        last_ns, read_ns, last_w, total, gap_ns = self._last_ns, self._read_ns, self._watts, self._joules, self._gap_ns
        if last_ns is None:
            return None
        joules: list[float] = []
        for now_w, now_ns, asked_ns in zip(watts, nows_ns, reads_ns, strict=True):
            if asked_ns - read_ns > gap_ns:
                return None
            total += (last_w + now_w) * (now_ns - last_ns) / (2 * NS)
            joules.append(total)
            last_w, last_ns, read_ns = now_w, now_ns, asked_ns
        self._watts, self._last_ns, self._read_ns, self._joules = last_w, last_ns, read_ns, total
        return joules

    def strew(self, interval_ns: int, strewn_ns: int) -> None:
        """Take the time between ticks, and how late they are taken at random."""
        self._gap_ns = interval_ns + interval_ns // 2 + strewn_ns
        self._outage_ns = _BRIDGED_INTERVALS * interval_ns + interval_ns // 2 + strewn_ns

    def mark(self) -> tuple[float, int | None, int, float]:
        """Return what `back_to` takes."""
        return self._watts, self._last_ns, self._read_ns, self._joules

    def back_to(self, mark: tuple[float, int | None, int, float]) -> None:
        """Undo all updates since `mark`."""
        self._watts, self._last_ns, self._read_ns, self._joules = mark
