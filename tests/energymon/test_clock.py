import time
from itertools import pairwise

import pytest

from energymon.clock import monotonic as clock_module
from energymon.clock.monotonic import Clock, dither_ns, next_tick, tick_at

S = 1_000_000_000


@pytest.mark.parametrize("interval_ns", [1_000_000, 33_000_000, 100_000_000, 10 * S])
def test_ticks_lie_on_the_same_grid_wherever_one_begins(interval_ns):
    now = time.time_ns()
    tick = tick_at(now, interval_ns)
    assert tick % interval_ns == 0
    assert tick <= now < next_tick(now, interval_ns) == tick + interval_ns
    assert next_tick(tick, interval_ns) == tick + interval_ns


def test_a_clock_that_nobody_sets_has_no_steps():
    clock = Clock()
    assert [clock.sync() for _ in range(200)] == [0] * 200


class Shifted:
    """The module time, with what the kernel's clocks show moved by so many seconds."""

    CLOCK_BOOTTIME = time.CLOCK_BOOTTIME
    monotonic_ns = staticmethod(time.monotonic_ns)

    def __init__(self, *, wall_s=0.0, boot_s=0.0):
        self.time_ns = lambda: time.time_ns() + round(wall_s * S)
        self.clock_gettime_ns = lambda clock: time.clock_gettime_ns(clock) + round(boot_s * S)


@pytest.mark.parametrize("step_s", [2, -2, 0.01])
def test_a_step_of_the_wall_clock_is_measured_and_readings_keep_their_time(monkeypatch, step_s):
    clock = Clock()
    before = clock.now_ns()
    monkeypatch.setattr(clock_module, "time", Shifted(wall_s=step_s))
    assert clock.step_ns() == pytest.approx(step_s * S, abs=5_000_000)
    assert clock.wall_ns == pytest.approx(step_s * S, abs=5_000_000)
    assert clock.step_ns() == clock.sync() == 0
    assert 0 < clock.now_ns() - before < S


def test_a_machine_that_was_suspended_has_not_had_its_clock_set(monkeypatch):
    clock = Clock()
    before = clock.now_ns()
    monkeypatch.setattr(clock_module, "time", Shifted(wall_s=100, boot_s=100))
    assert clock.step_ns() == 0
    assert clock.now_ns() - before == pytest.approx(100 * S, abs=S)
    assert clock.wall_ns == pytest.approx(0, abs=5_000_000)


def test_a_clock_goes_on_with_the_time_of_the_one_before_it(monkeypatch):
    first = Clock()
    monkeypatch.setattr(clock_module, "time", Shifted(wall_s=-30))
    second = Clock(first.boot_offset_ns)
    assert second.now_ns() == pytest.approx(first.now_ns(), abs=S)
    assert second.wall_ns == pytest.approx(-30 * S, abs=S)


def test_dithered_ticks_are_spread_evenly_over_what_is_given():
    late = [dither_ns(k * 10**8, 10**8) for k in range(17 * 10**9, 17 * 10**9 + 4000)]
    assert all(0 <= ns < 10**8 for ns in late)
    tenths = [sum(ns // 10**7 == tenth for ns in late) for tenth in range(10)]
    assert all(300 < count < 500 for count in tenths)
    # One tells nothing of the next.
    assert abs(sum((a - 5e7) * (b - 5e7) for a, b in pairwise(late)) / sum((a - 5e7) ** 2 for a in late)) < 0.1
    assert dither_ns(123, 0) == 0
