"""Intervals of medians and their ratios: how often they miss, and what they find."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from harness.report.claims.bound import find_knee
from harness.report.intervals import (
    MIN_PAIRS,
    Estimate,
    Interval,
    Ratio,
    combine,
    compare_cells,
    divide,
    estimate,
    find_typical,
    student_quantile,
)


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


def compare_in_turns(
    repeats: int, *, slower: float, cell: float, turn: float, reports: int, seed: int = 0
) -> Iterator[Ratio]:
    """Yield the ratios of two loaders that run in the same turns.

    `cell` is the noise of a cell, `turn` what a turn adds to both of its cells.
    """
    random = np.random.default_rng([seed, repeats])
    for _ in range(reports):
        luck = random.normal(0, turn, repeats)
        first, second = (
            {repeat: [mean * np.exp(noise)] for repeat, noise in enumerate(luck + random.normal(0, cell, repeats))}
            for mean in (1 + slower, 1.0)
        )
        found = compare_cells(first, second)
        assert found is not None and found.interval is not None
        yield found


@pytest.mark.parametrize("repeats", [MIN_PAIRS, 8])
@pytest.mark.parametrize("turn", [0.0, 0.03])
def test_of_200_reports_of_a_loader_beside_itself_5_percent_call_a_difference(repeats: int, turn: float) -> None:
    # The share is 5 % in the long run, whatever turns have in common: of 10 times 200 at most 6 %.
    reports = compare_in_turns(repeats, slower=0.0, cell=0.02, turn=turn, reports=2000)
    assert sum(not one.is_noise for one in reports) <= 120


@pytest.mark.parametrize(("many", "few"), [(5, 2), (8, 2), (8, 3)])
def test_few_repeats_beside_many_call_no_more_differences(many: int, few: int) -> None:
    random = np.random.default_rng(1)
    called = 0
    for _ in range(1000):
        found = compare_cells(*({n: [np.exp(random.normal(0, 0.02))] for n in range(count)} for count in (many, few)))
        assert found is not None
        called += not found.is_noise
    assert called <= 65


@pytest.mark.parametrize(("repeats", "unlike"), [((2,), 0.0), ((2,), 0.8), ((3,), 0.8), ((5, 2), 1.0)])
def test_loaders_of_a_run_that_scatter_unlike_each_other_are_called_different_from_themselves_in_6_percent(
    repeats: tuple[int, ...], unlike: float
) -> None:
    random, called, least = np.random.default_rng(2), 0, []
    for _ in range(200):
        spreads = np.repeat(0.015 * np.exp(unlike * random.standard_normal(6)), 2)
        groups = [
            {
                repeat: [float(np.exp(spread * random.standard_normal()))]
                for repeat in range(repeats[place % len(repeats)])
            }
            for place, spread in enumerate(spreads)
        ]
        typical = find_typical(groups)
        for first, second in zip(groups[::2], groups[1::2], strict=True):
            with_it, alone = compare_cells(first, second, typical), compare_cells(first, second)
            assert with_it is not None and alone is not None
            called += not with_it.is_noise
            least.append((with_it.least_difference, alone.least_difference))
    assert called <= 72
    narrower, wider = np.median(np.array(least, float), axis=0)
    assert narrower < 0.95 * wider


def test_what_is_usual_is_not_known_of_few_groups_or_without_repeats() -> None:
    groups = [{1: [1.0], 2: [1.0 + 0.001 * place]} for place in range(1, 9)]
    assert find_typical(groups[:7]) is None
    assert find_typical([{1: [1.0]}] * 20) is None
    assert find_typical(groups) == pytest.approx(1.28e-5, rel=0.1)  # the mean of variances that are alike


@pytest.mark.parametrize(("repeats", "cell"), [(8, 0.01), (16, 0.02)])
def test_a_loader_that_is_3_percent_slower_is_found_in_95_percent_of_reports(repeats: int, cell: float) -> None:
    reports = list(compare_in_turns(repeats, slower=0.03, cell=cell, turn=0.03, reports=200))
    assert sum(not one.is_noise for one in reports) >= 190


@pytest.mark.parametrize("repeats", [2, 3, 4, 8])
def test_the_table_s_smallest_difference_is_found_in_half_of_the_reports(repeats: int) -> None:
    # Noise of an epoch of 2 %, as kept runs of wan30ms have: 2 repeats find 14 %, 8 find 2.5 %.
    usual = np.median(
        [one.least_difference for one in compare_in_turns(repeats, slower=0, cell=0.02, turn=0, reports=99)]
    )
    found = list(compare_in_turns(repeats, slower=float(usual), cell=0.02, turn=0, reports=200))
    assert 0.3 <= sum(not one.is_noise for one in found) / 200 <= 0.75
    assert all(one.least_difference and one.least_difference > 0 for one in found)


def test_pairs_are_compared_where_both_have_the_same_repeats() -> None:
    drift = {repeat: [10.0 + repeat] for repeat in range(1, 6)}
    slower = {repeat: [1.1 * values[0] + 0.01 * (-1) ** repeat] for repeat, values in drift.items()}
    paired = compare_cells(slower, drift)
    assert paired is not None and paired.interval is not None and not paired.is_noise
    assert paired.value == pytest.approx(1.1, rel=1e-3)
    moved = compare_cells({repeat + 1: values for repeat, values in slower.items()}, drift)
    few = compare_cells(
        {repeat: slower[repeat] for repeat in (1, 2, 3)}, {repeat: drift[repeat] for repeat in (1, 2, 3)}
    )
    assert moved is not None and moved.is_noise and few is not None and few.is_noise


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
