"""What a model learns through two loaders, by wall clock, step and seed, and how slow samples are spread."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from harness.report.claims.rows import make_claim_rows
from harness.report.figures import find_figure, make_figure_tables
from harness.report.intervals import compare_pairs
from harness.results.reader import read_results
from tests.report.figures import drawn_text

LOADERS = {"pytorch": {"_target_": "p"}, "sample_aware": {"_target_": "s"}}
EPOCHS, COUNT, SIZE = 3, 32, 4


def _batches(order: list[int], loss: float | None) -> pd.DataFrame:
    """Epochs over samples in an order; every fourth sample is slow."""
    batches = [order[at : at + SIZE] for at in range(0, COUNT, SIZE)]
    rows = [
        {
            "epoch": epoch,
            "step": step,
            "wait_s": 0.5,
            "step_s": 0.5,
            "loss": None if loss is None else loss / epoch,
            "ids": ids,
            "work_s": [1.0 if sample % 4 == 0 else 0.1 for sample in ids],
        }
        for epoch in range(1, EPOCHS + 1)
        for step, ids in enumerate(batches)
    ]
    return pd.DataFrame(rows)


@pytest.fixture
def write(build_sweep: Callable[..., Any]) -> Callable[..., Path]:
    """Write a run whose slow samples come evenly through PyTorch and at the end through the other."""

    def _write(figure: str, **losses: float | None) -> Path:
        builder = build_sweep(figures=(figure,), workloads=("unet3d",), loaders=LOADERS, epochs=EPOCHS)
        folder: Path = builder.write()
        late = sorted(range(COUNT), key=lambda sample: sample % 4 == 0)
        for cell in (folder / "cells").iterdir():
            base = cell.name.partition("-")[0]
            order = list(range(COUNT)) if base == "pytorch" else late
            _batches(order, losses.get(base)).to_parquet(cell / "batches.parquet")
        return folder

    return _write


def test_loss_and_slow_samples_of_both_loaders_stand_beside_the_paper_s(write: Callable[..., Path]) -> None:
    folder = write("minato_fig11", pytorch=3.0, sample_aware=2.4)
    text, results = drawn_text(folder, "minato_fig11"), read_results(folder)
    assert "UNet3D" in text and "iteration" in text
    (table,) = make_figure_tables(results)
    ours, other = table.rows
    assert ours == ("UNet3D, PyTorch", "1.00", "24.0 s", "0", "0.500", "0.23", "8.0 h")
    assert other[:3] == ("UNet3D, sample-aware", "0.800", "24.0 s")
    assert other[3:5] == ("1.73", "0")  # two batches of slow samples alone, all in the second half
    assert "0.24 through sample-aware" in find_figure("minato_fig11").caption(results)


def test_steps_that_trained_nothing_have_no_loss_and_say_so(write: Callable[..., Path]) -> None:
    folder = write("minato_fig11")
    assert "no loss: nothing was trained" in drawn_text(folder, "minato_fig11")
    results = read_results(folder)
    assert make_figure_tables(results)[0].rows[0][1] == "–"
    assert find_figure("minato_seeds").draw(results) is None and find_figure("minato_seeds").table(results) is None


def test_of_the_loss_by_wall_clock_one_panel_is_drawn(write: Callable[..., Path]) -> None:
    folder = write("emlio_fig11", pytorch=3.0, sample_aware=2.4)
    text = drawn_text(folder, "emlio_fig11")
    assert "seconds of training" in text and "slow samples in a batch" not in text
    (table,) = make_figure_tables(read_results(folder))
    assert table.rows[0] == ("UNet3D, PyTorch", "1.00", "24.0 s")


def test_losses_are_compared_in_the_time_of_the_shorter_epoch(build_sweep: Callable[..., Any]) -> None:
    folder = build_sweep(figures=("emlio_fig11",), loaders=LOADERS, epochs=1).write()
    for cell in (folder / "cells").iterdir():
        # Steps end after 1, 2, 3 and 4 s, or after half of that.
        length_s = 1.0 if cell.name.startswith("pytorch") else 0.5
        steps = {
            "epoch": [1] * 4,
            "step": [0, 1, 2, 3],
            "wait_s": [0.25 * length_s] * 4,
            "step_s": [0.75 * length_s] * 4,
        }
        batches = pd.DataFrame({**steps, "loss": [4.0, 3.0, 2.0, 1.0], "ids": [[0], [1], [2], [3]]})
        batches.to_parquet(cell / "batches.parquet")
    rows = make_claim_rows(read_results(folder), {"loss_meanwhile"})
    found = {one.labels["loader"]: one.values["loss_meanwhile"] for one in rows}
    # In 2 s: the slow one's first loss until the second step ends; the quick one's changes after 1 and 1.5 s.
    assert found == {"pytorch": 4.0, "sample_aware": (4.0 + 0.5 * 3.0 + 0.5 * 2.0) / 2.0}


def test_a_difference_is_judged_over_the_seeds_that_both_arms_have() -> None:
    noise = compare_pairs({1: 1.0, 2: 2.0, 3: 3.0, 4: 9.0}, {1: 1.2, 2: 1.9, 3: 3.05})
    assert noise is not None and noise.within_noise and noise.pairs == 3
    assert (noise.first_mean, noise.first_std) == (2.0, 1.0)
    # Differences 0.2, -0.1 and 0.05: mean 0.05, deviation 0.15, t(2) = 4.303.
    assert noise.difference == pytest.approx(0.05)
    assert noise.half_width == pytest.approx(4.303 * 0.15 / np.sqrt(3), rel=1e-3)
    more = compare_pairs({1: 1.0, 2: 2.0, 3: 3.0}, {1: 1.5, 2: 2.52, 3: 3.49})
    assert more is not None and not more.within_noise
    assert compare_pairs({1: 1.0}, {1: 1.0}) is None


def test_seeds_are_told_with_means_deviations_and_a_verdict(write: Callable[..., Path]) -> None:
    folder = write("minato_seeds", pytorch=3.0, sample_aware=3.0)
    plan = (folder / "plan.json").read_text()
    cells = {path.name: path for path in (folder / "cells").iterdir()}
    more = []
    for name, home in cells.items():
        for repeat in (2, 3):
            copy = home.with_name(name.replace("-r1", f"-r{repeat}"))
            copy.mkdir()
            (copy / "cell.json").write_text((home / "cell.json").read_text())
            loss = 3.0 + 0.3 * repeat + (0.01 * (repeat - 2.5) if "aware" in name else 0.0)
            _batches(list(range(COUNT)), loss).to_parquet(copy / "batches.parquet")
            cell = {"cell_id": copy.name, "workload": "unet3d", "loader": name.partition("-")[0]}
            more.append({**cell, "regime": "local", "repeat": repeat})
    (folder / "plan.json").write_text(plan.replace('"cells": [', f'"cells": [{str(more)[1:-1]}, '.replace("'", '"')))
    results = read_results(folder)
    assert find_figure("minato_seeds").draw(results) is not None
    (table,) = make_figure_tables(results)
    pytorch, _, verdict = table.rows
    assert pytorch[:1] + pytorch[3:] == ("UNet3D, PyTorch", "3", "")
    assert verdict[0] == "sample-aware − PyTorch" and verdict[-1] == "within noise"
    told = find_figure("minato_seeds").caption(results)
    # Of the first seed all batches differ, of the other two none.
    assert "within noise" in told and "67 % of the batches hold the same samples" in told
