"""Windows over agents that are processes of their own, estimating where this machine has no sensors."""

import functools
import json
import os
import signal
import subprocess
import sys
import threading
import time
import types
from pathlib import Path

import pytest

from energymon import START, Agent, Event, Reading, SensorError, SqliteStore, StoreError, Window, WindowError
from energymon.agent import process as agent_process
from energymon.clock.monotonic import utc_text
from energymon.errors import AgentError
from tests.energymon.conftest import wait_for

pytestmark = pytest.mark.process

REPO = Path(__file__).parents[2]
MS = 1_000_000
S = 1000 * MS


@pytest.fixture(autouse=True)
def temporary_folder(tmp_path, monkeypatch):
    """Have agents' temporary stores where this test finds what is left of them."""
    folder = tmp_path / "tmp"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr("tempfile.tempdir", None)
    monkeypatch.delenv("ENERGYMON_STORE", raising=False)
    yield folder
    monkeypatch.undo()
    import tempfile

    tempfile.tempdir = None


@pytest.fixture
def bare(tmp_path):
    """Options of an agent on a host without sensors."""
    (tmp_path / "sys").mkdir()
    return ("--sysfs", str(tmp_path / "sys"), "--nvml", str(tmp_path / "no-nvml.so"))


@pytest.fixture
def estimating(bare):
    return functools.partial(Agent, estimate="missing", interval_ms=20, options=bare)


@pytest.fixture
def shared(monkeypatch, estimating):
    """Let the agent that this process starts by itself estimate; ends it."""
    monkeypatch.setattr(agent_process, "Agent", estimating)
    yield
    if agent_process._shared is not None:
        agent_process._shared.remove()


def runs(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_a_window_has_joules_that_are_labelled_as_what_they_are_once_it_has_ended(estimating):
    with estimating() as agent:
        with Window("epoch", agent=agent) as window:
            with pytest.raises(WindowError, match="'epoch'"):
                assert window.joules
            time.sleep(0.1)
        with pytest.raises(WindowError), window:
            pass
        assert window.joules > 0
        assert window.by_domain == {"cpu": window.joules}
        assert window.sources == {"cpu": ("estimate",)}
        assert (window.estimated, window.error_j, window.net_joules) == (True, None, None)
        assert window.duration_s == pytest.approx((window.end_ns - window.start_ns) / 1e9, abs=0.05)
        assert [e.source for e in window.energy.energies] == ["estimate"]


def test_windows_of_several_threads_are_their_own(shared):
    found, pids = [], set()

    def work():
        for _ in range(3):
            with Window() as window:
                time.sleep(0.02)
            found.append(window.joules)
            pids.add(window._agent.pid)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 12
    assert min(found) > 0
    assert len(pids) == 1


def test_an_agent_that_does_not_start_says_why_and_leaves_nothing(bare, tmp_path, temporary_folder, monkeypatch):
    with pytest.raises(SensorError, match=r"(?s)powercap.*nvml.*estimate"):
        Agent(options=bare).start()
    with pytest.raises(AgentError, match=r"--interval-ms 0\.1.*1.*10000"):
        Agent(interval_ms=0.1, options=bare).start()
    with pytest.raises(AgentError):
        Agent(tmp_path / "no" / "such" / "store", estimate="missing", options=bare).start()
    with pytest.raises(AgentError):
        assert Agent().store
    monkeypatch.setattr(agent_process, "_READY_S", 0.001)
    with pytest.raises(AgentError, match=r"0\.001 s"):
        Agent(estimate="missing", options=bare).start()
    assert list(temporary_folder.iterdir()) == []


def test_what_a_window_uses_beyond_idle_is_net_of_the_recorded_baseline(estimating, bare):
    with estimating(idle_s=0.4) as agent:
        with Window(agent=agent) as window:
            deadline = time.monotonic() + 0.3
            while time.monotonic() < deadline:
                pass
        assert window.net_joules is not None
        assert window.net_joules < window.joules


def test_the_store_of_an_agent_that_runs_already_is_named_in_the_environment(estimating, monkeypatch, tmp_path):
    store = tmp_path / "energy.sqlite"
    with estimating(store, node="this-host"):
        monkeypatch.setenv("ENERGYMON_STORE", str(store))
        with Window() as window:
            time.sleep(0.05)
        assert window.joules > 0
        assert window.energy.node == "this-host"
    assert store.exists()
    with pytest.raises(WindowError, match=r"ENERGYMON_STORE=.*this-host ended"), Window():
        pytest.fail("it was entered")
    with estimating(store, node="this-host") as agent:
        agent._child.process.kill()
        agent._child.process.wait()
        with pytest.raises(WindowError, match=r"this-host \(process \d+\)"), Window():
            pytest.fail("it was entered")
        with pytest.raises(WindowError, match="'epoch'"), Window("epoch", agent=agent):
            pytest.fail("it was entered")
    monkeypatch.setenv("ENERGYMON_STORE", str(tmp_path / "none.sqlite"))
    with pytest.raises(StoreError, match="there is no store here"), Window():
        pass


def test_a_window_without_any_figure_tells_the_events_and_no_reading_of_after_it(tmp_path):
    now = time.time_ns() // 10**9 * 10**9
    second = 10**9
    with SqliteStore.create(tmp_path / "energy.sqlite") as store:
        store.begin_session("n", now - 100 * second, second, {})
        rows = [Reading(t, t, "n", "package-0", "cpu", "rapl-perf", float(t)) for t in (now - 50 * second, now)]
        store.append([rows[0], rows[1]._replace(joules=1.0, flags=START)])
        store.append([], news=[Event(now - 25 * second, "n", "sensor-lost", "package-0 cpu (rapl-perf): gone")])
    window = Window("gap", store=tmp_path / "energy.sqlite")
    window._start_ns, window._end_ns = now - 30 * second, now - 20 * second
    with pytest.raises(WindowError) as raised:
        assert window.joules
    told = str(raised.value)
    assert "'gap'" in told
    assert "sensor-lost: package-0 cpu (rapl-perf)" in told
    assert utc_text(now - 50 * second) in told
    assert utc_text(now) not in told


def test_cuda_is_synchronised_at_both_edges_on_the_boards_in_use_when_asked(estimating, monkeypatch):
    calls = []
    cuda = types.SimpleNamespace(
        is_available=lambda: True,
        is_initialized=lambda: True,
        device_count=lambda: 3,
        max_memory_reserved=lambda device: 0 if device == 1 else 1 << 20,
        synchronize=lambda device: calls.append((device, time.time_ns())),
    )
    monkeypatch.setitem(sys.modules, "torch", types.SimpleNamespace(cuda=cuda))
    with estimating() as agent:
        with Window(sync_cuda=True, agent=agent) as window:
            time.sleep(0.01)
        with Window(agent=agent):
            pass
        cuda.is_initialized = lambda: False
        with Window(sync_cuda=True, agent=agent):
            pass
    assert [device for device, _ in calls] == [0, 2, 0, 2]
    assert calls[1][1] <= window.start_ns + MS
    assert window.start_ns < calls[2][1] <= calls[3][1] <= window.end_ns + MS


def program(code, **environment):
    """Start a program that opens windows, its own agent estimating."""
    head = (
        "import functools, json, os, sys, time\n"
        "from energymon.agent import process as agent_process\n"
        "from energymon.agent.window import Window\n"
        "agent_process.Agent = functools.partial(\n"
        "    agent_process.Agent, estimate='missing', interval_ms=20,\n"
        "    options=json.loads(os.environ['OPTIONS']))\n"
    )
    return subprocess.Popen(
        [sys.executable, "-c", head + code],
        cwd=REPO,
        env={**os.environ, **environment},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize("is_killed", [False, True])
def test_the_agent_ends_with_the_program_and_leaves_nothing(bare, temporary_folder, is_killed):
    code = (
        "with Window() as window: time.sleep(0.05)\nprint(window.joules > 0, window._agent.pid, flush=True)\ninput()\n"
    )
    with program(code, OPTIONS=json.dumps(bare)) as process:
        known, pid = process.stdout.readline().split()
        process.kill() if is_killed else process.communicate("\n", timeout=30)
    assert known == "True"
    wait_for(lambda: not runs(pid))
    assert list(temporary_folder.iterdir()) == []


def test_a_forked_process_starts_its_own_agent_and_leaves_its_parents_alone(bare):
    code = (
        "with Window() as before: time.sleep(0.02)\n"
        "mine = before._agent.pid\n"
        "child = os.fork()\n"
        "with Window() as window: time.sleep(0.05)\n"
        "told = [window._agent.pid == mine, window.joules > 0]\n"
        "if not child:\n"
        "    agent_process._shared.remove()\n"
        "    os._exit(0 if told == [False, True] else 1)\n"
        "print(*told, os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))\n"
        "with Window() as after: time.sleep(0.05)\n"
        "print(after.joules > 0, after._agent.pid == mine)\n"
    )
    with program(code, OPTIONS=json.dumps(bare)) as process:
        said = process.communicate(timeout=30)[0].split()
    assert said == ["True", "True", "0", "True", "True"]


def test_the_figures_of_ended_windows_stay_readable_when_their_agent_was_stopped(estimating):
    with estimating() as agent:
        with Window("epoch", agent=agent) as window:
            time.sleep(0.05)
        late = Window("late", agent=agent)
        late.__enter__()
    assert window.joules > 0
    late.__exit__(None, None, None)
    with pytest.raises(WindowError, match="'late'"):
        assert late.joules


def test_windows_that_ended_before_the_shared_agent_died_stay_readable_and_the_next_has_another(
    shared, temporary_folder
):
    with Window("first") as first:
        time.sleep(0.05)
    first._agent.flush()
    with SqliteStore.open(first._agent.store) as store:
        wait_for(lambda: any(r.t_ns > first.end_ns for r in store.readings(first.end_ns, 2**62)))
    with Window("torn") as torn:
        os.kill(first._agent.pid, signal.SIGKILL)
        first._agent._child.process.wait()
        time.sleep(0.05)
    with pytest.raises(WindowError):
        assert torn.joules
    with Window("second") as second:
        time.sleep(0.05)
    assert first.joules > 0
    assert second.joules > 0
    second._agent.remove()
    assert list(temporary_folder.iterdir()) == []


def test_an_agent_is_started_once_at_a_time_and_nothing_of_it_stays(estimating, temporary_folder):
    with estimating() as agent:
        pid = agent.pid
        with pytest.raises(AgentError):
            agent.start()
        assert runs(pid)
    with agent:
        assert agent.pid
    agent.stop()
    assert not runs(pid)
    assert not agent.pid
    assert list(temporary_folder.iterdir()) == []


def test_values_reach_the_agent_as_they_were_given(bare, tmp_path):
    agent = Agent(node="-x", interval_ms=100 / 3, estimate="missing", sensors="perf", options=bare)
    assert "--sensors=perf" in agent.options
    with Agent(node="-x", interval_ms=100 / 3, estimate="missing", options=bare) as agent:
        with SqliteStore.open(agent.store) as store:
            (session,) = store.sessions()
        assert (session.node, session.interval_ns) == ("-x", 33_333_333)
