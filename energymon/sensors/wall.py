"""The sensor of a meter at the wall: a thread asks the meter, and each tick takes its latest answer.

A meter takes up to seconds to answer, and a plug is not to be asked ten times a second.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Sequence
from typing import Any, Final

from energymon.clock.monotonic import NS
from energymon.errors import SensorError
from energymon.reading import LAG_S, WALL_S
from energymon.sensors.base import CLOSED, FileSensor, Raw, SensorChannel, SensorPoint
from energymon.sensors.counter import Counter, DeviceSeries, PowerIntegral
from energymon.sensors.meters import MeterValue, WallMeter

_COARSE_J: Final = 100.0
"""A counter with larger steps says less of an epoch than power that is read every second."""
_STILL_NS: Final = 180 * NS
"""A machine that is on moves any finer counter within this, and some counters are updated once a minute."""
_AWAY_NS: Final = 30 * NS
"""Without an answer for this long a meter is lost: each of its errors is an answer, and takes 10 s at most."""


class WallSensor(FileSensor):
    """One meter. The thread leaves its answers in a file in memory, which compiled code can read at a tick."""

    size = 1024

    def __init__(self, meter: WallMeter) -> None:
        """Ask it once, to know what it has; raises SensorError."""
        self._meter, self.name = meter, f"wall {meter.device}"
        before_ns = time.monotonic_ns()
        first = meter.read()
        self._period_s = max(WALL_S, 2 * (time.monotonic_ns() - before_ns) / NS)
        made: dict[str, Counter | PowerIntegral] = {}
        if first.joules is not None and first.unit_j <= _COARSE_J:
            source = f"{meter.kind}-energy"
            # No machine draws 30 kW.
            made[source] = Counter(
                unit_j=first.unit_j, wrap=None, max_w=30_000.0, lag_s=LAG_S[source], still_ns=_STILL_NS
            )
        if first.watts is not None:
            source = f"{meter.kind}-power"
            made[source] = PowerIntegral(interval_ns=round(self._period_s * NS), lag_s=LAG_S[source])
        if not made:
            raise SensorError(f"{meter.place}: shows neither power nor energy in steps of {_COARSE_J:g} J or less")
        self.series = [
            DeviceSeries(SensorChannel(meter.device, "wall", source), meter.place, what)
            for source, what in made.items()
        ]
        self._data, self._answered_ns, self._points = b"", before_ns, list[SensorPoint]()
        self.fd = os.memfd_create("energymon-wall", os.MFD_CLOEXEC)
        self._closing, self._lock = threading.Event(), threading.Lock()
        self._leave(before_ns, self._values(first))
        threading.Thread(target=self._ask, name=self.name, daemon=True).start()

    def decode(self, raw: Raw, offset_ns: int) -> list[SensorPoint]:
        """Return the points of the latest answer, at the time of that; none while the meter is lost."""
        now_ns, data, _ = raw
        values: str | Sequence[int | None] = f"no answer for {(now_ns - self._answered_ns) / NS:.0f} s"
        before_ns = after_ns = now_ns
        if data != self._data:
            try:
                after_ns, before_ns, values, again_ns = json.loads(data)
            except (TypeError, ValueError):
                again_ns = None
            if after_ns != again_ns:
                # The thread was writing, or the sensor is closed.
                return self._points
            self._data, self._answered_ns = data, after_ns
        elif not self._points or now_ns - self._answered_ns < _AWAY_NS:
            return self._points
        points = []
        for i, series in enumerate(self.series):
            value = None if isinstance(values, str) else values[i]
            if value is None:
                why = values if isinstance(values, str) else "it shows this no more"
                points.append(series.unread(why, after_ns + offset_ns))
            else:
                points.append(series.point(value, (before_ns + after_ns) // 2, before_ns, after_ns, offset_ns))
        self._points = [p._replace(flags="", problem="", counter=None) for p in points if p.joules is not None]
        return points

    def describe(self) -> dict[str, Any]:
        """Return the meter, how often it is asked, and its error as its maker states it."""
        share = self._meter.error_share
        channels = [
            {**one.describe(), "unit_j": one.counter and one.counter.unit_j, "error_share": share}
            for one in self.series
        ]
        return {"sensor": self.name, "meter": self._meter.place, "period_s": self._period_s, "channels": channels}

    def close(self) -> None:
        """End the thread when the meter has answered, and forget its answers; may be called twice."""
        self._closing.set()
        with self._lock:
            super().close()

    def _values(self, shown: MeterValue) -> list[int | None]:
        """Return the counter's steps, and the power in mW, as far as they are shown."""
        steps = [
            (shown.watts, 1e-3) if series.counter is None else (shown.joules, series.counter.unit_j)
            for series in self.series
        ]
        return [None if value is None else round(value / unit) for value, unit in steps]

    def _ask(self) -> None:
        while not self._closing.wait(self._period_s - time.monotonic() % self._period_s):
            before_ns = time.monotonic_ns()
            try:
                self._leave(before_ns, self._values(self._meter.read()))
            except SensorError as error:
                self._leave(before_ns, str(error)[:150])

    def _leave(self, before_ns: int, values: str | Sequence[int | None]) -> None:
        """Write an answer, or why there is none, between two copies of its time: a reader sees whether it is whole."""
        after_ns = time.monotonic_ns()
        with self._lock:
            if self.fd != CLOSED:
                answer = json.dumps([after_ns, before_ns, values, after_ns]).encode()
                os.pwrite(self.fd, answer.ljust(self.size), 0)
