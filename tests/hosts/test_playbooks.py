"""site.yml a second time changes nothing, and teardown.yml leaves hosts as they were."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.hosts.namespaces import REPO, Hosts, namespace_hosts, obstacles
from tests.hosts.snapshot import differences

OBSTACLES = obstacles()
if not (REPO / ".venv-ansible/bin/ansible-playbook").exists() and shutil.which("ansible-playbook") is None:
    OBSTACLES.append("Ansible is not installed: make ansible")
pytestmark = [
    pytest.mark.process,
    pytest.mark.root,
    pytest.mark.timeout(900),
    pytest.mark.skipif(bool(OBSTACLES), reason=f"no namespace hosts here: {'; '.join(OBSTACLES)}"),
]


@pytest.fixture(scope="module")
def hosts() -> Iterator[Hosts]:
    with namespace_hosts(storage=1, compute=2) as made:
        yield made


def harness_testbed(hosts: Hosts, command: str, *options: str) -> str:
    """Run `python -m harness.testbed` on the hosts and return its last line."""
    argv = [sys.executable, "-m", "harness.testbed", command, "--inventory", str(hosts.inventory), *options]
    # On a busy machine an emulated host takes a minute until sudo asks.
    environment = {**os.environ, "ANSIBLE_TIMEOUT": "120"}
    done = subprocess.run(argv, cwd=REPO, env=environment, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout.strip().splitlines()[-1]


def test_a_second_up_changes_nothing_and_down_leaves_hosts_as_they_were(hosts):
    names = [machine.name for machine in hosts.machines]
    before = {name: hosts.snapshot(name) for name in names}
    told = harness_testbed(hosts, "up")
    assert all(name in told for name in names)
    made = {name: hosts.snapshot(name) for name in names}
    assert all(differences(before[name], made[name]) for name in names)
    assert harness_testbed(hosts, "up").startswith("up: changed nothing")
    again = {name: hosts.snapshot(name) for name in names}
    assert {name: differences(made[name], again[name]) for name in names} == {name: {} for name in names}
    harness_testbed(hosts, "down")
    after = {name: hosts.snapshot(name) for name in names}
    assert {name: differences(before[name], after[name]) for name in names} == {name: {} for name in names}
    assert harness_testbed(hosts, "down").startswith("down: changed nothing")
