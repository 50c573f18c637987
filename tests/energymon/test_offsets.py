import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from energymon import ClockOffset
from energymon.clock.offsets import WallInstant, at_wall, offset_at, wall_at

MS = 1_000_000
S = 1000 * MS


def measured(t_s, offset_ms, error_us=50, peer="controller"):
    return ClockOffset(round(t_s * S), "n", peer, round(offset_ms * MS), error_us * 1000)


def test_a_node_that_measured_nothing_has_no_offset():
    assert offset_at([], S) is None
    assert offset_at([measured(1, 5.0, peer="chrony")], S) is None


def test_the_nearest_measurement_holds_and_its_error_grows_with_the_drift():
    found = offset_at([measured(100, 5.0)], 110 * S)
    assert found.offset_ns == 5 * MS
    assert found.error_ns == pytest.approx(50_000 + 1_000_000, abs=1000)
    assert found.to_node(110 * S) == 110 * S - 5 * MS
    assert offset_at([measured(100, 5.0)], 90 * S).error_ns == pytest.approx(1_050_000, abs=1000)


def test_between_two_measurements_the_offset_is_interpolated():
    found = offset_at([measured(100, 5.0), measured(160, 5.2, error_us=80)], 130 * S)
    assert found.offset_ns == pytest.approx(5.1 * MS, abs=1000)
    assert found.error_ns == pytest.approx(80_000 + 100_000, abs=2000)


@settings(deadline=None, max_examples=50)
@given(seed=st.integers(0, 2**32))
def test_the_bound_holds_for_a_clock_that_drifts_by_less_than_100_ppm(seed):
    dice = random.Random(seed)
    true_ns, offsets = dice.randint(-20 * MS, 20 * MS), []
    rate = dice.uniform(-90e-6, 90e-6)
    for _ in range(600):
        offsets.append(true_ns)
        if dice.random() < 0.02:
            rate = dice.uniform(0, 90e-6) if rate > 0 else -dice.uniform(0, 90e-6)
        true_ns += rate * S
    told = [measured(s, (offsets[s] + dice.uniform(-3e4, 3e4)) / MS, error_us=30) for s in range(30, 600, 60)]
    for second in dice.sample(range(1, 599), 40):
        found = offset_at(told, round(second * S + offsets[second]))
        assert abs(found.offset_ns - offsets[second]) <= found.error_ns + 1000


def wall(t_s, offset_s, within_s=0.0):
    return ClockOffset(round(t_s * S), "n", "wall", round(offset_s * S), round(within_s * S))


def test_a_wall_clock_that_was_never_set_is_that_of_the_readings():
    for clocks in ([], [wall(100, 0.0)], [measured(100, 5.0)]):
        assert at_wall(clocks, 120 * S) == WallInstant(120 * S)
        assert wall_at(clocks, 120 * S) == 120 * S


def test_what_a_wall_clock_was_set_back_over_was_twice():
    clocks = [wall(100, 0.0), wall(200, -30.0, within_s=1.0)]
    assert at_wall(clocks, 160 * S) == WallInstant(160 * S)
    assert at_wall(clocks, 180 * S) == WallInstant(180 * S, 2)
    assert at_wall(clocks, 169.5 * S) == WallInstant(169.5 * S, 2), "it may have been set before that was noticed"
    assert at_wall(clocks, 210 * S) == WallInstant(240 * S)
    assert wall_at(clocks, 240 * S) == 210 * S
    assert wall_at(clocks, 180 * S) == 180 * S


def test_what_a_wall_clock_was_set_ahead_over_never_was():
    clocks = [wall(100, 0.0), wall(200, 30.0)]
    assert at_wall(clocks, 199 * S) == WallInstant(199 * S)
    assert at_wall(clocks, 215 * S) == WallInstant(200 * S, 0)
    assert at_wall(clocks, 240 * S) == WallInstant(210 * S)


def test_what_was_before_the_first_agent_is_not_taken_for_what_was_after_a_step():
    clocks = [wall(100, 0.0), wall(110, -30.0)]
    assert at_wall(clocks, 90 * S, since_ns=100 * S) == WallInstant(120 * S)
    assert at_wall(clocks, 105 * S, since_ns=100 * S) == WallInstant(105 * S, 2)
