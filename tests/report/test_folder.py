import json

import pyarrow.parquet as pq
import pytest

from harness.errors import ResultsError
from harness.results.reader import read_results


def test_a_folder_that_is_not_there_is_named(tmp_path):
    with pytest.raises(ResultsError, match=r"nowhere: .*results/latest"):
        read_results(tmp_path / "nowhere")


def test_a_folder_of_something_else_is_refused(tmp_path):
    with pytest.raises(ResultsError, match=r"plan\.json"):
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


def test_a_broken_line_inside_the_ledger_is_named(build):
    folder = build().write()
    lines = (folder / "ledger.jsonl").read_text().splitlines()
    (folder / "ledger.jsonl").write_text("\n".join([lines[0], "{", *lines[1:]]))
    with pytest.raises(ResultsError, match=r"ledger.jsonl, line 2"):
        read_results(folder)


def test_a_missing_column_is_named(build):
    folder = build().write()
    table = pq.read_table(folder / "epochs.parquet")
    pq.write_table(table.drop_columns(["total_j"]), folder / "epochs.parquet")
    with pytest.raises(ResultsError, match=r"epochs\.parquet: .*total_j"):
        read_results(folder)


def test_rows_that_are_stored_as_csv_alone_are_to_be_collected_again(build):
    folder = build().write()
    (folder / "epochs.parquet").unlink()
    with pytest.raises(ResultsError, match=r"epochs\.parquet: .*harness\.validate --write"):
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
    builder = build(loaders=("pytorch", "streaming"))
    builder.config["loaders"]["emlio"] = builder.config["loaders"].pop("streaming")
    for one in (*builder.cells.values(), *builder.rows.values()):
        one["loader"] = one["loader"].replace("streaming", "emlio")
    assert read_results(builder.write()).streaming == "emlio"


def test_a_loader_that_the_config_does_not_have_is_named(build):
    builder = build()
    del builder.config["loaders"]["dali"]
    with pytest.raises(ResultsError, match=r"plan\.json: .*loader dali .*config\.yaml"):
        read_results(builder.write())


@pytest.mark.parametrize("version", [None, 0, 99])
def test_a_folder_of_another_version_is_one_error_that_names_the_plan(build, version):
    folder = build().write()
    plan = json.loads((folder / "plan.json").read_text())
    (folder / "plan.json").write_text(json.dumps({**plan, "format": version}))
    with pytest.raises(ResultsError, match=rf"plan\.json: .*format {version}"):
        read_results(folder)
