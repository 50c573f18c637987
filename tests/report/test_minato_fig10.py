"""MinatoLoader's figure 10: training with memory for a third of the data."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from matplotlib.text import Text

from harness.report.figures import find_figure, make_figure_tables
from harness.results.reader import read_results

LOADERS = {key: {"_target_": "l"} for key in ("pytorch", "dali", "sample_aware")}
STEPS, BEGAN_NS = 8, 1_700_000_000 * 10**9


@pytest.fixture
def folder(build_sweep: Callable[..., Any]) -> Path:
    """Two epochs of 8 s a loader; in a step for half of the time, 50 MB read from disk per second."""
    builder = build_sweep(figures=("minato_fig10",), workloads=("unet3d",), loaders=LOADERS)
    builder.config["testbed"] = {"memory_mb": 950}
    builder.accelerator = "emulated: assumed 0.015 s a sample"
    written: Path = builder.write()
    for cell in (written / "cells").iterdir():
        epochs = [epoch for epoch in (1, 2) for _ in range(STEPS)]
        batches = {"epoch": epochs, "step": [*range(STEPS)] * 2, "bytes": 10**7, "wait_s": 0.5, "step_s": 0.5}
        pd.DataFrame({**batches, "loss": None}).to_parquet(cell / "batches.parquet")
        events = [
            {"event": event, "utc_ns": BEGAN_NS + at * 10**9, "values": json.dumps({"epoch": epoch, **more})}
            for epoch, first in ((1, 0), (2, 10))
            for event, at, more in (
                ("epoch_start", first, {}),
                ("epoch_end", first + STEPS, {"duration_ns": STEPS * 10**9}),
            )
        ]
        pd.DataFrame(events).to_parquet(cell / "events.parquet")
        looks = pd.DataFrame({"utc_ns": [BEGAN_NS + quarter * 250_000_000 for quarter in range(80)]})
        read = [quarter * 12_500_000 for quarter in range(80)]
        looks = looks.assign(cpu_util=0.75, gpu_util=float("nan"), disk_read_bytes=read)
        looks.to_parquet(cell / "resources.parquet")
    return written


def test_use_throughput_and_disk_reads_stand_a_row_a_loader_beside_the_paper_s(folder: Path) -> None:
    results = read_results(folder)
    drawn = find_figure("minato_fig10").draw(results)
    assert drawn is not None
    assert len(drawn.axes) == 9
    text = " ".join(one.get_text() for one in drawn.findobj(Text))
    assert "950 MB of memory a loader" in text
    assert "accelerator 50 %, CPU 75 %; 16.0 s" in text
    assert "mean 10.0" in text and "mean 5" in text
    assert text.count("MB/s read from disk") == text.count("MB/s trained on") == 3
    assert "650 s with PyTorch" in find_figure("minato_fig10").caption(results)
    (table,) = make_figure_tables(results)
    assert table.rows[0][:4] == ("PyTorch", "16.0 s", "50 %", "75 %")
    assert table.rows[0][5:] == ("≈ 650 s", "57 %")
    assert table.rows[2][-1] == "82.1 %"
    read_mb = float(table.rows[0][4].removesuffix(" MB"))
    assert read_mb == pytest.approx(800, rel=0.02)


def test_without_a_limit_the_figure_says_so(folder: Path) -> None:
    config = json.loads((folder / "config.yaml").read_text())
    (folder / "config.yaml").write_text(json.dumps({**config, "testbed": {"memory_mb": None}}))
    assert "Memory not limited" in find_figure("minato_fig10").caption(read_results(folder))


def test_there_is_no_figure_where_nothing_was_measured(build_sweep: Callable[..., Any]) -> None:
    results = read_results(build_sweep(figures=("minato_fig10",), loaders=LOADERS, epochs=0).write())
    assert find_figure("minato_fig10").draw(results) is None and find_figure("minato_fig10").table(results) is None
