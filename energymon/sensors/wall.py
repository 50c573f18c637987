"""The sensor of a meter at the wall: a thread asks the meter, and each tick takes its latest answer.

A meter takes up to seconds to answer, and a plug is not to be asked ten times a second.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Mapping
from typing import Any, Final

from energymon.clock.monotonic import NS
from energymon.errors import CounterError, SensorError
from energymon.reading import LAG_S, START, WALL_S
from energymon.sensors.base import CLOSED, RawCounter, SensorChannel, SensorPoint
from energymon.sensors.counter import Counter, PowerIntegral
from energymon.sensors.meters import Meter
from energymon.ticker.ticker import Operation, Raw

_BYTES: Final = 1024
_WORDS: Final = 120
_MAX_W: Final = 30_000.0
"""Above what any machine draws."""
_COARSE_J: Final = 100.0
"""A counter with larger steps says less of an epoch than power that is read every second."""
_STILL_S: Final = 180.0
"""A machine that is on moves any finer counter within this, and some counters are updated once a minute."""
_AWAY: Final = 3
"""Periods without an answer, after which the meter counts as lost."""


class WallSensor:
    """One meter. The thread leaves its answers in a file in memory, which compiled code can read at a tick."""

    def __init__(self, meter: Meter) -> None:
        """Ask it once, to know what it has; raises SensorError."""
        self._meter, self.name = meter, f"wall {meter.device}"
        before_ns = time.monotonic_ns()
        shown = meter.read()
        self._period_s = max(WALL_S, 2 * (time.monotonic_ns() - before_ns) / NS)
        names = [f"{meter.kind}-energy"] if shown.joules is not None and shown.unit_j <= _COARSE_J else []
        names += [f"{meter.kind}-power"] if shown.watts is not None else []
        if not names:
            raise SensorError(f"{meter.place}: shows neither power nor energy in steps of {_COARSE_J:g} J or less")
        self.channels = tuple(SensorChannel(meter.device, "wall", source) for source in names)
        self._unit_j = shown.unit_j
        self._counter = Counter(unit_j=shown.unit_j or 1.0, wrap=None, max_w=_MAX_W, lag_s=LAG_S[names[0]])
        self._counter.still_ns = round(_STILL_S * NS)
        self._integral = PowerIntegral(interval_ns=round(self._period_s * NS))
        self._data, self._points, self._asked_ns, self._is_lost = b"", list[SensorPoint](), before_ns, False
        self._fd = os.memfd_create("energymon-wall", os.MFD_CLOEXEC)
        self._closing, self._lock = threading.Event(), threading.Lock()
        self._write(before_ns, shown.watts, shown.joules, "")
        threading.Thread(target=self._ask, name=self.name, daemon=True).start()

    def sample(self) -> Raw:
        """Return the latest answer between two times, ns."""
        return [time.monotonic_ns(), os.pread(self._fd, _BYTES, 0), time.monotonic_ns()]

    def operations(self) -> list[Operation] | None:
        """Return the read."""
        return [Operation(_BYTES, fd=self._fd, seeks=True)] if self._fd != CLOSED else None

    def decode(self, raw: Raw, offset_ns: int) -> list[SensorPoint]:
        """Return the points of the latest answer, at the time of the answer; none while the meter is lost."""
        data: bytes | OSError = raw[1]
        if data == self._data or isinstance(data, OSError):
            if self._is_lost or raw[0] - self._asked_ns < _AWAY * round(self._period_s * NS) + 10 * NS:
                return self._points
            return self._lost(f"no answer for {(raw[0] - self._asked_ns) / NS:.0f} s", raw[0] + offset_ns)
        after_ns, before_ns, watts, joules, why, again_ns = json.loads(data)
        if after_ns != again_ns:
            # The thread was writing.
            return self._points
        self._data, self._asked_ns = data, after_ns
        if why:
            return self._lost(why, after_ns + offset_ns)
        self._is_lost = False
        t_ns = (before_ns + after_ns) // 2
        points = [self._point(c, watts, joules, before_ns, t_ns, after_ns, offset_ns) for c in self.channels]
        self._points = [p._replace(flags="", problem="", counter=None) for p in points if p.joules is not None]
        return points

    def _point(
        self,
        channel: SensorChannel,
        watts: float | None,
        joules: float | None,
        before_ns: int,
        t_ns: int,
        after_ns: int,
        offset_ns: int,
    ) -> SensorPoint:
        at_ns = t_ns + offset_ns
        shown = watts if channel.source.endswith("-power") else joules
        if shown is None:
            return SensorPoint(channel, at_ns, None, problem=f"{self._meter.place}: shows it no more")
        if channel.source.endswith("-power"):
            total_j, flags = self._integral.update(shown, t_ns)
            why = self._integral.why if flags == START else ""
            return SensorPoint(channel, at_ns, total_j, flags, why, watts=watts)
        counter, count = self._counter, round(shown / self._unit_j)
        try:
            total_j, flags = counter.update(count, after_ns, before_ns)
        except CounterError as error:
            return SensorPoint(channel, at_ns, None, problem=f"{self._meter.place}: {error}")
        early_ns, late_ns = max(t_ns - counter.since_ns, 0), after_ns - t_ns
        if not flags:
            return SensorPoint(channel, at_ns, total_j, "", "", early_ns, late_ns)
        start = RawCounter(count, self._unit_j, None, _MAX_W, self._meter.place)
        return SensorPoint(channel, at_ns, total_j, flags, counter.why, early_ns, late_ns, start)

    def _lost(self, why: str, t_utc_ns: int) -> list[SensorPoint]:
        self._is_lost, self._points = True, []
        self._counter.interrupt()
        return [SensorPoint(channel, t_utc_ns, None, problem=why) for channel in self.channels]

    def describe(self) -> dict[str, object]:
        """Return what is read, how often, and what the maker says of its error."""
        counted = self.channels[0].source.endswith("-energy")
        return {
            "sensor": self.name,
            "meter": self._meter.place,
            "period_s": self._period_s,
            "unit_j": self._unit_j if counted else None,
            "channels": [
                {
                    **channel._asdict(),
                    "lag_s": LAG_S[channel.source],
                    "delay_s": self._counter.delay_s if channel.source.endswith("-energy") else None,
                    "error_share": self._meter.error_share,
                }
                for channel in self.channels
            ],
        }

    def delay(self, delays_s: Mapping[str, float]) -> None:
        """Take how much older than its update a counter's value may be, s, by source."""
        self._counter.delay_s = delays_s.get(self.channels[0].source, 0.0)

    def close(self) -> None:
        """End the thread when the meter has answered, and forget its answers; may be called twice."""
        self._closing.set()
        with self._lock:
            if self._fd != CLOSED:
                os.close(self._fd)
                self._fd = CLOSED

    def _ask(self) -> None:
        while not self._closing.wait(self._period_s - time.monotonic() % self._period_s):
            before_ns = time.monotonic_ns()
            try:
                shown: tuple[Any, Any, str] = (*self._meter.read()[:2], "")
            except SensorError as error:
                shown = None, None, str(error)[:_WORDS]
            self._write(before_ns, *shown)

    def _write(self, before_ns: int, watts: float | None, joules: float | None, why: str) -> None:
        """Leave an answer; its time is at both ends, by which a reader sees that it is whole."""
        after_ns = time.monotonic_ns()
        answer = json.dumps([after_ns, before_ns, watts, joules, why, after_ns])
        with self._lock:
            if self._fd != CLOSED:
                os.pwrite(self._fd, answer.encode().ljust(_BYTES), 0)
