"""Figures of the MinatoLoader and SPDL papers: drawn from what is stored, the paper's values beside."""

import json

import pandas as pd
import pytest

from harness.config import list_packaged
from harness.report import read_report, render
from harness.report.figures import find_figure, make_figure_tables
from harness.report.figures.marks import _apart
from harness.report.figures.sentences import run_words
from harness.results.reader import read_results
from tests.report.figures import drawn_text, rows_of

SWEEPS = {
    "pytorch": {"_target_": "p", "sweep": {"num_workers": [1, 2, 4]}},
    "dali": {"_target_": "d", "sweep": {"num_threads": [1, 2, 4]}},
    "fixed": {"_target_": "f"},
}
WORK_S = [0.02, 0.03, 0.03, 0.04, 0.2] * 12


def table_of(folder):
    (table,) = make_figure_tables(read_results(folder))
    return table


def test_preprocessing_times_stand_over_the_paper_s_of_the_same_workload(build_sweep):
    builder = build_sweep(
        figures=("minato_table2",), workloads=("unet3d", "resnet50"), loaders={"pytorch": {"_target_": "p"}}, epochs=1
    )
    builder.work_s = {"unet3d": WORK_S, "resnet50": WORK_S}
    folder = builder.write()
    text = drawn_text(folder, "minato_table2")
    assert "mean 64.0 ms" in text
    assert "mean 500 ms" in text
    table = table_of(folder)
    ours, paper, other = table.rows
    assert ours == ("UNet3D", "60", "64.0", "30.0", "40.0", "200", "20.0", "200", "68.3")
    assert paper[2:] == ("500", "470", "630", "750", "10", "2230", "197")
    assert other[0] == "ResNet-50"
    assert table.dim == {1}
    render(read_report(folder))
    assert '<td class="num">2230</td>' in (folder / "report.html").read_text()
    assert (folder / "figures/minato_table2.png").stat().st_size > 10_000


def test_a_loader_that_tells_no_times_gives_no_figure_and_no_table(build_sweep):
    folder = build_sweep(figures=("minato_table2",), loaders={"dali": {"_target_": "d"}}).write()
    render(read_report(folder))
    assert not (folder / "figures").exists()
    assert make_figure_tables(read_results(folder)) == ()


def test_far_files_are_drawn_over_their_readers_with_the_law_the_near_part_and_the_paper(build_sweep):
    loaders = {"pytorch": {"_target_": "p", "sweep": {"num_workers": [2, 6, 12]}}}
    regimes = ("lan_0_1ms", "wan_30ms")
    folder = build_sweep(figures=("emlio_readers",), loaders=loaders, regimes=regimes).write()
    figure = find_figure("emlio_readers").draw(read_results(folder))
    near, far = figure.get_axes()
    assert (near.get_title(), far.get_title()) == ("0.1 ms away", "30 ms away")
    lines = [list(zip(*line.get_data(), strict=True)) for line in far.get_lines()]
    trips = 2 * (1 + 3 * 30 / 2) / 30
    assert [(one, pytest.approx(trips * 30 / one)) for one in (2, 6, 12)] in lines, "the law"
    assert [(2, pytest.approx(1.62 * 30))] in lines, "the paper's"
    assert [(0, pytest.approx(1.025)), (1, pytest.approx(1.025))] in lines, "the near part"
    first, last = table_of(folder).rows
    assert first == ("PyTorch, 0.1 ms", "1.15", "1.05", "1.02")
    assert last == ("PyTorch, 30 ms", "46.0", "16.0", "8.50")


def test_25_samples_are_drawn_with_the_mean_of_all(build_sweep):
    builder = build_sweep(figures=("minato_fig2",), workloads=("mask_rcnn",), loaders={"pytorch": {"_target_": "p"}})
    builder.work_s = {"mask_rcnn": WORK_S}
    text = drawn_text(builder.write(), "minato_fig2")
    assert "mean 64" in text
    assert "paper: mean 35 ms, from 10 ms to 200 ms" in text


def test_training_time_is_told_by_prefetch_with_what_the_best_gains(build_sweep):
    builder = build_sweep(figures=("minato_fig4",), loaders={"pytorch": SWEEPS["pytorch"]}, epochs=1)
    folder = builder.write()
    text = drawn_text(folder, "minato_fig4")
    assert "PyTorch, ResNet-50" in text
    assert "minato_fig4; none: no load" in text
    assert table_of(folder).rows == (("PyTorch, ResNet-50", "5.00 s", "3.00 s", "2.00 s", "60 %"),)


@pytest.mark.parametrize("name", ["spdl_fig5", "spdl_fig9"])
def test_throughput_is_told_by_concurrency_and_against_the_fixed_batch(build_sweep, name):
    folder = build_sweep(figures=(name,), loaders=SWEEPS).write()
    text = drawn_text(folder, name)
    assert "fixed batch, the upper bound" in text
    assert "PyTorch" in text
    assert "DALI" in text
    rows = {(row[0], row[1]): row for row in table_of(folder).rows}
    assert rows["PyTorch", "4"][2:5] == ("60.0", "30.0", "50.0")  # 1 s in the second epoch, 2 s in the first
    assert rows["fixed batch", "–"][-1] == "100 %"


def test_a_step_that_is_not_assumed_is_not_said_to_be(build_sweep):
    builder = build_sweep(figures=("spdl_fig9",), loaders=SWEEPS)
    assert "assumed" not in drawn_text(builder.write(), "spdl_fig9")
    assert "assumed" not in find_figure("spdl_fig9").caption(read_results(builder.folder))


def test_an_assumed_step_is_labelled_in_the_figure_with_the_reason_for_its_length(build_sweep):
    builder = build_sweep(figures=("spdl_fig9",), loaders=SWEEPS)
    builder.accelerator = "emulated: assumed 0.0025 s a sample"
    folder = builder.write()
    assert "(its step is assumed)" in drawn_text(folder, "spdl_fig9")
    told = find_figure("spdl_fig9").caption(read_results(folder))
    assert "neither measured nor published but assumed" in told
    # Of 60 samples: 4 s with the fixed batch, 1 to 4 s through the loaders.
    assert "no difference" in told


def test_without_a_fixed_batch_there_is_no_bound(build_sweep):
    folder = build_sweep(figures=("spdl_fig5",), loaders={"pytorch": SWEEPS["pytorch"]}).write()
    assert "upper bound" not in drawn_text(folder, "spdl_fig5")
    assert table_of(folder).columns[-1] == "PSS"


def test_the_first_batch_counts_from_making_the_loader_and_once_a_cell(build_sweep):
    folder = build_sweep(figures=("spdl_table2",), loaders={"pytorch": SWEEPS["pytorch"]}).write()
    text = drawn_text(folder, "spdl_table2")
    assert "SPDL paper: PyTorch, ImageNet" in text
    assert "hollow" not in text
    table = table_of(folder)
    assert table.columns[1:] == ("1", "2", "4", "8", "16", "24", "32")
    ours, paper = table.rows
    assert ours[1:] == ("0.750", "1.25", "2.25", "–", "–", "–", "–")
    assert paper[3:] == ("58.7", "91.4", "141", "208", "277")


def test_points_without_a_valid_row_are_said_to_be_so(build_sweep):
    builder = build_sweep(figures=("spdl_table2",))
    builder.verdict = "invalid: exactly_once (1 missing)"
    assert "hollow: no valid row" in drawn_text(builder.write(), "spdl_table2")


def test_a_run_of_another_paper_s_figure_is_not_asked_emlio_s_claims(build_sweep):
    folder = build_sweep(figures=("spdl_fig5",)).write()
    render(read_report(folder))
    assert {claim["id"][:9] for claim in json.loads((folder / "claims.json").read_text())} == {"spdl_fig5"}
    assert "EMLIO" not in (folder / "report.html").read_text()


@pytest.mark.parametrize("name", list_packaged("figure"))
def test_nothing_is_drawn_of_a_run_of_which_no_epoch_ended(build_sweep, name):
    results = read_results(build_sweep(figures=(name,), loaders=SWEEPS, epochs=0).write())
    assert find_figure(name).draw(results) is None
    assert find_figure(name).caption(results)
    assert make_figure_tables(results) == ()


def test_a_page_without_an_epoch_is_whole(build_sweep):
    folder = build_sweep(figures=("minato_table2", "spdl_fig5"), epochs=0).write()
    render(read_report(folder))
    assert not (folder / "figures").exists()
    assert "0 of" in (folder / "report.html").read_text()


def test_swept_loaders_are_in_the_order_of_their_sweep(build_sweep):
    builder = build_sweep(
        figures=("spdl_fig5",), loaders={"pytorch": {"_target_": "p", "sweep": {"num_workers": [8, 1, 16]}}}
    )
    results = read_results(builder.write())
    assert results.loaders == ("pytorch_num_workers_8", "pytorch_num_workers_1", "pytorch_num_workers_16")
    assert results.experiment.loaders["pytorch_num_workers_16"].setting == {"num_workers": 16}


def test_names_at_the_ends_of_lines_keep_apart_and_stay_by_their_lines():
    assert _apart([0.1, 0.5, 1.0]) == [0.1, 0.5, 1.0]
    near, nearer, far = _apart([0.20, 0.21, 0.9])
    assert nearer - near == pytest.approx(0.07)
    assert (near + nearer) / 2 == pytest.approx(0.205)
    assert far == 0.9


BY_SHARE = {
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


def test_epoch_times_stand_by_share_with_what_the_loaders_gain_over_pytorch(build_sweep):
    builder = build_sweep(figures=("minato_fig12",), workloads=tuple(SECONDS), loaders=BY_SHARE)
    for key, section in builder.config["workloads"].items():
        section["heavy_share"] = int(key.removeprefix("slow_")) / 100
    # 32 s of work for 4 workers: 8 s.
    builder.work_s = {"slow_50": [0.5] * 64}
    folder = builder.write()
    rows = pd.read_parquet(folder / "epochs.parquet")
    rows["duration_s"] = [
        SECONDS[row.workload][row.loader] * (3 if row.epoch == 1 and row.loader == "sample_aware" else 1)
        for row in rows.itertuples()
    ]
    rows.to_parquet(folder / "epochs.parquet", index=False)
    text = drawn_text(folder, "minato_fig12")
    assert "minato_fig12; none: no load" in text
    assert "paper: up to 2.4×, with added workers" in text
    heads = table_of(folder).columns
    assert heads == ("Time of an epoch", "0 % slow", "25 % slow", "50 % slow", "75 % slow", "100 % slow")
    rows = rows_of(folder)
    assert rows["PyTorch, seconds"] == ("4.00 s", "10.0 s", "15.0 s", "18.0 s", "20.0 s")
    assert rows["PyTorch over sample-aware"] == ("0.98×", "1.25×", "1.25×", "1.12×", "0.99×")
    assert rows["no worker ever waits, seconds"] == ("–", "–", "8.00 s", "–", "–")
    assert rows["PyTorch over no worker ever waits"] == ("–", "–", "1.88×", "–", "–")


def test_a_caption_says_which_loaders_steps_take_another_time(build_sweep):
    loaders = {**BY_SHARE, "dali": {"_target_": "d", "num_threads": 4, "timed_step_scale": 0.1}}
    builder = build_sweep(figures=("minato_fig12",), workloads=("slow_0",), loaders=loaders)
    builder.config["workloads"]["slow_0"] |= {"light_s": 0.5, "heavy_s": 3.0}
    said = run_words(read_results(builder.write()))["timed_steps"]
    assert said == " LightStep and HeavyStep take DALI 0.1 times the time that they take the other loaders."
