"""Figures of the MinatoLoader and SPDL papers: drawn from what is stored, the paper's values beside."""

import json

import pytest
from matplotlib.text import Text

from harness.report import read_report, render
from harness.report.figures import find_figure, make_figure_tables
from harness.report.figures.marks import _apart
from harness.results.reader import read_results

SWEEPS = {
    "pytorch": {"_target_": "p", "sweep": {"num_workers": [1, 2, 4]}},
    "dali": {"_target_": "d", "sweep": {"num_threads": [1, 2, 4]}},
    "fixed": {"_target_": "f"},
}
WORK_S = [0.02, 0.03, 0.03, 0.04, 0.2] * 12


def drawn(folder, name):
    """Return every text of a figure; nothing is saved, which would take most of a test's time."""
    drawn = find_figure(name).draw(read_results(folder))
    return " ".join(text.get_text() for text in drawn.findobj(Text))


def only_table(folder):
    (table,) = make_figure_tables(read_results(folder))
    return table


def test_preprocessing_times_stand_over_the_paper_s_of_the_same_workload(build_sweep):
    builder = build_sweep(
        figures=("minato_table2",), workloads=("unet3d", "resnet50"), loaders={"pytorch": {"_target_": "p"}}, epochs=1
    )
    builder.work_s = {"unet3d": WORK_S, "resnet50": WORK_S}
    folder = builder.write()
    text = drawn(folder, "minato_table2")
    assert "mean 64.0 ms" in text
    assert "mean 500 ms" in text
    table = only_table(folder)
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


def test_25_samples_are_drawn_with_the_mean_of_all(build_sweep):
    builder = build_sweep(figures=("minato_fig2",), workloads=("mask_rcnn",), loaders={"pytorch": {"_target_": "p"}})
    builder.work_s = {"mask_rcnn": WORK_S}
    text = drawn(builder.write(), "minato_fig2")
    assert "mean 64" in text
    assert "paper: mean 35 ms, from 10 ms to 200 ms" in text


def test_training_time_is_told_by_prefetch_with_what_the_best_gains(build_sweep):
    builder = build_sweep(figures=("minato_fig4",), loaders={"pytorch": SWEEPS["pytorch"]}, epochs=1)
    folder = builder.write()
    text = drawn(folder, "minato_fig4")
    assert "PyTorch, ResNet-50" in text
    assert "minato_fig4; none: no load" in text
    assert only_table(folder).rows == (("PyTorch, ResNet-50", "5.00 s", "3.00 s", "2.00 s", "60 %"),)


@pytest.mark.parametrize("name", ["spdl_fig5", "spdl_fig9"])
def test_throughput_is_told_by_concurrency_and_against_the_fixed_batch(build_sweep, name):
    folder = build_sweep(figures=(name,), loaders=SWEEPS).write()
    text = drawn(folder, name)
    assert "fixed batch, the upper bound" in text
    assert "PyTorch" in text
    assert "DALI" in text
    rows = {(row[0], row[1]): row for row in only_table(folder).rows}
    assert rows["PyTorch", "4"][2:5] == ("60.0", "30.0", "50.0")  # 1 s in the second epoch, 2 s in the first
    assert rows["fixed batch", "–"][-1] == "100 %"


def test_a_step_that_is_not_assumed_is_not_said_to_be(build_sweep):
    builder = build_sweep(figures=("spdl_fig9",), loaders=SWEEPS)
    assert "assumed" not in drawn(builder.write(), "spdl_fig9")
    assert "assumed" not in find_figure("spdl_fig9").caption(read_results(builder.folder))


def test_an_assumed_step_is_labelled_in_the_figure_with_the_reason_for_its_length(build_sweep):
    builder = build_sweep(figures=("spdl_fig9",), loaders=SWEEPS)
    builder.accelerator = "emulated: assumed 0.0025 s a sample"
    folder = builder.write()
    assert "(its step is assumed)" in drawn(folder, "spdl_fig9")
    told = find_figure("spdl_fig9").caption(read_results(folder))
    assert "neither measured nor published but assumed" in told
    # Of 60 samples: 4 s with the fixed batch, 1 to 4 s through the loaders.
    assert "no difference" in told


def test_without_a_fixed_batch_there_is_no_bound(build_sweep):
    folder = build_sweep(figures=("spdl_fig5",), loaders={"pytorch": SWEEPS["pytorch"]}).write()
    assert "upper bound" not in drawn(folder, "spdl_fig5")
    assert only_table(folder).columns[-1] == "PSS"


def test_the_first_batch_counts_from_making_the_loader_and_once_a_cell(build_sweep):
    folder = build_sweep(figures=("spdl_table2",), loaders={"pytorch": SWEEPS["pytorch"]}).write()
    text = drawn(folder, "spdl_table2")
    assert "SPDL paper: PyTorch, ImageNet" in text
    assert "hollow" not in text
    table = only_table(folder)
    assert table.columns[1:] == ("1", "2", "4", "8", "16", "24", "32")
    ours, paper = table.rows
    assert ours[1:] == ("0.750", "1.25", "2.25", "–", "–", "–", "–")
    assert paper[3:] == ("58.7", "91.4", "141", "208", "277")


def test_points_without_a_valid_row_are_said_to_be_so(build_sweep):
    builder = build_sweep(figures=("spdl_table2",))
    builder.verdict = "invalid: exactly_once (1 missing)"
    assert "hollow: no valid row" in drawn(builder.write(), "spdl_table2")


def test_a_run_of_another_paper_s_figure_is_not_asked_emlio_s_claims(build_sweep):
    folder = build_sweep(figures=("spdl_fig5",)).write()
    render(read_report(folder))
    assert {claim["id"][:9] for claim in json.loads((folder / "claims.json").read_text())} == {"spdl_fig5"}
    assert "EMLIO" not in (folder / "report.html").read_text()


def test_figures_are_empty_and_the_page_whole_when_no_cell_ended(build_sweep):
    names = ("minato_table2", "minato_fig2", "minato_fig4", "spdl_fig5", "spdl_fig9", "spdl_table2")
    builder = build_sweep(figures=names, epochs=0)
    folder = builder.write()
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
