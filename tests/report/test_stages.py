"""EMLIO's figure 1: joules of reading, preprocessing and training, and the share of I/O in them."""

import pytest

from harness.report import read_report, render
from harness.report.figures import make_figure_tables
from harness.results.reader import read_results

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
    (table,) = make_figure_tables(read_results(staged().write()))
    stages = ("read", "+ preprocess", "+ train")
    heads = (*(f"J/GB {stage}" for stage in stages), *(f"mJ/sample {stage}" for stage in stages))
    assert table.columns[1:] == (*heads, "share of joules", "share of time")
    rows = {row[0]: row[1:] for row in table.rows}
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
    (table,) = make_figure_tables(read_results(run))
    assert {row[-2:] for row in table.rows if "30 ms" in row[0] and "paper" not in row[0]} == {("–", "–")}
