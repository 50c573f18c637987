"""Slow sensors: each has a thread of its own, and what it brings joins the samples of the others at its tick."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import Final

from energymon.sampling.records import Sampled
from energymon.sensors.base import Raw, Sensor
from joulefeed.scheduling import raise_priority

NICE: Final = -10
"""Of every thread that samples, where real-time scheduling is not permitted."""
_AWAY: Final = 4
"""A slow sensor is read between ticks where the next one is this many times as far away as its last answer took."""


@dataclass(slots=True)
class OpenTick:
    """A tick that slow sensors are to bring their samples for."""

    due: Sampled
    """The tick without samples, `whole` where no sensor was busy when it began."""
    awaited: int
    """How many threads are still to come."""
    samples: list[tuple[int, Raw]] = field(default_factory=list)
    start_ns: int = 2**63
    end_ns: int = 0


@dataclass(slots=True)
class SlowSensor:
    """A slow sensor's own thread, released at every tick that finds it idle."""

    index: int
    busy: bool
    gate: SimpleQueue[OpenTick | None] = field(default_factory=SimpleQueue)
    took_ns: int = 0


class SlowSensors:
    """The threads of slow sensors. One that is not back from an earlier tick misses the tick and holds up nobody."""

    def __init__(
        self,
        sensors: Sequence[Sensor],
        deliver: Callable[[Sampled], None],
        deliver_late: Callable[[Iterable[Sampled]], None],
        spawn: Callable[..., object],
    ) -> None:
        """Take all sensors, what takes each tick and the answers that come after theirs, and what starts a thread."""
        self._sensors, self._deliver, self._deliver_late, self._spawn = sensors, deliver, deliver_late, spawn
        self._lock = threading.Lock()
        self._slow: list[SlowSensor] = []
        self._open: OpenTick | None = None

    def __len__(self) -> int:
        return len(self._slow)

    def add(self, index: int) -> None:
        """Give a sensor a thread of its own, by its place among all sensors."""
        self._spawn(self._sample, self.adopt(index, busy=False))

    def adopt(self, index: int, *, busy: bool = True) -> SlowSensor:
        """Take a sensor; a thread that hangs in it calls `serve` when it comes back."""
        slow = SlowSensor(index, busy)
        with self._lock:
            self._slow.append(slow)
        return slow

    def serve(self, slow: SlowSensor) -> None:
        """Sample a sensor that was adopted, on this thread, from now on."""
        with self._lock:
            slow.busy = False
        self._sample(slow)

    def release(self, due: Sampled, between: int | None) -> OpenTick | None:
        """Open a tick, close the one before it if a sensor is still missing, and release the threads that are idle.

        `between` is how long after this, ns, the next tick is, where this is a reading between ticks: nothing is closed
        then, and a thread that would not be back by then is not released. Returns None when there is none to wait for.
        """
        if between is None:
            self.hand_over()
        with self._lock:
            ready = [slow for slow in self._slow if not slow.busy]
            if between is not None:
                ready = [slow for slow in ready if _AWAY * slow.took_ns < between]
                if self._open is not None or not ready:
                    return None
            for slow in ready:
                slow.busy = True
            opened = self._open = OpenTick(due._replace(whole=len(ready) == len(self._slow)), 1 + len(ready))
        for slow in ready:
            slow.gate.put(opened)
        return opened

    def meet(self, opened: OpenTick, brought: Sampled, slow: SlowSensor | None = None) -> None:
        """Add samples to their tick; the last thread hands it over."""
        with self._lock:
            if slow is not None:
                slow.busy = False
            in_time = self._open is opened
            if in_time:
                opened.awaited -= 1
                if brought.samples:
                    opened.samples += brought.samples
                    opened.start_ns = min(opened.start_ns, brought.start_ns)
                    opened.end_ns = max(opened.end_ns, brought.end_ns)
            is_last = in_time and not opened.awaited
        if is_last:
            self.hand_over()
        elif not in_time:
            self._deliver_late((brought._replace(whole=False, late=True),))

    def hand_over(self) -> None:
        """Deliver what the open tick has brought, once."""
        with self._lock:
            opened, self._open = self._open, None
        if opened is not None:
            due = opened.due._replace(samples=opened.samples, start_ns=opened.start_ns, end_ns=opened.end_ns)
            self._deliver(due._replace(whole=due.whole and not opened.awaited))

    def end(self) -> None:
        """Let the threads end, each when its sensor has answered."""
        for slow in self._slow:
            slow.gate.put(None)

    def _sample(self, slow: SlowSensor) -> None:
        raise_priority(NICE)
        sensor = self._sensors[slow.index]
        while (opened := slow.gate.get()) is not None:
            start_ns = time.monotonic_ns()
            samples = [(slow.index, sensor.sample())]
            end_ns = time.monotonic_ns()
            slow.took_ns = end_ns - start_ns
            self.meet(opened, opened.due._replace(samples=samples, start_ns=start_ns, end_ns=end_ns), slow)
