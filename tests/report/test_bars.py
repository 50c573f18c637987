"""Bars by loader and distance: EMLIO's figures 1 and 9, Cassandra-DALI's figure 2."""

import pytest

from harness.report import read_report, render
from harness.report.distance import choose_figure, read_paper_figure, sum_kj
from harness.report.figures import make_figure_tables
from harness.results.reader import read_results
from tests.report.figures import drawn_text, rows_of

STAGES = {"read": 0.25, "preprocess": 0.5, "train": 1.0}
"""By workload, the share of what a training epoch takes."""


@pytest.fixture
def staged(build):
    """Return the maker of a run of two loaders, in which each stage has a workload of its own."""

    def make(source="cpu=rapl-powercap;dram=rapl-powercap;gpu=nvml-counter"):
        regimes = ("local", "lan_10ms", "wan_30ms")
        builder = build(loaders=("pytorch", "streaming"), regimes=regimes, repeats=1, scatter=0.0, energy_source=source)
        cells, rows, events = builder.cells, builder.rows, builder.events
        builder.config |= {
            "workloads": {stage: {} for stage in STAGES},
            "figures": ["emlio_fig1"],
            "name": "emlio_fig1",
        }
        builder.checks, builder.links = [], {}
        builder.cells, builder.rows, builder.events = {}, {}, []
        for stage, part in STAGES.items():
            for cell_id, cell in cells.items():
                new = {"cell_id": cell_id.replace("resnet50", stage), "workload": stage}
                row = rows[cell_id]
                scaled = {key: row[key] * part for key in ("duration_s", "cpu_j", "gpu_j", "total_j")}
                builder.cells[new["cell_id"]] = {**cell, **new}
                builder.rows[new["cell_id"]] = {**row, **new, **scaled}
                builder.events += [{**event, **new} for event in events if event["cell_id"] == cell_id]
        for event in builder.events:
            del event["workload"]
        return builder

    return make


def test_joules_are_told_by_gigabyte_sample_and_share_beside_the_paper_s(staged):
    folder = staged().write()
    (table,) = make_figure_tables(read_results(folder))
    stages = ("read", "+ preprocess", "+ train")
    heads = (*(f"J/GB {stage}" for stage in stages), *(f"mJ/sample {stage}" for stage in stages))
    assert table.columns[1:] == (*heads, "share of joules", "share of time")
    rows = rows_of(folder)
    train = float(rows["PyTorch, 30 ms"][2])
    assert float(rows["PyTorch, 30 ms"][0]) == pytest.approx(train / 4, rel=0.01)
    for column, part in enumerate(STAGES.values(), start=3):
        expected = train * part * 57.6e6 / 1e9 / 500 * 1e3
        assert float(rows["PyTorch, 30 ms"][column]) == pytest.approx(expected, rel=0.01)
    assert rows["PyTorch, 30 ms"][6:] == ("50 %", "50 %")
    assert rows["paper, 10 ms"][6:] == ("60 %", "60 %")
    assert rows["paper, local"][6:] == ("15 %", "20 %")
    assert len(table.dim) == 3


def test_what_is_estimated_says_so_in_table_figure_and_caption(staged):
    run = staged("cpu=estimate;gpu=estimate").write()
    (table,) = make_figure_tables(read_results(run))
    assert sum("est." in head for head in table.columns) == 7
    rendered = render(read_report(run))
    assert not rendered.broken
    assert "hatched: estimate" in (run / "figures" / "emlio_fig1.svg").read_text()
    assert "Hatched joules are estimates, not measurements" in (run / "report.html").read_text()


def test_a_stage_that_failed_leaves_its_shares_unknown_and_the_figure_is_drawn(staged):
    builder = staged()
    for cell_id in [cell_id for cell_id in builder.cells if "train-wan" in cell_id]:
        builder.fail(cell_id, "the mount did not come up")
    run = builder.write()
    assert not render(read_report(run)).broken
    far = [cells for name, cells in rows_of(run).items() if "30 ms" in name and "paper" not in name]
    assert {cells[-2:] for cells in far} == {("–", "–")}


FAR = ("lan_0_1ms", "wan_20ms", "wan_150ms")


@pytest.fixture
def tightloop(build):
    """Return the maker of a run of network loaders, and of DALI, on local files and at three distances."""

    def make(**options):
        builder = build(loaders=("nosql", "tfdata", "dali"), regimes=("local", *FAR), repeats=2, **options)
        builder.config |= {"figures": ["latency_tightloop"], "name": "latency_tightloop"}
        return builder

    return make


def test_shares_are_of_the_link_and_local_files_are_compared_with_the_same_rate(tightloop):
    folder = tightloop(scatter=0.0).write()
    (table,), rows = make_figure_tables(read_results(folder)), rows_of(folder)
    assert table.columns == ("Loader", "MB/s", "of the bound", "J/GB est.")
    # 57.6 MB in 1.016 s at 20 ms; the link of 1 Gbit/s carries 125 MB/s.
    assert rows["NoSQL, 20 ms"][:2] == ("56.7", "45 %")
    assert rows["DALI, local"][:2] == ("33.9", "27 %")
    assert rows["paper, NoSQL, 150 ms"] == ("4000", "64 %", "–")
    assert rows["paper, DALI, local"][:2] == ("7400", "118 %")
    assert rows["paper, MosaicML, 150 ms"][:2] == ("203", "3.2 %")
    joules = read_results(folder).rows[0].drawn_j
    assert float(rows["NoSQL, local"][2]) == pytest.approx(joules / 0.0576, rel=0.01)
    assert {table.rows[place][0].partition(",")[0] for place in table.dim} == {"paper"}


def test_training_is_a_share_of_the_fixed_batch_which_runs_in_one_regime(build):
    builder = build(loaders=("nosql", "mosaic", "fixed"), regimes=FAR, repeats=2, scatter=0.0)
    for cell_id in [*builder.ids(loader="fixed", regime="wan_20ms"), *builder.ids(loader="fixed", regime="wan_150ms")]:
        builder.cells.pop(cell_id), builder.rows.pop(cell_id)
        builder.events = [event for event in builder.events if event["cell_id"] != cell_id]
    builder.config |= {"figures": ["latency_training"], "name": "latency_training"}
    rows = rows_of(builder.write())
    assert rows["NoSQL, 0.1 ms"][:2] == ("500", "95 %") and rows["NoSQL, 150 ms"][:2] == ("446", "85 %")
    assert rows["fixed batch"] == ("526", "–", "–")
    assert [rows[f"paper, MosaicML, {ms} ms"][1] for ms in ("0.1", "20", "150")] == ["57 %", "49 %", "33 %"]


def test_the_figure_says_what_is_estimated_invalid_and_of_the_paper(tightloop):
    builder = tightloop()
    for cell_id in builder.ids(loader="nosql", regime="wan_20ms"):
        builder.invalidate(cell_id, "rtt_before", "20 ms", "25 ms")
    run = builder.write()
    (table,) = make_figure_tables(read_results(run))
    assert any("est." in head for head in table.columns) and any("†" in cell for row in table.rows for cell in row)
    assert not render(read_report(run)).broken
    page = (run / "report.html").read_text()
    assert "Hatched joules are estimates" in page and "has no valid row behind it" in page
    assert "(125 MB/s" in page and "its link of 6250 MB/s" in page
    drawn = (run / "figures" / "latency_tightloop.svg").read_text()
    assert "the paper has no joules" in drawn and "Cassandra-DALI paper" in drawn
    # A bar that is too short for its MB/s has them above it.
    assert "in bars: MB/s" in drawn and ">437<" in drawn and ">12.0<" in drawn


FIG5, FIG9, FIG10 = (read_paper_figure(f"emlio/fig{number}") for number in (5, 9, 10))


@pytest.fixture
def vgg19(build):
    """Makes a results folder of VGG-19, in the first repeat of another workload if one is given."""

    def make(other="vgg19", **options):
        builder = build(
            loaders=("dali", "streaming"), regimes=("lan_0_1ms", "lan_10ms", "wan_30ms"), repeats=2, **options
        )
        builder.config["workloads"] = {name: {"batch_size": 32} for name in ("vgg19", other)}
        builder.config["figures"] = ["emlio_fig9"]
        for entry in (*builder.cells.values(), *builder.rows.values()):
            entry["workload"] = "vgg19" if entry["repeat"] else other
        return builder.write()

    return make


def test_a_run_is_held_against_the_figure_of_its_workloads_and_placement(vgg19):
    assert choose_figure(read_results(vgg19())) is FIG9
    assert choose_figure(read_results(vgg19("resnet50"))) is FIG5
    assert choose_figure(read_results(vgg19(placement="half"))) is FIG10


def test_what_the_text_says_in_words_follows_from_its_numbers():
    """Section 5.1: 1 % faster at 0.1 ms; DALI 4.6 and 15 times as long at 10 and 30 ms, EMLIO 1.0 times."""
    dali, emlio = FIG9.epoch_s["dali"], FIG9.epoch_s["streaming"]
    assert 1 - emlio[0.1] / dali[0.1] == pytest.approx(0.01, abs=0.001)
    assert dali[10.0] / dali[0.1] == pytest.approx(4.6, abs=0.05)
    assert round(dali[30.0] / dali[0.1]) == 15
    assert all(emlio[rtt_ms] / emlio[0.1] == pytest.approx(1.0, abs=0.05) for rtt_ms in (10.0, 30.0))
    totals = [sum_kj(energy) for by_rtt in FIG9.energy_kj.values() for energy in by_rtt.values()]
    assert all(least == greatest for least, greatest in totals)


def test_the_figure_holds_the_papers_values_beside_ours(vgg19):
    text = drawn_text(vgg19(), "emlio_fig9")
    for words in ("141", "2100", "DRAM joules", "14.7"):
        assert words in text
