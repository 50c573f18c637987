import time

import pytest

from energymon import clock as clock_module
from energymon.clock import Clock, next_tick, tick_at

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


@pytest.mark.parametrize("step_s", [2, -2, 0.01])
def test_a_step_of_the_wall_clock_is_measured_and_followed(monkeypatch, step_s):
    clock = Clock()
    wall = time.time_ns

    class Stepped:
        monotonic_ns = staticmethod(time.monotonic_ns)
        time_ns = staticmethod(lambda: wall() + round(step_s * S))

    before = clock.utc_ns()
    monkeypatch.setattr(clock_module, "time", Stepped)
    assert clock.utc_ns() - before < S, "readings follow the monotonic clock until the next sync"
    assert clock.sync() == pytest.approx(step_s * S, abs=5_000_000)
    assert clock.sync() == 0
    assert clock.utc_ns() - before == pytest.approx(step_s * S, abs=S)
