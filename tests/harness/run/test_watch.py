"""What a run does now is in a file of its folder, and is shown in a terminal and as a page."""

import io
import json
import re
import time
import urllib.request
from threading import Thread

import pytest
from rich.console import Console

from energymon.reading import Reading, Ticks
from energymon.store import SqliteStore
from harness.results.cells import Cell
from harness.results.files import write_json
from harness.results.folder import RunFolder, RunPlan
from harness.run import watch
from harness.run.progress import LiveState, RunProgress, write_live
from tests.integration.runs import wait_until

CELL = Cell(cell_id="c", loader="pytorch", workload="resnet50", regime="local", repeat=1)
NOW_S = 1_800_000_000.0
MS = 1_000_000


def state(**changes):
    known = {"t_s": NOW_S, "doing": "pytorch · resnet50 · local · repeat 1: epoch 2", "cells_done": 3, "cells": 12}
    known |= {"left_s": 200.0, "samples_done": 180, "samples": 288, "epoch_s": 2.0, "stall_s": 1.5}
    return LiveState(**(known | changes))


@pytest.fixture
def run(tmp_path):
    folder = RunFolder(tmp_path / "a <run>")
    folder.cells.mkdir(parents=True)
    write_json(folder.plan, RunPlan(cells=[CELL]))
    return folder


def texts(parts):
    return [part.text for part in parts]


def test_a_run_keeps_what_it_does_in_a_file_until_it_is_over(run):
    with RunProgress(Console(file=io.StringIO())) as progress:
        progress.show_in(run.live)
        progress.start([CELL], 1)
        progress.cell_started(CELL, 48)
        progress.samples(2, 0)
        time.sleep(0.01)
        progress.samples(2, 16, 0.004)
        assert wait_until(lambda: run.live.exists() and json.loads(run.live.read_text())["samples_done"] == 16)
        told = json.loads(run.live.read_text())
        assert (told["cells_done"], told["cells"], told["samples"]) == (1, 2, 48)
        assert told["doing"] == "pytorch · resnet50 · local · repeat 1: epoch 2, 16 samples"
        assert told["epoch_s"] >= 0.01 and told["stall_s"] == 0.004
        progress.phase("probing the link")
        assert wait_until(lambda: "probing" in json.loads(run.live.read_text())["doing"])
        assert json.loads(run.live.read_text())["epoch_s"] == 0
    assert not run.live.exists() and not list(run.folder.glob("*.partial"))


def test_a_full_disk_ends_no_run(run, monkeypatch):
    monkeypatch.setattr(type(run.live), "write_text", lambda *_, **__: (_ for _ in ()).throw(OSError(28, "No space")))
    write_live(run.live, state())
    assert not run.live.exists()


def test_what_a_run_does_is_told_with_rate_waits_and_time_left(run):
    write_live(run.live, state())
    cells, cell, rate = watch.look(run, NOW_S + 1)
    assert (cells.text, cells.done, cells.total) == ("3 of 12 cells, 3:20 left", 3, 12)
    assert (cell.done, cell.total) == (180, 288)
    assert rate.text == "90 samples a second; the step waited 75 % of the time"
    write_live(run.live, state(doing="starting", cells=0, left_s=None, samples_done=0, epoch_s=0.0))
    assert texts(watch.look(run, NOW_S + 1)) == ["starting"]
    assert "silent for 1:15" in texts(watch.look(run, NOW_S + 75))[-1]


def test_power_is_that_of_the_last_seconds(run):
    with SqliteStore.create(run.energy) as store:
        store.begin_session("a", 0, 100 * MS, {})
        joules = {tick: 2.0 * tick if tick < 50 else 100.0 + 5.0 * (tick - 50) for tick in range(101)}
        of = {"node": "a", "device": "package-0", "domain": "cpu", "source": "rapl-powercap"}
        times = {100 * MS * tick: value for tick, value in joules.items()}
        readings = [Reading(tick_ns=t_ns, t_ns=t_ns, joules=value, **of) for t_ns, value in times.items()]
        store.append(readings, [Ticks(0, "a", missed=False, count=101, interval_ns=100 * MS)])
    assert list(watch.read_power(run.energy)) == ["CPU 50 W"]
    assert not list(watch.read_power(run.folder / "none.sqlite"))


def test_a_page_shows_the_same_until_the_run_is_over(run, capsys):
    write_live(run.live, state(t_s=time.time()))
    statuses = []
    watching = Thread(target=lambda: statuses.append(watch.main([str(run.folder), "--web", "0"])))
    watching.start()
    said = ""

    def address():
        nonlocal said
        said += capsys.readouterr().out
        return "http://127.0.0.1:" in said

    assert wait_until(address)
    with urllib.request.urlopen(said.split(maxsplit=1)[0], timeout=10) as answer:
        page = answer.read().decode()
    assert "a &lt;run&gt;" in page and "90 samples a second" in page
    assert re.findall("<progress.*?>", page) == ['<progress value="3" max="12">', '<progress value="180" max="288">']
    run.live.unlink()
    watching.join(20)
    assert statuses == [0]


def test_a_port_that_cannot_be_had_is_named(run, capsys):
    assert watch.main([str(run.folder), "--web", "70000"]) == 2
    assert "--web 70000" in capsys.readouterr().err


def test_a_run_that_is_over_names_the_report(run, capsys):
    assert watch.main([str(run.folder)]) == 0
    assert "no run is at work there; python -m harness.report" in capsys.readouterr().out


def test_a_file_that_is_damaged_is_named(run, capsys):
    run.live.write_text("{")
    assert watch.main([str(run.folder), "--once"]) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert "live.json" in said and said.endswith("remove it")


def test_a_folder_without_a_run_is_an_error(tmp_path, capsys):
    assert watch.main([str(tmp_path / "none")]) == 2
    assert "no run with a plan.json there" in capsys.readouterr().err
