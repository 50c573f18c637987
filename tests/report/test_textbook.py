"""The textbook's figures, drawn from folders as runs of its experiments leave them."""

import json
import xml.etree.ElementTree as ET
from itertools import product

import pytest

from harness.report import read_report, render
from harness.report.claims import FAIL, NOT_CHECKED, PASS
from harness.report.figures import find_figure, make_figure_tables
from harness.report.papers import find_table, low
from harness.report.render import judge_claims as judge
from harness.results.reader import read_results
from harness.workloads.overlap import simulate

pytestmark = pytest.mark.process  # they draw figures, which takes seconds
WORKERS = (1, 2, 3, 4, 6, 8)
UTILISATION = {int(key): low(value) for key, value in find_table("textbook/output_8_5_1/utilisation").items()}


@pytest.fixture
def folder(build):
    """Return a maker of folders in which every epoch lasts as long as the model says, or as `slower` times that."""

    def make(name, workloads, *, slower=1.0, workers=WORKERS, epochs=2, scale=1):
        builder = build(name=name, loaders=("pytorch",), regimes=("local",), repeats=1)
        builder.config |= {
            "workloads": workloads,
            "loaders": {"pytorch": {**builder.config["loaders"]["pytorch"], "sweep": {"num_workers": list(workers)}}},
            "accelerator": {"kind": "emulated", "model": "textbook", "time_scale": float(scale)},
            "epochs": epochs,
            "figures": [name],
        }
        ((_, cell),) = builder.cells.items()
        ((_, row),) = builder.rows.items()
        builder.cells, builder.rows = {}, {}
        for workload, config in workloads.items():
            for count, repeat in product(workers, (1, 2)):
                loader = f"pytorch_num_workers_{count}"
                cell_id = f"{loader}-{workload}-local-r{repeat}-000000"
                about = {"cell_id": cell_id, "loader": loader, "workload": workload}
                accelerator = {"label": "emulated: the textbook's accelerator", "emulated": True}
                builder.cells[cell_id] = {**cell, **about, "repeat": repeat, "accelerator": accelerator}
                one = simulate(
                    config["load_ms"], 10 * scale, workers=count, steps=200, cap=config.get("overlapping_loads")
                )
                for epoch in range(1, epochs + 1):
                    # Starting the workers takes the first epoch a second more.
                    wall_s = one.wall_s / 1e3 * slower + (1.0 if epoch == 1 and epochs > 1 else 0.0)
                    times = {"duration_s": wall_s, "stall_s": wall_s - one.busy_s / 1e3, "samples": 200}
                    builder.rows[f"{cell_id} {epoch}"] = {**row, **about, **times, "repeat": repeat, "epoch": epoch}
        builder.events, builder.checks = [], []
        for cell_id in builder.cells:
            builder.events.append({"t_utc": "2025-11-20T13:00:00Z", "cell_id": cell_id, "event": "done", "message": ""})
        return builder

    return make


@pytest.fixture
def output_8_5_1(folder):
    return lambda **options: folder("textbook_8_5_1", {"textbook": {"load_ms": 28.0, "batch_size": 1}}, **options)


@pytest.fixture
def exercise_8_5_2(folder):
    loads = {f"load_{load}ms": {"load_ms": load, "overlapping_loads": 2, "batch_size": 1} for load in (24, 54, 84)}
    return lambda **options: folder("textbook_8_5_2", loads, scale=3, **options)


def words(path):
    return " ".join(ET.parse(path).getroot().itertext())


def test_epochs_as_the_textbook_simulates_them_meet_every_line_of_its_table(output_8_5_1):
    results = read_results(output_8_5_1().write())
    claims = judge(results)
    assert len(claims) == len(UTILISATION) + 1
    assert {claim.verdict for claim in claims} == {PASS}
    (shown,) = make_figure_tables(results)
    shares = tuple(f"{100 * share:.1f} %" for share in UTILISATION.values())
    assert [row for row in shown.rows if row[1:] == shares] == list(shown.rows)[:3]


def test_epochs_that_last_longer_do_not_meet_it(output_8_5_1):
    claims = judge(read_results(output_8_5_1(slower=1.1).write()))
    assert {claim.verdict for claim in claims[:-1]} == {FAIL}


def test_the_epoch_that_starts_the_workers_counts_only_where_it_is_alone(output_8_5_1):
    for epochs in (2, 1):
        (shown,) = make_figure_tables(read_results(output_8_5_1(epochs=epochs).write()))
        rows = {row[0]: row[1:] for row in shown.rows}
        assert rows["PyTorch, wall time in ms"][0] == "5610"


def test_the_figure_has_the_book_s_values_beside_ours(output_8_5_1):
    folder = output_8_5_1().write()
    render(read_report(folder))
    text = words(folder / "figures" / "textbook_8_5_1.svg")
    for expected in ("textbook's output 8.5.1", "measured, real workers", "98.6 %", "emulated", "⌈2.8⌉ = 3"):
        assert expected in text
    assert len(json.loads((folder / "claims.json").read_text())) == len(UTILISATION) + 1


def test_loads_of_another_length_are_drawn_and_not_judged(folder):
    results = read_results(folder("textbook_8_5_1", {"textbook": {"load_ms": 14.0, "batch_size": 1}}).write())
    assert find_figure("textbook_8_5_1").draw(results) is not None
    assert {claim.verdict for claim in judge(results)} == {NOT_CHECKED}


def test_no_knee_is_found_where_more_workers_still_gain(output_8_5_1):
    builder = output_8_5_1()
    for row in builder.rows.values():
        if row["loader"] != "pytorch_num_workers_8":
            row["stall_s"] += 1.0
            row["duration_s"] += 1.0
    assert judge(read_results(builder.write()))[-1].verdict == FAIL


def test_the_capped_knee_tracks_the_ratio_until_the_cap_binds(exercise_8_5_2):
    folder = exercise_8_5_2().write()
    claims = judge(read_results(folder))
    assert [(claim.expected, claim.actual, claim.verdict) for claim in claims] == [
        ("knee at 1", "knee at 1", PASS),
        ("knee at 2", "knee at 2", PASS),
        ("knee at 2", "knee at 2", PASS),
    ]
    assert "where the cap binds" in claims[2].claim
    render(read_report(folder))
    text = words(folder / "figures" / "textbook_8_5_2.svg")
    for expected in ("load 84 ms, step 30 ms", "2 loads overlap", "model with the cap", "model without it", "70.9 %"):
        assert expected in text


def test_workers_that_are_not_capped_have_their_knee_elsewhere(folder):
    loads = {"load_84ms": {"load_ms": 84.0, "overlapping_loads": 2, "batch_size": 1}}
    builder = folder("textbook_8_5_2", loads, scale=3)
    for row in builder.rows.values():
        if int(row["loader"].rpartition("_")[2]) >= 3:
            row["duration_s"], row["stall_s"] = 6.084, 0.084
    (claim,) = [claim for claim in judge(read_results(builder.write())) if claim.verdict != NOT_CHECKED]
    assert (claim.actual, claim.verdict) == ("knee at 3", FAIL)
