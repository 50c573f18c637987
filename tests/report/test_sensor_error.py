"""What sensors show wrongly widens comparisons of joules, whatever is repeated; and how a run drifts."""

import math
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from harness.report.claims import FAIL, INCONCLUSIVE, NOT_CHECKED, PASS, evaluate
from harness.report.claims.bound import Bound
from harness.report.claims.definition import Definition, Values
from harness.report.claims.rows import make_claim_rows
from harness.report.intervals import Interval, fit_drift, widen
from harness.report.remarks import list_caveats
from harness.report.summary import compute_joule_ratio, compute_ratio, explain_marks, find, summarise
from harness.results.reader import read_results
from tests.report.conftest import MEASURED

BOARD = "gpu=nvml-counter"
REAL = "cuda: NVIDIA H200"


def measured(build, accuracy=None, gain=0.0, source=MEASURED, **options):
    """Return a run whose joules have an accuracy and a gain, each a share of them."""
    builder = build(energy_source=source, accelerator=REAL, repeats=4, scatter=0.005, **options)
    for row in builder.rows.values():
        if accuracy is not None:
            row |= {"energy_accuracy_j": accuracy * row["total_j"], "energy_gain_j": gain * row["total_j"]}
        row["energy_error_j"] = 0.01 * row["total_j"]
    return builder


def pair(builder):
    groups = summarise(read_results(builder.write()))
    return [find(groups, "resnet50", "wan_30ms", loader) for loader in ("pytorch", "streaming")]


def test_an_interval_is_wider_by_what_both_sides_may_be_off():
    assert widen(Interval(2.0, 3.0), 0.1, 0.2) == Interval(2.0 * 0.9 / 1.2, 3.0 * 1.1 / 0.8)
    assert widen(Interval(2.0, 3.0), 0.1) == Interval(1.8, pytest.approx(3.3))
    assert widen(Interval(2.0, 3.0), 1.5, 1.0) == Interval(0.0, math.inf)
    for off, other in ((0.1, -0.2), (-0.1, 0.2), (0.1, 0.2), (-0.1, -0.2)):
        assert widen(Interval(2.5, 2.5), 0.1, 0.2).holds(2.5 * (1 + off) / (1 + other))


@pytest.mark.parametrize(
    ("source", "gain", "error"),
    [
        # Its own 5 % cancel in a ratio of one board; the 3 % that it does not see do not.
        (BOARD, 0.05, 0.03),
        (BOARD, 0.0, 0.08),
    ],
)
def test_a_ratio_of_joules_is_wider_than_repeats_make_it(source, gain, error, build):
    ours, theirs = pair(measured(build, accuracy=0.08, gain=gain, source=source))
    plain, found = compute_ratio(ours, theirs, "drawn_j"), compute_joule_ratio(ours, theirs)
    assert found.value == plain.value
    wide = widen(plain.interval, error + 0.01, error + 0.01)
    assert found.interval == Interval(pytest.approx(wide.low), pytest.approx(wide.high))
    assert compute_ratio(ours, theirs).interval.high < 20, "seconds are no joules"


def test_gains_of_two_sources_do_not_cancel(build):
    builder = measured(build, accuracy=0.05, gain=0.05, source=BOARD)
    for cell_id in builder.ids(loader="streaming"):
        builder.rows[cell_id]["energy_source"] = "gpu=nvml-power"
    ours, theirs = pair(builder)
    wide = widen(compute_ratio(ours, theirs, "drawn_j").interval, 0.06, 0.06)
    assert compute_joule_ratio(ours, theirs).interval.low == pytest.approx(wide.low)


def test_an_unknown_accuracy_widens_nothing_and_is_said(build):
    ours, theirs = pair(measured(build))
    found = compute_joule_ratio(ours, theirs)
    wide = widen(compute_ratio(ours, theirs, "drawn_j").interval, 0.01, 0.01)
    assert found.interval.low == pytest.approx(wide.low)
    assert explain_marks([ours, theirs]).endswith("the sensors' accuracy is unknown")
    assert "accuracy" not in explain_marks(pair(build())), "estimates have no sensor"


def test_joules_beside_an_emulated_board_are_compared_and_shown_with_their_own_bounds(build):
    builder = build(energy_source="cpu=rapl-powercap;gpu=estimate", repeats=4, scatter=0.005)
    for row in builder.rows.values():
        drawn_j = row["cpu_j"] + row["dram_j"]
        row |= {"energy_error_j": 0.02 * drawn_j, "energy_accuracy_j": 0.03 * drawn_j, "energy_gain_j": 0.0}
    ours, theirs = pair(builder)
    wide = widen(compute_ratio(ours, theirs, "drawn_j").interval, 0.05, 0.05)
    assert compute_joule_ratio(ours, theirs).interval.low == pytest.approx(wide.low)
    told = " ".join(one.text for one in list_caveats(read_results(builder.write()), [ours, theirs]))
    assert "the accuracy of these sensors is ± 5.0 % with the resolution" in told
    builder = build(energy_source="cpu=estimate;gpu=nvml-counter", accelerator=REAL)
    told = " ".join(one.text for one in list_caveats(read_results(builder.write()), pair(builder)))
    assert "Measured: gpu from nvml-counter; totals have no bound, for an estimate is in them." in told


def claim(**changed):
    known = {"id": "less", "figure": "emlio_fig5", "claim": "Less energy.", "source": "A paper", "metric": "total_j"}
    sides = {"of": {"loader": "pytorch"}, "over": {"loader": "streaming"}}
    fixed = {"bound": Bound("at_least", 4.0), "style": "factor", "settled": False}
    return Definition(**{**known, **sides, **fixed, **changed})


def judged(definition, builder):
    rows = [one for one in make_claim_rows(read_results(builder.write())) if one.labels["regime"] == "wan_30ms"]
    return evaluate(definition, rows)


def test_a_claim_of_joules_is_judged_on_what_sensors_may_show_wrongly_too(build):
    sure = judged(claim(), measured(build, accuracy=0.01))
    assert sure.verdict == PASS and "resolution and accuracy are in it" in sure.reason
    unsure = judged(claim(bound=Bound("at_least", sure.value * 0.97)), measured(build, accuracy=0.2))
    assert unsure.verdict == INCONCLUSIVE and unsure.interval[0] < sure.value * 0.7
    assert judged(claim(bound=Bound("at_most", 1.0)), measured(build, accuracy=0.2)).verdict == FAIL
    unknown = judged(claim(), measured(build))
    assert unknown.verdict == PASS and "the sensors' accuracy is unknown" in unknown.reason
    seconds = judged(claim(metric="duration_s"), measured(build, accuracy=0.2))
    assert "accuracy" not in seconds.reason and seconds.interval[0] > unsure.interval[0]
    assert judged(claim(), build()).verdict == NOT_CHECKED


def test_a_spread_of_joules_is_wider_by_both_ends(build):
    each = {"over": None, "of": {}, "each": (Values("loader", ("pytorch", "streaming")),), "combine": "spread"}
    definition = claim(**each, bound=Bound("at_most", 99.0), style="percent")
    narrow, wide = (judged(definition, measured(build, accuracy=share)) for share in (0.0, 0.1))
    assert wide.value == narrow.value
    assert 1 + wide.interval[1] == pytest.approx((1 + narrow.interval[1]) * (1.11 / 0.89) / (1.01 / 0.99))


def test_a_drift_is_that_of_the_line_through_the_cells():
    steady = [(60.0 * n, 10.0 * 1.01**n) for n in range(5)]
    found = fit_drift(steady, 240.0)
    assert found.value == pytest.approx(1.01**4) and not found.is_noise
    assert found.interval.high - found.interval.low == pytest.approx(0.0, abs=1e-9)
    noisy = [(at, value * (1 + (-1) ** n * 0.05)) for n, (at, value) in enumerate(steady)]
    assert fit_drift(noisy, 240.0).is_noise
    assert fit_drift(steady[:2], 240.0) is fit_drift([(0.0, 1.0)] * 3, 240.0) is fit_drift([], 240.0) is None


def drifting(build, a_turn, repeats=4):
    builder = build(loaders=("pytorch", "streaming", "fixed"), repeats=repeats, scatter=0.002, energy_source=MEASURED)
    begin = datetime(2025, 11, 20, tzinfo=UTC)
    for place, row in enumerate(builder.rows.values()):
        row["start_utc"] = (begin + timedelta(minutes=place)).isoformat()
        row["end_utc"] = (begin + timedelta(minutes=place, seconds=30)).isoformat()
        if row["loader"] == "fixed":
            row["duration_s"] *= a_turn ** row["repeat"]
    results = read_results(builder.write())
    return [one for one in list_caveats(results, summarise(results)) if one.topic == "drift"]


def test_the_drift_of_the_batch_that_is_read_once_is_a_line_and_a_warning_beyond_what_comparisons_tell(build):
    (steady,) = drifting(build, 1.0)
    assert "changed its seconds by " in steady.text and " and its joules by " in steady.text
    assert not steady.weakens and "more than" not in steady.text
    (warm,) = drifting(build, 1.05)
    assert warm.weakens and ", more than the smallest difference of the comparisons, ±" in warm.text
    assert drifting(build, 1.05, repeats=1) == []


def test_an_estimate_has_no_accuracy(build):
    row = read_results(build().write()).rows[0]
    assert row.energy_accuracy_j is None
    assert replace(row, energy_error_j=None).find_joule_error(10.0, cancels=True) == 0.0
