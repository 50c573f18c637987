import pytest

from harness.report.distance import compare_distances
from harness.report.labels import factor, joules, percent, seconds, spell
from harness.report.remarks import list_problems
from harness.report.summary import Stat, compute_ratio, find, summarise
from harness.results.reader import read_results


def test_the_spread_is_the_range_over_the_median_and_one_value_has_none():
    stat = Stat.of([10.0, None, 11.0, 9.0])
    assert (stat.median, stat.spread) == (10.0, pytest.approx(0.2))
    assert Stat.of([5.0]).spread is None
    assert Stat.of([None]) is None


def test_medians_are_of_valid_rows_alone(build):
    builder = build()
    odd = builder.ids(loader="streaming", regime="wan_30ms")[0]
    builder.rows[odd]["duration_s"] = 99.0
    builder.invalidate(odd, "rtt after", "30 ms ± 5 %", "33.9 ms")
    group = find(summarise(read_results(builder.write())), "resnet50", "wan_30ms", "streaming")
    assert (group.valid, group.measured, group.planned) == (2, 3, 3)
    assert group.time_s.median < 2


def test_without_a_valid_row_the_invalid_ones_are_shown_and_not_trusted(build):
    builder = build()
    for cell_id in builder.ids(loader="dali"):
        builder.invalidate(cell_id, "spread", "< 10 %", "14 %")
    group = find(summarise(read_results(builder.write())), "resnet50", "wan_30ms", "dali")
    assert not group.trusted
    assert group.time_s is not None


def test_failed_cells_leave_a_group_without_figures(build):
    builder = build()
    for cell_id in builder.ids(loader="pytorch", regime="wan_30ms"):
        builder.fail(cell_id, "WorkerError: worker 3 was killed by signal 9")
    results = read_results(builder.write())
    group = find(summarise(results), "resnet50", "wan_30ms", "pytorch")
    assert (group.time_s, group.drawn_j, group.valid, group.planned, group.failed) == (None, None, 0, 3, 3)
    assert [(p.kind, p.where, p.count) for p in list_problems(results)] == [("failed", "PyTorch, 30 ms", 3)]


def test_slowdowns_stand_beside_the_paper_s(build):
    builder = build(scatter=0.0)
    builder.config["regimes"]["local"] = {"rtt_ms": 0}  # no loader runs in it
    for loader in builder.config["loaders"].values():
        loader["regimes"] = ["lan_0_1ms", "wan_30ms"]
    results = read_results(builder.write())
    found = {one.loader: one for one in compare_distances(results, summarise(results), "resnet50")}
    assert found["pytorch"].ours.value == pytest.approx((1.9 + 0.43 * 30) / (1.9 + 0.043), rel=1e-3)
    assert found["pytorch"].paper == pytest.approx(4232.4 / 175.5)
    assert found["streaming"].paper == pytest.approx(156.2 / 156.6)


def test_a_regime_that_the_paper_lacks_has_no_paper_value(build):
    builder = build()
    builder.config["regimes"]["wan_30ms"]["rtt_ms"] = 80
    for row in builder.rows.values():
        row["rtt_ms"] = 80 if row["regime"] == "wan_30ms" else row["rtt_ms"]
    results = read_results(builder.write())
    assert all(one.paper is None and one.ours for one in compare_distances(results, summarise(results), "resnet50"))


def test_a_ratio_to_nothing_is_unknown():
    assert compute_ratio(None, None) is None


def test_an_invalid_row_is_told_with_what_was_expected_and_found(build):
    builder = build()
    builder.invalidate(builder.ids()[0], "rtt after", "0.1 ms ± 0.2 ms", "0.9 ms")
    (problem,) = list_problems(read_results(builder.write()))
    assert (problem.kind, problem.text) == ("invalid", "rtt after: 0.9 ms, expected 0.1 ms ± 0.2 ms")
    assert "ResNet" not in problem.where


def test_of_several_workloads_a_problem_names_its_own(build):
    builder = build()
    builder.config["workloads"]["vgg19"] = {"batch_size": 32}
    first = builder.ids()[0]
    for table in (builder.cells, builder.rows):
        table[first]["workload"] = "vgg19"
    builder.invalidate(first, "rtt after", "0.1 ms ± 0.2 ms", "0.9 ms")
    (problem,) = list_problems(read_results(builder.write()))
    assert problem.where == "PyTorch, VGG-19, 0.1 ms"


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        (seconds(1.9299), "1.93 s"),
        (seconds(4232.4), "4230 s"),
        (seconds(9.996), "10.0 s"),
        (seconds(None), "–"),
        (joules(342.4), "342 J"),
        (joules(36400.0), "36.4 kJ"),
        (factor(1.034), "1.03×"),
        (factor(24.11), "24.1×"),
        (percent(0.034), "3.4 %"),
        (percent(0.0), "0 %"),
        (percent(0.97), "97 %"),
        (spell("pytorch_8w"), "PyTorch 8w"),
    ],
)
def test_quantities_are_written_with_three_digits_and_their_unit(written, expected):
    assert written == expected


def test_settled_epochs_are_shown_with_the_first_and_the_set_up_beside_them(build):
    once = find(summarise(read_results(build(scatter=0.0).write())), "resnet50", "wan_30ms", "dali")
    results = read_results(build(scatter=0.0).settle().write())
    group = find(summarise(results), "resnet50", "wan_30ms", "dali")
    assert (once.first_s, once.setup_s) == (None, None)
    assert (group.time_s.median, group.setup_s.median) == (once.time_s.median, 0.5)
    assert group.first_s.median == pytest.approx(once.time_s.median + 3.0)
    assert {row.epoch for row in group.rows} == {1}


def test_a_valid_first_epoch_does_not_stand_for_invalid_settled_ones(build):
    builder = build().settle()
    for row in builder.rows.values():
        if row["epoch"] == 1:
            row["valid"] = "invalid: rtt_after"
    group = find(summarise(read_results(builder.write())), "resnet50", "wan_30ms", "dali")
    assert (group.trusted, group.valid, {row.epoch for row in group.rows}) == (False, 3, {1})
