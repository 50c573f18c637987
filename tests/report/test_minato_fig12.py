"""MinatoLoader's figure 12: training time by the share of slow samples."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from matplotlib.text import Text

from harness.report import read_report, render
from harness.report.claims import Claim, judge
from harness.report.figures import find_figure, make_figure_tables
from harness.results.reader import read_results

LOADERS = {
    "pytorch": {"_target_": "p", "num_workers": 4},
    "pecan": {"_target_": "c", "num_workers": 4},
    "sample_aware": {"_target_": "s", "num_workers": 4},
}
SECONDS = {
    "slow_0": {"pytorch": 4.0, "pecan": 4.0, "sample_aware": 4.1},
    "slow_25": {"pytorch": 10.0, "pecan": 9.9, "sample_aware": 8.0},
    "slow_50": {"pytorch": 15.0, "pecan": 15.2, "sample_aware": 12.0},
    "slow_75": {"pytorch": 18.0, "pecan": 18.0, "sample_aware": 16.0},
    "slow_100": {"pytorch": 20.0, "pecan": 20.0, "sample_aware": 20.2},
}


def measured(
    build_sweep: Callable[..., Any],
    seconds: Mapping[str, Mapping[str, float]],
    work_s: Mapping[str, list[float]] | None = None,
) -> Path:
    """Write a run in which a cell's second epoch took these seconds, and the first three times as long with ours."""
    builder = build_sweep(figures=("minato_fig12",), workloads=tuple(SECONDS), loaders=LOADERS, epochs=2)
    for key, section in builder.config["workloads"].items():
        section["heavy_share"] = int(key.removeprefix("slow_")) / 100
    builder.work_s = work_s or {}
    folder: Path = builder.write()
    rows = pd.read_parquet(folder / "epochs.parquet")
    rows["duration_s"] = [
        seconds[row.workload][row.loader] * (3 if row.epoch == 1 and row.loader == "sample_aware" else 1)
        for row in rows.itertuples()
    ]
    rows.to_parquet(folder / "epochs.parquet", index=False)
    return folder


def verdicts(folder: Path) -> dict[str, Claim]:
    return {claim.id: claim for claim in judge(read_results(folder))}


def test_epoch_times_stand_by_share_with_what_the_loaders_gain_over_pytorch(build_sweep: Callable[..., Any]) -> None:
    # 32 s of work for 4 workers: 8 s.
    folder = measured(build_sweep, SECONDS, {"slow_50": [0.5] * 64})
    drawn = find_figure("minato_fig12").draw(read_results(folder))
    assert drawn is not None
    text = " ".join(one.get_text() for one in drawn.findobj(Text))
    assert "minato_fig12; none: no load" in text
    assert "paper: MinatoLoader, which adds workers, up to 2.4×" in text
    assert [axes.get_xscale() for axes in drawn.axes] == ["linear", "linear"]  # it begins at 0 %
    (table,) = make_figure_tables(read_results(folder))
    assert table.columns == ("Time of an epoch", "0 % slow", "25 % slow", "50 % slow", "75 % slow", "100 % slow")
    rows = {row[0]: row[1:] for row in table.rows}
    assert rows["PyTorch, seconds"] == ("4.00 s", "10.0 s", "15.0 s", "18.0 s", "20.0 s")
    assert rows["PyTorch over sample-aware"] == ("0.98×", "1.25×", "1.25×", "1.12×", "0.99×")
    assert rows["no worker ever waits, seconds"] == ("–", "–", "8.00 s", "–", "–")
    assert rows["PyTorch over no worker ever waits"] == ("–", "–", "1.88×", "–", "–")


def test_the_claims_are_judged_by_share_without_the_epochs_that_start_workers(
    build_sweep: Callable[..., Any],
) -> None:
    folder = measured(build_sweep, SECONDS)
    found = verdicts(folder)
    assert {key: one.verdict for key, one in found.items()} == {
        "minato_fig12_pytorch_0": "PASS",
        "minato_fig12_pytorch_100": "PASS",
        "minato_fig12_pecan_0": "PASS",
        "minato_fig12_pecan_100": "PASS",
        "minato_fig12_ahead": "PASS",
        "minato_fig12_most": "FAIL",
    }
    assert found["minato_fig12_pytorch_0"].actual == "0.98×"
    most = found["minato_fig12_most"]
    assert most.actual == "1.25×"
    assert "1.25× at 0.25, 1.25× at 0.5, 1.12× at 0.75" in most.reason
    assert most.reason
    render(read_report(folder))
    stored = {claim["id"]: claim for claim in json.loads((folder / "claims.json").read_text())}
    assert stored["minato_fig12_most"]["verdict"] == "FAIL"
    assert "minato_fig12" in (folder / "report.html").read_text()


@pytest.mark.parametrize(("share", "claim"), [("slow_0", "pytorch_0"), ("slow_75", "ahead")])
def test_a_loader_that_falls_behind_fails_the_claim(build_sweep: Callable[..., Any], share: str, claim: str) -> None:
    behind = {**SECONDS, share: {**SECONDS[share], "sample_aware": 1.2 * SECONDS[share]["pytorch"]}}
    assert verdicts(measured(build_sweep, behind))[f"minato_fig12_{claim}"].verdict == "FAIL"


def test_a_share_that_was_not_run_is_not_checked(build_sweep: Callable[..., Any]) -> None:
    folder = measured(build_sweep, SECONDS)
    rows = pd.read_parquet(folder / "epochs.parquet")
    rows[rows["workload"] != "slow_75"].to_parquet(folder / "epochs.parquet", index=False)
    found = verdicts(folder)
    assert found["minato_fig12_ahead"].verdict == "NOT CHECKED"
    assert found["minato_fig12_ahead"].reason == "the run has no row of PyTorch, heavy_share 0.75"
    assert found["minato_fig12_pytorch_0"].verdict == "PASS"
