"""Claims judged on rows, as a pure function, and what is stored in a folder as such rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.report.claims import FAIL, INCONCLUSIVE, NOT_CHECKED, PASS, Claim, evaluate
from harness.report.claims.bound import Bound, combined, written
from harness.report.claims.composition import measure_composition
from harness.report.claims.definition import Definition, Needs, Values
from harness.report.claims.reader import make_definitions
from harness.report.claims.rows import ClaimRow, make_claim_rows
from harness.report.render import judge_claims as judge
from harness.results.reader import read_results
from harness.workloads.classification import ResNet50
from harness.workloads.emulated import EmulatedStep, NoStep

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


def row(loader: str, seconds: float | None = None, **changed: Any) -> ClaimRow:
    labels = {
        "loader": loader,
        "workload": "unet3d",
        "rtt_ms": 0.0,
        "samples": 60.0,
        "sample_kb": 115.2,
        "rate_gbit": 1.0,
        **(changed.pop("labels", None) or {}),
    }
    values = {} if seconds is None else {"duration_s": seconds, "total_j": 10 * seconds}
    known = {"cell_id": loader, "epoch": 1, "key": loader, "verdict": "valid", "accelerator": "cuda: one"}
    return ClaimRow(labels=labels, values={**values, **changed.pop("values", {})}, **{**known, **changed})


def cells(loader: str, *seconds: float, **changed: Any) -> list[ClaimRow]:
    """Return a first and a settled epoch of every repeat; the first one lasts three times as long."""
    key = changed.pop("key", loader)
    place = f"{key} {changed.get('labels')}"
    return [
        row(loader, time * (3 if epoch == 1 else 1), cell_id=f"{place} r{repeat}", epoch=epoch, key=key, **changed)
        for repeat, time in enumerate(seconds, 1)
        for epoch in (1, 2)
    ]


BOTH = (*cells("pytorch", 4.0, 4.0, 4.0), *cells("sample_aware", 1.9, 1.9, 1.9))


def test_a_ratio_of_medians_is_judged_on_its_interval() -> None:
    def judged(*ours: float) -> Claim:
        return evaluate(FASTER, (*cells("pytorch", 4.0, 4.05, 3.95), *cells("sample_aware", *ours)))

    sure = judged(1.70, 1.71, 1.69)
    assert (sure.verdict, sure.actual, sure.expected) == (PASS, "2.35×", "≥ 2×")
    assert sure.interval is not None and 2.2 < sure.interval[0] < 2.35 < sure.interval[1] < 2.5
    assert f"95 % interval {sure.span}; 4.00 s (PyTorch) to 1.70 s (sample-aware)" in sure.reason
    assert judged(2.5, 2.52, 2.48).verdict == FAIL
    unsure = judged(1.8, 2.0, 2.2)
    assert unsure.verdict == INCONCLUSIVE and unsure.reason.startswith("passes from 2.00× on; 95 % interval 1.")


def test_one_repeat_has_no_interval_and_repeats_that_agree_have_a_point() -> None:
    alone = evaluate(FASTER, (*cells("pytorch", 4.0), *cells("sample_aware", 1.0, 1.0)))
    assert (alone.verdict, alone.actual, alone.interval) == (INCONCLUSIVE, "4.00×", None)
    assert alone.reason.startswith("one repeat has no interval; passes from 2.00× on; 4.00 s (PyTorch)")
    assert evaluate(FASTER, BOTH).interval == (pytest.approx(4 / 1.9),) * 2


def test_replayed_times_are_judged_by_model_checks_alone_and_these_on_nothing_else() -> None:
    replayed = [replace(one, model_check="Table 2", accelerator="emulated: A100") for one in BOTH]
    check = replace(FASTER, needs=Needs(model_check=True))
    found = evaluate(check, replayed)
    assert (found.verdict, found.claim) == (PASS, "Model check: Twice as fast.")
    for definition, rows, reason in (
        (FASTER, replayed, "its samples replay published times"),
        (FASTER, (*BOTH[:6], *replayed[6:]), "its samples replay published times"),
        (check, BOTH, "its samples are prepared, where the claim is of a replay of published times"),
        (check, (*BOTH[:6], *replayed[6:]), "its samples are prepared, where the claim is of a replay"),
        (check, [replace(one, model_check="Table 2") for one in BOTH], "its steps are computed, where"),
    ):
        refused = evaluate(definition, rows)
        assert (refused.verdict, refused.actual) == (NOT_CHECKED, "") and refused.reason.startswith(reason)


def test_a_known_cause_is_told_where_a_claim_fails() -> None:
    slower = evaluate(replace(FASTER, because="of this and that"), (*cells("pytorch", 3.0, 3.0), *BOTH[6:]))
    assert slower.verdict == FAIL and slower.reason.endswith("; of this and that")


@pytest.mark.parametrize(
    ("rows", "reason"),
    [
        ((), "the run has no PyTorch"),
        (BOTH[:6], "the run has no sample-aware"),
        (
            (*BOTH[:6], *cells("sample_aware", 1.0, verdict="invalid: spread")),
            "no valid row of sample-aware: invalid: spread",
        ),
        ((*BOTH[:6], *[replace(one, values={}) for one in BOTH[6:]]), "duration_s of sample-aware was not measured"),
        ((*BOTH[:6], row("sample_aware", 1.0)), "no settled epoch of sample-aware: each cell has one epoch"),
    ],
)
def test_what_is_not_in_the_run_is_why_a_claim_is_not_checked(rows: tuple[ClaimRow, ...], reason: str) -> None:
    claim = evaluate(FASTER, rows)
    assert (claim.verdict, claim.actual, claim.reason) == (NOT_CHECKED, "", reason)


@pytest.mark.parametrize(
    ("needs", "reason"),
    [
        ({"samples": 5000}, "an epoch of 60 samples, where the claim needs 5000"),
        ({"epoch_s": 3.0}, "an epoch shorter than 3 s"),
        ({"sample_kb": [1500, 2500]}, "samples of 115 kB, where the claim is of 1500 to 2500 kB"),
        ({"rate_gbit": 10}, "a link of 1 Gbit/s, where the claim needs 10"),
        ({"settled": 2}, "1 settled epochs a cell, where the claim needs 2"),
        ({"repeats": 10}, "3 repeats, where the claim needs 10"),
        ({"samples": 60, "sample_kb": [90, 140], "epoch_s": 1.9, "rate_gbit": 1, "settled": 1, "repeats": 3}, ""),
    ],
)
def test_a_run_that_is_too_small_for_a_claim_is_shown_and_not_checked(needs: dict[str, Any], reason: str) -> None:
    claim = evaluate(replace(FASTER, needs=Needs(**needs)), BOTH)
    assert (claim.verdict, claim.actual) == (NOT_CHECKED if reason else PASS, "2.11×")
    assert not reason or claim.reason == reason


_RESNET50, _SMALL = ResNet50(batch_size=32), ResNet50(batch_size=32, image_size=64)
_LABELS = {
    "gpu": "cuda: NVIDIA A100-SXM4-80GB",
    "cpu": "cpu",
    "published": EmulatedStep.published(_RESNET50, "a100", 1.0).label,
    "idle": EmulatedStep.idling("a100").label,
    "scaled": EmulatedStep.published(_RESNET50, "a100", 10.0).label,
    "other size": EmulatedStep.published(_SMALL, "a100", 1.0).label,
    "assumed": EmulatedStep.assumed(0.02, 1.0).label,
    "idle assumed": EmulatedStep.idling(None).label,
    "none": NoStep.label,
}


@pytest.mark.parametrize(
    ("wanted", "allowed"),
    [
        ("real", {"gpu"}),
        ("computed", {"gpu", "cpu"}),
        ("published", {"gpu", "published", "idle"}),
        ("scaled", {"gpu", "published", "idle", "scaled"}),
        ("emulated", _LABELS.keys() - {"none"}),
        ("any", _LABELS.keys()),
    ],
)
def test_a_claim_is_judged_on_steps_of_the_kind_that_it_needs(wanted: Any, allowed: set[str]) -> None:
    claim = replace(FASTER, needs=Needs(accelerator=wanted))
    judged = {
        name: evaluate(claim, [replace(one, accelerator=label) for one in BOTH]) for name, label in _LABELS.items()
    }
    assert {name for name, one in judged.items() if one.verdict == PASS} == set(allowed)
    assert all(one.verdict in (PASS, NOT_CHECKED) and one.actual == "2.11×" for one in judged.values())


def test_a_stage_that_trains_nothing_has_the_accelerator_of_the_run() -> None:
    claim = replace(FASTER, needs=Needs(accelerator="published"))
    for kind, verdict in (("auto", PASS), ("cuda", PASS), ("cpu", NOT_CHECKED), ("none", NOT_CHECKED)):
        rows = [replace(one, accelerator=NoStep.label, labels={**one.labels, "accelerator.kind": kind}) for one in BOTH]
        assert evaluate(claim, rows).verdict == verdict, kind


@pytest.mark.parametrize(
    ("label", "devices", "reason"),
    [
        ("emulated: A100", 1, "the accelerator is emulated; 1 of the 4 devices that the claim is of"),
        ("none: no load", 4, "there is no accelerator"),
        ("", 4, "the accelerator is not known"),
        ("cuda: NVIDIA A100-SXM4-80GB", 4, ""),
        ("cuda: NVIDIA H200", 4, "the accelerator is no A100"),
        ("cuda: NVIDIA A100-SXM4-80GB", 2, "2 of the 4 devices that the claim is of"),
        ("cuda: NVIDIA A100-SXM4-80GB", 8, "8 devices, where the claim is of 4"),
    ],
)
def test_a_claim_of_a_board_needs_as_many_of_that_board(label: str, devices: int, reason: str) -> None:
    rows = [replace(one, accelerator=label, devices=devices) for one in BOTH]
    found = evaluate(replace(FASTER, needs=Needs(accelerator="real", board="A100", devices=4)), rows)
    assert (found.verdict, found.actual) == (NOT_CHECKED if reason else PASS, "2.11×")
    assert not reason or found.reason == reason
    # Of any board, more are no fault.
    other = evaluate(replace(FASTER, needs=Needs(accelerator="real", devices=4)), rows)
    assert other.verdict == (PASS if label.startswith("cuda") and devices >= 4 else NOT_CHECKED)


OWN_STEPS = ("emlio_behind", "emlio_fig9", "emlio_fig11", "emlio_readers")
"""Slowdowns beside a step of larger pictures, orders and slowdowns beside an assumed step, a training whose steps are
computed, and epochs without a step."""


def test_claims_of_constant_epochs_and_equal_loaders_are_of_no_step_that_makes_them_so() -> None:
    for one in make_definitions():
        if one.id.startswith("emlio_") and ("constant" in one.id or one.figure not in OWN_STEPS):
            assert one.needs.accelerator == "published", one.id
        if "A100" in one.claim or "V100" in one.claim:
            assert one.needs.board and one.needs.board in one.claim, one.id
    scaled = {one.figure for one in make_definitions() if one.needs.accelerator == "scaled"}
    assert scaled == {"latency_training", "textbook_8_5_2", "textbook_8_5_3"}


def test_estimated_joules_are_not_even_shown() -> None:
    energy = replace(FASTER, metric="total_j")
    guessed = evaluate(energy, (*[replace(one, estimated=frozenset({"cpu"})) for one in BOTH[:6]], *BOTH[6:]))
    assert (guessed.verdict, guessed.actual, guessed.reason) == (NOT_CHECKED, "", "the joules of cpu are an estimate")
    assert guessed.value is None and guessed.interval is None
    emulated = evaluate(energy, [replace(one, accelerator="emulated: A100") for one in BOTH])
    assert (emulated.actual, emulated.reason) == ("", "the accelerator is emulated")
    assert evaluate(energy, BOTH).reason == "no joules of CPU and GPU"
    whole = [replace(one, values={**one.values, "cpu_j": 1.0, "gpu_j": 1.0}) for one in BOTH]
    assert evaluate(energy, whole).verdict == PASS
    # What has no part in the claim may be an estimate.
    cpu = replace(energy, metric="cpu_j")
    assert evaluate(cpu, [replace(one, estimated=frozenset({"gpu"})) for one in whole]).actual == "1.00×"


def test_values_are_taken_for_each_of_a_key_and_combined() -> None:
    rows = [
        one
        for workload, times in (("unet3d", (4.0, 2.0)), ("mask_rcnn", (9.0, 3.0)))
        for loader, seconds in zip(("pytorch", "sample_aware"), times, strict=True)
        for one in cells(loader, seconds, seconds, labels={"workload": workload})
    ]
    each = replace(FASTER, each=(Values("workload", ("unet3d", "mask_rcnn")),), combine="greatest")
    assert (
        evaluate(each, rows).actual == "3.00×" and "2.00× at unet3d, 3.00× at mask_rcnn" in evaluate(each, rows).reason
    )
    assert evaluate(replace(each, combine="mean"), rows).actual == "2.50×"
    more = replace(each, each=(Values("workload", ("unet3d", "speech_3s")),))
    assert evaluate(more, rows).reason == "the run has no Speech 3s"


def test_ends_of_a_range_must_be_there_and_what_lies_between_counts() -> None:
    constant = replace(
        FASTER, over=None, each=(Values("rtt_ms", between=(0.1, 30.0)),), combine="spread", style="percent",
        bound=Bound("at_most", 0.05),
    )  # fmt: skip
    times = ((0.0, 9.0), (0.12, 2.0), (10.0, 2.2))
    rows = [one for rtt, time in times for one in cells("pytorch", time, time, labels={"rtt_ms": rtt})]
    assert evaluate(constant, rows).reason == "the run has no 30 ms"
    claim = evaluate(constant, [*rows, *cells("pytorch", 2.0, 2.0, labels={"rtt_ms": 30.0})])
    assert (claim.verdict, claim.actual) == (FAIL, "10 %")


def test_all_values_of_a_setting_find_the_knee_and_the_best_setting_the_peak() -> None:
    rates = {1: 10.0, 2: 19.0, 3: 30.0, 4: 31.0}
    rows = [
        replace(one, values={"samples_per_s": 60 / one.values["duration_s"]})
        for n, rate in rates.items()
        for one in cells("pytorch", 60 / rate, 60 / rate, key=f"pytorch_{n}", labels={"loader.num_workers": n})
    ]
    knee = replace(
        FASTER, metric="samples_per_s", over=None, each=(Values("loader.num_workers"),), combine="knee", style="knee"
    )
    assert evaluate(knee, rows).actual == "knee at 3"
    assert evaluate(knee, rows[:4]).reason == "fewer than two values of loader.num_workers in the run"
    assert evaluate(replace(knee, combine="growth", style="factor"), rows).actual == "3.10×"
    peak = replace(FASTER, metric="samples_per_s", over=None, peak=True, style="number")
    assert evaluate(peak, rows).actual == "31"
    assert evaluate(replace(peak, peak=False), rows).actual == "24.5"


def test_settled_epochs_are_those_behind_a_cell_s_first() -> None:
    rows = [row("pytorch", time, epoch=epoch) for epoch, time in ((1, 9.0), (2, 4.0), (3, 4.2))]
    once = replace(FASTER, over=None, style="seconds")
    assert evaluate(once, rows).actual == "4.10 s"
    assert evaluate(replace(once, settled=False), rows).actual == "4.20 s"


def test_several_keys_are_taken_together_and_one_side_may_have_its_own() -> None:
    rows = [
        one
        for workload, times in (("unet3d", (4.0, 3.0, 2.0)), ("mask_rcnn", (9.0, 4.0, 3.0)))
        for loader, seconds in zip(("pytorch", "dali", "sample_aware"), times, strict=True)
        for one in cells(loader, seconds, seconds, labels={"workload": workload})
    ]
    workloads, loaders = Values("workload", ("unet3d", "mask_rcnn")), Values("loader", ("pytorch", "dali"), side="of")
    ahead = replace(FASTER, of={}, each=(workloads, loaders), combine="least", bound=Bound("above", 1.0))
    claim = evaluate(ahead, rows)
    assert (claim.actual, claim.expected) == ("1.33×", "> 1×")
    assert all(
        f"{ratio}× at {name}" in claim.reason
        for ratio, name in (("2.00", "unet3d, pytorch"), ("1.33", "mask_rcnn, dali"))
    )
    assert evaluate(ahead, [one for one in rows if one.key != "dali"]).reason == "the run has no DALI"


@given(st.sampled_from(("at_least", "at_most", "within")), st.floats(0.1, 100), st.floats(0, 1))
def test_the_paper_s_own_value_passes_and_one_beyond_the_tolerance_does_not(
    kind: str, paper: float, tolerance: float
) -> None:
    bound = Bound(kind, paper, relative=tolerance)
    assert bound.holds(paper) and (bound.holds(bound.low) or kind == "at_most")
    assert bound.holds(bound.low - 0.01 * paper) == (kind == "at_most")
    assert bound.holds(bound.high + 0.01 * paper) == (kind == "at_least")


def test_strictly_above_and_below_leave_out_the_value_itself() -> None:
    assert Bound("above", 1.0).holds(1.001) and not Bound("above", 1.0).holds(1.0)
    assert Bound("below", 0.05).holds(0.049) and not Bound("below", 0.05).holds(0.05)
    assert Bound("below", 0.05).expected("percent") == "< 5 %"
    assert Bound("above", 1.0).tolerance("factor") == "passes above 1.00×"
    assert Bound("below", 1.0).tolerance("less") == "passes above 0 % less"


def test_what_passes_is_told_in_the_style_of_the_value() -> None:
    assert Bound("within", 24.0, factor=2).tolerance("factor") == "passes from 12.0× to 48.0×"
    assert Bound("at_most", 0.05).tolerance("percent") == "passes up to 5.0 %"
    saving = Bound("at_most", 0.6, absolute=0.05)
    assert (saving.expected("less"), saving.tolerance("less")) == ("≥ 40 % less", "passes from 35 % less on")
    assert (written(0.4, "less"), written(1.14, "less")) == ("60 % less", "14 % more")
    assert combined("knee", {4: 1.0, 2: 0.96, 1: 0.5}) == 2


def test_rows_of_a_folder_know_the_config_and_its_sweep(build_sweep: Callable[..., Any]) -> None:
    folder = build_sweep(figures=("spdl_table2",)).write()
    metrics = pd.read_parquet(folder / "metrics.parquet").assign(ranks_wait_s=0.3, work_p50_s=0.1)
    metrics = metrics.assign(cpu_user_s=3.0, cpu_system_s=1.0)
    metrics.to_parquet(folder / "metrics.parquet")
    rows = make_claim_rows(read_results(folder))
    assert {one.labels["loader.num_workers"] for one in rows} == {1, 2, 4}
    assert {one.labels["loader"] for one in rows} == {"pytorch"} and {one.key for one in rows} > {
        "pytorch_num_workers_4"
    }
    first = next(one for one in rows if one.key == "pytorch_num_workers_2")
    assert first.values["until_first_batch_s"] == pytest.approx(1.25)
    shares = {"busy_share": 2 / 3, "cpu_s_per_sample": 0.05, "ranks_wait_share": 0.1, "cpu_system_share": 0.25}
    shares |= {"work_median_ms": 100.0}
    assert {name: first.values[name] for name in shares} == pytest.approx(shares)
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
    (claim,) = judge(read_results(build_sweep(figures=("mine",)).write()))
    assert (claim.id, claim.verdict, claim.actual, claim.expected) == ("mine", INCONCLUSIVE, "2.00 s", "≤ 3.00 s")


def test_slow_samples_are_counted_by_batch_and_by_half() -> None:
    slow = np.array([1, 5])
    even = [np.array(ids) for ids in ([0, 1, 2, 3], [4, 5, 6, 7], [8, 9])]
    figures = measure_composition(even, slow).figures
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
    (one,) = make_claim_rows(read_results(folder), {"slow_first_half"})
    assert (one.values["slow_batch_std"], one.values["slow_first_half"]) == (0.0, 0.5)


def test_batches_with_other_samples_than_pytorch_s_are_counted(build_sweep: Callable[..., Any]) -> None:
    builder = build_sweep(
        figures=("minato_fig11",), loaders={"pytorch": {"_target_": "p"}, "sample_aware": {"_target_": "s"}}, epochs=1
    )
    folder = builder.write()
    for home in (folder / "cells").iterdir():
        second = [4, 5, 7, 6] if home.name.startswith("pytorch") else [4, 5, 6, 8]
        ids = pa.array([[0, 1, 2, 3], second], pa.list_(pa.int64()))
        pq.write_table(pa.table({"epoch": pa.array([1, 1], pa.int32()), "ids": ids}), home / "batches.parquet")
    rows = make_claim_rows(read_results(folder), {"reordered_share"})
    shares = {one.labels["loader"]: one.values.get("reordered_share") for one in rows}
    assert shares == {"pytorch": None, "sample_aware": 0.5}


def test_a_claim_on_reordering_needs_batches_that_were_reordered() -> None:
    claim = replace(FASTER, needs=Needs(reordered=0.1))
    assert evaluate(claim, BOTH).reason == "which batches were reordered is not known"
    few = [replace(one, values={**one.values, "reordered_share": 0.05}) for one in BOTH]
    assert evaluate(claim, few).reason == "5.0 % of the batches have other samples than PyTorch's"
    many = [replace(one, values={**one.values, "reordered_share": 0.5}) for one in BOTH]
    assert evaluate(claim, many).verdict == PASS


def test_a_claim_on_a_list_of_paths_needs_one_that_is_as_long() -> None:
    claim = replace(FASTER, needs=Needs(listed=10**6))
    few = [replace(one, labels={**one.labels, "samples": 200, "listed": None}) for one in BOTH]
    assert evaluate(claim, few).reason == "a list of 200 paths, where the claim needs 1000000"
    many = [replace(one, labels={**one.labels, "listed": 10**6}) for one in few]
    assert evaluate(claim, many).verdict == PASS


def test_an_experiment_that_is_not_to_be_judged_has_no_claims(build_sweep: Callable[..., Any]) -> None:
    builder = build_sweep(figures=("spdl_table2",))
    assert judge(read_results(builder.write()))
    builder.config["judged"], builder.folder = False, builder.folder.with_name("other")
    assert judge(read_results(builder.write())) == ()


@pytest.mark.parametrize(
    ("second", "noise", "verdict"), [(1.0, 0.01, PASS), (1.1, 0.01, FAIL), (1.0, 0.3, INCONCLUSIVE)]
)
def test_the_same_loader_under_two_names_may_not_differ_and_noise_does_not_show_that_it_is_equal(
    build_sweep: Callable[..., Any], second: float, noise: float, verdict: str
) -> None:
    builder = build_sweep(figures=("aa",), loaders={"first": {"_target_": "p"}, "second": {"_target_": "p"}}, epochs=3)
    builder.samples, builder.repeats = 600, 10
    builder.config["figures"] = []
    folder = builder.write()
    rows = pd.read_parquet(folder / "epochs.parquet")
    rows["duration_s"] *= np.where(rows["loader"] == "second", second, 1.0)
    rows["duration_s"] *= 1 + noise * (-1.0) ** (rows["repeat"] + (rows["loader"] == "second"))
    rows.to_parquet(folder / "epochs.parquet", index=False)
    time, energy = judge(read_results(folder))
    assert (time.verdict, energy.verdict) == (verdict, NOT_CHECKED)


@pytest.mark.parametrize(("key", "named"), [("streaming_emlio", "streaming_emlio"), ("my_stream", "streaming")])
def test_a_stream_of_one_s_own_stands_for_the_streaming_loader_and_emlio_s_own_algorithm_for_itself(
    build_sweep: Callable[..., Any], key: str, named: str
) -> None:
    folder = build_sweep(figures=("emlio_fig7",), loaders={key: {"_target_": "s", "reads": "stream"}}, epochs=1).write()
    assert {one.labels["loader"] for one in make_claim_rows(read_results(folder))} == {named}
