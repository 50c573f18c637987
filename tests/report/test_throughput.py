"""Cassandra-DALI's figure 2: throughput by distance as a share of the link, or of a fixed batch's, and joules by GB."""

import pytest

from harness.report import read_report, render
from harness.report.figures import make_figure_tables
from harness.results.reader import read_results

FAR = ("lan_0_1ms", "wan_20ms", "wan_150ms")


@pytest.fixture
def tightloop(build):
    """Return the maker of a run of network loaders, and of DALI, on local files and at three distances."""

    def make(**options):
        builder = build(loaders=("nosql", "tfdata", "dali"), regimes=("local", *FAR), repeats=2, **options)
        builder.config |= {"figures": ["latency_tightloop"], "name": "latency_tightloop"}
        return builder

    return make


def rows_of(folder):
    (table,) = make_figure_tables(read_results(folder))
    return table, {row[0]: row[1:] for row in table.rows}


def test_shares_are_of_the_link_and_local_files_are_compared_with_the_same_rate(tightloop):
    table, rows = rows_of(tightloop(scatter=0.0).write())
    assert table.columns == ("Loader", "MB/s", "of the bound", "J/GB est.")
    # 57.6 MB in 1.016 s at 20 ms; the link of 1 Gbit/s carries 125 MB/s.
    assert rows["NoSQL, 20 ms"][:2] == ("56.7", "45 %")
    assert rows["DALI, local"][:2] == ("33.9", "27 %")
    assert rows["paper, NoSQL, 150 ms"] == ("4000", "64 %", "–")
    assert rows["paper, DALI, local"][:2] == ("7400", "118 %")
    assert rows["paper, MosaicML, 150 ms"][:2] == ("203", "3.2 %")
    joules = read_results(tightloop(scatter=0.0).write()).rows[0].total_j
    assert float(rows["NoSQL, local"][2]) == pytest.approx(joules / 0.0576, rel=0.01)
    assert {table.rows[place][0].partition(",")[0] for place in table.dim} == {"paper"}


def test_training_is_a_share_of_the_fixed_batch_which_runs_in_one_regime(build):
    builder = build(loaders=("nosql", "mosaic", "fixed"), regimes=FAR, repeats=2, scatter=0.0)
    for cell_id in [*builder.ids(loader="fixed", regime="wan_20ms"), *builder.ids(loader="fixed", regime="wan_150ms")]:
        builder.cells.pop(cell_id), builder.rows.pop(cell_id)
        builder.events = [event for event in builder.events if event["cell_id"] != cell_id]
    builder.config |= {"figures": ["latency_training"], "name": "latency_training"}
    _, rows = rows_of(builder.write())
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
