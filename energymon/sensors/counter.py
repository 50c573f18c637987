"""From what a sensor shows to joules that only grow: counters unwrapped and vetted, watts integrated."""

from __future__ import annotations

from typing import Final

from energymon.clock.monotonic import NS
from energymon.errors import CounterError
from energymon.reading import INTERPOLATED, START
from energymon.sensors.base import RawCounter, SensorChannel, SensorPoint

_STILL_NS: Final = 2 * NS
"""No package, DRAM or board that is powered stays within one count for this long."""
_OLD_NS: Final = 2 * NS
_AHEAD_NS: Final = 20_000_000
"""A value's own time counts when it is no older, and no further ahead of its reading, than these."""
_BRIDGED_INTERVALS: Final = 3
"""Readings of power up to this many ticks apart have a straight line between them."""


class Counter:
    """Unwraps one hardware counter of energy, and finds of when the values are that it shows.

    A value that differs from the one read before it came to be after that reading began, less the counter's delay.
    A change is accepted when it implies no more than `max_w` since the earliest instant of the value before. One
    reading that does not fit is refused; when the next one continues from it, the counter was reset, and a new segment
    begins.
    """

    def __init__(
        self, *, unit_j: float, wrap: int | None, max_w: float, lag_s: float, still_ns: int = _STILL_NS
    ) -> None:
        self.unit_j = unit_j
        self.wrap = wrap
        self.max_w = max_w
        self._max_per_ns = max_w / unit_j / NS
        self.wrap_s = None if wrap is None else wrap * unit_j / max_w
        """How long it may go unread, s: the time in which it wraps at `max_w`; None when it does not wrap."""
        self.lag_s = lag_s
        """The longest time between two updates; the first value of a segment may be as old."""
        self.delay_s = 0.0
        """How much older a value may be than its update."""
        self._still_ns = still_ns
        self._last: int | None = None
        self._total = self._last_ns = self._changed_ns = 0
        self.since_ns = 0
        """The earliest instant that the value taken last may be of, ns of the monotonic clock."""
        self.why = ""
        """Why the segment began; "" for the first."""
        self._interrupted = False
        self._suspect: tuple[int, int] | None = None

    @property
    def age_s(self) -> float:
        """How old, s, the value may be that the counter shows."""
        return self.lag_s + self.delay_s

    def interrupt(self) -> None:
        """Note that it could not be read: a driver that was loaded again begins at 0.

        A counter that wraps is a register of the hardware, which a boot alone resets.
        """
        self._interrupted = self.wrap is None

    def update(self, raw: int, now_ns: int, before_ns: int | None = None) -> tuple[float, str]:
        """Take the value `raw`, in the counter's own units, read by `now_ns` of the monotonic clock.

        `before_ns` is when the reading started, where that matters. Returns cumulative joules and flags. Raises
        CounterError for a value that cannot be true, and for one that has not moved for two seconds or `still_ns`.
        """
        if before_ns is None:
            before_ns = now_ns
        wrap, last = self.wrap, self._last
        if raw < 0 or (wrap is not None and raw > wrap):
            raise CounterError(f"shows {raw}, expected 0 to {wrap}")
        if last is None:
            return self._restart(raw, before_ns, "")
        delta = self._beyond(last, raw)
        elapsed_ns = now_ns - self._last_ns
        if self.wrap_s is not None and elapsed_ns >= self.wrap_s * NS:
            why = f"may wrap in {_span(self.wrap_s * NS)}, and two readings are {_span(elapsed_ns)} apart"
            return self._restart(raw, before_ns, why)
        # A counter that was reset in an outage, and has since passed its old value, is seen by nothing else.
        if self._interrupted and raw <= self._max_per_ns * elapsed_ns:
            return self._restart(raw, before_ns, f"may have been reset in the {_span(elapsed_ns)} between two readings")
        # Two updates may follow each other more closely than they usually do.
        if not 0 <= delta <= self._max_per_ns * (now_ns - self.since_ns + self.lag_s * NS):
            return self._doubt(raw, delta, now_ns, before_ns)
        self._interrupted, self._suspect = False, None
        if delta:
            self._changed_ns = now_ns
            self.since_ns = self._last_ns - round(self.delay_s * NS)
            self._total += delta
        elif before_ns - self._changed_ns > self._still_ns:
            raise CounterError(f"has shown {raw} for {(before_ns - self._changed_ns) / NS:.1f} s: it is frozen")
        self._last, self._last_ns = raw, before_ns
        return self._total * self.unit_j, ""

    def _beyond(self, earlier: int, raw: int) -> int:
        """Return how many counts a value is beyond an earlier one, over one wrap at most."""
        return raw - earlier + (self.wrap if self.wrap is not None and raw < earlier else 0)

    def _restart(self, raw: int, now_ns: int, why: str) -> tuple[float, str]:
        self._last, self._last_ns, self._changed_ns, self._suspect = raw, now_ns, now_ns, None
        self.since_ns, self.why, self._interrupted = now_ns - round(self.age_s * NS), why, False
        return self._total * self.unit_j, START

    def _doubt(self, raw: int, delta: int, now_ns: int, before_ns: int) -> tuple[float, str]:
        suspect, self._suspect = self._suspect, (raw, before_ns)
        if suspect is not None:
            most = self._max_per_ns * (now_ns - suspect[1] + 2 * round(self.age_s * NS))
            if 0 <= self._beyond(suspect[0], raw) <= most:
                return self._restart(raw, before_ns, f"was reset: it went from {self._last} to {suspect[0]}")
        if delta < 0:
            raise CounterError(f"went back from {self._last} to {raw}")
        watts = delta * self.unit_j / max(now_ns - self.since_ns, 1) * NS
        raise CounterError(
            f"went from {self._last} to {raw}: that is {watts:.3g} W, and {self.max_w:.0f} W is possible"
        )


class PowerIntegral:
    """Joules from watts by the trapezoid rule, for a device that shows power alone.

    A tick or two that were missed are bridged and flagged; across a longer outage nobody knows what the power was,
    and a new segment begins.
    """

    delay_s = None

    def __init__(self, *, interval_ns: int, lag_s: float = 0.0) -> None:
        """Take the time between ticks, ns, and how old the power may be that is shown, s."""
        self._interval_ns = interval_ns
        self.age_s = lag_s
        self.dither_ns = 0
        """The longest random delay of a tick, ns."""
        self._joules = self._watts = 0.0
        self._last_ns: int | None = None
        self._read_ns = 0
        self.why = ""
        """Why the segment began; "" for the first."""

    def update(self, watts: float, now_ns: int, read_ns: int | None = None) -> tuple[float, str]:
        """Take the power at `now_ns` of the monotonic clock; return cumulative joules and flags.

        `read_ns` is when it was asked for, where the device gives its own time; whether ticks were missed goes by it.
        """
        asked_ns = now_ns if read_ns is None else read_ns
        since_ns = asked_ns - self._read_ns
        late_ns = self._interval_ns // 2 + self.dither_ns
        if self._last_ns is None or since_ns > _BRIDGED_INTERVALS * self._interval_ns + late_ns:
            flags = START
            if self._last_ns is not None:
                self.why = f"was not read for {_span(since_ns)}, and nothing counted its energy meanwhile"
        else:
            self._joules += (self._watts + watts) * (now_ns - self._last_ns) / (2 * NS)
            flags = INTERPOLATED if since_ns > self._interval_ns + late_ns else ""
        self._watts, self._last_ns, self._read_ns = watts, now_ns, asked_ns
        return self._joules, flags


class DeviceSeries:
    """One channel of a device: a counter, or power in mW that is integrated."""

    def __init__(self, channel: SensorChannel, label: str, what: Counter | PowerIntegral) -> None:
        """Take the device as messages name it."""
        self.channel, self._label, self._what = channel, label, what
        self.counter = what if isinstance(what, Counter) else None
        self.integral = what if isinstance(what, PowerIntegral) else None
        self._at_ns = 0

    def describe(self) -> dict[str, object]:
        """Return its channel, how old the value may be that is shown, s, and a counter's delay, s."""
        return {**self.channel._asdict(), "lag_s": self._what.age_s, "delay_s": self._what.delay_s}

    def point(self, value: int, t_ns: int, before_ns: int, after_ns: int, offset_ns: int) -> SensorPoint:
        """Take a value with its own time, and the begin and the end of its reading, monotonic clock's, ns."""
        at_ns = read_ns = (before_ns + after_ns) // 2
        if -_OLD_NS <= t_ns - read_ns <= _AHEAD_NS:
            at_ns = min(t_ns, after_ns)
        # Driver and host may disagree; a series does not run backwards for that.
        at_ns = self._at_ns = max(at_ns, self._at_ns)
        if self.integral is not None:
            watts = value * 1e-3
            joules, flags = self.integral.update(watts, at_ns, read_ns)
            why = self.integral.why if flags == START else ""
            return SensorPoint(self.channel, at_ns + offset_ns, joules, flags, why, watts=watts)
        counter = self.counter
        assert counter is not None
        try:
            joules, flags = counter.update(value, after_ns, before_ns)
        except CounterError as error:
            return self._failed(str(error), read_ns + offset_ns)
        # The driver may say that the value is older than that.
        early_ns, late_ns = max(at_ns - counter.since_ns, 0), after_ns - at_ns
        if not flags:
            return SensorPoint(self.channel, at_ns + offset_ns, joules, "", "", early_ns, late_ns)
        shown = RawCounter(value, counter.unit_j, counter.wrap, counter.max_w, self._label)
        return SensorPoint(self.channel, at_ns + offset_ns, joules, flags, counter.why, early_ns, late_ns, shown)

    def unread(self, why: str, t_utc_ns: int) -> SensorPoint:
        """Return the point of a reading that failed; the device may have been reset when it is read again."""
        if self.counter is not None:
            self.counter.interrupt()
        return self._failed(why, t_utc_ns)

    def _failed(self, why: str, t_utc_ns: int) -> SensorPoint:
        return SensorPoint(self.channel, t_utc_ns, None, "", f"{self._label}: {why}")


def _span(ns: float) -> str:
    return f"{ns / NS:.3g} s" if ns >= NS else f"{ns / 1e6:.3g} ms"
