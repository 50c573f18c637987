"""Figures of cells over time, and of training times by workers: MinatoLoader's 1b, 3, 7 to 10, Cassandra-DALI's."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hydra import compose, initialize_config_module

from harness.config.experiment import experiment_from
from harness.report import read_report, render
from harness.report.figures import find_figure, make_figure_tables
from harness.report.figures.timeline import make_timelines, window_s
from harness.results.reader import read_results
from harness.run.plan import plan_cells
from tests.report.figures import SECOND_NS, drawn_text, rows_of, store_cell

LOADERS: Mapping[str, Any] = {
    "pytorch": {"_target_": "p"},
    "pecan": {"_target_": "e"},
    "dali": {"_target_": "d"},
    "sample_aware": {"_target_": "s"},
}


@pytest.fixture
def single(build_sweep: Any) -> Callable[..., Path]:
    """Return a maker of a run of one loader, whose only cell has the batches of `store_cell`."""

    def make(figure: str, waits_s: Sequence[float], steps_s: Sequence[float], **cell: Any) -> Path:
        folder: Path = build_sweep(figures=(figure,), loaders={"pytorch": {"_target_": "p"}}).write()
        store_cell(folder / "cells" / "pytorch-resnet50-local-r1", waits_s, steps_s, **cell)
        return folder

    return make


@pytest.fixture
def grid(build_sweep: Any) -> Callable[..., Path]:
    """Return a maker of a run of two workloads through four loaders, of which ours waits half as long."""

    def make(figure: str, repeats: int = 1) -> Path:
        builder = build_sweep(figures=(figure,), workloads=("unet3d", "speech_3s"), loaders=LOADERS)
        builder.repeats = repeats
        builder.accelerator = "emulated: assumed 0.5 s a sample"
        folder: Path = builder.write()
        for workload, loader in product(("unet3d", "speech_3s"), LOADERS):
            wait = 0.5 if loader == "sample_aware" else 1.0
            store_cell(folder / "cells" / f"{loader}-{workload}-local-r1", [wait] * 4, [0.5] * 4)
        frame = pd.read_parquet(folder / "epochs.parquet")
        frame["duration_s"] = np.where(frame["loader"] == "sample_aware", 4.0, 6.0)
        frame.to_parquet(folder / "epochs.parquet", index=False)
        return folder

    return make


def test_a_timeline_is_cut_into_windows_and_leaves_out_what_passed_between_epochs(single: Callable[..., Path]) -> None:
    folder = single("minato_fig7", [1.5, 0.5], [0.5, 0.5], cpu=lambda at_s: 0.2 if at_s < 2 else 0.8)
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


def test_where_nvml_tells_of_a_board_its_use_is_shown(single: Callable[..., Path]) -> None:
    folder = single("minato_fig8", [1.0], [1.0], gpu_util=0.75)
    timeline = make_timelines(read_results(folder), "resnet50")["pytorch"]
    assert timeline.mean(timeline.accelerator_util) == pytest.approx(0.75)
    assert timeline.mean(timeline.rate("stepping")) == pytest.approx(0.5)
    assert "GPU (NVML)" in drawn_text(folder, "minato_fig8")


def test_a_cell_that_stored_no_resources_has_no_cpu_use(single: Callable[..., Path]) -> None:
    folder = single("minato_fig8", [1.0], [1.0])
    next(folder.glob("cells/*/resources.parquet")).unlink()
    timeline = make_timelines(read_results(folder), "resnet50")["pytorch"]
    assert timeline.mean(timeline.rate("cpu_util")) is None
    assert rows_of(folder)["ResNet-50, PyTorch"] == ("50 %", "–", "–")


def test_memory_over_time_joins_what_was_seen_and_what_was_left_after_each_epoch(build_sweep: Any) -> None:
    loaders = {"pytorch": {"_target_": "p"}, "fixed": {"_target_": "f", "reads": "once"}}
    folder = build_sweep(figures=("memory",), loaders=loaders).write()
    for loader in loaders:
        home = folder / "cells" / f"{loader}-resnet50-local-r1"
        store_cell(home, [1.0], [1.0])
        seen = pd.read_parquet(home / "resources.parquet")
        # Seldom looked at: 1 s into the first epoch, and never in the second.
        pss = np.where(seen["utc_ns"] == seen["utc_ns"].min() + 3 * SECOND_NS, 1e9, np.nan)
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
    assert "fixed batch" in drawn_text(folder, "memory")


@pytest.mark.parametrize(
    ("duration_s", "width"), [(0.0, 0.25), (12.0, 0.25), (12.1, 0.5), (3600.0, 300.0), (1e6, 900.0)]
)
def test_longer_trainings_are_cut_into_wider_windows(duration_s: float, width: float) -> None:
    assert window_s(duration_s) == width


def test_throughput_is_told_against_the_others_with_the_paper_s_below(grid: Callable[..., Path]) -> None:
    folder = grid("minato_fig7")
    told = drawn_text(folder, "minato_fig7")
    assert "sample-aware: 1.50× PyTorch, 1.50× Pecan, 1.50× DALI\nin the paper: 2.5× PyTorch, 2.5× Pecan" in told
    assert "3.5 to 5.5× Pecan, 2× DALI" in told
    assert "emulated, s a sample assumed: UNet3D 0.5, Speech 3s 0.5" in told
    rows = rows_of(folder)
    assert rows["UNet3D, DALI"] == ("12.0 s", "2.00", "1.50×", "1.3×")
    assert rows["Speech 3s, sample-aware"] == ("8.00 s", "3.00", "–", "–")


def test_throughput_that_differs_by_noise_alone_says_so(grid: Callable[..., Path]) -> None:
    folder = grid("minato_fig7", repeats=2)
    frame = pd.read_parquet(folder / "epochs.parquet")
    frame["duration_s"] = np.where(frame["repeat"] == 1, 4.0, 4.4)
    frame.loc[frame["loader"] == "pecan", "duration_s"] *= 3
    frame.to_parquet(folder / "epochs.parquet", index=False)
    rows = rows_of(folder)
    assert rows["UNet3D, DALI"][2] == "≈1.00×" and rows["UNet3D, Pecan"][2] == "3.00×"
    assert "sample-aware: ≈1.00× PyTorch, 3.00× Pecan" in drawn_text(folder, "minato_fig7")


def test_uses_are_told_by_workload_and_over_all_beside_the_paper_s(grid: Callable[..., Path]) -> None:
    folder = grid("minato_fig8")
    told = drawn_text(folder, "minato_fig8")
    assert "accelerator 33 %, CPU 50 %" in told
    assert "accelerator 50 %, CPU 50 %" in told
    assert "Speech 3s, sample-aware" in told
    rows = rows_of(folder)
    assert rows["Speech 3s, PyTorch"] == ("33 %", "50 %", "–")
    assert rows["over 2 workloads, PyTorch"] == ("33 %", "50 %", "46.4 %")
    assert rows["over 2 workloads, sample-aware"] == ("50 %", "50 %", "90.45 %")


def test_uses_that_take_turns_are_told_by_their_correlation(build_sweep: Any) -> None:
    builder = build_sweep(figures=("minato_fig1b",), workloads=("unet3d",), loaders={"pytorch": {"_target_": "p"}})
    builder.accelerator = "emulated: assumed 0.5 s a sample"
    folder = builder.write()
    home = folder / "cells" / "pytorch-unet3d-local-r1"
    store_cell(home, [1.0] * 3, [1.0] * 3, cpu=lambda at_s: 0.9 if at_s % 2 < 1 else 0.1)
    ours, paper = make_figure_tables(read_results(folder))[0].rows
    assert ours == ("UNet3D, PyTorch", "50 %", "50 %", "-1.0")
    assert paper == ("    paper", "57.4 %", "–", "inverse")
    assert "the paper's mean GPU use" in drawn_text(folder, "minato_fig1b")


SWEPT: Mapping[str, Any] = {
    "pytorch": {"_target_": "p", "sweep": {"num_workers": [1, 2]}},
    "dali": {"_target_": "d", "sweep": {"num_threads": [1, 2]}},
    "sample_aware": {"_target_": "s", "sweep": {"num_workers": [1, 2]}},
}


def test_training_time_is_all_epochs_by_number_of_workers(build_sweep: Any) -> None:
    folder = build_sweep(figures=("minato_fig9",), workloads=("unet3d",), loaders=SWEPT).write()
    told = drawn_text(folder, "minato_fig9")
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


def test_figure_8_is_asked_of_the_run_of_figure_7() -> None:
    with initialize_config_module("conf", version_base="1.3"):
        seven, eight = (
            experiment_from(compose("config", overrides=[f"+experiment=minato_fig{n}"])) for n in ("7", "8")
        )
    assert [cell.cell_id for cell in plan_cells(seven)] == [cell.cell_id for cell in plan_cells(eight)]
    assert seven.figures == ("minato_fig7", "minato_fig8")
    readers = [spec for key, spec in eight.loaders.items() if key != "fixed"]
    assert {spec.params.get("num_workers", spec.params.get("num_threads")) for spec in readers} == {2}


SECONDS = {"pytorch": 10.0, "size_balanced": 12.5, "pecan": 9.8, "sample_aware": 8.0}


@pytest.fixture
def heuristics(build_sweep: Any) -> Path:
    """Return the folder of a run of one epoch a loader in `SECONDS`, whose ten steps take 4 s of it."""
    loaders = {key: {"_target_": "l", "num_workers": 2} for key in SECONDS}
    builder = build_sweep(figures=("minato_fig3",), workloads=("mask_rcnn",), loaders=loaders, epochs=1)
    builder.accelerator = "emulated: assumed 0.01 s a sample"
    folder: Path = builder.write()
    rows = pd.read_parquet(folder / "epochs.parquet")
    rows["duration_s"] = rows["loader"].map(SECONDS)
    rows.to_parquet(folder / "epochs.parquet", index=False)
    samples = np.arange(60).reshape(10, 6)
    work_s = np.where((samples % 16 == 0) | (samples % 16 == 1), 0.15, 0.03)
    for loader, seconds in SECONDS.items():
        home, columns = folder / "cells" / f"{loader}-mask_rcnn-local-r1", {"ids": samples, "work_s": work_s}
        store_cell(home, [seconds / 10 - 0.4] * 10, [0.4] * 10, epochs=(1,), cpu=lambda at_s: 0.75, **columns)
    # Every fourth file is large; of the slow pictures, those of ids 0 and 1 of every 16, half have a small one.
    sizes = [400_000 if sample % 4 == 0 else 100_000 for sample in range(60)]
    pq.write_table(pa.table({"size": pa.array(sizes, pa.int64())}), folder / "samples.parquet")
    return folder


def test_each_heuristic_stands_with_its_use_of_the_accelerator_and_the_slow_pictures_that_sizes_find(
    heuristics: Path,
) -> None:
    text = drawn_text(heuristics, "minato_fig3")
    assert "minato_fig3; emulated: assumed 0.01 s a sample" in text
    assert "size balanced (by image size)" in text
    assert "accelerator 41 %" in text and "CPU 75 %" in text
    found = "correlation 0.23\n50 % of the slowest quarter of samples\nhave a file of the largest, 25 % by chance"
    assert found in text
    rows = rows_of(heuristics)
    assert rows["PyTorch"][:4] == ("10.0 s", "1.00×", "40 %", "1.00×")
    assert rows["Pecan (transforms reordered)"][:5] == ("9.80 s", "1.02×", "41 %", "1.02×", "1.03×")
    assert rows["size balanced (by image size)"][:5] == ("12.5 s", "0.80×", "32 %", "0.80×", "–")


@pytest.mark.parametrize("memory_mb", [950, None])
def test_use_throughput_and_disk_reads_stand_a_row_a_loader_with_the_limit_of_memory(
    build_sweep: Any, memory_mb: int | None
) -> None:
    loaders = {key: {"_target_": "l"} for key in ("pytorch", "dali", "sample_aware")}
    builder = build_sweep(figures=("minato_fig10",), workloads=("unet3d",), loaders=loaders)
    builder.config["testbed"] = {"memory_mb": memory_mb}
    folder = builder.write()
    for home in (folder / "cells").iterdir():
        store_cell(home, [0.5] * 8, [0.5] * 8, megabytes=10, cpu=lambda at_s: 0.75, disk_mb_per_s=50)
    text, results = drawn_text(folder, "minato_fig10"), read_results(folder)
    assert ("950 MB of memory a loader" if memory_mb else "memory not limited") in text
    assert "accelerator 50 %, CPU 75 %; 16.0 s" in text
    assert "mean 10.0" in text and "mean 5" in text
    assert text.count("MB/s read from disk") == text.count("MB/s trained on") == 3
    assert "650 s with PyTorch" in find_figure("minato_fig10").caption(results)
    rows = rows_of(folder)
    assert rows["PyTorch"] == ("16.0 s", "50 %", "75 %", "800 MB", "≈ 650 s", "57 %")
    assert rows["sample-aware"][-1] == "82.1 %"


@pytest.fixture
def prefetching(build: Any) -> Callable[..., Path]:
    def make(figure: str, grown_s: float | None = None) -> Path:
        builder = build(loaders=("nosql", "streaming"), regimes=("wan_20ms", "wan_150ms"), repeats=1).settle()
        builder.config |= {"figures": [figure], "name": "prefetch_ooo"}
        waits_s = [0.2, *[0.01] * 180]
        if grown_s is not None:
            builder.config["loaders"]["nosql"] |= {"slow_start": 4, "prefetch_batches": 16}
            waits_s[1:48] = [grown_s] * 47
        folder: Path = builder.write()
        # A first batch after 0.2 s; then one each 10 ms, or 9 each 10 ms and one that takes 1 s.
        uneven_s = [0.2, *[*[0.01] * 9, 1.0] * 18]
        for loader, times_s, connections in (("nosql", waits_s, 4), ("streaming", uneven_s, 0)):
            for home in folder.glob(f"cells/{loader}-resnet50-wan_150ms-*"):
                known: dict[str, Any] = {"megabytes": 4.0, "connections": connections, "epochs": (0, 1)}
                store_cell(home, times_s, [0.0] * len(times_s), **known)
        return folder

    return make


def test_times_between_batches_are_those_after_the_prefetch_has_filled(prefetching: Callable[..., Path]) -> None:
    folder = prefetching("prefetch_batches")
    rows = rows_of(folder)
    assert rows["NoSQL"] == ("181", "0.0100 s", "0.0100 s", "0.0100 s", "362")
    assert rows["streaming"][1:4] == ("0.0100 s", "1.00 s", "1.00 s")
    assert rows["paper, out of order"] == ("–", "–", "–", "0.0300 s", "–")
    assert not render(read_report(folder)).broken
    assert "at 150 ms" in (folder / "report.html").read_text()


def test_batches_that_come_while_the_prefetch_grows_are_in_no_number(prefetching: Callable[..., Path]) -> None:
    assert rows_of(prefetching("prefetch_batches", grown_s=0.015))["NoSQL"][3] == "0.0100 s"
    # A prefetch that fills for more than half of the epoch leaves that half.
    assert rows_of(prefetching("prefetch_batches", grown_s=0.05))["NoSQL"][3] == "0.0500 s"


def test_throughput_is_of_each_connection_where_the_loader_reports_it(prefetching: Callable[..., Path]) -> None:
    folder = prefetching("prefetch_connections")
    rows = rows_of(folder)
    assert rows["streaming"] == ("–",) * 5
    assert rows["paper, in order"] == ("–", "–", "300 to 1300", "–", "–")
    connections, mean, ends, slowest, fastest = rows["NoSQL"]
    assert connections == "4" and 380 <= float(mean) <= 420 and slowest == fastest
    assert float(slowest) == pytest.approx(181 * 4 / 4 / 2.0, rel=0.15)
    assert [380 <= float(end) <= 420 for end in ends.split(" to ")] == [True, True]
    drawn = drawn_text(folder, "prefetch_connections")
    assert "4 connections" in drawn and "the loader does not report its connections" in drawn
