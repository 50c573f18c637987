"""The results folder: unique, found again, and never half written."""

import json
import os
import subprocess
import sys

import pytest

from harness.errors import ResultsError
from harness.results.files import write_json
from harness.results.folder import Ledger, RunFolder


def planned(tmp_path, name="smoke"):
    results = RunFolder.create(tmp_path, name)
    write_json(results.plan, {"cells": []})
    results.point_latest()
    return results


def test_two_runs_at_once_get_folders_of_their_own(tmp_path):
    folders = {RunFolder.create(tmp_path, "smoke").folder for _ in range(20)}
    assert len(folders) == 20


def test_a_run_is_found_by_name_and_by_path_and_as_the_latest_and_one_that_is_not_there_is_an_error(tmp_path):
    planned(tmp_path)
    results = planned(tmp_path)
    for name in (results.folder.name, str(results.folder), "latest"):
        assert RunFolder.find(name, tmp_path).folder == results.folder.resolve()
    with pytest.raises(ResultsError, match=results.folder.name):
        RunFolder.find("nothing", tmp_path)


def test_a_failed_write_leaves_the_old_file_whole(tmp_path):
    path = tmp_path / "x.json"
    write_json(path, {"a": 1})
    with pytest.raises(TypeError):
        write_json(path, {("a", "tuple"): 1})
    assert json.loads(path.read_text()) == {"a": 1}
    assert [p.name for p in tmp_path.iterdir()] == ["x.json"]


def test_a_folder_named_latest_is_left_alone(tmp_path):
    mine = tmp_path / "latest"
    mine.mkdir()
    results = RunFolder.create(tmp_path, "smoke")
    assert results.point_latest().startswith(f"{mine} ")
    assert mine.is_dir() and not list(mine.iterdir())


LOCKS = """
import sys, time
from pathlib import Path
from harness.results.folder import RunFolder
with RunFolder(Path(sys.argv[1])).hold_lock():
    print("locked", flush=True)
    time.sleep(60)
"""


@pytest.mark.process
def test_a_folder_is_locked_until_its_process_is_dead(tmp_path):
    results = planned(tmp_path)
    owner = subprocess.Popen([sys.executable, "-c", LOCKS, results.folder], stdout=subprocess.PIPE)
    try:
        assert owner.stdout.readline() == b"locked\n"
        with pytest.raises(ResultsError, match=f"process {owner.pid} "), results.hold_lock():
            pass
    finally:
        owner.kill()
        owner.wait()
        owner.stdout.close()
    with results.hold_lock(), pytest.raises(ResultsError, match=f"process {os.getpid()} "), results.hold_lock():
        pass


def test_every_failed_try_of_a_cell_is_kept(tmp_path):
    results = planned(tmp_path)
    for n in (1, 2):
        results.partial_folder("c").mkdir()
        results.set_aside("c")
        assert (results.cells / f"c.failed-{n}").is_dir()
    assert not results.is_done("c")
    results.cell_folder("c").mkdir()
    assert results.set_aside("c", "damaged") == results.cells / "c.damaged-1"
    assert results.set_aside("c", "damaged") is None


def test_a_store_that_is_set_aside_takes_its_log_with_it(tmp_path):
    results = planned(tmp_path)
    for n in (1, 2):
        for suffix in ("", "-wal"):
            results.energy.with_name(results.energy.name + suffix).write_text(suffix)
        assert results.set_store_aside().name == f"energy.sqlite.damaged-{n}"
    left = sorted(path.name for path in results.folder.glob("energy.*"))
    assert left == [f"energy.sqlite.damaged-{n}{suffix}" for n in (1, 2) for suffix in ("", "-wal")]


def test_entries_come_back_in_order_but_for_a_torn_one(tmp_path):
    ledger = Ledger(tmp_path / "ledger.jsonl")
    assert ledger.read_entries() == []
    ledger.append("started", "a")
    with ledger.path.open("a") as file:
        file.write('{"t_utc": "2026-')
    ledger.append("failed", "a", "the reason")
    assert [(e.event, e.cell_id, e.message) for e in ledger.read_entries()] == [
        ("started", "a", ""),
        ("failed", "a", "the reason"),
    ]
