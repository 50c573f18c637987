import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from energymon import INTERPOLATED, START, Reading, Ticks, WindowError, joules, missed_share
from energymon.analysis.curve import curves
from energymon.analysis.integrate import Integral

MS = 1_000_000
S = 1000 * MS


def reading(tick_ms, value, *, late_us=0, flags="", device="package-0", domain="cpu", source="rapl-powercap"):
    return Reading(tick_ms * MS, tick_ms * MS + late_us * 1000, "n", device, domain, source, float(value), flags)


def ramp(watts=100.0, count=21, **kind):
    return [reading(100 * k, watts * 0.1 * k, **kind) for k in range(count)]


@settings(deadline=None, max_examples=300)
@given(seed=st.integers(0, 2**32))
def test_the_error_bound_holds_however_often_a_counter_is_updated_and_read_and_for_bursts_shorter_than_either(seed):
    dice = random.Random(seed)
    lag, tick, shift = dice.choice([20, 60, 100]), dice.choice([1, 10, 20, 50, 100]), dice.randrange(100)
    powers = dice.choice([[0.0] * 30 + [2.0], [0.06], [0.3, 0.7]])
    true = [0.0]
    for _ in range(1200):
        true.append(true[-1] + dice.choice(powers))
    readings = [
        reading(ms, true[max(0, ms - (ms + shift) % lag)], late_us=dice.randint(0, 300), source="nvml-counter")
        for ms in range(0, 1200, tick)
    ]
    for _ in range(10):
        a, b = sorted(dice.randint(100, 950) for _ in range(2))
        (energy,) = joules(readings, a * MS, b * MS, lags={("n", "package-0", "cpu", "nvml-counter"): lag / 1000})
        assert abs(energy.joules - (true[b] - true[a])) <= energy.error_j + 1e-9
        assert energy.error_j <= 2 * 3 * 1000 * max(powers) * 0.1


def test_a_window_between_ticks_is_interpolated_and_bounded_by_its_edges():
    (energy,) = joules(ramp(), 150 * MS, 1050 * MS)
    assert energy.joules == pytest.approx(90.0)
    assert energy.error_j == pytest.approx(10.0)
    assert not energy.interpolated


def test_a_window_on_readings_is_bounded_by_what_is_shown_once_the_sensors_lag_is_over():
    (energy,) = joules(ramp(watts=700, source="nvml-counter", domain="gpu"), 500 * MS, 1500 * MS)
    assert energy.joules == pytest.approx(700.0)
    assert energy.error_j == pytest.approx(70.0)


def test_a_probed_lag_tightens_the_bound():
    rows = [reading(10 * k, 7 * k, source="nvml-counter", domain="gpu") for k in range(201)]
    lags = {("n", "package-0", "gpu", "nvml-counter"): 0.02}
    (energy,) = joules(rows, 500 * MS, 1500 * MS, lags=lags)
    assert energy.error_j == pytest.approx(14.0)
    assert joules(rows, 500 * MS, 1500 * MS, lags={("other", *next(iter(lags))[1:]): 0.02})[0].error_j == 70.0


def test_the_bound_is_the_sum_of_its_parts():
    (energy,) = joules(ramp(), 500 * MS, 1500 * MS, clock_error_ns=10 * MS)
    assert energy.edge_error_j == pytest.approx(10.0)
    assert energy.clock_error_j == pytest.approx(2.0)
    assert energy.error_j == pytest.approx(12.0)


@settings(deadline=None, max_examples=10)
@given(seed=st.integers(0, 2**32))
def test_the_bound_holds_for_a_window_told_by_a_clock_that_is_off(seed):
    dice = random.Random(seed)
    true = [0.0]
    for _ in range(4000):
        true.append(true[-1] + dice.uniform(0, 0.4))
    readings = [reading(ms, true[ms]) for ms in range(0, 4001, 100)]
    for _ in range(50):
        a, b = sorted(dice.randint(1000, 3000) for _ in range(2))
        off = dice.randint(-40, 40)
        (energy,) = joules(readings, a * MS, b * MS, clock_error_ns=40 * MS)
        assert abs(energy.joules - (true[b + off] - true[a + off])) <= energy.error_j + 1e-9


@pytest.mark.parametrize("source", ["nvml-power", "nvml-power-average", "estimate"])
def test_sampled_power_and_an_estimate_have_no_error_bound(source):
    (energy,) = joules(ramp(source=source), 0, S, clock_error_ns=MS)
    assert (energy.error_j, energy.edge_error_j, energy.clock_error_j) == (None, None, None)


@pytest.mark.parametrize(("start", "end"), [(-1, S), (0, 2 * S + 1), (3 * S, 4 * S)])
def test_a_series_that_does_not_cover_the_window_yields_nothing(start, end):
    assert joules(ramp(), start, end) == []


@pytest.mark.parametrize("flags", [START, ""], ids=["start", "joules that fall"])
def test_nothing_is_joined_across_a_restart(flags):
    rows = [*ramp(count=11), reading(1100, 0.0, flags=flags), *(reading(1100 + 100 * k, k) for k in range(1, 10))]
    assert joules(rows, 500 * MS, 1500 * MS) == []
    assert joules(rows, 0, S)[0].joules == pytest.approx(100.0)
    assert joules(rows, 1200 * MS, 1500 * MS)[0].joules == pytest.approx(3.0)


def test_a_series_that_lacks_one_stretch_has_no_figure_and_all_are_lost_once_none_covers_one():
    integral = Integral(0)
    assert not integral.lost
    integral.add(curves([*ramp(), *ramp(device="package-1")]), S)
    integral.add(curves(ramp()), 2 * S)
    assert [e.device for e in integral.energies()] == ["package-0"]
    assert not integral.lost
    integral.add(curves(ramp()), 3 * S)
    assert integral.lost
    assert integral.energies() == []


def test_missed_ticks_at_an_edge_are_told_and_conserve_energy():
    holey = [row for row in ramp() if not 400 * MS < row.tick_ns < 900 * MS]
    (left,) = joules(holey, 0, 650 * MS)
    (right,) = joules(holey, 650 * MS, 2 * S)
    assert left.interpolated
    assert left.joules + right.joules == pytest.approx(200.0)
    assert left.interpolated_share == pytest.approx(250 / 650)
    assert right.interpolated_share == pytest.approx(250 / 1350)
    assert left.error_j == pytest.approx(10.0 + 25.0)


def test_a_gap_that_fills_the_whole_series_is_told_when_the_interval_is_known():
    pair = [reading(0, 0.0), reading(1000, 100.0)]
    assert joules(pair, 400 * MS, 600 * MS, 100 * MS)[0].interpolated
    assert not joules(pair, 400 * MS, 600 * MS, S)[0].interpolated


def test_missed_ticks_between_the_edges_change_nothing():
    holey = [row for row in ramp() if not 400 * MS < row.tick_ns < 900 * MS]
    (found,) = joules(holey, 150 * MS, 1050 * MS)
    assert found.interpolated_share == pytest.approx(500 / 900)
    assert replace(found, interpolated_share=0.0) == joules(ramp(), 150 * MS, 1050 * MS)[0]


def test_an_inferred_reading_inside_the_window_is_told():
    rows = ramp(source="nvml-power")
    rows[7] = reading(700, 70.0, source="nvml-power", flags=INTERPOLATED)
    assert joules(rows, 500 * MS, S)[0].interpolated
    assert joules(rows, 500 * MS, S)[0].interpolated_share == pytest.approx(0.2)
    assert not joules(rows, S, 2 * S)[0].interpolated


def test_a_window_that_ends_before_it_starts_is_refused():
    with pytest.raises(WindowError):
        joules(ramp(), 2, 1)


def test_missed_share_counts_ticks_that_are_marked_and_ticks_that_are_absent():
    ticks = [Ticks(100 * MS * k, "n", missed=k == 3) for k in range(10) if k != 5]
    assert missed_share(ticks, 0, S, 100 * MS) == pytest.approx(0.2)
    assert missed_share(ticks, 0, 2 * S, 100 * MS) == pytest.approx(0.6)
    assert missed_share([], 0, S, 100 * MS) == 1.0
    assert missed_share([], 1 * MS, 99 * MS, 100 * MS) == 0.0, "no tick is due"
