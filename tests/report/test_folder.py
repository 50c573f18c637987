import json

import pytest

from harness.errors import ResultsError
from harness.report.folder import read_results


def test_a_folder_that_is_not_there_is_named(tmp_path):
    with pytest.raises(ResultsError, match=r"nowhere: no such results folder; expected .*results/latest"):
        read_results(tmp_path / "nowhere")


def test_a_folder_of_something_else_is_refused(tmp_path):
    with pytest.raises(ResultsError, match=r"neither plan.json nor epochs.csv"):
        read_results(tmp_path)


def test_loaders_come_in_the_order_of_the_config_and_regimes_from_near_to_far(build):
    results = read_results(build(regimes=("wan_30ms", "local", "lan_0_1ms")).write())
    assert results.loaders == ("pytorch", "dali", "streaming")
    assert results.regimes == ("local", "lan_0_1ms", "wan_30ms")


def test_an_empty_field_is_unknown_and_not_zero(build):
    row = read_results(build().write()).rows[0]
    assert "dram" not in row.joules
    assert row.energy_error_j is None
    assert row.estimated == {"cpu", "gpu"}


def test_a_torn_last_line_of_the_ledger_is_left_out(build):
    folder = build().write()
    with (folder / "ledger.jsonl").open("a") as ledger:
        ledger.write('{"t_utc": "2025-11-20T14:00')
    assert not read_results(folder).unfinished


def test_a_broken_line_inside_the_ledger_is_named(build):
    folder = build().write()
    lines = (folder / "ledger.jsonl").read_text().splitlines()
    (folder / "ledger.jsonl").write_text("\n".join([lines[0], "{", *lines[1:]]))
    with pytest.raises(ResultsError, match=r"ledger.jsonl, line 2"):
        read_results(folder)


def test_a_word_where_a_number_belongs_is_named_by_line_and_column(build):
    builder = build()
    builder.rows[builder.ids()[1]]["duration_s"] = "soon"
    with pytest.raises(ResultsError, match=r"3.*duration_s: 'soon'"):
        read_results(builder.write())


def test_a_missing_column_is_named(build):
    folder = build().write()
    text = (folder / "epochs.csv").read_text().replace("total_j", "sum_j", 1)
    (folder / "epochs.csv").write_text(text)
    with pytest.raises(ResultsError, match=r"column total_j is missing"):
        read_results(folder)


def test_an_interrupted_run_tells_each_cell_s_state(build):
    builder = build()
    builder.interrupt_after(7)
    results = read_results(builder.write(epochs=False))
    states = [cell.state for cell in results.cells]
    assert states == ["done"] * 7 + ["interrupted"] + ["not run"] * 10
    assert results.cells[7].reason == "interrupted by signal 15"


def test_a_cell_that_was_killed_is_told_as_running(build):
    builder = build()
    last = builder.ids()[-1]
    builder.events = [event for event in builder.events if (event["cell_id"], event["event"]) != (last, "done")]
    del builder.rows[last]
    folder = builder.write()
    (folder / "cells" / last / "cell.json").unlink()
    assert read_results(folder).cells[-1].state == "running"


def test_a_cell_that_is_whole_is_done_though_the_ledger_never_heard_of_it(build):
    builder = build()
    last = builder.ids()[-1]
    builder.events = [event for event in builder.events if (event["cell_id"], event["event"]) != (last, "done")]
    assert read_results(builder.write()).cells[-1].state == "done"


def test_the_streaming_loader_is_found_by_what_it_reads_when_it_has_another_name(build):
    folder = build(loaders=("pytorch", "streaming")).write()
    for name in ("config.yaml", "plan.json", "epochs.csv"):
        text = (folder / name).read_text()
        (folder / name).write_text(text.replace('"streaming"', '"emlio"').replace(",streaming,", ",emlio,"))
    assert read_results(folder).streaming == "emlio"


def test_rows_without_a_plan_are_cells_of_their_own(build):
    folder = build().write()
    (folder / "plan.json").unlink()
    results = read_results(folder)
    assert len(results.cells) == 18
    assert not results.unfinished


def test_json_that_was_cut_short_is_named(build):
    folder = build().write()
    (folder / "checks.json").write_text(json.dumps([1, 2])[:-1])
    with pytest.raises(ResultsError, match=r"checks.json: cannot be read .*harness.collect writes it again"):
        read_results(folder)


def test_a_folder_from_before_loss_and_jitter_were_columns_is_read(build):
    folder = build(regimes=("local", "wan_lossy")).write()
    lines = (folder / "epochs.csv").read_text().splitlines()
    added = [lines[0].split(",").index(name) for name in ("jitter_ms", "loss_pct")]
    kept = [",".join(cell for place, cell in enumerate(line.split(",")) if place not in added) for line in lines]
    (folder / "epochs.csv").write_text("".join(f"{line}\n" for line in kept))
    results = read_results(folder)
    assert len(results.rows) == len(lines) - 1
    assert results.disturbance("wan_lossy") == (0.1, 2.0)
