"""An energy agent that dies while a run goes on: noticed at once, started again, and its energy kept."""

import os
import signal
import subprocess
import sys
import time
from contextlib import closing

import pytest

from energymon import SqliteStore, joules
from harness.cell.epoch import EnergyReader, measured_epoch
from harness.cell.events import EventLog, read_events
from harness.config.specs import EnergySpec, StoreSpec
from harness.errors import CellError
from harness.run.energy_agent import EnergyAgent
from harness.run.host_energy import count_cpu, find_processes
from harness.system.process import run_environment
from tests.energymon import trees
from tests.integration.runs import wait_until

pytestmark = pytest.mark.process

S = 1_000_000_000


@pytest.fixture
def tree(tmp_path):
    made = trees.intel_two_sockets(tmp_path / "sys")
    with made.running():
        yield made
    made.close()


@pytest.fixture
def agent(tree, tmp_path):
    """A running agent; `told` are the messages about its deaths."""
    told = []
    spec = EnergySpec(interval_ms=20, estimate="off")
    made = EnergyAgent(tmp_path / "e.sqlite", spec, StoreSpec(), node="n", run_id="test", on_restart=told.append)
    made.options += ["--sysfs", str(tree.root), "--nvml", str(tmp_path / "none.so")]
    made.told = told
    with made:
        yield made


def kill(agent):
    """Kill the agent; return when, by the clock of its readings."""
    pid = agent.pid
    at_ns = time.monotonic_ns() + agent.offset_ns
    os.kill(pid, signal.SIGKILL)
    assert wait_until(lambda: agent.pid not in (None, pid), 30)
    return at_ns


def test_a_dead_agent_is_noticed_at_once_and_started_again_and_its_energy_is_kept(agent, tree):
    start_ns = time.monotonic_ns() + agent.offset_ns
    time.sleep(0.3)
    killed_ns = kill(agent)
    assert wait_until(lambda: agent.told, 30)
    time.sleep(0.3)
    end_ns = time.monotonic_ns() + agent.offset_ns
    found = joules(agent.readings(start_ns, end_ns), start_ns, end_ns, 20_000_000)
    drawn_j = sum(zone.watts for zone in (*tree.packages, *tree.drams)) * (end_ns - start_ns) / S
    bound_j = sum(energy.error_j for energy in found)
    assert len(found) == 4
    assert sum(energy.joules for energy in found) == pytest.approx(drawn_j, abs=bound_j + 0.02 * 151)
    died, back = (event for event in agent.events(start_ns, end_ns) if event.kind.startswith("agent-"))
    assert (died.kind, back.kind) == ("agent-died", "agent-back")
    assert 0 <= died.t_ns - killed_ns < 10 * S, "noticed before anything asks for it"
    assert died.message == agent.told[0]
    assert "status -9" in died.message
    agent.require()


def test_an_agent_that_cannot_be_started_again_fails_the_cell_with_the_reason(agent):
    options, agent.options = agent.options, [*agent.options, "--interval-ms", "0.001"]
    os.kill(agent.pid, signal.SIGKILL)
    assert wait_until(lambda: agent.told, 30)
    with pytest.raises(CellError, match=r"--interval-ms 0\.001"):
        agent.require()
    agent.options = options
    assert agent.restart_if_failed()
    agent.require()
    assert agent.pid is not None
    assert not agent.restart_if_failed()
    agent.stop()
    assert agent.pid is None, "one that is stopped is not started again"


def test_an_idle_baseline_is_of_the_start_of_a_session_and_not_of_an_agent_that_died(tree, tmp_path):
    spec = EnergySpec(interval_ms=20, estimate="off", idle_s=0.3)
    agent = EnergyAgent(tmp_path / "e.sqlite", spec, StoreSpec(), node="n", run_id="t", on_restart=lambda line: None)
    agent.options += ["--sysfs", str(tree.root), "--nvml", str(tmp_path / "none.so")]
    for session in (1, 2):
        with agent:
            idle = agent.idle
            assert sum(one.watts for one in idle) == pytest.approx(151, rel=0.1)
            assert 0 <= agent.idle_cpu_util <= 1
            kill(agent)
            agent.restart_if_failed()
            assert agent.idle == idle
        with SqliteStore.open(agent.store) as store:
            assert len(store.baselines()) == session * len(idle), "a resumed run takes its own"


def test_the_meters_of_a_spec_are_options_of_the_agent(tmp_path):
    spec = EnergySpec(wall=["shelly:http://192.0.2.8", "tasmota:http://192.0.2.9"], wall_auth="/etc/bmc")
    agent = EnergyAgent(tmp_path / "e.sqlite", spec, StoreSpec(), node="n", run_id="t", on_restart=lambda line: None)
    meters = [option for option in agent.options if option.startswith("--wall")]
    assert meters == [*(f"--wall={one}" for one in spec.wall), "--wall-auth=/etc/bmc"]
    agent = EnergyAgent(
        tmp_path / "e.sqlite", EnergySpec(wall="ipmi"), StoreSpec(), node="n", run_id="t", on_restart=lambda line: None
    )
    assert [option for option in agent.options if option.startswith("--wall")] == ["--wall=ipmi"]


class Nothing:
    """A loader of two empty batches and counters that count nothing."""

    def epoch(self, epoch):
        return iter([Batch(), Batch()])

    def read(self):
        return {}


class Batch:
    nbytes, ids, data, labels, work_s = 0, (), (), (), None


@pytest.mark.parametrize("read", [True, False])
def test_the_end_of_an_epoch_is_that_of_the_reading_or_of_the_last_step_where_nothing_was_read(read, tmp_path):
    asked, answered = [], []

    def at_edge():
        asked.append(time.monotonic_ns())
        time.sleep(0.02)
        answered.append(time.monotonic_ns())
        return read

    with EventLog(tmp_path / "events.jsonl") as log:
        measured_epoch(Nothing(), lambda batch: None, 1, log, Nothing(), lambda *_: None, at_edge)
    start, end, *_ = read_events(tmp_path / "events.jsonl")
    assert start["mono_ns"] >= answered[0]
    assert (end["mono_ns"] >= answered[1]) if read else (end["mono_ns"] <= asked[1])


def test_the_sensors_are_read_at_the_edges_of_an_epoch_and_a_missing_agent_is_no_matter(agent, tmp_path):
    for store in (tmp_path / "e.sqlite", tmp_path / "none.sqlite"):
        log, energy = EventLog(tmp_path / f"{store.name}.jsonl"), EnergyReader(store)
        with log, closing(energy):
            measured_epoch(Nothing(), lambda batch: time.sleep(0.05), 1, log, Nothing(), lambda *_: None, energy.read)
        start, end, *_ = read_events(tmp_path / f"{store.name}.jsonl")
        assert end["mono_ns"] - start["mono_ns"] == end["duration_ns"]
    start, end, *_ = read_events(tmp_path / "e.sqlite.jsonl")
    edges_ns = [event["mono_ns"] + agent.offset_ns for event in (start, end)]
    readings = agent.readings(edges_ns[0], edges_ns[1])
    for edge_ns in edges_ns:
        between = [r for r in readings if r.tick_ns % 20_000_000 and edge_ns - S < r.t_ns + r.late_ns <= edge_ns]
        assert {r.domain for r in between} == {"cpu", "dram"}
    with closing(EnergyReader(tmp_path / "e.sqlite")) as energy:
        assert energy.read()
        kill(agent)
        assert wait_until(lambda: agent.told, 30)
        assert energy.read(), "an agent that was started again reads at the next edge"


def test_cpu_time_on_a_host_is_counted_by_what_the_processes_of_the_run_do():
    work = "import sys; sum(range(2_000_000)); print(flush=True); sys.stdin.read()"
    started = [
        subprocess.Popen(
            [sys.executable, "-c", work, *argv],
            env=run_environment(run_id),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        for run_id, argv in (("ours1", ["-m", "loaders.streaming", "serve"]), ("other1", ["harness.cell"]))
    ]
    try:
        assert all(process.stdout.readline() for process in started)
        found = count_cpu(find_processes("ours1", None))
    finally:
        for process in started:
            process.communicate()
    assert 0 < found["daemon"] < found["busy"]
    assert "loader" not in found, "it is of another run"
    assert "monitor" not in found
