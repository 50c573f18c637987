"""Figures 1b, 7, 8 and 9 of the MinatoLoader paper: cells over time and over workers, from what they stored."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hydra import compose, initialize_config_module
from matplotlib.text import Text

from harness.config.experiment import experiment_from
from harness.report.figures import find_figure, make_figure_tables
from harness.report.figures.timeline import make_timelines, window_s
from harness.results.reader import read_results
from harness.run.plan import plan_cells

SECOND_NS = 10**9
LOADERS: Mapping[str, Any] = {
    "pytorch": {"_target_": "p"},
    "pecan": {"_target_": "e"},
    "dali": {"_target_": "d"},
    "sample_aware": {"_target_": "s"},
}


class Cells:
    """Gives every cell of a folder batches, events and resources; epochs lie 100 s apart."""

    def __init__(self, folder: Path, *, epochs: int = 2, gpu_util: float | None = None) -> None:
        self.folder, self.epochs, self.gpu_util = folder, epochs, gpu_util

    def give(
        self,
        loader: str,
        workload: str,
        waits_s: Sequence[float],
        steps_s: Sequence[float],
        *,
        megabytes: float = 3.0,
        cpu: Callable[[float], float] = lambda at_s: 0.5,
    ) -> None:
        """Let an epoch have these batches, `cpu` being the host's use by seconds of the epoch."""
        home = self.folder / "cells" / f"{loader}-{workload}-local-r1"
        duration_s = sum(waits_s) + sum(steps_s)
        batches, events, seen = [], [], []
        for epoch in range(1, self.epochs + 1):
            start = 100 * epoch * SECOND_NS
            end = start + round(duration_s * SECOND_NS)
            for event, at in (("epoch_start", start), ("epoch_end", end)):
                values = json.dumps({"epoch": epoch, "duration_ns": end - start})
                events.append({"event": event, "utc_ns": at, "mono_ns": at, "values": values})
            for step, (wait, took) in enumerate(zip(waits_s, steps_s, strict=True)):
                timed = {"wait_s": wait, "step_s": took, "bytes": round(megabytes * 1e6)}
                batches.append({"epoch": epoch, "step": step, **timed})
            # Between epochs the host does what is no part of training.
            for tick in range(-8, round(4 * duration_s) + 8):
                within = 0 <= tick / 4 - 0.125 <= duration_s
                used = cpu(tick / 4 - 0.125) if within else 1.0
                at = start + tick * SECOND_NS // 4
                read = (tick + 8) * 1_000_000
                seen.append({"utc_ns": at, "cpu_util": used, "gpu_util": self.gpu_util, "disk_read_bytes": read})
        pd.DataFrame(batches).to_parquet(home / "batches.parquet")
        pd.DataFrame(events).to_parquet(home / "events.parquet")
        pd.DataFrame(seen).astype({"gpu_util": "float64"}).to_parquet(home / "resources.parquet")


def texts(folder: Path, name: str) -> str:
    drawn = find_figure(name).draw(read_results(folder))
    return " ".join(text.get_text() for text in drawn.findobj(Text))


@pytest.fixture
def grid(build_sweep: Any) -> Callable[..., Path]:
    """Return a maker of a run of two workloads through four loaders, of which ours waits half as long."""

    def make(figure: str, repeats: int = 1, **cells: Any) -> Path:
        builder = build_sweep(figures=(figure,), workloads=("unet3d", "speech_3s"), loaders=LOADERS)
        builder.repeats = repeats
        builder.accelerator = "emulated: assumed 0.5 s a sample"
        folder: Path = builder.write()
        made = Cells(folder, **cells)
        for workload in ("unet3d", "speech_3s"):
            for loader in LOADERS:
                wait = 0.5 if loader == "sample_aware" else 1.0
                made.give(loader, workload, [wait] * 4, [0.5] * 4)
        frame = pd.read_parquet(folder / "epochs.parquet")
        frame["duration_s"] = np.where(frame["loader"] == "sample_aware", 4.0, 6.0)
        frame.to_parquet(folder / "epochs.parquet", index=False)
        return folder

    return make


def test_a_timeline_is_cut_into_windows_and_leaves_out_what_passed_between_epochs(build_sweep: Any) -> None:
    folder = build_sweep(figures=("minato_fig7",), loaders={"pytorch": {"_target_": "p"}}).write()
    Cells(folder).give("pytorch", "resnet50", [1.5, 0.5], [0.5, 0.5], cpu=lambda at_s: 0.2 if at_s < 2 else 0.8)
    timeline = make_timelines(read_results(folder), "resnet50")["pytorch"]
    assert timeline.epoch_ends_s == (3.0, 6.0)
    assert timeline.duration_s == pytest.approx(6.0)
    assert set(timeline.width_s) == {0.25}
    one_epoch = [1.5] * 8 + [3.0] * 4  # 3 MB in 2 s, then 3 MB in 1 s
    assert timeline.rate("mb_per_s") == pytest.approx(np.array(one_epoch * 2))
    assert timeline.rate("stepping") == pytest.approx(np.array(([0.0] * 6 + [1.0] * 2 + [0.0] * 2 + [1.0] * 2) * 2))
    assert timeline.rate("cpu_util") == pytest.approx(np.array(([0.2] * 8 + [0.8] * 4) * 2))
    assert timeline.rate("disk_mb_per_s") == pytest.approx(np.full(24, 4.0))
    assert timeline.mean(timeline.rate("mb_per_s")) == pytest.approx(2.0)
    assert not timeline.has_board
    assert timeline.accelerator_util == pytest.approx(timeline.rate("stepping"))


def test_where_nvml_tells_of_a_board_its_use_is_shown(build_sweep: Any) -> None:
    folder = build_sweep(figures=("minato_fig8",), loaders={"pytorch": {"_target_": "p"}}).write()
    Cells(folder, gpu_util=0.75).give("pytorch", "resnet50", [1.0], [1.0])
    timeline = make_timelines(read_results(folder), "resnet50")["pytorch"]
    assert timeline.mean(timeline.accelerator_util) == pytest.approx(0.75)
    assert timeline.mean(timeline.rate("stepping")) == pytest.approx(0.5)
    assert "GPU (NVML)" in texts(folder, "minato_fig8")


def test_a_cell_that_stored_no_resources_has_no_cpu_use(build_sweep: Any) -> None:
    folder = build_sweep(figures=("minato_fig8",), loaders={"pytorch": {"_target_": "p"}}).write()
    Cells(folder).give("pytorch", "resnet50", [1.0], [1.0])
    next(folder.glob("cells/*/resources.parquet")).unlink()
    timeline = make_timelines(read_results(folder), "resnet50")["pytorch"]
    assert timeline.mean(timeline.rate("cpu_util")) is None
    assert make_figure_tables(read_results(folder))[0].rows[0] == ("ResNet-50, PyTorch", "50 %", "–", "–")


def test_memory_over_time_joins_what_was_seen_and_what_was_left_after_each_epoch(build_sweep: Any) -> None:
    loaders = {"pytorch": {"_target_": "p"}, "fixed": {"_target_": "f", "reads": "once"}}
    folder = build_sweep(figures=("memory",), loaders=loaders).write()
    for loader in loaders:
        Cells(folder).give(loader, "resnet50", [1.0], [1.0])
        home = folder / "cells" / f"{loader}-resnet50-local-r1"
        seen = pd.read_parquet(home / "resources.parquet")
        # Seldom looked at: 1 s into the first epoch, and never in the second.
        pss = np.where(seen["utc_ns"] == 101 * SECOND_NS, 1e9, np.nan)
        seen.assign(pss_bytes=pss, gpu_mem_bytes=np.nan).to_parquet(home / "resources.parquet")
        after = [
            {"event": "memory", "utc_ns": 0, "mono_ns": 0, "values": json.dumps({"epoch": n, "pss_bytes": n * 2**31})}
            for n in (1, 2)
        ]
        events = pd.concat([pd.read_parquet(home / "events.parquet"), pd.DataFrame(after)])
        events.to_parquet(home / "events.parquet")
    results = read_results(folder)
    timeline = make_timelines(results, "resnet50")["pytorch"]
    at_s, megabytes = timeline.memory_mb
    assert at_s.tolist() == [1.0, 2.0, 4.0]
    assert megabytes == pytest.approx([1000.0, 2**31 / 1e6, 2**32 / 1e6])
    assert len(timeline.gpu_memory_mb[0]) == 0
    (table,) = make_figure_tables(results)
    assert table.rows[0][2:] == ("4.29 GB", "2.15 GB", "–")
    assert "fixed batch" in texts(folder, "memory")


@pytest.mark.parametrize(
    ("duration_s", "width"), [(0.0, 0.25), (12.0, 0.25), (12.1, 0.5), (3600.0, 300.0), (1e6, 900.0)]
)
def test_longer_trainings_are_cut_into_wider_windows(duration_s: float, width: float) -> None:
    assert window_s(duration_s) == width


def test_throughput_is_told_against_the_others_with_the_paper_s_below(grid: Callable[..., Path]) -> None:
    folder = grid("minato_fig7")
    told = texts(folder, "minato_fig7")
    assert "sample-aware: 1.50× PyTorch, 1.50× Pecan, 1.50× DALI\nin the paper: 2.5× PyTorch, 2.5× Pecan" in told
    assert "3.5 to 5.5× Pecan, 2× DALI" in told
    assert "emulated, s a sample assumed: UNet3D 0.5, Speech 3s 0.5" in told
    rows = {row[0]: row[1:] for row in make_figure_tables(read_results(folder))[0].rows}
    assert rows["UNet3D, DALI"] == ("12.0 s", "2.00", "1.50×", "1.3×")
    assert rows["Speech 3s, sample-aware"] == ("8.00 s", "3.00", "–", "–")


def test_throughput_that_differs_by_noise_alone_says_so(grid: Callable[..., Path]) -> None:
    folder = grid("minato_fig7", repeats=2)
    frame = pd.read_parquet(folder / "epochs.parquet")
    frame["duration_s"] = np.where(frame["repeat"] == 1, 4.0, 4.4)
    frame.loc[frame["loader"] == "pecan", "duration_s"] *= 3
    frame.to_parquet(folder / "epochs.parquet", index=False)
    rows = {row[0]: row[1:] for row in make_figure_tables(read_results(folder))[0].rows}
    assert rows["UNet3D, DALI"][2] == "≈1.00×" and rows["UNet3D, Pecan"][2] == "3.00×"
    assert "sample-aware: ≈1.00× PyTorch, 3.00× Pecan" in texts(folder, "minato_fig7")


def test_uses_are_told_by_workload_and_over_all_beside_the_paper_s(grid: Callable[..., Path]) -> None:
    folder = grid("minato_fig8")
    told = texts(folder, "minato_fig8")
    assert "accelerator 33 %, CPU 50 %" in told
    assert "accelerator 50 %, CPU 50 %" in told
    assert "Speech 3s, sample-aware" in told
    rows = {row[0]: row[1:] for row in make_figure_tables(read_results(folder))[0].rows}
    assert rows["Speech 3s, PyTorch"] == ("33 %", "50 %", "–")
    assert rows["over 2 workloads, PyTorch"] == ("33 %", "50 %", "46.4 %")
    assert rows["over 2 workloads, sample-aware"] == ("50 %", "50 %", "90.45 %")


def test_uses_that_take_turns_are_told_by_their_correlation(build_sweep: Any) -> None:
    builder = build_sweep(figures=("minato_fig1b",), workloads=("unet3d",), loaders={"pytorch": {"_target_": "p"}})
    builder.accelerator = "emulated: assumed 0.5 s a sample"
    folder = builder.write()
    Cells(folder).give("pytorch", "unet3d", [1.0] * 3, [1.0] * 3, cpu=lambda at_s: 0.9 if at_s % 2 < 1 else 0.1)
    ours, paper = make_figure_tables(read_results(folder))[0].rows
    assert ours == ("UNet3D, PyTorch", "50 %", "50 %", "-1.0")
    assert paper == ("    paper", "57.4 %", "–", "inverse")
    assert "the paper's mean GPU use" in texts(folder, "minato_fig1b")


SWEPT: Mapping[str, Any] = {
    "pytorch": {"_target_": "p", "sweep": {"num_workers": [1, 2]}},
    "dali": {"_target_": "d", "sweep": {"num_threads": [1, 2]}},
    "sample_aware": {"_target_": "s", "sweep": {"num_workers": [1, 2]}},
}


def test_training_time_is_all_epochs_by_number_of_workers(build_sweep: Any) -> None:
    folder = build_sweep(figures=("minato_fig9",), workloads=("unet3d",), loaders=SWEPT).write()
    told = texts(folder, "minato_fig9")
    assert "sample-aware with 2: 1.00× PyTorch, 1.00× DALI" in told
    table = make_figure_tables(read_results(folder))[0]
    assert table.columns == ("Training time by workers", "PyTorch", "DALI", "sample-aware")
    # 5 and 4 s with one worker, 3 and 2 s with two
    assert table.rows == (("UNet3D, 1", "9.00 s", "9.00 s", "9.00 s"), ("UNet3D, 2", "5.00 s", "5.00 s", "5.00 s"))


def test_a_training_of_which_an_epoch_does_not_count_is_no_short_one(build_sweep: Any) -> None:
    folder = build_sweep(figures=("minato_fig9",), workloads=("unet3d",), loaders=SWEPT).write()
    frame = pd.read_parquet(folder / "epochs.parquet")
    first = (frame["loader"] == "dali_num_threads_2") & (frame["epoch"] == 1)
    frame.loc[first, "valid"] = "invalid: exactly_once (1 missing)"
    frame.to_parquet(folder / "epochs.parquet", index=False)
    assert make_figure_tables(read_results(folder))[0].rows[1] == ("UNet3D, 2", "5.00 s", "–", "5.00 s")


@pytest.mark.parametrize("name", ["minato_fig1b", "minato_fig7", "minato_fig8", "minato_fig9"])
def test_nothing_is_drawn_of_a_run_of_which_no_epoch_ended(build_sweep: Any, name: str) -> None:
    results = read_results(build_sweep(figures=(name,), loaders=SWEPT, epochs=0).write())
    assert find_figure(name).draw(results) is None
    assert make_figure_tables(results) == ()
    assert "MinatoLoader" in find_figure(name).caption(results)


def test_figure_8_is_asked_of_the_run_of_figure_7() -> None:
    with initialize_config_module("conf", version_base="1.3"):
        seven, eight = (
            experiment_from(compose("config", overrides=[f"+experiment=minato_fig{n}"])) for n in ("7", "8")
        )
    assert [cell.cell_id for cell in plan_cells(seven)] == [cell.cell_id for cell in plan_cells(eight)]
    assert seven.figures == ("minato_fig7", "minato_fig8")
    readers = [spec for key, spec in eight.loaders.items() if key != "fixed"]
    assert {spec.params.get("num_workers", spec.params.get("num_threads")) for spec in readers} == {2}
