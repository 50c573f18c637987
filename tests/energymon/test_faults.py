"""What can go wrong on a host, done to a real agent: killed at any moment, its clock set, its board stuck."""

import multiprocessing
import os
import random
import shlex
import signal
import subprocess
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest

from energymon import START, SqliteStore, StoreError
from energymon.reading import Reading
from tests.energymon.conftest import assert_nothing_is_made_up, stored, wait_for

pytestmark = pytest.mark.process

REPO = Path(__file__).parents[2]
S = 1_000_000_000


@pytest.fixture
def sampler(monkeypatch, request):
    """Have compiled code take the ticks, or Python alone."""
    monkeypatch.setenv("ENERGYMON_COMPILED", request.param)


both_samplers = pytest.mark.parametrize("sampler", ["1", "0"], indirect=True, ids=["compiled", "python"])
each = pytest.mark.usefixtures("sampler")


def killed_25_times(sysfs: Path, store: Path, seed: int):
    """Have agents write one store, each killed at a moment of its own; return all that was there in the end."""
    moments = random.Random(seed)
    argv = [sys.executable, "-m", "energymon", "run", "--store", store, "--node", "n", "--interval-ms", "5"]
    argv += ["--sysfs", sysfs, "--until-eof"]
    sampler = {**os.environ, "ENERGYMON_COMPILED": str(seed % 2)}
    kept_before: set[Reading] = set()
    said = store.with_suffix(".log")
    for _ in range(25):
        with said.open("wb") as log:
            agent = subprocess.Popen(
                argv, cwd=REPO, env=sampler, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log
            )
        assert agent.stdout.readline(), said.read_text()
        until = time.monotonic() + moments.uniform(0.0, 0.12)
        while time.monotonic() < until:
            agent.stdin.write(b"\n")
            agent.stdin.flush()
            time.sleep(moments.uniform(0.0, 0.01))
            kept_before |= set(stored(store)[0])
        agent.kill()
        agent.communicate()
        kept = stored(store)[0]
        assert kept_before <= set(kept)
        assert len({(r.device, r.domain, r.source, r.tick_ns) for r in kept}) == len(kept)
    assert len(kept_before) > 100
    return stored(store)[0]


@pytest.mark.slow
def test_agents_killed_at_any_of_100_moments_lose_and_double_nothing_they_have_stored(rapl, tmp_path):
    # Most of it is agents that start, so several at a time; in processes, for a counter that a thread of this one moves
    # would stand still while others read.
    with rapl.running(), ProcessPoolExecutor(4, multiprocessing.get_context("spawn")) as pool:
        stores = [tmp_path / f"{seed}.sqlite" for seed in range(4)]
        kept = list(pool.map(killed_25_times, [rapl.root] * 4, stores, range(4)))
    for readings in kept:
        assert_nothing_is_made_up(readings, rapl)


@each
@both_samplers
def test_a_board_that_hangs_costs_the_packages_a_few_ticks_and_comes_back(rapl, boards, nvml_library, start_agent):
    with rapl.running():
        agent = start_agent("--sysfs", str(rapl.root), "--nvml", str(nvml_library), "--interval-ms", "20")
        boards(hang_ms={1: 5000})
        time.sleep(5.0)
        hung_until = time.time_ns()
        boards()

        def back():
            return any(r.device == "gpu-1" and r.tick_ns > hung_until for r in stored(agent.store)[0])

        wait_for(back)
        agent.end()
    readings, ticks, _ = stored(agent.store)
    alone = [t for t in ticks if t.missed and hung_until - S < t.first_ns < hung_until]
    assert len(alone) > 25, "a tick that lacks the board is a missed one"
    packages = {r.tick_ns for r in readings if r.device == "package-0"}
    assert {t.first_ns for t in alone} <= packages, "the packages are sampled meanwhile"
    assert_nothing_is_made_up(readings, rapl)


def test_a_store_that_is_removed_under_the_agent_is_told_and_ends_it_with_an_error(rapl, start_agent):
    with rapl.running():
        agent = start_agent("--sysfs", str(rapl.root), "--interval-ms", "20")
        for path in agent.store.parent.glob(f"{agent.store.name}*"):
            path.unlink()
        time.sleep(3)
        said = agent.end()
    assert agent.process.returncode == 2
    assert str(agent.store) in said


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-"])
def test_an_agent_without_a_standard_stream_ends_when_it_is_told_to(rapl, tmp_path, closed):
    store = tmp_path / "energy.sqlite"
    argv = [sys.executable, "-m", "energymon", "run", "--store", str(store), "--node", "n", "--sysfs", str(rapl.root)]
    command = f"exec {shlex.join(argv)} {closed}"
    with rapl.running():
        agent = subprocess.Popen(["sh", "-c", command], cwd=REPO, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        wait_for(lambda: store.exists() and is_there(store))
        agent.terminate()
        told, _ = agent.communicate(timeout=20)
    assert agent.returncode == 0
    assert b"energymon: " not in told, "what is for stderr is not on stdout"


def is_there(store):
    try:
        return stored(store)[0]
    except StoreError:
        return []


def test_ticks_that_are_missed_again_and_again_are_told_about_once_in_a_while(rapl, start_agent):
    with rapl.running():
        agent = start_agent("--sysfs", str(rapl.root), "--interval-ms", "10")
        for _ in range(6):
            agent.process.send_signal(signal.SIGSTOP)
            time.sleep(0.1)
            agent.process.send_signal(signal.SIGCONT)
            time.sleep(0.1)
        agent.end()
    _, ticks, events = stored(agent.store)
    told = [e.message for e in events if e.kind == "ticks-missed"]
    assert 1 <= len(told) <= 4, "the first, and the rest of each second and more"
    assert sum(int(message.split()[0]) for message in told) == sum(t.missed for t in ticks)
    assert {e.t_ns for e in events if e.kind == "ticks-missed"} <= {t.first_ns for t in ticks if t.missed}


def test_the_idle_baseline_is_what_the_host_drew_at_first(rapl, start_agent):
    with rapl.running():
        agent = start_agent("--sysfs", str(rapl.root), "--interval-ms", "20", "--idle-s", "1")
        agent.end()
    with SqliteStore.open(agent.store) as store:
        idle = {(b.device, b.domain): b for b in store.baselines()}
    assert set(idle) == {(d, c) for d in ("package-0", "package-1") for c in ("cpu", "dram")}
    package = idle["package-0", "cpu"]
    assert package.end_ns - package.start_ns == S
    assert package.watts == pytest.approx(rapl.packages[0].watts, abs=package.error_w + 4)


def test_a_store_that_was_closed_in_order_is_read_by_whoever_may_not_write_its_folder(public_path, as_nobody):
    path = public_path / "energy.sqlite"
    reading = Reading(1, 2, "n", "package-0", "cpu", "rapl-perf", 3.5, START)
    with SqliteStore.create(path) as store:
        store.append([reading])
    with as_nobody():
        assert stored(path)[0] == [reading]
