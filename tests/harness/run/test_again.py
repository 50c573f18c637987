"""Which cells are measured again, and what a run says of what disturbed it."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from harness.config.specs import Tolerances
from harness.results.cells import Cell
from harness.results.checks import Check
from harness.results.collect import judge_cells
from harness.results.folder import LedgerEntry
from harness.run.again import (
    choose_again,
    count_valid,
    describe_disturbances,
    find_disturbed,
    find_durations,
    find_poor_groups,
)
from tests.harness.records import with_events


def cell(name, repeat, regime="near"):
    return Cell(cell_id=f"{name}-{regime}-{repeat}", loader=name, workload="w", regime=regime, repeat=repeat)


def row(of, *, valid=True, epoch=1):
    fields = {"cell_id": of.cell_id, "loader": of.loader, "workload": of.workload, "regime": of.regime}
    return SimpleNamespace(**fields, epoch=epoch, is_valid=valid)


class Row(SimpleNamespace):
    __hash__ = object.__hash__


def rows_of(*given):
    return [Row(**vars(one)) for one in given]


def refusal(of, rule="others_cpu", epoch=1):
    return Check(of.cell_id, epoch, rule, "", "", "fail")


A1, A2, B1, B2 = cell("a", 1), cell("a", 2), cell("b", 1), cell("b", 2)
PLAN = [A1, B1, A2, B2]
TOOK = {one.cell_id: 10.0 for one in PLAN}


def test_a_disturbed_cell_is_thought_to_last_as_long_as_the_quickest_of_its_group():
    rows = rows_of(row(A1, valid=False), row(A2))
    took = {A1.cell_id: 60.0, A2.cell_id: 8.0}
    assert choose_again([A1, A2], rows, [refusal(A1)], took, 10.0) == [A1]


def test_only_disturbed_cells_are_measured_again_those_of_the_poorest_group_first():
    rows = rows_of(row(A1, valid=False), row(B1, valid=False), row(A2), row(B2, valid=False))
    checks = [refusal(one) for one in (A1, B1, B2)]
    assert choose_again(PLAN, rows, checks, TOOK, 100.0) == [A1, B1, B2]
    assert choose_again(PLAN, rows, checks, TOOK, 25.0) == [B1, B2]
    assert choose_again(PLAN, rows, checks, TOOK, 9.0) == []
    assert choose_again(PLAN, rows, checks, {}, 100.0) == []
    assert choose_again(PLAN, rows_of(*map(row, PLAN)), [], TOOK, 100.0) == []


@pytest.mark.parametrize(
    ("rules", "is_again"),
    [
        (("others_cpu",), True),
        (("rtt_before", "rate_after", "link_in_epoch"), True),
        (("loss_to_compute_before", "steal", "clock_offset_far", "throttled", "pressure_memory"), True),
        # What a loader did is no disturbance, whatever else there was.
        (("exactly_once",), False),
        (("exactly_once", "others_cpu"), False),
        (("labels",), False),
        (("bytes_received",), False),
        (("loader_bytes",), False),
        (("early_work",), False),
        # A loader stretches steps and fills the memory as well.
        (("step_time",), False),
        (("step_time", "pressure_memory"), False),
        (("step_time", "others_cpu"), True),
    ],
)
def test_a_cell_that_a_rule_refuses_for_what_its_loader_did_is_not_measured_again(rules, is_again):
    rows = rows_of(row(A1, valid=False))
    assert find_disturbed(rows, [refusal(A1, rule) for rule in rules]) == ({A1.cell_id} if is_again else set())


def test_a_warning_measures_nothing_again():
    checks = [replace(refusal(A1, "frequency"), verdict="warn")]
    assert find_disturbed(rows_of(row(A1)), checks) == set()


def test_groups_without_a_valid_row_and_with_a_single_one_of_several_are_named():
    rows = rows_of(row(A1, valid=False), row(A2, valid=False), row(B1), row(B2, valid=False))
    found = find_poor_groups(rows)
    assert (list(found.empty), list(found.thin)) == (["a · w · near"], ["b · w · near"])
    single = find_poor_groups(rows_of(row(A1)))
    assert (list(single.empty), list(single.thin)) == ([], [])


def test_of_cells_with_several_epochs_the_settled_ones_count():
    rows = rows_of(row(A1), row(A1, epoch=2, valid=False), row(A2), row(A2, epoch=2))
    assert count_valid(rows) == {("a", "w", "near"): (1, 2)}


def test_a_cell_took_the_time_of_its_last_try():
    def entry(second, event, cell_id="c"):
        return LedgerEntry(f"2026-01-01T00:00:{second:02d}.000+00:00", cell_id, event)

    tries = [
        entry(0, "started"),
        entry(30, "failed"),
        entry(31, "started"),
        entry(36, "done"),
        entry(40, "started", "d"),
    ]
    assert find_durations(tries) == {"c": 5.0}


def test_a_run_says_who_took_the_cpu_and_what_would_help(stored, quiet):
    others = [["python train.py", 41, 1.2], ["java", 42, 0.3]]
    data = with_events(stored(), end=quiet(run_cpu_s=1.1, strangers=others))
    (line,) = describe_disturbances([data], *judge_cells([data], Tolerances()))
    assert line == (
        "disturbed (others_cpu): 1 row: python train.py (process 41) used 1.2 s of CPU, java (process 42) used 0.3 s "
        "of CPU, others that have ended or cannot be seen used 1.0 s; to help: end it, or run when it is idle; on a "
        "machine that is never quiet checks.others_cpu_pct=50 checks.others_cpus=8 allow more"
    )
    assert describe_disturbances([stored()], *judge_cells([stored()], Tolerances())) == []
