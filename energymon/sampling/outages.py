"""How punctual ticks are, and what was missing, as events: ticks, sensors that were late, channels that were lost."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from energymon.clock.monotonic import NS
from energymon.reading import START, Event
from energymon.sensors.base import Sensor, SensorChannel, SensorPoint, wrapping, wraps

if TYPE_CHECKING:
    from energymon.sampling.records import Sampled

_TICKS: Final = 100_000
"""The latest ticks that the summary is of."""
_QUIET_NS: Final = NS
_MAX_QUIET_NS: Final = 10 * NS
"""How often a channel that comes and goes, and ticks that are missed all the time, are reported at most."""


class Jitter:
    """Collects ticks and sums them up."""

    def __init__(self) -> None:
        self._late_ns: deque[int] = deque(maxlen=_TICKS)
        self._skew_ns: deque[int] = deque(maxlen=_TICKS)
        self.ticks = 0
        """How many were sampled."""
        self.missed = 0
        """How many passed without a sample; the caller counts them."""

    def add(self, late_ns: int, skew_ns: int) -> None:
        """Take a tick: from the tick to its first sample, and from there to the end of its last, ns."""
        self._late_ns.append(late_ns)
        self._skew_ns.append(skew_ns)
        self.ticks += 1

    def summary(self) -> dict[str, float | int]:
        """Return quantiles of both, µs, and how many ticks were sampled and missed."""
        found: dict[str, float | int] = {"ticks": self.ticks, "missed": self.missed}
        for name, values_ns in (("late", sorted(self._late_ns)), ("skew", sorted(self._skew_ns))):
            if values_ns:
                for quantile, label in ((0.5, "p50"), (0.99, "p99"), (1.0, "max")):
                    at = min(len(values_ns) - 1, int(quantile * len(values_ns)))
                    found[f"{name}_{label}_us"] = values_ns[at] / 1e3
        return found


class Portion(NamedTuple):
    """Missed ticks that one event reports: the first, UTC ns, how many, and how many followed each other at most."""

    first_ns: int
    ticks: int
    longest: int


class Missed:
    """Collects missed ticks. Rare ones are reported each; those that go on are reported every ten seconds."""

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


class Outages:
    """Collects outages of the sensors of one agent; one thread uses it."""

    def __init__(self, sensors: Sequence[Sensor], interval_ns: int, report: Callable[[int, str, str], Event]) -> None:
        """Take the sensors, the time between two ticks, ns, and what makes an event of its time, kind and message."""
        self._sensors, self._interval_ns, self._report = sensors, interval_ns, report
        self.lost_ns: dict[SensorChannel, int] = {}
        """Channels that are lost, and since when, UTC ns."""
        self._reported_ns: dict[tuple[SensorChannel, str], int] = {}
        self.unseen = Missed()
        """Ticks that passed without a sample."""
        self._slow = [Missed() for _ in sensors]
        self._slowest_ns = [0] * len(sensors)
        self._wraps = wraps(sensors)
        self._wrapping = wrapping(sensors, interval_ns)

    def note(self, record: Sampled) -> None:
        """Note the sensors that did not answer in time at a tick, and how long late answers took."""
        if record.whole and not record.late:
            return
        answered = {index for index, _ in record.samples}
        if record.late:
            for index in answered:
                self._slowest_ns[index] = max(self._slowest_ns[index], record.end_ns - record.start_ns)
        else:
            for index in set(range(len(self._sensors))) - answered:
                self._slow[index].add(record.tick_ns, 1, self._interval_ns)

    def watch(self, point: SensorPoint, *, is_new: bool) -> Iterator[Event]:
        """Yield the events of a channel that is lost, comes back, or whose series starts again."""
        channel = point.channel
        name = f"{channel.device} {channel.domain} ({channel.source})"
        if point.joules is None:
            if channel not in self.lost_ns and self._is_due(channel, "lost", point.t_ns):
                self.lost_ns[channel] = point.t_ns
                yield self._report(point.t_ns, "sensor-lost", f"{name}: {point.problem}")
            return
        if self.lost_ns.pop(channel, None) is not None:
            yield self._report(point.t_ns, "sensor-back", f"{name}: read again")
        if point.flags == START and not is_new and self._is_due(channel, "restart", point.t_ns):
            why = self._wrapping.get(channel[:2]) or point.problem
            message = f"{name}: {why}; windows across this instant have no figure of it"
            yield self._report(point.t_ns, "counter-restart", message)

    def missed(self, *, last: bool) -> Iterator[Event]:
        """Yield the events of missed ticks, each with the time of the first; `last` leaves nothing for later."""
        now_ns, interval_ns = time.monotonic_ns(), self._interval_ns
        if (unseen := self.unseen.portion(now_ns, last=last)) is not None:
            longest_s = unseen.longest * interval_ns / NS
            cost = "counters carry the energy over them"
            wrapped = [f"{' '.join(part)} (in {s:.1f} s)" for part, s in self._wraps.items() if longest_s >= s]
            if wrapped:
                cost = f"a counter may wrap unseen in {longest_s:.1f} s: windows across them have no figure of "
                cost += ", ".join(wrapped)
            passed = f"{_ticks(unseen.ticks)} passed unseen ({unseen.ticks * interval_ns / NS:.3f} s)"
            yield self._report(unseen.first_ns, "ticks-missed", f"{passed}; {cost}")
        for index, slow in enumerate(self._slow):
            if (portion := slow.portion(now_ns, last=last)) is not None:
                took_ns, self._slowest_ns[index] = self._slowest_ns[index], 0
                took = f", answers took up to {took_ns / 1e6:.0f} ms" if took_ns else ""
                message = f"{self._sensors[index].name}: no answer in time at {_ticks(portion.ticks)} of "
                message += f"{interval_ns / 1e6:g} ms{took}; it is read less often, and short windows are less exact"
                yield self._report(portion.first_ns, "sensor-slow", message)

    def _is_due(self, channel: SensorChannel, what: str, t_ns: int) -> bool:
        if t_ns - self._reported_ns.get((channel, what), 0) < _MAX_QUIET_NS:
            return False
        self._reported_ns[channel, what] = t_ns
        return True


def _ticks(count: int) -> str:
    return f"{count} tick{'s' if count > 1 else ''}"
