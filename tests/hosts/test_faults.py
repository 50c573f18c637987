"""What goes wrong with hosts is one line that names the host; `down` takes the rest back by the inventory alone."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.hosts.namespaces import REPO, Hosts, namespace_hosts
from tests.hosts.snapshot import Snapshot, differences
from tests.hosts.test_playbooks import OBSTACLES, harness_testbed

pytestmark = [
    pytest.mark.process,
    pytest.mark.root,
    pytest.mark.timeout(900),
    pytest.mark.skipif(bool(OBSTACLES), reason=f"no namespace hosts here: {'; '.join(OBSTACLES)}"),
]
NAMES = ("storage1", "compute1")


@pytest.fixture(scope="module")
def hosts() -> Iterator[Hosts]:
    with namespace_hosts(disk_mb=512) as made:
        yield made


@pytest.fixture(scope="module")
def pristine(hosts: Hosts) -> dict[str, Snapshot]:
    return {name: hosts.snapshot(name) for name in NAMES}


def left(hosts: Hosts, pristine: dict[str, Snapshot]) -> Snapshot:
    """Return what the hosts have that they did not have at first."""
    found = {name: differences(pristine[name], hosts.snapshot(name)) for name in NAMES}
    return {name: changed for name, changed in found.items() if changed}


def changed_inventory(hosts: Hosts, folder: Path, **variables: object) -> Path:
    inventory = yaml.safe_load(hosts.inventory.read_text())
    inventory["all"]["vars"].update(variables)
    path = folder / "changed.yml"
    path.write_text(yaml.safe_dump(inventory))
    return path


def refused(command: str, inventory: Path) -> str:
    """Run a command of `python -m harness.testbed` that fails; return its last line."""
    argv = [sys.executable, "-m", "harness.testbed", command, "--inventory", str(inventory)]
    done = subprocess.run(argv, cwd=REPO, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 4, done.stderr[-2000:]
    assert "Traceback" not in done.stderr
    line = done.stderr.strip().splitlines()[-1]
    print(line)
    return line


def test_a_wrong_key_is_told_by_host_and_changes_nothing(hosts, pristine, tmp_path):
    key = tmp_path / "other"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key)], check=True)
    line = refused("up", changed_inventory(hosts, tmp_path, ansible_ssh_private_key_file=str(key)))
    assert line.startswith("error: site.yml: ")
    assert any(name in line for name in NAMES)
    assert "Permission denied" in line
    assert left(hosts, pristine) == {}


def test_a_host_key_that_changed_is_refused(hosts, pristine, tmp_path):
    known = tmp_path / "known_hosts"
    lines = hosts.known_hosts.read_text().splitlines()
    keys = [line.partition(" ")[2] for line in lines]
    known.write_text("".join(f"{hosts.address(n)} {key}\n" for n, key in zip(NAMES, reversed(keys), strict=True)))
    options = " ".join(hosts.ssh_options()).replace(str(hosts.known_hosts), str(known))
    line = refused("up", changed_inventory(hosts, tmp_path, ansible_ssh_common_args=options))
    assert "Host key verification failed" in line
    assert left(hosts, pristine) == {}


def test_a_user_without_sudo_is_told_by_host_and_changes_nothing(hosts, pristine, tmp_path):
    line = refused("up", changed_inventory(hosts, tmp_path, ansible_user="plain"))
    assert any(name in line for name in NAMES)
    assert "sudo" in line.lower()
    assert left(hosts, pristine) == {}


def test_a_host_that_is_off_is_told_and_down_takes_the_others_back(hosts, pristine):
    hosts.stop("storage1")
    try:
        line = refused("up", hosts.inventory)
        assert "storage1" in line
    finally:
        hosts.start("storage1")
    harness_testbed(hosts, "down")
    assert left(hosts, pristine) == {}


def test_a_full_disk_is_told_by_host_and_down_takes_the_rest_back(hosts, pristine):
    hosts.run("storage1", "sh", "-c", "cat /dev/zero > /var/filling 2>/dev/null || true")
    try:
        line = refused("up", hosts.inventory)
        assert "storage1" in line
        assert "No usable temporary directory" in line or "No space left" in line
    finally:
        hosts.run("storage1", "rm", "/var/filling")
    harness_testbed(hosts, "down")
    assert left(hosts, pristine) == {}


def test_ctrl_c_in_the_middle_of_a_task_ends_up_and_down_takes_the_rest_back(hosts, pristine):
    argv = [sys.executable, "-m", "harness.testbed", "up", "--inventory", str(hosts.inventory)]
    with subprocess.Popen(argv, cwd=REPO, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as up:
        for line in up.stderr:
            if "Make the user: changed" in line:
                break
        up.send_signal(signal.SIGINT)
        rest = up.stderr.read()
        assert up.wait(60) == 130
    assert "Traceback" not in rest
    harness_testbed(hosts, "down")
    assert left(hosts, pristine) == {}


def test_a_controller_that_is_killed_leaves_no_process_and_down_takes_the_rest_back(hosts, pristine, tmp_path):
    run = [
        *("+experiment=smoke", "testbed=ssh", f"testbed.inventory={hosts.inventory}", f"results_dir={tmp_path}"),
        *("~regimes.local", "+regime@regimes.wan_30ms=wan_30ms", "~loaders.dali", "~loaders.streaming"),
        *("dataset.samples=32", "repeats=1", f"cache_dir={tmp_path}"),
    ]
    before = {name: pristine[name]["processes"] for name in NAMES}
    argv = [sys.executable, "-m", "harness", *run]
    with subprocess.Popen(argv, cwd=REPO, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as controller:
        said = ""
        for line in controller.stdout:
            said += line
            if "checking the loaders" in line:
                break
        else:
            pytest.fail(f"the run did not start: {said[-2000:]}")
        assert processes_left(hosts, before) != {name: [] for name in NAMES}
        controller.kill()
    # Leases end a run 20 s after its last heartbeat at the latest, and need some seconds to remove it.
    deadline = time.monotonic() + 60
    while any(processes_left(hosts, before).values()) and time.monotonic() < deadline:
        time.sleep(0.5)
    assert processes_left(hosts, before) == {name: [] for name in NAMES}
    harness_testbed(hosts, "down")
    assert left(hosts, pristine) == {}


def processes_left(hosts: Hosts, before: dict[str, list[str]]) -> dict[str, list[str]]:
    return {name: [line for line in hosts.snapshot(name)["processes"] if line not in before[name]] for name in NAMES}
