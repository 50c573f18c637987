"""What a monitor passes on: ticks and the raw answers to them, gaps, and steps of the wall clock."""

from __future__ import annotations

from collections.abc import Sequence
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
    """Whether this is no tick of its own: an answer that came after its tick was handed over, or a reading between
    ticks, which began at `tick_ns`."""
    start_ns: int
    """When the first of these samples started, ns of the monotonic clock."""
    end_ns: int
    """When the last of them was done, ns of the monotonic clock."""
    ahead_ns: int = 0
    """How far the clock of the ticks was ahead of UTC: 0 unless the wall clock was set."""


class Gap(NamedTuple):
    """Ticks that passed unseen: the process was stopped or starved, or the machine was suspended."""

    first_ns: int
    last_ns: int
    interval_ns: int


class ClockStep(NamedTuple):
    """The wall clock was set."""

    t_ns: int
    """When it was noticed, ns of the clock of the ticks."""
    step_ns: int
    wall_ns: int
    """How far the wall clock is ahead of the clock of the ticks since, ns."""
    within_ns: int
    """How long before it was noticed it may have been, ns."""


Record = Sampled | Gap | ClockStep


def sampled(taken: Taken, sensors: Sequence[int], offset_ns: int, wall_ns: int, *, whole: bool) -> Sampled:
    """Return a tick that compiled code took, by the places of its sensors, in order, and the offsets of its clock."""
    samples = list(zip(sensors, taken.raw, strict=False))
    start_ns, end_ns = (taken.raw[0][0], taken.raw[-1][-1]) if samples else (0, 0)
    return Sampled(taken.tick_ns, offset_ns + wall_ns, samples, whole, False, start_ns, end_ns, -wall_ns)
