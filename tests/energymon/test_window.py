import random
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from energymon import INTERPOLATED, START, Reading, Tick, WindowError, joules, missed_share

MS = 1_000_000
S = 1000 * MS


def reading(tick_ms, value, *, late_us=0, flags="", device="package-0", domain="cpu", source="rapl-powercap"):
    return Reading(tick_ms * MS, tick_ms * MS + late_us * 1000, "n", device, domain, source, float(value), flags)


def ramp(watts=100.0, count=21, **kind):
    return [reading(100 * k, watts * 0.1 * k, **kind) for k in range(count)]


@settings(deadline=None)
@given(
    powers=st.lists(st.floats(0, 500), min_size=4, max_size=40),
    cuts=st.lists(st.integers(0, 10**9), min_size=2, max_size=8),
)
def test_any_split_of_an_interval_sums_to_the_whole(powers, cuts):
    readings, total = [], 0.0
    for k, power in enumerate(powers):
        readings.append(reading(100 * k, total, late_us=(k * 37) % 900))
        total += power * 0.1
    first, last = readings[0].t_ns, readings[-1].t_ns
    edges = sorted(first + cut % (last - first + 1) for cut in cuts)
    parts = [joules(readings, a, b)[0].joules for a, b in pairwise(edges)]
    assert sum(parts) == pytest.approx(joules(readings, edges[0], edges[-1])[0].joules, abs=1e-9)


@pytest.mark.parametrize(("source", "lag_ms"), [("rapl-powercap", 1), ("nvml-counter", 100), ("nvml-power", 1000)])
@pytest.mark.parametrize("seed", range(20))
def test_the_error_bound_holds_for_a_counter_that_lags_behind_bursts_of_power(source, lag_ms, seed):
    dice = random.Random(seed)
    # True energy, ms by ms: bursts that last longer than a tick, as the bound takes the power beside the edge.
    true, power = [0.0], 0.0
    for ms in range(6000):
        if ms % 400 == 0:
            power = dice.choice([20.0, 150.0, 300.0])
        true.append(true[-1] + power / 1000)
    lag = dice.randint(0, lag_ms)
    readings = [reading(ms, true[max(0, ms - lag)], source=source) for ms in range(0, 6000, 100)]
    slack = 300.0 * lag_ms / 1000 if lag_ms > 400 else 0.0  # a second's lag spans bursts that no reading shows yet
    for _ in range(50):
        a, b = sorted(dice.randint(1500, 5500) for _ in range(2))
        (energy,) = joules(readings, a * MS, b * MS)
        assert abs(energy.joules - (true[b] - true[a])) <= energy.error_j + slack + 1e-9


def test_a_window_between_ticks_is_interpolated_and_bounded_by_its_edges():
    (energy,) = joules(ramp(), 150 * MS, 1050 * MS)
    assert energy.joules == pytest.approx(90.0)
    assert energy.error_j == pytest.approx(10.0)
    assert not energy.interpolated


def test_a_window_on_readings_is_bounded_by_the_sensors_lag():
    (energy,) = joules(ramp(watts=700, source="nvml-counter", domain="gpu"), 500 * MS, 1500 * MS)
    assert energy.joules == pytest.approx(700.0)
    assert energy.error_j == pytest.approx(140.0)


def test_readings_may_come_in_any_order():
    shuffled = ramp()
    random.Random(1).shuffle(shuffled)
    assert joules(shuffled, 150 * MS, 1050 * MS) == joules(ramp(), 150 * MS, 1050 * MS)


def test_an_estimate_has_no_error_bound():
    assert joules(ramp(source="estimate"), 0, S)[0].error_j is None


@pytest.mark.parametrize(("start", "end"), [(-1, S), (0, 2 * S + 1), (3 * S, 4 * S)])
def test_a_series_that_does_not_cover_the_window_yields_nothing(start, end):
    assert joules(ramp(), start, end) == []


def test_a_window_as_long_as_the_series_is_covered():
    assert joules(ramp(), 0, 2 * S)[0].joules == pytest.approx(200.0)


def test_an_empty_window_has_no_energy():
    assert joules(ramp(), S, S)[0].joules == 0.0


def test_nothing_is_joined_across_a_restart():
    rows = [*ramp(count=11), reading(1100, 0.0, flags=START), *(reading(1100 + 100 * k, k) for k in range(1, 10))]
    assert joules(rows, 500 * MS, 1500 * MS) == []
    assert joules(rows, 0, S)[0].joules == pytest.approx(100.0)
    assert joules(rows, 1200 * MS, 1500 * MS)[0].joules == pytest.approx(3.0)


def test_missed_ticks_at_an_edge_are_told_and_conserve_energy():
    holey = [row for row in ramp() if not 400 * MS < row.tick_ns < 900 * MS]
    (left,) = joules(holey, 0, 650 * MS)
    (right,) = joules(holey, 650 * MS, 2 * S)
    assert left.interpolated
    assert left.joules + right.joules == pytest.approx(200.0)
    assert left.error_j == pytest.approx(25.0, abs=0.2)


def test_a_gap_that_fills_the_whole_series_is_told_when_the_interval_is_known():
    pair = [reading(0, 0.0), reading(1000, 100.0)]
    assert joules(pair, 400 * MS, 600 * MS, 100 * MS)[0].interpolated
    assert not joules(pair, 400 * MS, 600 * MS, S)[0].interpolated


def test_missed_ticks_between_the_edges_change_nothing():
    holey = [row for row in ramp() if not 400 * MS < row.tick_ns < 900 * MS]
    assert joules(holey, 150 * MS, 1050 * MS) == joules(ramp(), 150 * MS, 1050 * MS)


def test_an_inferred_reading_inside_the_window_is_told():
    rows = ramp(source="nvml-power")
    rows[7] = reading(700, 70.0, source="nvml-power", flags=INTERPOLATED)
    assert joules(rows, 500 * MS, S)[0].interpolated
    assert not joules(rows, S, 2 * S)[0].interpolated


def test_series_are_kept_apart_and_sorted():
    rows = [*ramp(device="package-1"), *ramp(), *ramp(domain="dram", watts=10)]
    found = joules(rows, 0, S)
    assert [(e.device, e.domain, round(e.joules)) for e in found] == [
        ("package-0", "cpu", 100),
        ("package-0", "dram", 10),
        ("package-1", "cpu", 100),
    ]


def test_a_window_that_ends_before_it_starts_is_refused():
    with pytest.raises(WindowError, match="before it starts"):
        joules(ramp(), 2, 1)


def test_missed_share_counts_ticks_that_are_marked_and_ticks_that_are_absent():
    ticks = [Tick(100 * MS * k, "n", missed=k == 3) for k in range(10) if k != 5]
    assert missed_share(ticks, 0, S, 100 * MS) == pytest.approx(0.2)
    assert missed_share(ticks, 0, 2 * S, 100 * MS) == pytest.approx(0.6)
    assert missed_share([], 0, S, 100 * MS) == 1.0


def test_missed_share_of_a_window_without_a_tick_is_zero():
    assert missed_share([], 1 * MS, 99 * MS, 100 * MS) == 0.0
