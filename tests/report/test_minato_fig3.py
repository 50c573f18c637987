"""MinatoLoader's figure 3: object detection by the heuristics of image size and of reordering."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from matplotlib.text import Text

from harness.cell.events import save_events
from harness.report.figures import find_figure, make_figure_tables
from harness.results.reader import read_results

LOADERS = ("pytorch", "size_balanced", "pecan", "sample_aware")
SECONDS = {"pytorch": 10.0, "size_balanced": 12.5, "pecan": 9.8, "sample_aware": 8.0}
BATCHES, BATCH, STEP_S = 10, 6, 0.4
START_NS = 1_764_000_000_000_000_000


def measured(build_sweep: Callable[..., Any], accelerator: str = "emulated: assumed 0.01 s a sample") -> Path:
    """Write a run of one epoch a loader in `SECONDS`, whose ten steps take 4 s of it."""
    builder = build_sweep(
        figures=("minato_fig3",),
        workloads=("mask_rcnn",),
        loaders={key: {"_target_": "l", "num_workers": 2} for key in LOADERS},
        epochs=1,
    )
    builder.accelerator = accelerator
    folder: Path = builder.write()
    rows = pd.read_parquet(folder / "epochs.parquet")
    rows["duration_s"] = rows["loader"].map(SECONDS)
    rows["stall_s"] = rows["duration_s"] - BATCHES * STEP_S
    rows.to_parquet(folder / "epochs.parquet", index=False)
    for loader, seconds in SECONDS.items():
        store_cell(folder / "cells" / f"{loader}-mask_rcnn-local-r1", seconds)
    # Every fourth file is large; of the slow pictures, those of ids 0 and 1 of every 16, half have a small one.
    sizes = [400_000 if sample % 4 == 0 else 100_000 for sample in range(BATCHES * BATCH)]
    pq.write_table(pa.table({"size": pa.array(sizes, pa.int64())}), folder / "samples.parquet")
    return folder


def store_cell(home: Path, seconds: float) -> None:
    samples = np.arange(BATCHES * BATCH).reshape(BATCHES, BATCH)
    slow = (samples % 16 == 0) | (samples % 16 == 1)
    batches = {
        "epoch": [1] * BATCHES,
        "step": list(range(BATCHES)),
        "samples": [BATCH] * BATCHES,
        "bytes": [BATCH * 100_000] * BATCHES,
        "wait_s": [seconds / BATCHES - STEP_S] * BATCHES,
        "step_s": [STEP_S] * BATCHES,
        "ids": samples.tolist(),
        "work_s": np.where(slow, 0.15, 0.03).tolist(),
    }
    pq.write_table(pa.table(batches), home / "batches.parquet")
    end_ns = START_NS + round(seconds * 1e9)
    save_events(
        [
            {"event": "epoch_start", "utc_ns": START_NS, "mono_ns": 0, "epoch": 1},
            {"event": "epoch_end", "utc_ns": end_ns, "mono_ns": 0, "epoch": 1, "duration_ns": end_ns - START_NS},
        ],
        home / "events.parquet",
    )
    at = np.arange(START_NS, end_ns + 1, 250_000_000)
    seen = pd.DataFrame({"utc_ns": at, "cpu_util": 0.75, "gpu_util": np.nan, "disk_read_bytes": 0})
    seen.to_parquet(home / "resources.parquet")


def test_each_heuristic_stands_with_its_use_of_the_accelerator_and_the_paper_s(build_sweep: Callable[..., Any]) -> None:
    folder = measured(build_sweep)
    drawn = find_figure("minato_fig3").draw(read_results(folder))
    assert drawn is not None
    text = " ".join(one.get_text() for one in drawn.findobj(Text))
    assert "minato_fig3; emulated: assumed 0.01 s a sample" in text
    assert "size balanced (by image size)" in text
    assert "accelerator 41 %" in text
    assert "CPU 75 %" in text
    (table,) = make_figure_tables(read_results(folder))
    rows = {row[0]: row[1:] for row in table.rows}
    assert rows["PyTorch"][:4] == ("10.0 s", "1.00×", "40 %", "1.00×")
    assert rows["Pecan (transforms reordered)"][:5] == ("9.80 s", "1.02×", "41 %", "1.02×", "1.03×")
    assert rows["size balanced (by image size)"][:5] == ("12.5 s", "0.80×", "32 %", "0.80×", "–")


def test_it_is_told_how_many_slow_pictures_the_size_of_their_file_finds(build_sweep: Callable[..., Any]) -> None:
    drawn = find_figure("minato_fig3").draw(read_results(measured(build_sweep)))
    assert drawn is not None
    text = " ".join(one.get_text() for one in drawn.findobj(Text))
    assert (
        "correlation 0.23\n50 % of the slowest quarter of samples\nhave a file of the largest, 25 % by chance" in text
    )


def test_without_an_epoch_there_is_no_figure(build_sweep: Callable[..., Any]) -> None:
    builder = build_sweep(
        figures=("minato_fig3",), workloads=("mask_rcnn",), loaders={"pytorch": {"_target_": "p"}}, epochs=0
    )
    results = read_results(builder.write())
    assert find_figure("minato_fig3").draw(results) is None
    assert find_figure("minato_fig3").table(results) is None
