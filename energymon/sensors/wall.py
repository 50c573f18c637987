"""The sensor of a meter at the wall: a thread asks the meter, and each tick takes its latest answer.

A meter takes up to seconds to answer, and a plug is not to be asked ten times a second.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Final

from energymon.clock.monotonic import NS
from energymon.errors import SensorError
from energymon.reading import LAG_S, WALL_S
from energymon.sensors.base import CLOSED, SensorChannel, SensorPoint
from energymon.sensors.counter import Counter, DeviceSeries, PowerIntegral
from energymon.sensors.meters import MeterValue, WallMeter
from energymon.ticker.ticker import Operation, Raw

_BYTES: Final = 1024
_WORDS: Final = 150
_MAX_W: Final = 30_000.0
"""Above what any machine draws."""
_COARSE_J: Final = 100.0
"""A counter with larger steps says less of an epoch than power that is read every second."""
_STILL_NS: Final = 180 * NS
"""A machine that is on moves any finer counter within this, and some counters are updated once a minute."""
_AWAY_NS: Final = 30 * NS
"""Without an answer for this long a meter is lost: each of its errors is an answer, and takes 10 s at most."""


class WallSensor:
    """One meter. The thread leaves its answers in a file in memory, which compiled code can read at a tick."""

    def __init__(self, meter: WallMeter) -> None:
        """Ask it once, to know what it has; raises SensorError."""
        self._meter, self.name = meter, f"wall {meter.device}"
        before_ns = time.monotonic_ns()
        first = meter.read()
        self._period_s = max(WALL_S, 2 * (time.monotonic_ns() - before_ns) / NS)
        made: list[tuple[str, Counter | PowerIntegral]] = []
        if first.joules is not None and first.unit_j <= _COARSE_J:
            lag_s = LAG_S[f"{meter.kind}-energy"]
            counter = Counter(unit_j=first.unit_j, wrap=None, max_w=_MAX_W, lag_s=lag_s, still_ns=_STILL_NS)
            made.append(("energy", counter))
        if first.watts is not None:
            made.append(("power", PowerIntegral(interval_ns=round(self._period_s * NS))))
        if not made:
            raise SensorError(f"{meter.place}: shows neither power nor energy in steps of {_COARSE_J:g} J or less")
        self._series = [
            DeviceSeries(SensorChannel(meter.device, "wall", f"{meter.kind}-{name}"), meter.place, what)
            for name, what in made
        ]
        self.channels = tuple(series.channel for series in self._series)
        self._data, self._answered_ns, self._points = b"", before_ns, list[SensorPoint]()
        self._fd = os.memfd_create("energymon-wall", os.MFD_CLOEXEC)
        self._closing, self._lock = threading.Event(), threading.Lock()
        self._leave(before_ns, self._values(first))
        threading.Thread(target=self._ask, name=self.name, daemon=True).start()

    def sample(self) -> Raw:
        """Return the latest answer between two times, ns."""
        begin_ns = time.monotonic_ns()
        try:
            answer: bytes | None = os.pread(self._fd, _BYTES, 0)
        except OSError:
            answer = None  # it is closed
        return [begin_ns, answer, time.monotonic_ns()]

    def operations(self) -> list[Operation] | None:
        """Return the read."""
        return [Operation(_BYTES, fd=self._fd, seeks=True)] if self._fd != CLOSED else None

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
                # The thread was writing.
                return self._points
            self._data, self._answered_ns = data, after_ns
        elif not self._points or now_ns - self._answered_ns < _AWAY_NS:
            return self._points
        points = []
        for i, series in enumerate(self._series):
            value = None if isinstance(values, str) else values[i]
            if value is None:
                why = values if isinstance(values, str) else "it shows this no more"
                points.append(series.failed(why, after_ns + offset_ns))
                if series.counter is not None:
                    series.counter.interrupt()
            else:
                points.append(series.point(value, (before_ns + after_ns) // 2, before_ns, after_ns, offset_ns))
        self._points = [p._replace(flags="", problem="", counter=None) for p in points if p.joules is not None]
        return points

    def describe(self) -> dict[str, object]:
        """Return the meter, how often it is asked, and its error as its maker states it."""
        channels = [
            {
                **series.describe(),
                "unit_j": None if series.counter is None else series.counter.unit_j,
                "error_share": self._meter.error_share,
            }
            for series in self._series
        ]
        return {"sensor": self.name, "meter": self._meter.place, "period_s": self._period_s, "channels": channels}

    def delay(self, delays_s: Mapping[str, float]) -> None:
        """Take how much older than its update a counter's value may be, s, by source."""
        for series in self._series:
            series.delay(delays_s)

    def close(self) -> None:
        """End the thread when the meter has answered, and forget its answers; may be called twice."""
        self._closing.set()
        with self._lock:
            if self._fd != CLOSED:
                os.close(self._fd)
                self._fd = CLOSED

    def _values(self, shown: MeterValue) -> list[int | None]:
        """Return the counter's steps, and the power in mW, as far as they are shown."""
        steps = [
            (shown.watts, 1e-3) if series.counter is None else (shown.joules, series.counter.unit_j)
            for series in self._series
        ]
        return [None if value is None else round(value / unit) for value, unit in steps]

    def _ask(self) -> None:
        while not self._closing.wait(self._period_s - time.monotonic() % self._period_s):
            before_ns = time.monotonic_ns()
            try:
                self._leave(before_ns, self._values(self._meter.read()))
            except SensorError as error:
                self._leave(before_ns, str(error)[:_WORDS])

    def _leave(self, before_ns: int, values: str | Sequence[int | None]) -> None:
        """Write an answer, or why there is none, between two copies of its time: a reader sees whether it is whole."""
        after_ns = time.monotonic_ns()
        with self._lock:
            if self._fd != CLOSED:
                os.pwrite(self._fd, json.dumps([after_ns, before_ns, values, after_ns]).encode().ljust(_BYTES), 0)
