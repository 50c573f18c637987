"""Intervals of medians and their ratios: how often they miss, and what they find."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from harness.report.claims.bound import find_knee
from harness.report.intervals import Estimate, Interval, combine, divide, estimate, student_quantile


def simulate(repeats: int, *, ratio: float, times: int) -> Iterator[Interval]:
    """Yield intervals of the ratio of two loaders: 3 % of noise between repeats, half of it between their epochs."""
    random = np.random.default_rng(repeats)

    def cells(mean: float) -> list[list[float]]:
        luck = random.normal(0, 0.03, (repeats, 1)) + random.normal(0, 0.015, (repeats, 2))
        return [list(cell) for cell in mean * np.exp(luck)]

    for _ in range(times):
        interval = divide(estimate([cells(ratio)]), estimate([cells(1.0)])).interval
        assert interval is not None
        yield interval


@pytest.mark.process
@pytest.mark.parametrize("repeats", [3, 10])
def test_of_500_loaders_compared_with_themselves_at_most_6_percent_differ(repeats: int) -> None:
    differ = sum(not interval.holds(1.0) for interval in simulate(repeats, ratio=1.0, times=500))
    assert differ <= 30


@pytest.mark.parametrize(("repeats", "found"), [(3, 90), (10, 100)])
def test_a_difference_of_20_percent_is_found_in_3_percent_of_noise(repeats: int, found: int) -> None:
    intervals = list(simulate(repeats, ratio=1.2, times=100))
    assert sum(interval.low > 1 for interval in intervals) >= found
    assert sum(interval.holds(1.2) for interval in intervals) >= 90


def test_epochs_of_one_cell_are_not_repeats() -> None:
    assert estimate([[[1.0, 1.1, 0.9, 1.05]]]).interval is None
    few = estimate([[[1.0] * 20, [1.2] * 20]])
    assert few.interval is not None and few.interval.low < 0.5, "two repeats of any number of epochs are two"


def test_settings_are_resampled_by_themselves() -> None:
    # Two settings that differ twofold and repeat well: the median of both is as sure as they are.
    both = estimate([[[1.0], [1.01], [0.99]], [[2.0], [2.02], [1.98]]])
    assert both.interval is not None and both.value == pytest.approx(1.495)
    assert both.interval.high / both.interval.low < 1.1


def test_quantiles_are_those_of_the_handbook() -> None:
    """NIST/SEMATECH e-Handbook, 1.3.6.7.2."""
    for freedom, quantile in ((1, 12.706), (2, 4.303), (5, 2.571), (10, 2.228), (20, 2.086), (100, 1.984)):
        assert student_quantile(0.975, freedom) == pytest.approx(quantile, abs=5e-4)
    assert student_quantile(0.99, 3) == pytest.approx(4.541, abs=5e-4)


def test_values_at_0_have_an_interval_on_their_own_scale() -> None:
    stall = estimate([[[0.0], [0.1], [0.2]]])
    assert not stall.log and stall.interval is not None and stall.interval.low < 0 < stall.interval.high
    ratio = divide(stall, estimate([[[1.0], [1.1], [0.9]]]))
    assert ratio.value == pytest.approx(0.1) and ratio.interval is not None and ratio.interval.holds(0.0)


def part(value: float, error: float = 0.01) -> Estimate:
    return Estimate(value, error, 4.0, log=True)


def test_the_least_of_several_is_as_low_as_any_and_no_higher_than_all() -> None:
    parts = {"a": part(2.0), "b": part(1.5), "c": part(1.51, 0.1)}
    least, greatest = (combine(how, parts, lambda values: 0.0) for how in ("least", "greatest"))
    assert least is not None and least.low == parts["c"].bounds()[0] and least.high == parts["b"].bounds(3)[1]
    assert greatest is not None and greatest.low == parts["a"].bounds(3)[0]


def test_a_spread_is_that_of_the_two_that_lie_farthest_apart() -> None:
    near = combine("spread", {1: part(1.0), 2: part(1.001)}, lambda values: 0.0)
    far = combine("spread", {1: part(1.0), 2: part(1.3), 3: part(1.1)}, lambda values: 0.0)
    assert near is not None and near.low == 0.0 and near.high < 0.05
    assert far is not None and 0.2 < far.low < 0.3 < far.high < 0.36


def test_a_knee_is_as_sure_as_the_rates_around_it() -> None:
    rates = {1: 10.0, 2: 20.0, 4: 20.8}
    sure, unsure = (
        combine("knee", {key: part(rate, error) for key, rate in rates.items()}, find_knee) for error in (0.0005, 0.03)
    )
    assert sure == Interval(2.0, 2.0)
    assert unsure == Interval(2.0, 4.0)


def test_without_an_interval_of_every_part_there_is_none() -> None:
    assert combine("mean", {1: part(1.0), 2: Estimate(1.0, 0.0, 0.0, log=True)}, lambda values: 1.0) is None
