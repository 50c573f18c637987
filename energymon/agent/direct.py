"""The counters of this host, read by the program itself: two readings a window, and no agent."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterable, Mapping
from functools import cached_property
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, Literal
from weakref import WeakSet

from energymon.clock.monotonic import NS, Clock, boot_ns
from energymon.errors import EnergyError, NoSensorError, OptionError, WindowError
from energymon.reading import COUNTERS, ESTIMATE, Event, Reading
from energymon.sampling.outages import Outages
from energymon.sensors.base import Sensor, SensorChannel, wraps
from energymon.sensors.discover import SensorConfig, discover
from joulefeed.closing import Closing

if TYPE_CHECKING:
    from energymon.analysis.query import WindowEnergy

_COUNTED: Final = frozenset({*COUNTERS, ESTIMATE})
_INTERVAL_NS: Final = NS // 10
"""Sensors ask how far apart ticks are; there are none."""
_FIRST_NS: Final = 200_000
"""When the first reading follows an edge; each further one comes half as much later again."""
_LONGEST_NS: Final = NS // 2
"""For how long after an edge a counter is read that does not move."""
_LATER_S: Final = 0.02
"""What begins the first window goes first: `exec` starts its command."""
_SETTLED_S: Final = 10.0
_PATIENCE_S: Final = 5.0
_READS_A_WRAP: Final = 4


class Span:
    """A window that a meter began, and the readings of it."""

    def __init__(self, meter: Meter) -> None:
        self.meter = meter
        self.readings: list[Reading] = []
        self.events: list[Event] = []
        self.start_ns = self.end_ns = 0
        """The instants just after all counters were read, ns of `boot_ns`; the end is 0 while the window is open."""
        self.start_utc_ns = self.end_utc_ns = 0

    def end(self) -> None:
        """Read all counters, and end; raises WindowError in a process that was forked since."""
        self.end_ns, self.end_utc_ns = self.meter.edge()


class Meter(Closing):
    """Reads the counters of this host in this process when a window begins and ends, which takes microseconds.

    A thread reads them again after each edge until all have moved, to bound the joules that were not shown yet, and
    reads those that wrap while a window is open. A board that shows power alone has no figure: power must be sampled.
    """

    def __init__(self, *, estimate: Literal["off", "missing"] = "off", config: SensorConfig | None = None) -> None:
        """Open the counters: all, or those of `config`.

        `estimate="missing"` estimates, labelled so, the CPU energy that no sensor measures. Raises NoSensorError where
        nothing counts energy, SensorError for a named sensor that is missing, and OptionError.
        """
        self._config = config or SensorConfig(estimate=estimate == "missing")
        if self._config.wall:
            raise OptionError("a meter at the wall is asked once a second, which takes an agent: expected none here")
        # Which counters rest or repeat others is seen while the first window goes on.
        self._found = discover(self._config, _INTERVAL_NS, settles=False)
        self._sensors = [one for one in self._found.sensors if any(c.source in _COUNTED for c in one.channels)]
        self._lacking = {part: str(gap) for part, gap in self._found.unreadable.items()}
        for sensor in set(self._found.sensors) - set(self._sensors):
            self._lacking |= {c[:2]: "it shows power alone, which an agent must sample" for c in sensor.channels}
            sensor.close()
        if not self._sensors and self._lacking:
            lost = "; ".join(f"{' '.join(part)}: {why}" for part, why in self._lacking.items())
            raise NoSensorError(f"nothing here can be measured without an agent: {lost}")
        self._found.require()
        self.node = os.uname().nodename
        self._pid, self._clock = os.getpid(), Clock()
        self._wrap_ns = round(NS * min(wraps(self._sensors).values(), default=1e6)) // _READS_A_WRAP
        self._outages = Outages(self._sensors, 0, lambda t_ns, kind, text: Event(t_ns, self.node, kind, text))
        self._known: set[SensorChannel] = set()
        self._resting: set[SensorChannel] = set()
        self._described: Iterable[Sensor] = self._sensors
        self._failed: EnergyError | None = None
        self._edge_ns = self._read_ns = self._shown_ns = 0
        self._fresh_ns = [0] * len(self._sensors)
        """By sensor: what it showed last is surely no older than this, ns of `boot_ns`."""
        self._raws: list[tuple[int, Any, int, int]] = []
        self._spans: WeakSet[Span] = WeakSet()
        self._closed = False
        # Held while sensors are read, and for what the threads share.
        self._woken = threading.Condition()
        self._settling = threading.Thread(target=self._settle, name="energy settling", daemon=True)
        self._settling.start()
        threading.Thread(target=self._follow, name="energy meter", daemon=True).start()

    def begin(self) -> Span:
        """Begin a window; raises WindowError for a meter that is closed or another process's."""
        span = Span(self)
        self._require_own()
        with self._woken:
            self._spans.add(span)
        span.start_ns, span.start_utc_ns = self.edge()
        return span

    def edge(self) -> tuple[int, int]:
        """Read all counters; return the instant just after by `boot_ns` and UTC, ns. Raises as `begin` does."""
        self._require_own()
        with self._woken:
            self._read(range(len(self._sensors)))
            self._edge_ns = boot_ns()
            self._woken.notify_all()
            return self._edge_ns, time.time_ns()

    def energy(self, span: Span) -> WindowEnergy:
        """Return what the host used in a span, once all counters have moved; those that do not have no figure.

        Raises WindowError and SensorError.
        """
        from energymon.analysis.attribution import channels_of, energy_of
        from energymon.analysis.query import WindowEnergy, standing_events

        self._require_own()
        description = self.description
        channels = channels_of(description, self.node)
        with self._woken:
            self._woken.wait_for(lambda: self._is_over(span), _PATIENCE_S)
            self._spans.discard(span)
        channel_of = attrgetter("device", "domain", "source")
        # A counter that rests, or repeats another one, is in no description; that is known later than it is first read.
        counted = [r for r in span.readings if channel_of(r) not in self._resting]
        shown = {channel_of(r) for r in counted if r.t_ns - (r.early_ns or 0) >= span.end_ns}
        for channel in sorted({channel_of(r) for r in counted} - shown):
            why = f"{' '.join(channel)} stood still for half a second after the end, so that nothing bounds its joules"
            span.events.append(Event(span.end_utc_ns, self.node, "sensor-frozen", why))
        counted = [r for r in counted if channel_of(r) in shown]
        found = energy_of(counted, channels, span.start_ns, span.end_ns, 1)
        events = *standing_events(description, span.start_utc_ns, self.node), *span.events
        return WindowEnergy(
            *(found.energies, found.best, found.components, found.disagreements),
            node=self.node,
            start_ns=span.start_utc_ns,
            end_ns=span.end_utc_ns,
            missed_share=0.0,
            events=events,
        )

    @cached_property
    def description(self) -> Mapping[str, Any]:
        """What an agent says of the same sensors; waits until it is known. Raises SensorError."""
        from energymon.analysis.accuracy import describe, load_calibrations

        self._settling.join(_SETTLED_S)
        if self._failed is not None:
            raise self._failed
        calibrations = load_calibrations(lambda _: None)  # `doctor` says what is wrong with them
        sensors = (one.describe() for one in self._described)
        return describe(sensors, self._lacking, self._found, calibrations, _INTERVAL_NS)

    def close(self) -> None:
        """Close the counters; windows that were not looked up have no figure. May be called twice."""
        with self._woken:
            self._closed = True
            self._woken.notify_all()
        self._settling.join(_SETTLED_S)
        for sensor in self._sensors:
            sensor.close()

    def _require_own(self) -> None:
        if self._pid != os.getpid() or self._closed:
            raise WindowError("this meter was closed, or is the parent process's; make another one")

    def _settle(self) -> None:
        """See in other descriptors which counters of processors rest or repeat others, and how often they move."""
        if not any(one.channels[0].source.startswith("rapl") for one in self._sensors):
            return
        time.sleep(_LATER_S)
        names = tuple(name for name in self._config.sensors if name != "nvml")
        try:
            settled = discover(self._config._replace(sensors=names, boards=""), _INTERVAL_NS)
        except EnergyError as error:
            self._failed = error
            return
        settled.close()
        boards = [one for one in self._sensors if one.channels[0].domain == "gpu"]
        self._described = *settled.sensors, *boards
        self._lacking |= {part: str(gap) for part, gap in settled.unreadable.items()}
        described = {channel for one in self._described for channel in one.channels}
        self._resting = {channel for one in self._sensors for channel in one.channels} - described

    def _read(self, which: Iterable[int]) -> None:
        """Read sensors; the lock is held."""
        clock = self._clock
        clock.step_ns()
        utc_ns = clock.wall_ns + clock.boot_offset_ns
        self._read_ns = boot_ns()
        self._raws += [(i, self._sensors[i].sample(), clock.offset_ns + clock.wall_ns, utc_ns) for i in which]

    def _due(self) -> tuple[int, Iterable[int]]:
        """Return when sensors are read again, ns of `boot_ns`, and which."""
        since_ns = self._read_ns - self._edge_ns
        behind = [i for i, fresh_ns in enumerate(self._fresh_ns) if fresh_ns < self._edge_ns]
        if behind and since_ns < _LONGEST_NS:
            return self._read_ns + max(_FIRST_NS, since_ns // 2), behind
        return self._read_ns + (self._wrap_ns if self._spans else 3600 * NS), range(len(self._sensors))

    def _follow(self) -> None:
        """Read the counters whenever that is due, and decode the answers."""
        while True:
            with self._woken:
                if not self._raws:
                    self._woken.wait(max(0, self._due()[0] - boot_ns()) / NS)
                if self._closed:
                    return
                due_ns, which = self._due()
                if not self._raws and boot_ns() >= due_ns:
                    self._read(which)
                raws, self._raws, read_ns = self._raws, [], self._read_ns
            for raw in raws:
                self._decode(*raw)
            with self._woken:
                self._shown_ns = read_ns
                self._woken.notify_all()

    def _is_over(self, span: Span) -> bool:
        """Whether all counters have moved since the end of a span, or were read for long enough."""
        return min(self._fresh_ns) >= span.end_ns or self._shown_ns >= span.end_ns + _LONGEST_NS

    def _decode(self, index: int, raw: Any, offset_ns: int, utc_ns: int) -> None:
        """Hand what a sensor showed to the open windows; `utc_ns` is the wall clock minus `boot_ns`."""
        readings: list[Reading] = []
        events: list[Event] = []
        fresh_ns = 2**62
        for point in self._sensors[index].decode(raw, offset_ns):
            channel, t_ns = point.channel, point.t_ns - utc_ns
            if channel.source not in _COUNTED or channel in self._resting:
                continue
            events += self._outages.watch(point, is_new=channel not in self._known)
            if point.joules is None:
                fresh_ns = 0
                continue
            self._known.add(channel)
            fresh_ns = min(fresh_ns, t_ns - (point.early_ns or 0))
            readings.append(
                Reading(0, t_ns, self.node, *channel, point.joules, point.flags, point.early_ns, point.late_ns)
            )
        with self._woken:
            self._fresh_ns[index] = fresh_ns
            for span in list(self._spans):
                span.readings += readings
                span.events += events
                if span.end_ns and self._is_over(span):
                    self._spans.discard(span)


_shared: dict[int, Meter] = {}
_sharing: dict[int, threading.Lock] = {}
"""By process: in a fork, the thread that held its parent's lock is not there."""


def shared_meter() -> Meter:
    """Return the meter of this process, opened when it is first asked for; raises as Meter does."""
    pid = os.getpid()
    with _sharing.setdefault(pid, threading.Lock()):
        if pid not in _shared:
            _shared[pid] = Meter()
        return _shared[pid]
