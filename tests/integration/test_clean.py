"""What is left when the harness is killed: nothing, or what the next clean-up removes."""

import json
import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from uuid import uuid4

import pytest

from harness.system.process import processes_of_run
from harness.testbed.mounts.table import mounts_below
from harness.testbed.state import RunNames, state_root
from tests.integration.runs import has_ended, run, wait_until
from tests.integration.test_netns import LINK_MARKS

pytestmark = [*LINK_MARKS, pytest.mark.slow, pytest.mark.serial]
CLEAN = [sys.executable, "-m", "harness.testbed", "clean"]
HARNESS = """
import json, subprocess, sys, time
from pathlib import Path
from harness.config.regime import Regime
from harness.testbed import open_testbed
near = Regime(name="near", rtt_ms=1.0, rate_gbit=10.0)
testbed = open_testbed("netns", sys.argv[1], [near])
testbed.set_regime(near)
with testbed.mount(Path(sys.argv[2]), near) as mount:
    read = "cd $0; echo in; exec >/dev/null; setsid sleep 92 & exec 3<.; while :; do cat */* >/dev/null; done"
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    cell = testbed.compute.start(["sh", "-c", read, str(mount.path)], **pipes)
    assert cell.read_line(10) == b"in"
    print(json.dumps({"reaper": testbed._lifetime._reaper.pid, "relay": testbed.link.pid}), flush=True)
    time.sleep(600)
"""


@dataclass(frozen=True)
class Running:
    """A harness in the middle of a cell."""

    process: subprocess.Popen
    names: RunNames
    reaper: int
    relay: int | None

    def left(self) -> list[object]:
        """Everything of the run that is there."""
        found: list[object] = list(processes_of_run(self.names.run_id, self.names.namespace_paths))
        found += mounts_below(self.names.folder)
        found += [path for path in (*self.names.namespace_paths, self.names.folder) if path.exists()]
        found += [self.names.state_file] if self.names.state_file.exists() else []
        if self.relay is not None and not has_ended(self.relay):
            found.append(f"relay {self.relay}")
        if not self.names.state_file.exists() and not has_ended(self.reaper):
            found.append(f"reaper {self.reaper}")
        return found

    def wait_nothing_left(self) -> list[object]:
        """Wait for the reaper, and for what is about to end by itself; return what is left all the same."""
        wait_until(lambda: not self.left())
        return self.left()


@pytest.fixture
def start(tmp_path):
    """Start so many harnesses at once."""
    (tmp_path / "class").mkdir()
    (tmp_path / "class" / "a.jpg").write_bytes(os.urandom(50_000))
    started: list[tuple[subprocess.Popen, RunNames]] = []
    running: list[Running] = []

    def _start(count: int) -> list[Running]:
        for _ in range(count):
            names = RunNames(f"c{uuid4().hex[:8]}", state_root())
            process = subprocess.Popen(
                [sys.executable, "-c", HARNESS, names.run_id, str(tmp_path)],
                stdout=subprocess.PIPE,
                text=True,
                start_new_session=True,
            )
            started.append((process, names))
        for process, names in started[-count:]:
            said = json.loads(process.stdout.readline())
            running.append(Running(process, names, said["reaper"], said["relay"]))
        return running[-count:]

    yield _start
    for process, _ in started:
        process.kill()
        process.wait()
        process.stdout.close()
    for each in running:
        each.wait_nothing_left()


def _kill(running: Running, *pids: int) -> None:
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    running.process.wait()


def test_reaper_removes_everything_of_a_killed_harness_and_of_a_killed_group(start):
    harness, group = start(2)
    assert harness.left() and group.left()
    _kill(harness, harness.process.pid)
    os.killpg(group.process.pid, signal.SIGKILL)
    group.process.wait()
    assert harness.wait_nothing_left() == []
    assert group.wait_nothing_left() == []


def test_the_command_clean_removes_a_run_whose_reaper_was_killed_too_and_neither_a_living_one_nor_data(start, tmp_path):
    living, dead = start(2)
    _kill(dead, dead.reaper, dead.process.pid)
    assert dead.names.state_file.exists()
    lines = run(CLEAN).stdout.splitlines()
    removed = [line for line in lines if dead.names.run_id in line]
    assert any("namespace" in line for line in removed)
    # The program of a killed mount may unmount it first: that none is left is asserted below.
    assert dead.names.run_id not in run(CLEAN).stdout
    assert dead.wait_nothing_left() == []
    assert not [line for line in lines if living.names.run_id in line]
    assert all(path.exists() for path in living.names.namespace_paths)
    assert mounts_below(living.names.folder)
    assert (tmp_path / "class" / "a.jpg").stat().st_size == 50_000
