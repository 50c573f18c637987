"""The agent as a process, on a powercap tree that counts in real time, on fake boards, and on this host."""

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time

import pytest

import energymon
from energymon import START, SqliteStore, joules, query
from tests.energymon.conftest import assert_nothing_is_made_up, event_kinds, stored, wait_for

pytestmark = pytest.mark.process

MS = 1_000_000
ESTIMATE = ("--estimate", "missing")


def count(path):
    return len(stored(path)[0])


def test_it_says_that_it_is_ready_when_the_first_tick_is_stored_and_ends_with_its_input(start_agent):
    agent = start_agent(*ESTIMATE, "--until-eof", stdin=subprocess.PIPE)
    assert agent.ready["ready"] is True
    assert agent.ready["sensors"][0]["source"] == "estimate"
    readings, ticks, _ = stored(agent.store)
    assert readings[0].flags == START
    assert ticks[0].first_ns % (100 * MS) == 0
    agent.process.communicate(timeout=10)
    assert agent.process.returncode == 0
    with SqliteStore.open(agent.store) as store:
        assert store.sessions()[0].end_ns is not None
        assert store.sessions()[0].cpu_s > 0


def test_sampled_joules_are_the_counters_through_a_wrap(rapl, start_agent):
    with rapl.running():
        agent = start_agent("--sysfs", str(rapl.root), "--sensors", "powercap")
        package = rapl.packages[0]
        wait_for(lambda: package.shown_uj[-1] > package.range_uj and count(agent.store) > 40)
        agent.end()
    readings, ticks, events = stored(agent.store)
    assert rapl.packages[0].shown_uj[-1] > rapl.packages[0].range_uj
    assert_nothing_is_made_up(readings, rapl)
    assert [r.flags for r in readings].count(START) == 4
    assert not [e for e in events if e.kind != "ticks-missed"]
    assert not ticks[-1].missed


def test_a_stopped_process_misses_ticks_and_no_energy(rapl, start_agent):
    with rapl.running():
        agent = start_agent("--sysfs", str(rapl.root))
        wait_for(lambda: count(agent.store) >= 16)
        os.kill(agent.process.pid, signal.SIGSTOP)
        paused = time.time_ns()
        time.sleep(1.0)
        resumed = time.time_ns()
        os.kill(agent.process.pid, signal.SIGCONT)
        time.sleep(0.3)
        agent.end()
    readings, ticks, events = stored(agent.store)
    assert_nothing_is_made_up(readings, rapl)
    assert "ticks-missed" in [e.kind for e in events]
    assert sum(t.missed for t in ticks if paused <= t.first_ns < resumed) >= 8
    middle = (paused + resumed) // 2
    with SqliteStore.open(agent.store) as store:
        (window,) = query(store, paused, middle)
    assert window.missed_share > 0.5
    assert all(energy.interpolated for energy in window.energies)
    grid = range(ticks[0].first_ns, ticks[-1].first_ns + 1, 100 * MS)
    assert [t.first_ns for t in ticks] == list(grid), "every tick is recorded, seen or missed"


def test_a_killed_agent_leaves_a_store_that_reads_and_takes_the_next_agent(rapl, start_agent):
    dice = random.Random(7)
    seen = 0
    with rapl.running():
        for _ in range(6):
            agent = start_agent("--sysfs", str(rapl.root), "--interval-ms", "2")
            time.sleep(dice.uniform(0.0, 0.6))
            now = count(agent.store)
            agent.process.kill()
            agent.process.wait()
            assert count(agent.store) >= now > seen, "what was committed is there"
            seen = count(agent.store)
    readings, _, _ = stored(agent.store)
    keys = [(r.device, r.domain, r.tick_ns) for r in readings]
    assert len(keys) == len(set(keys))
    with SqliteStore.open(agent.store) as store:
        assert [session.end_ns for session in store.sessions()] == [None] * 6
    first, last = readings[0].t_ns, readings[-1].t_ns
    assert joules(readings, first + MS, last - MS) == [], "nothing is joined across the agents' deaths"


def test_a_second_agent_on_one_store_is_refused_and_the_first_goes_on(start_agent):
    first = start_agent(*ESTIMATE)
    second = start_agent(*ESTIMATE)
    assert second.ready["error"] == "store"
    assert second.process.wait(10) == 2
    assert "another agent" in second.process.stderr.read()
    before = count(first.store)
    wait_for(lambda: count(first.store) > before)


def test_garbage_in_one_counter_is_told_and_the_others_go_on(rapl, start_agent):
    with rapl.running():
        agent = start_agent("--sysfs", str(rapl.root), "--interval-ms", "20")
        package = rapl.packages[1]
        package.broken = True
        time.sleep(0.02)
        package.write("gar bage")
        wait_for(lambda: "sensor-lost" in event_kinds(agent.store))
        package.broken = False
        wait_for(lambda: "sensor-back" in event_kinds(agent.store))
        said = agent.end()
    assert "package-1 cpu (rapl-powercap)" in said
    assert "gar bage" in said
    readings, _, events = stored(agent.store)
    assert_nothing_is_made_up(readings, rapl)
    lost = next(e for e in events if e.kind == "sensor-lost")
    back = next(e for e in events if e.kind == "sensor-back")
    between = [r for r in readings if lost.t_ns < r.t_ns < back.t_ns]
    assert {(r.device, r.domain) for r in between} == {
        ("package-0", "cpu"),
        ("package-0", "dram"),
        ("package-1", "dram"),
    }


def test_boards_are_sampled_beside_the_packages_at_the_same_ticks(rapl, boards, nvml_library, start_agent):
    with rapl.running():
        agent = start_agent("--sysfs", str(rapl.root), "--nvml", str(nvml_library), "--interval-ms", "50")
        start = time.time_ns()
        time.sleep(0.8)
        end = time.time_ns()
        agent.end()
    readings, ticks, _ = stored(agent.store)
    whole = [t.first_ns for t in ticks if not t.missed]
    assert whole
    for tick in whole:
        assert len([r for r in readings if r.tick_ns == tick]) == 4 + 2 * 3
    gpus = [e for e in joules(readings, start, end) if e.source == "nvml-counter"]
    assert len(gpus) == 2
    for gpu in gpus:
        assert gpu.joules == pytest.approx(300.0 * (end - start) / 1e9, abs=gpu.error_j)


def test_it_goes_on_when_nobody_reads_what_it_says(rapl, start_agent):
    with rapl.running():
        agent = start_agent("--sysfs", str(rapl.root), "--interval-ms", "20")
        agent.process.stderr.close()
        agent.process.stderr = None
        agent.process.stdout.close()
        agent.process.stdout = None
        rapl.packages[1].truncate()
        wait_for(lambda: "sensor-lost" in event_kinds(agent.store))
        before = count(agent.store)
        wait_for(lambda: count(agent.store) > before)
        agent.process.terminate()
        assert agent.process.wait(10) == 0


def test_a_host_without_sensors_is_refused_with_reasons_and_a_way_out(tmp_path, start_agent):
    agent = start_agent("--sysfs", str(tmp_path), "--nvml", "no-such-library")
    assert (agent.ready["ready"], agent.ready["error"]) == (False, "no-sensor")
    assert agent.process.wait(10) == 2
    said = agent.process.stderr.read()
    for part in ("nothing on this host measures energy", "no RAPL zones", "no-such-library", "--estimate missing"):
        assert part in said
    assert not agent.store.exists()


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (("--interval-ms", "0.5"), "expected 1 to 10000 ms"),
        (("--node", ""), "--node"),
        (("--store", "/proc/nowhere/e.sqlite"), "/proc/nowhere/e.sqlite: cannot be opened"),
    ],
)
def test_an_impossible_option_ends_in_one_line_and_status_2(start_agent, options, told):
    agent = start_agent(*ESTIMATE, *options)
    assert agent.process.wait(10) == 2
    said = [line for line in agent.process.stderr.read().splitlines() if "missing:" not in line]
    assert len(said) == 1
    assert told in said[0]


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to mount a small tmpfs")
def test_a_full_disk_is_told_costs_resolution_at_most_and_is_survived(tmp_path, rapl, start_agent):
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=512k", "none", disk], check=True)
    try:
        with rapl.running():
            agent = start_agent("--sysfs", str(rapl.root), "--interval-ms", "10", store=disk / "e.sqlite")
            assert agent.ready is not None
            with contextlib.suppress(OSError), (disk / "ballast").open("wb", buffering=0) as ballast:
                while True:
                    ballast.write(bytes(4096))
            lines = iter(agent.process.stderr.readline, "")
            assert any("store-failed" in line and "disk is full" in line for line in lines)
            held = count(agent.store)
            with energymon.Window(node="n", store=agent.store) as window:
                time.sleep(0.05)
            with pytest.raises(energymon.WindowError, match=r"store-failed: .*the disk is full"):
                _ = window.joules
            (disk / "ballast").unlink()
            assert any("store-back" in line for line in lines)
            agent.end()
        assert agent.process.returncode == 0
        readings, ticks, events = stored(agent.store)
        assert len(readings) > held
        assert_nothing_is_made_up(readings, rapl)
        assert len([t for t in ticks if not t.missed]) * 4 == len([r for r in readings if not r.tick_ns % (10 * MS)])
        assert {"store-failed", "store-back"} <= {e.kind for e in events}
    finally:
        agent.process.kill()
        agent.process.wait()
        subprocess.run(["umount", disk], check=True)


def command(*arguments):
    return subprocess.run(
        [sys.executable, "-m", "energymon", *arguments], capture_output=True, text=True, timeout=30, check=False
    )


def test_a_store_that_is_moved_away_gets_its_readings_when_it_is_back(tmp_path, rapl, start_agent):
    old, new = tmp_path / "energy.sqlite", tmp_path / "moved.sqlite"
    with rapl.running():
        agent = start_agent("--sysfs", str(rapl.root), "--interval-ms", "20")
        wait_for(lambda: count(old) > 4)
        old.rename(new)
        time.sleep(3)
        new.rename(old)
        said = agent.end()
        assert agent.process.returncode == 0
    assert f"store-failed: {old}: was moved or removed" in said
    assert f"store-back: {old}" in said
    assert count(old) > 150 * len(rapl.packages)


def test_a_new_store_does_not_take_the_log_of_one_that_was_moved_away(tmp_path, rapl, start_agent):
    with rapl.running():
        agent = start_agent("--sysfs", str(rapl.root), "--interval-ms", "20")
        agent.process.kill()
        agent.process.wait()
        log = tmp_path / "energy.sqlite-wal"
        size = log.stat().st_size
        agent.store.rename(tmp_path / "moved.sqlite")
        refused = start_agent("--sysfs", str(rapl.root))
    assert refused.ready["error"] == "store"
    assert "energy.sqlite-wal: is the log of a store that was moved or removed" in refused.ready["message"]
    assert log.stat().st_size == size
    log.rename(tmp_path / "moved.sqlite-wal")
    assert count(tmp_path / "moved.sqlite")


def test_a_query_takes_the_whole_store_its_last_seconds_or_the_time_until_now(rapl, start_agent):
    with rapl.running():
        agent = start_agent("--sysfs", str(rapl.root), "--interval-ms", "20")
        start = str(time.time_ns())
        wait_for(lambda: count(agent.store) > 200)
        now = command("query", "--store", str(agent.store), "--start", start, "--end", "now", "--json")
        said = agent.end()
    assert now.returncode == 0, now.stderr
    found = {}
    for name, times in {"whole": (), "last": ("--last", "0.5s"), "more": ("--last", "2d")}.items():
        told = command("query", "--store", str(agent.store), *times, "--json")
        assert told.returncode == 0, told.stderr
        (window,) = json.loads(told.stdout)["windows"]
        assert window["components"][-1]["joules"] > 0
        found[name] = window["start_ns"], window["end_ns"]
    assert found["whole"] == found["more"]
    assert found["last"] == (found["whole"][1] - 500 * MS, found["whole"][1])
    assert "missing:" not in said, "a host that measures lacks nothing that matters"
