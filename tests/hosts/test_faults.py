"""What goes wrong with hosts is one line that names the host; `down` takes the rest back by the inventory alone."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.testbed.state import state_root
from tests.hosts.namespaces import REPO, Hosts, ansible_obstacles, harness_testbed, namespace_hosts
from tests.hosts.snapshot import Snapshot, differences

OBSTACLES = ansible_obstacles()
pytestmark = [
    pytest.mark.process,
    pytest.mark.root,
    pytest.mark.timeout(900),
    pytest.mark.skipif(bool(OBSTACLES), reason=f"no namespace hosts here: {'; '.join(OBSTACLES)}"),
]
NAMES = ("storage1", "compute1")
LEFT_S = 20
"""Within which nothing of a controller that was killed may be left where it ran."""


@pytest.fixture(scope="module")
def hosts() -> Iterator[Hosts]:
    with namespace_hosts(disk_mb=512) as made:
        yield made


@pytest.fixture(scope="module")
def pristine(hosts: Hosts) -> dict[str, Snapshot]:
    return {name: hosts.snapshot(name) for name in NAMES}


def refused(hosts: Hosts, command: str) -> str:
    """Run a command of `python -m harness.testbed` that fails; return its last line."""
    argv = [sys.executable, "-m", "harness.testbed", command, "--inventory", str(hosts.inventory)]
    done = subprocess.run(argv, cwd=REPO, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 4, done.stderr[-2000:]
    assert "Traceback" not in done.stderr
    return done.stderr.strip().splitlines()[-1]


def left(hosts: Hosts, pristine: dict[str, Snapshot]) -> Snapshot:
    """Return what the hosts have that they did not have at first."""
    found = {name: differences(pristine[name], hosts.snapshot(name)) for name in NAMES}
    return {name: changed for name, changed in found.items() if changed}


def test_a_full_disk_is_told_before_anything_changes(hosts, pristine):
    hosts.run("storage1", "sh", "-c", "cat /dev/zero > /var/filling 2>/dev/null || true")
    try:
        line = refused(hosts, "up")
    finally:
        hosts.run("storage1", "rm", "/var/filling")
    assert line.startswith("error: host storage1: disk: 0.0 GB free in /tmp: free 0.1 GB there")
    assert left(hosts, pristine) == {}


def controllers(hosts: Hosts) -> dict[int, str]:
    """Return the processes on this machine that an inventory of the hosts, or a file beside it, was given to."""
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal() and int(entry.name) != os.getpid():
            try:
                words = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            except OSError:
                continue
            if str(hosts.folder) in words:
                found[int(entry.name)] = words
    return found


def records(pid: int) -> list[Path]:
    """Return the records of runs that a process made on this machine."""
    found = []
    for path in state_root().glob("*.run"):
        try:
            if json.loads(path.read_text() or "{}").get("pid") == pid:
                found += [path, path.with_suffix("")]
        except (OSError, ValueError):
            continue
    return found


def start(hosts: Hosts, *argv: str) -> subprocess.Popen[str]:
    """Start a controller, and wait until it has changed something on a host."""
    words = [sys.executable, "-m", *argv]
    controller = subprocess.Popen(
        words, cwd=REPO, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, bufsize=1
    )
    assert controller.stderr is not None
    said = ""
    for line in controller.stderr:
        said += line
        if ": changed" in line:
            return controller
    pytest.fail(f"nothing was changed: {said[-2000:]}")


def assert_gone(hosts: Hosts, before: dict[int, str], made: list[Path]) -> None:
    """Check that a controller has left no process and no record behind."""
    deadline = time.monotonic() + LEFT_S
    while time.monotonic() < deadline:
        rest = {pid: words for pid, words in controllers(hosts).items() if pid not in before}
        if not rest and not any(path.exists() for path in made):
            return
        time.sleep(0.1)
    pytest.fail(f"left: {rest}, {[path for path in made if path.exists()]}")


@pytest.mark.slow
def test_controllers_that_are_killed_leave_nothing_and_down_takes_the_rest_back(hosts, pristine, tmp_path):
    where = [f"testbed.inventory={hosts.inventory}", f"results_dir={tmp_path}"]
    for controller in (
        ["harness", "+experiment=smoke", "testbed=ssh", *where],
        ["harness.testbed", "down", "--inventory", str(hosts.inventory)],
    ):
        before = controllers(hosts)
        killed = start(hosts, *controller)
        made = records(killed.pid)
        killed.kill()
        killed.communicate()
        assert made
        assert_gone(hosts, before, made)
    harness_testbed(hosts, "down")
    assert left(hosts, pristine) == {}
