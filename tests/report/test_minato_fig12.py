"""MinatoLoader's figure 12: training time by the share of slow samples."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.text import Text

from harness.report.figures import find_figure, make_figure_tables
from harness.report.figures.sentences import run_words
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


def test_epoch_times_stand_by_share_with_what_the_loaders_gain_over_pytorch(build_sweep: Callable[..., Any]) -> None:
    # 32 s of work for 4 workers: 8 s.
    folder = measured(build_sweep, SECONDS, {"slow_50": [0.5] * 64})
    drawn = find_figure("minato_fig12").draw(read_results(folder))
    assert drawn is not None
    text = " ".join(one.get_text() for one in drawn.findobj(Text))
    assert "minato_fig12; none: no load" in text
    assert "paper: up to 2.4×, with added workers" in text
    assert [axes.get_xscale() for axes in drawn.axes] == ["linear", "linear"]  # it begins at 0 %
    (table,) = make_figure_tables(read_results(folder))
    assert table.columns == ("Time of an epoch", "0 % slow", "25 % slow", "50 % slow", "75 % slow", "100 % slow")
    rows = {row[0]: row[1:] for row in table.rows}
    assert rows["PyTorch, seconds"] == ("4.00 s", "10.0 s", "15.0 s", "18.0 s", "20.0 s")
    assert rows["PyTorch over sample-aware"] == ("0.98×", "1.25×", "1.25×", "1.12×", "0.99×")
    assert rows["no worker ever waits, seconds"] == ("–", "–", "8.00 s", "–", "–")
    assert rows["PyTorch over no worker ever waits"] == ("–", "–", "1.88×", "–", "–")


def test_a_caption_says_which_loaders_steps_take_another_time(build_sweep: Callable[..., Any]) -> None:
    loaders = {**LOADERS, "dali": {"_target_": "d", "num_threads": 4, "timed_step_scale": 0.1}}
    builder = build_sweep(figures=("minato_fig12",), workloads=("slow_0",), loaders=loaders)
    builder.config["workloads"]["slow_0"] |= {"light_s": 0.5, "heavy_s": 3.0}
    said = run_words(read_results(builder.write()))["timed_steps"]
    assert said == " LightStep and HeavyStep take DALI 0.1 times the time that they take the other loaders."
