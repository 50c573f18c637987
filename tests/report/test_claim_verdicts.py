"""Claims judged on rows, as a pure function, and what is stored in a folder as such rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.report.claims import FAIL, NOT_CHECKED, PASS, evaluate, judge
from harness.report.claims.composition import measure_composition
from harness.report.claims.definition import Definition, Needs, Values
from harness.report.claims.rows import Row, make_claim_rows
from harness.report.claims.words import Bound, combined, written
from harness.results.reader import read_results

FASTER = Definition(
    id="one",
    figure="minato_fig7",
    claim="Twice as fast.",
    source="A paper, section 1",
    metric="duration_s",
    of={"loader": "pytorch"},
    over={"loader": "sample_aware"},
    bound=Bound("at_least", 2.0),
    style="factor",
)


def row(loader: str, seconds: float | None = None, **changed: Any) -> Row:
    labels = {"loader": loader, "workload": "unet3d", "rtt_ms": 0.0, **changed.pop("labels", {})}
    values = {} if seconds is None else {"duration_s": seconds, "total_j": 10 * seconds}
    known = {"cell_id": loader, "epoch": 1, "key": loader, "verdict": "valid", "accelerator": "cuda: one"}
    return Row(labels=labels, values={**values, **changed.pop("values", {})}, **{**known, **changed})


BOTH = (row("pytorch", 4.0), row("sample_aware", 1.9))


def test_a_ratio_of_medians_passes_or_fails_with_what_was_compared() -> None:
    claim = evaluate(FASTER, (*BOTH, row("pytorch", 100.0), row("pytorch", 3.0)))
    assert (claim.verdict, claim.actual, claim.expected) == (PASS, "2.11×", "≥ 2.00×")
    assert claim.reason.startswith("passes from 2.00× on; 4.00 s (PyTorch) to 1.90 s (sample-aware)")
    slower = evaluate(replace(FASTER, because="of this and that"), (row("pytorch", 3.0), BOTH[1]))
    assert slower.verdict == FAIL and slower.reason.endswith("; of this and that")


@pytest.mark.parametrize(
    ("rows", "reason"),
    [
        ((), "the run has no PyTorch"),
        (BOTH[:1], "the run has no sample-aware"),
        (
            (BOTH[0], row("sample_aware", 1.0, verdict="invalid: spread")),
            "no valid row of sample-aware: invalid: spread",
        ),
        ((BOTH[0], row("sample_aware")), "duration_s of sample-aware was not measured"),
    ],
)
def test_what_is_not_in_the_run_is_why_a_claim_is_not_checked(rows: tuple[Row, ...], reason: str) -> None:
    claim = evaluate(FASTER, rows)
    assert (claim.verdict, claim.actual, claim.reason) == (NOT_CHECKED, "", reason)


@pytest.mark.parametrize(
    ("accelerator", "devices", "reason"),
    [
        ("emulated: A100", 1, "the accelerator is emulated; 1 of the 4 devices that the claim is of"),
        ("none: no load", 4, "there is no accelerator"),
        ("", 4, "the accelerator is not known"),
        ("cuda: H200", 2, "2 of the 4 devices that the claim is of"),
    ],
)
def test_a_claim_of_a_larger_machine_is_shown_and_not_checked(accelerator: str, devices: int, reason: str) -> None:
    rows = [replace(one, accelerator=accelerator, devices=devices) for one in BOTH]
    four = replace(FASTER, needs=Needs(accelerator="real", devices=4))
    claim = evaluate(four, rows)
    assert (claim.verdict, claim.actual, claim.reason) == (NOT_CHECKED, "2.11×", reason)
    assert (
        evaluate(
            replace(FASTER, needs=Needs(accelerator="real", devices=4)), [replace(one, devices=4) for one in BOTH]
        ).verdict
        == PASS
    )


def test_where_any_step_will_do_none_at_all_does_not() -> None:
    step = replace(FASTER, needs=Needs(accelerator="emulated"))
    assert evaluate(step, [replace(one, accelerator="emulated: A100") for one in BOTH]).verdict == PASS
    idle = evaluate(step, [replace(one, accelerator="none: no load") for one in BOTH])
    assert (idle.verdict, idle.actual, idle.reason) == (NOT_CHECKED, "2.11×", "there is no accelerator")


def test_rows_that_lie_far_apart_are_told() -> None:
    rows = (*BOTH, row("sample_aware", 1.7))
    assert evaluate(FASTER, rows).reason.endswith("; the rows of a median lie up to 11 % apart")
    assert "apart" not in evaluate(FASTER, (*BOTH, row("sample_aware", 1.8))).reason


def test_estimated_joules_are_not_even_shown() -> None:
    energy = replace(FASTER, metric="total_j")
    guessed = evaluate(energy, (replace(BOTH[0], estimated=frozenset({"cpu"})), BOTH[1]))
    assert (guessed.verdict, guessed.actual, guessed.reason) == (NOT_CHECKED, "", "the joules of cpu are an estimate")
    emulated = evaluate(energy, (replace(BOTH[0], accelerator="emulated: A100"), BOTH[1]))
    assert (emulated.actual, emulated.reason) == ("", "the accelerator is emulated")
    assert evaluate(energy, BOTH).reason == "no joules of CPU and GPU"
    whole = [replace(one, values={**one.values, "cpu_j": 1.0, "gpu_j": 1.0}) for one in BOTH]
    assert evaluate(energy, whole).verdict == PASS
    # What has no part in the claim may be an estimate.
    cpu = replace(energy, metric="cpu_j")
    assert evaluate(cpu, [replace(one, estimated=frozenset({"gpu"})) for one in whole]).actual == "1.00×"


def test_values_are_taken_for_each_of_a_key_and_combined() -> None:
    rows = [
        row(loader, seconds, labels={"workload": workload})
        for workload, times in (("unet3d", (4.0, 2.0)), ("mask_rcnn", (9.0, 3.0)))
        for loader, seconds in zip(("pytorch", "sample_aware"), times, strict=True)
    ]
    each = replace(FASTER, each=Values("workload", ("unet3d", "mask_rcnn")), combine="greatest")
    assert (
        evaluate(each, rows).actual == "3.00×" and "2.00× at unet3d, 3.00× at mask_rcnn" in evaluate(each, rows).reason
    )
    assert evaluate(replace(each, combine="mean"), rows).actual == "2.50×"
    more = replace(each, each=Values("workload", ("unet3d", "speech_3s")))
    assert evaluate(more, rows).reason == "the run has no Speech 3s"


def test_ends_of_a_range_must_be_there_and_what_lies_between_counts() -> None:
    constant = replace(
        FASTER, over=None, each=Values("rtt_ms", between=(0.1, 30.0)), combine="spread", style="percent",
        bound=Bound("at_most", 0.05),
    )  # fmt: skip
    rows = [row("pytorch", time, labels={"rtt_ms": rtt}) for rtt, time in ((0.0, 9.0), (0.12, 2.0), (10.0, 2.2))]
    assert evaluate(constant, rows).reason == "the run has no 30 ms"
    claim = evaluate(constant, [*rows, row("pytorch", 2.0, labels={"rtt_ms": 30.0})])
    assert (claim.verdict, claim.actual) == (FAIL, "10 %")


def test_all_values_of_a_setting_find_the_knee_and_the_best_setting_the_peak() -> None:
    rates = {1: 10.0, 2: 19.0, 3: 30.0, 4: 31.0}
    rows = [
        row("pytorch", values={"samples_per_s": rate}, key=f"pytorch_{n}", labels={"loader.num_workers": n})
        for n, rate in rates.items()
    ]
    knee = replace(
        FASTER, metric="samples_per_s", over=None, each=Values("loader.num_workers"), combine="knee", style="knee"
    )
    assert evaluate(knee, rows).actual == "knee at 3"
    assert evaluate(knee, rows[:1]).reason == "fewer than two values of loader.num_workers in the run"
    peak = replace(FASTER, metric="samples_per_s", over=None, peak=True, style="number")
    assert evaluate(peak, rows).actual == "31"
    assert evaluate(replace(peak, peak=False), rows).actual == "24.5"


def test_settled_epochs_are_those_behind_a_cell_s_first() -> None:
    rows = [row("pytorch", time, epoch=epoch) for epoch, time in ((1, 9.0), (2, 4.0), (3, 4.2))]
    once = replace(FASTER, over=None, settled=True, style="seconds")
    assert evaluate(once, rows).actual == "4.10 s"
    assert evaluate(once, rows[:1]).actual == "9.00 s"


@given(st.sampled_from(("at_least", "at_most", "within")), st.floats(0.1, 100), st.floats(0, 1))
def test_the_paper_s_own_value_passes_and_one_beyond_the_tolerance_does_not(
    kind: str, paper: float, tolerance: float
) -> None:
    bound = Bound(kind, paper, relative=tolerance)
    assert bound.holds(paper) and (bound.holds(bound.low) or kind == "at_most")
    assert bound.holds(bound.low - 0.01 * paper) == (kind == "at_most")
    assert bound.holds(bound.high + 0.01 * paper) == (kind == "at_least")


def test_what_passes_is_told_in_the_style_of_the_value() -> None:
    assert Bound("within", 24.0, factor=2).tolerance("factor") == "passes from 12.0× to 48.0×"
    assert Bound("at_most", 0.05).tolerance("percent") == "passes up to 5.0 %"
    saving = Bound("at_most", 0.6, absolute=0.05)
    assert (saving.expected("less"), saving.tolerance("less")) == ("≥ 40 % less", "passes from 35 % less on")
    assert (written(0.4, "less"), written(1.14, "less")) == ("60 % less", "14 % more")
    assert combined("knee", {4: 1.0, 2: 0.96, 1: 0.5}) == 2


def test_rows_of_a_folder_know_the_config_and_its_sweep(build_sweep: Callable[..., Any]) -> None:
    rows = make_claim_rows(read_results(build_sweep(figures=("spdl_table2",)).write()))
    assert {one.labels["loader.num_workers"] for one in rows} == {1, 2, 4}
    assert {one.labels["loader"] for one in rows} == {"pytorch"} and {one.key for one in rows} > {
        "pytorch_num_workers_4"
    }
    first = next(one for one in rows if one.key == "pytorch_num_workers_2")
    assert first.values["until_first_batch_s"] == pytest.approx(1.25)
    assert first.values["busy_share"] == pytest.approx(2 / 3)
    assert "gpu_util" not in first.values


def test_a_figure_of_one_s_own_brings_a_file_of_claims(
    build_sweep: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine_claims.yaml").write_text(
        "paper: Mine\nclaims:\n- {id: mine, figure: mine, text: It is quick., section: s, metric: duration_s,"
        " of: {loader: pytorch}, is: at_most, paper: 3}\n"
    )
    (tmp_path / "mine.py").write_text(
        "from pathlib import Path\nCLAIMS = Path(__file__).with_name('mine_claims.yaml')\n"
        "def draw(results): return None\ndef caption(results): return ''\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    folder = build_sweep(figures=("mine",)).write()
    config = (folder / "config.yaml").read_text()
    (folder / "config.yaml").write_text(config.replace('"figures": ["mine"]', '"figures": ["mine.__init__"]'))
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine.py").rename(tmp_path / "mine" / "__init__.py")
    (tmp_path / "mine_claims.yaml").rename(tmp_path / "mine" / "mine_claims.yaml")
    (claim,) = judge(read_results(folder))
    assert (claim.id, claim.verdict, claim.actual, claim.expected) == ("mine", PASS, "2.50 s", "≤ 3.00 s")


def test_slow_samples_are_counted_by_batch_and_by_half() -> None:
    slow = np.array([1, 5])
    even = [np.array(ids) for ids in ([0, 1, 2, 3], [4, 5, 6, 7], [8, 9])]
    figures = measure_composition(even, slow).figures
    assert figures["slow_share"] == pytest.approx((0.25 + 0.25 + 0) / 3)
    assert figures["slow_batch_std"] == 0.0
    # The first batch, and half of the second one.
    assert figures["slow_first_half"] == pytest.approx(0.75)
    late = measure_composition([np.array([0, 2]), np.array([3, 4]), np.array([1, 5])], slow).figures
    assert (late["slow_first_half"], late["slow_batch_std"]) == (0.0, pytest.approx(0.943, abs=1e-3))


def test_which_samples_are_slow_is_read_from_what_preprocessing_took(build_sweep: Callable[..., Any]) -> None:
    builder = build_sweep(figures=("minato_table2",), loaders={"pytorch": {"_target_": "p"}}, epochs=1)
    folder = builder.write()
    (home,) = (folder / "cells").iterdir()
    table = {
        "epoch": pa.array([1, 1], pa.int32()),
        "ids": pa.array([[0, 1, 2, 3], [4, 5, 6, 7]], pa.list_(pa.int64())),
        "work_s": pa.array([[0.1, 0.1, 0.9, 0.1], [0.1, 0.9, 0.1, 0.1]], pa.list_(pa.float64())),
    }
    pq.write_table(pa.table(table), home / "batches.parquet")
    (one,) = make_claim_rows(read_results(folder), composed=True)
    assert (one.values["slow_share"], one.values["slow_batch_std"], one.values["slow_first_half"]) == (0.25, 0.0, 0.5)
