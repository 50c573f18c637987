"""What a monitor passes on: ticks and the raw answers to them, gaps, and steps of the wall clock."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from energymon.sensors.base import Raw
from energymon.ticker.ticker import Taken


class Sampled(NamedTuple):
    """What the sensors brought for one tick, raw."""

    tick_ns: int
    """UTC ns."""
    offset_ns: int
    """What the monotonic clock lacked to UTC."""
    samples: Sequence[tuple[int, Raw]]
    """Sensor's place in the monitor's list, and what its `sample` returned."""
    whole: bool
    """Whether every sensor answered in time."""
    late: bool
    """Whether this is no tick of its own: a straggler's part of one that was handed over before, or a reading between
    ticks, of which `tick_ns` is then the begin."""
    start_ns: int
    """When the first of these samples started, ns of the monotonic clock."""
    end_ns: int
    """When the last of them was done, ns of the monotonic clock."""
    ahead_ns: int = 0
    """How far the clock of the ticks was ahead of UTC: 0 unless the wall clock was set."""


@dataclass(frozen=True, slots=True)
class Gap:
    """Ticks that passed unseen: the process was stopped or starved, or the machine was suspended."""

    first_ns: int
    last_ns: int
    interval_ns: int


@dataclass(frozen=True, slots=True)
class ClockStep:
    """The wall clock was set."""

    t_ns: int
    """When it was noticed, ns of the clock of the ticks, which nobody sets."""
    step_ns: int
    wall_ns: int
    """How far the wall clock is ahead of the clock of the ticks since, ns."""
    within_ns: int
    """How long before it was noticed it may have been, ns."""


Record = Sampled | Gap | ClockStep


def sampled(taken: Taken, sensors: Sequence[int], offset_ns: int, ahead_ns: int, *, whole: bool) -> Sampled:
    """Return a tick that compiled code took; `sensors` are the places of the sensors whose answers it has, in order."""
    samples = list(zip(sensors, taken.raw, strict=False))
    start_ns, end_ns = (taken.raw[0][0], taken.raw[-1][-1]) if samples else (0, 0)
    return Sampled(taken.tick_ns, offset_ns, samples, whole, False, start_ns, end_ns, ahead_ns)
