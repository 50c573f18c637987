"""From readings of a sensor under a load with known edges to what the sensor samples; pure functions.

A value is taken to be the mean power of a window that ended some time before it was seen (arXiv 2312.02741). Window and
delay are those with which the share of the time under load explains the values, or a counter's increases, best.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Final, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from energymon.analysis.accuracy import SensorCalibration
from energymon.clock.monotonic import NS
from energymon.errors import SensorError
from energymon.reading import COUNTERS

_MIN_UPDATES: Final = 20
_MOST_UPDATES: Final = 3000
"""So many show a window; more take time."""
_LONGEST_WINDOW_S: Final = 3.0
_FOLLOWS: Final = 0.7
"""A window that leaves more than this of the values' deviation explains nothing."""
_BETTER: Final = 0.8
"""A part-time model leaves less than this of a full-time one's deviation; 0.6 of an H200's power, 0.94 of its mean."""
_SETTLE_S: Final = 0.5
"""How long after an edge, and a window and a delay, power is taken to be steady."""
_DUTIES: Final = (0.1, 0.25, 0.5, 0.75)
_AVERAGE: Final = 1.8
"""A window of so many updates is a running average."""
_MOST_SAMPLES: Final = 40
"""Of an average of more updates, whether each covers all of its time is unknown: trying it takes minutes."""

Floats: TypeAlias = NDArray[np.float64]


class Look(NamedTuple):
    """One reading of a sensor."""

    begin_ns: int
    """When the read call began, monotonic ns."""
    end_ns: int
    value: float
    """Cumulative joules of a counter, or watts."""


@dataclass(frozen=True, slots=True)
class _Model:
    window_s: float
    delay_s: float
    samples: int = 1
    """How many windows, an update apart, a value is the mean of."""


class _Updates(NamedTuple):
    """The values that a sensor took, as power, and when they were seen, s."""

    t_s: Floats
    watts: Floats
    period_s: float
    read_s: float
    changes: int


def calibrate(
    looks: Sequence[Look], load: Sequence[tuple[int, int]], of: tuple[str, str, str], about: tuple[str, str, str]
) -> SensorCalibration:
    """Return what the readings of a source show of it; raises SensorError for fewer than 20 updates, or no load.

    Args:
        looks: Readings in order, some of them before the load and after it.
        load: When the device was busy, begin and end, monotonic ns, in order.
        of: Device, domain and source.
        about: The device's model, its UUID, and its driver.
    """
    name = " ".join(of)
    if not load:
        raise SensorError(f"{name}: there was no load to calibrate it by")
    origin_ns = load[0][0]
    seen = _updates(looks, origin_ns, counts=of[2] in COUNTERS, name=name)
    edges = (np.array(load, dtype=np.float64).ravel() - origin_ns) / NS
    busy = np.concatenate([[0.0], np.cumsum(np.where(np.arange(len(edges) - 1) % 2 == 0, np.diff(edges), 0.0))])

    def busy_s(until_s: Floats) -> Floats:
        return np.asarray(np.interp(until_s, edges, busy), dtype=np.float64)

    def misfit(model: _Model) -> float:
        return float(np.abs(_residuals(model, seen, busy_s)).mean())

    spread = float(np.abs(seen.watts - np.median(seen.watts)).mean())
    model = _best(seen, misfit)
    left = misfit(model) / spread if spread > 0 else 1.0
    follows = left <= _FOLLOWS
    span_s = max(model.window_s, seen.period_s) + (model.samples - 1) * seen.period_s
    # A model that explains nothing says nothing of when power is steady.
    idle_w, busy_w = _steady(seen, busy_s, (span_s + model.delay_s if follows else 0.0) + _SETTLE_S, name)
    return SensorCalibration(
        *of,
        *about,
        update_ms=seen.period_s * 1e3,
        read_ms=seen.read_s * 1e3,
        window_ms=1e3 * (model.window_s + (model.samples - 1) * seen.period_s) if follows else None,
        duty=min(1.0, model.window_s / seen.period_s) if follows else None,
        delay_ms=max(0.0, model.delay_s * 1e3) if follows else None,
        idle_w=idle_w,
        busy_w=busy_w,
        misfit=left,
        updates=seen.changes,
    )


def compared(found: Iterable[SensorCalibration]) -> list[SensorCalibration]:
    """Return calibrations with each counter's busy power over that of the power source with the longest window."""
    every = list(found)
    follow = [c for c in every if c.source not in COUNTERS and c.window_ms is not None]
    powers = sorted(follow, key=lambda c: c.window_ms or 0.0)
    longest = {(power.device, power.domain): power.busy_w for power in powers if power.busy_w > 0}
    return [
        replace(one, ratio=one.busy_w / busy_w)
        if one.source in COUNTERS and (busy_w := longest.get((one.device, one.domain)))
        else one
        for one in every
    ]


def _updates(looks: Sequence[Look], origin_ns: int, *, counts: bool, name: str) -> _Updates:
    """Return the updates that were seen, each in the middle between two readings of different values."""
    if len(looks) < _MIN_UPDATES:
        raise SensorError(f"{name}: it was read {len(looks)} times; expected readings throughout the load")
    middle = np.array([(k.begin_ns + k.end_ns - 2 * origin_ns) / 2 for k in looks]) / NS
    values = np.array([k.value for k in looks])
    at = np.flatnonzero(np.diff(values)) + 1
    if len(at) < _MIN_UPDATES:
        raise SensorError(
            f"{name}: its value changed {len(at)} times in {middle[-1] - middle[0]:.0f} s; expected {_MIN_UPDATES} "
            "updates at least: it is frozen, or its device was not put under load"
        )
    t_s = (middle[at - 1] + middle[at]) / 2
    apart = np.diff(t_s)
    # Two updates of the same value look like one that was late.
    times = np.round(apart / np.median(apart))
    usual = times == 1
    period_s = float(apart[times > 0].sum() / times.sum())
    watts = values[at]
    if counts:
        t_s, watts = t_s[1:][usual], (np.diff(watts) / apart)[usual]
    return _Updates(t_s, watts, period_s, float(np.median(np.diff(middle))), len(at))


def _residuals(model: _Model, seen: _Updates, busy_s: Callable[[Floats], Floats]) -> Floats:
    """Return what of the values a straight line through the share of the time under load leaves."""
    step = max(1, len(seen.t_s) // _MOST_UPDATES)
    end_s, watts = seen.t_s[::step] - model.delay_s, seen.watts[::step]
    share = np.zeros_like(end_s)
    for k in range(model.samples):
        until_s = end_s - k * seen.period_s
        share += (busy_s(until_s) - busy_s(until_s - model.window_s)) / model.window_s / model.samples
    around = share - share.mean()
    variance = float(around @ around)
    slope = float(around @ watts) / variance if variance > 0 else 0.0
    left: Floats = watts - watts.mean() - slope * around
    return left


def _best(seen: _Updates, misfit: Callable[[_Model], float]) -> _Model:
    """Return the model with the least deviation; a full-time sensor's, unless a part-time one's is clearly better."""
    shortest_s = max(seen.read_s, seen.period_s / 20)
    windows = np.geomspace(shortest_s, _LONGEST_WINDOW_S, 40)
    delays = np.linspace(-seen.read_s, 2 * seen.period_s + 0.02, 40)
    free, step_s = min(_models(windows, delays), key=misfit), delays[1] - delays[0]
    for reach in (1.0, 0.25):
        # The grid around the best model is searched again.
        windows = free.window_s * np.geomspace(0.88**reach, 1.14**reach, 9)
        around = free.delay_s + step_s * np.linspace(-reach, reach, 9)
        free = min(_models(np.maximum(windows, shortest_s), around), key=misfit)
    whole = min(_models([seen.period_s], np.linspace(delays[0], delays[-1], 200)), key=misfit)
    several = round(free.window_s / seen.period_s)
    if free.window_s > _AVERAGE * seen.period_s and several <= _MOST_SAMPLES:
        # A running average, of all of the time or of windows that are an update apart.
        parts = [
            _Model(duty * seen.period_s, delay_s, samples)
            for duty, delay_s, samples in product(_DUTIES, delays, (several - 1, several, several + 1))
        ]
        whole, free = free, min(parts, key=misfit)
    return free if misfit(free) < _BETTER * misfit(whole) else whole


def _models(windows: Iterable[float], delays: Iterable[float]) -> Iterator[_Model]:
    return (_Model(float(window_s), float(delay_s)) for window_s, delay_s in product(windows, delays))


def _steady(seen: _Updates, busy_s: Callable[[Floats], Floats], after_s: float, name: str) -> tuple[float, float]:
    """Return the median power, W, where the device was idle, and where it was busy, for `after_s` at least."""
    share = (busy_s(seen.t_s) - busy_s(seen.t_s - after_s)) / after_s
    idle, busy = seen.watts[share < 1e-3], seen.watts[share > 1 - 1e-3]
    if not len(idle) or not len(busy):
        raise SensorError(f"{name}: it has no value of a steady load; expected spans of {after_s:.1f} s idle and busy")
    return float(np.median(idle)), float(np.median(busy))
