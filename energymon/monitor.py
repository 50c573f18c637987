"""Sampler threads that are released together at every tick of the grid."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Final

from energymon.clock import NS, Clock, next_tick, tick_at
from energymon.sensors.base import Point, Sensor

__all__ = ["ClockStep", "Gap", "Monitor", "Record", "TickPoints"]

_LAST_TICK_NS: Final = NS
"""A stopping monitor waits this long at most for one more tick, which closes windows that ended before it."""
_JOIN_S: Final = 2.0


@dataclass(frozen=True, slots=True)
class TickPoints:
    """What the samplers brought for one tick."""

    tick_ns: int
    points: tuple[Point, ...]
    whole: bool
    """Whether every sampler answered in time and no channel failed."""
    late: bool = False
    """Whether this is a straggler's part of a tick that was handed over before."""


@dataclass(frozen=True, slots=True)
class Gap:
    """Ticks that passed unseen: the process was stopped or starved, or the wall clock jumped ahead."""

    first_ns: int
    last_ns: int
    interval_ns: int


@dataclass(frozen=True, slots=True)
class ClockStep:
    """The wall clock was set."""

    t_ns: int
    step_ns: int


Record = TickPoints | Gap | ClockStep


class Monitor:
    """Reads every sensor at every tick t_k = k·interval (UTC) and hands the results to `sink`.

    The timekeeper sleeps to the tick, releases the other samplers together and reads the first sensor itself: a
    wake-up costs more than a reading. A sampler that has not come back from an earlier tick, a GPU that hangs for
    one, misses the tick and holds up nobody. `sink` is called from these threads and must be quick. `on_failure`
    is called if one of them dies of an unforeseen exception.
    """

    def __init__(
        self,
        sensors: Sequence[Sensor],
        interval_ns: int,
        sink: Callable[[Record], None],
        on_failure: Callable[[BaseException], None],
        clock: Clock | None = None,
    ) -> None:
        self._first, *self._others = sensors
        self._interval_ns = interval_ns
        self._sink = sink
        self._on_failure = on_failure
        self._clock = clock or Clock()
        self._stop = threading.Lock()
        self._stop.acquire()
        self._gates: list[SimpleQueue[int | None]] = [SimpleQueue() for _ in self._others]
        self._samplers = [
            threading.Thread(target=self._guard, args=(self._sample, i), name=f"sampler-{s.name}", daemon=True)
            for i, s in enumerate(self._others)
        ]
        self._timekeeper = threading.Thread(target=self._guard, args=(self._keep_time,), name="timekeeper", daemon=True)
        # Guards what follows; held for a few statements only.
        self._meeting = threading.Lock()
        self._busy = [False] * len(self._others)
        self._tick_ns: int | None = None
        self._points: list[Point] = []
        self._awaited = 0
        self._skipped = False

    def start(self) -> None:
        """Start the threads; they inherit the caller's scheduling."""
        for thread in (*self._samplers, self._timekeeper):
            thread.start()

    def stop(self) -> None:
        """Take one last tick and end the threads; one that hangs in a driver dies with the process."""
        self._stop.release()
        self._timekeeper.join(_LAST_TICK_NS / NS + _JOIN_S)
        for gate in self._gates:
            gate.put(None)
        for thread in self._samplers:
            thread.join(_JOIN_S)
        self._hand_over()

    def _guard(self, body: Callable[..., None], *args: int) -> None:
        try:
            body(*args)
        except BaseException as error:  # noqa: BLE001 - told to the owner, who ends the process
            self._on_failure(error)

    def _keep_time(self) -> None:
        clock, interval_ns = self._clock, self._interval_ns
        awaited = next_tick(clock.utc_ns(), interval_ns)
        stopping = False
        while not stopping:
            wait_ns = awaited - clock.utc_ns()
            if self._stop.acquire(timeout=max(0, wait_ns) / NS):
                wait_ns = awaited - clock.utc_ns()
                if wait_ns > _LAST_TICK_NS:
                    return
                stopping = True
                time.sleep(max(0, wait_ns) / NS)
            step_ns = clock.sync()
            now = clock.utc_ns()
            if step_ns:
                self._sink(ClockStep(now, step_ns))
            if now < awaited and not stopping:
                continue
            tick = max(tick_at(now, interval_ns), awaited)
            if tick > awaited:
                self._sink(Gap(awaited, tick - interval_ns, interval_ns))
            self._take(tick)
            awaited = tick + interval_ns

    def _take(self, tick_ns: int) -> None:
        """Open the tick, closing the one before it if somebody is still missing, and read."""
        self._hand_over()
        with self._meeting:
            ready = [i for i, busy in enumerate(self._busy) if not busy]
            for i in ready:
                self._busy[i] = True
            self._skipped = len(ready) < len(self._others)
            self._tick_ns, self._awaited = tick_ns, 1 + len(ready)
        for i in ready:
            self._gates[i].put(tick_ns)
        self._meet(tick_ns, self._first.read(self._clock))

    def _sample(self, i: int) -> None:
        gate, sensor, clock = self._gates[i], self._others[i], self._clock
        while (tick_ns := gate.get()) is not None:
            points = sensor.read(clock)
            self._meet(tick_ns, points, i)

    def _meet(self, tick_ns: int, points: list[Point], sampler: int | None = None) -> None:
        """Add a sensor's points to its tick; whoever comes last hands it over."""
        with self._meeting:
            if sampler is not None:
                self._busy[sampler] = False
            in_time = tick_ns == self._tick_ns
            if in_time:
                self._points.extend(points)
                self._awaited -= 1
            last = in_time and not self._awaited
        if last:
            self._hand_over()
        elif not in_time:
            self._sink(TickPoints(tick_ns, tuple(points), whole=False, late=True))

    def _hand_over(self) -> None:
        """Pass on what the current tick has brought, once."""
        with self._meeting:
            if self._tick_ns is None:
                return
            whole = not self._awaited and not self._skipped and all(p.joules is not None for p in self._points)
            record = TickPoints(self._tick_ns, tuple(self._points), whole)
            self._tick_ns, self._points = None, []
        self._sink(record)
