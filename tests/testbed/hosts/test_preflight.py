"""What `doctor --inventory` finds on hosts of namespaces, good and broken, and that it changes nothing on them."""

import ast
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
from importlib.resources import files

import pytest
import yaml

from harness.errors import TestbedError
from harness.testbed.doctor import HostFinding, show
from harness.testbed.hosts.connection import reach
from harness.testbed.hosts.inventory import Host, Inventory
from harness.testbed.hosts.preflight import _clock, examine_hosts, hosts_claimed
from harness.testbed.hosts.session import HostSession
from tests.hosts.namespaces import REPO, namespace_hosts, obstacles
from tests.testbed.conftest import Steps

OBSTACLES = obstacles()
pytestmark = [pytest.mark.process, pytest.mark.skipif(bool(OBSTACLES), reason="; ".join(OBSTACLES))]
STATE = "/var/lib/joulefeed"
BLOCK = (
    "import socket, sys; s = socket.socket(); s.bind(('', 2049)); s.listen(); print('up', flush=True); sys.stdin.read()"
)


@pytest.fixture(scope="module")
def hosts():
    """Three storage hosts and three compute hosts."""
    with namespace_hosts(storage=3, compute=3) as made:
        yield made


@pytest.fixture(scope="module")
def load(hosts, ansible, tmp_path_factory):
    """Load the inventory of some of the hosts, with variables of theirs changed; None takes a variable away."""

    def made(names=("storage1", "compute1"), changes=None):
        described = hosts.describe()["all"]
        described["hosts"] = {name: described["hosts"][name] for name in names}
        for group in described["children"].values():
            group["hosts"] = {name: None for name in group["hosts"] if name in names}
        for name, variables in (changes or {}).items():
            described["hosts"][name].update(variables)
        path = tmp_path_factory.mktemp("inventory") / "hosts.yml"
        path.write_text(yaml.safe_dump({"all": described}))
        return Inventory.load(path)

    return made


@pytest.fixture(scope="module")
def faults(hosts, load):
    """Findings of hosts with a fault each, by host and row, from one look at all of them."""
    known = hosts.known_hosts.with_name("empty")
    known.write_text("")
    unknown = " ".join(hosts.ssh_options()).replace(str(hosts.known_hosts), str(known))
    changes = {
        "storage1": {"joulefeed_python": "/no/python", "joulefeed_data_interface": "eth9"},
        "storage2": {"ansible_user": "plain", "joulefeed_data_interface": "lo", "joulefeed_link_socket": "/nowhere"},
        "storage3": {"ansible_ssh_common_args": unknown},
        "compute1": {"joulefeed_python": "/opt/joulefeed/venv/bin/python"},
        "compute3": {"joulefeed_data_address": "10.99.0.1"},
    }
    disks = {"compute1": "size=64k", "storage1": "ro", "compute2": "nr_inodes=10"}
    for name, options in disks.items():
        hosts.run(name, "sh", "-ec", f"mkdir {STATE}; mount -t tmpfs -o {options} disk {STATE}")
    hosts.run("compute2", "sh", "-c", "echo 'echo Welcome to compute2' >> /home/tester/.bashrc")
    hosts.cable("compute2", "data", plugged=False)
    blocked = subprocess.Popen(
        [*hosts.enter("storage1"), "python3", "-c", BLOCK], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    try:
        assert blocked.stdout.readline()
        inventory = load([machine.name for machine in hosts.machines], changes)
        found = examine_hosts(inventory, Steps())
    finally:
        blocked.communicate(b"")
        hosts.cable("compute2", "data", plugged=True)
        hosts.run("compute2", "sed", "-i", "/Welcome/d", "/home/tester/.bashrc")
        for name in disks:
            hosts.run(name, "sh", "-ec", f"umount {STATE}; rmdir {STATE}")
    assert known.read_text() == ""
    rows = {}
    for finding in found:
        rows.setdefault((finding.host, finding.what), []).append(finding)
    return rows


@pytest.mark.slow
@pytest.mark.parametrize(
    ("host", "what", "found", "remedy"),
    [
        ("storage1", "joulefeed_python", "/no/python", "leave joulefeed_python out"),
        ("storage1", "data interface", "there is no eth9", "it has data0, mgmt0"),
        ("storage1", "port", "2049 is taken", "ss -ltnp"),
        ("storage1", "disk", f"{STATE} is read-only", "mount it for writing"),
        ("storage2", "sudo", "password is required", "plain ALL=(ALL) NOPASSWD:ALL"),
        ("storage2", "link", "delay line", "joulefeed_link_socket=/nowhere"),
        ("storage2", "data address", "is on data0, not on lo", "joulefeed_data_interface to data0"),
        ("storage3", "reachable", "Host key verification failed", "fingerprint"),
        ("compute1", "disk", "free in /opt", "free 8.0 GB there"),
        ("compute1", "disk", f"0.0 GB free in {STATE}", "free 1.0 GB there"),
        ("compute2", "disk", f"more files have room in {STATE} (inodes)", "remove files there"),
        ("compute3", "data address", "10.99.0.1 is not an address", "data0 has 10.77.2."),
        ("compute1 – compute2", "data network", "does not reach", "check routes, cables"),
    ],
)
def test_a_fault_is_told_with_its_host_and_remedy(faults, host, what, found, remedy):
    failed = [one for one in faults[host, what] if one.verdict == "fail" and found in one.found]
    assert failed, faults[host, what]
    assert remedy in failed[0].remedy
    assert "\n" not in failed[0].found + failed[0].remedy


def test_what_is_good_beside_a_fault_is_told_too(faults):
    assert [key for key in faults if "storage3" in key[0]] == [("storage3", "reachable")]
    for name in ("storage1", "storage2", "compute1", "compute2", "compute3"):
        # A login shell may greet.
        assert faults[name, "reachable"][0].verdict == "ok"
        assert faults[name, "system"][0].verdict == "ok"
    assert faults["compute1 – storage1", "data network"][0].verdict != "fail"
    # The address of compute3 is not its own, so that no other host is expected to reach it.
    assert not [names for names, what in faults if what == "data network" and "compute3" in names]


def test_good_hosts_pass_and_nothing_on_them_changes(hosts, load):
    inventory = load()
    names = [host.name for host in inventory.all]
    before = [hosts.snapshot(name) for name in names]
    known = hosts.known_hosts.read_bytes()
    done = doctor("--inventory", inventory.source)
    assert done.returncode == 0, done.stderr + done.stdout
    assert [hosts.snapshot(name) for name in names] == before
    assert hosts.known_hosts.read_bytes() == known
    lines = done.stdout.splitlines()
    rows = [re.split(" {2,}", line, maxsplit=3) for line in lines[:-1] if "→" not in line]
    found = {(host, what): (verdict, words) for verdict, host, what, words in rows}
    good = ["reachable", "system", "python3", "sudo", "joulefeed_python", "link", "data interface", "data address"]
    assert {found[name, what][0] for name in names for what in good} == {"ok"}
    assert all("from this machine, ±" in found[name, "clock"][1] for name in names)
    assert all((name, "RAPL") in found for name in names)
    assert found["storage1", "port"][0] == "ok"
    assert "Gbit/s" in found["compute1 – storage1", "data network"][1]
    assert sum("→" in line for line in lines) == sum(verdict != "ok" for verdict, *_ in rows), "a remedy each"


def doctor(*options):
    argv = [sys.executable, "-m", "harness.testbed", "doctor", *options]
    return subprocess.run(argv, cwd=REPO, capture_output=True, text=True, timeout=240, check=False)


@pytest.mark.parametrize(
    ("name", "changes", "found", "remedy"),
    [
        ("storage1", {"ansible_port": 9}, "ssh: connect to host", "check that the host runs"),
        ("storage1", {"ansible_host": "nowhere.invalid"}, "nowhere.invalid", "correct ansible_host"),
        ("compute1", {"ansible_ssh_private_key_file": "KEY"}, "Permission denied", "ansible_ssh_private_key_file"),
    ],
)
def test_a_host_that_cannot_be_reached_is_one_line(load, tmp_path, name, changes, found, remedy):
    if "ansible_ssh_private_key_file" in changes:
        changes = {"ansible_ssh_private_key_file": str(tmp_path / "key")}
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", tmp_path / "key"], check=True)
    inventory = load(changes={name: changes})
    words = rf"^host {name}: reachable: .*{found}.*: .*{remedy}"
    with pytest.raises(TestbedError, match=words) as raised, hosts_claimed(inventory, "up", Steps()):
        pass
    assert "\n" not in str(raised.value)
    # Of hosts that are taken back, those are taken that answer.
    with hosts_claimed(inventory, "down", Steps(), must_reach=False):
        pass


def test_hosts_belong_to_one_controller_at_a_time_and_are_looked_at_before_anything_changes(load):
    inventory = load()
    with hosts_claimed(inventory, "a run", Steps()):
        words = rf"^host compute1 is in use by .*process {os.getpid()}, a run, since"
        for must_reach in (True, False):
            with (
                pytest.raises(TestbedError, match=words),
                hosts_claimed(inventory, "down", Steps(), must_reach=must_reach),
            ):
                pass
    twice = inventory.host("storage1").model_copy(update={"name": "again"})
    with (
        pytest.raises(TestbedError, match="host again of the inventory is a machine that has another name"),
        hosts_claimed(Inventory(inventory.source, (*inventory.all, twice)), "up", Steps()),
    ):
        pass
    wrong = load(changes={"storage1": {"joulefeed_data_interface": "mgmt0"}})
    words = "^host storage1: data address: .* is on data0, not on mgmt0: correct joulefeed_data_interface to data0"
    with pytest.raises(TestbedError, match=words), hosts_claimed(wrong, "up", Steps()):
        pass


@pytest.fixture
def old_python(tmp_path, monkeypatch):
    """Make `python3` an old one: no package of the machine has such an interpreter."""

    def make(version):
        before = (
            "import builtins, sys\n"
            f"sys.version_info = {version}\n"
            "kinds = (dict, list, set, tuple)\n"
            "plain = {kind.__name__: type(kind.__name__, (kind,), {'__class_getitem__': None}) for kind in kinds}\n"
            "exec(sys.argv[3], {'__name__': '__main__', '__builtins__': {**vars(builtins), **plain}})\n"
        )
        program = tmp_path / "python3"
        program.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -c {shlex.quote(before)} "$@"\n')
        program.chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")

    return make


LOCAL = {"ansible_connection": "local", "ansible_host": "127.0.0.1"}
HERE = Host.model_validate({"name": "here", "roles": ["storage", "compute"], **LOCAL})


def test_the_oldest_python_of_ansible_is_enough(old_python):
    old_python((3, 8, 0))
    ast.parse((files("harness.testbed.hosts") / "bare_host.py").read_text(), feature_version=(3, 8))
    session = HostSession(HERE)
    try:
        assert session.start() is None
        port = session.ask("listen", address="127.0.0.1")
        assert 0 < session.ask("reach", address="127.0.0.1", host="127.0.0.1", port=port) < 100
    finally:
        session.close()


def test_an_older_python_is_named_and_ssh_is_not_blamed(old_python):
    old_python((3, 7, 3))
    (found,) = examine_hosts(Inventory("hosts.yml", (HERE,)), Steps())
    assert (found.what, found.verdict, found.found) == ("python3", "fail", "Python 3.7.3 is too old")
    assert found.remedy == "Ansible needs Python 3.8 or later there, as python3"


def test_this_machine_is_looked_at_without_ssh(tmp_path, ansible):
    path = tmp_path / "hosts.yml"
    groups = {role: {"hosts": {"here": None}} for role in ("storage", "compute", "control")}
    path.write_text(yaml.safe_dump({"all": {"hosts": {"here": LOCAL}, "children": groups}}))
    found = {finding.what: finding for finding in examine_hosts(Inventory.load(path), Steps())}
    assert found["reachable"].found == "this machine"
    assert found["clock"].found.startswith(("+0.", "-0."))
    # One host needs no netem.
    assert found["netem"].verdict != "fail"


_INTERRUPTED = """
import sys
from harness.system.program import run_program
from harness.testbed.hosts import preflight
from harness.testbed.hosts.inventory import Inventory
run_program(lambda: print(preflight.examine_hosts(Inventory.from_json(sys.argv[1]), None)))
"""


def test_ctrl_c_ends_it_and_every_ssh_though_a_host_says_nothing(hosts, load):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        slow = load(changes={"storage1": {"ansible_host": "127.0.0.1", "ansible_port": silent.getsockname()[1]}})
        doing = subprocess.Popen(
            [sys.executable, "-c", _INTERRUPTED, slow.to_json()],
            cwd=REPO,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        connection, _ = silent.accept()
        doing.send_signal(signal.SIGINT)
        _, words = doing.communicate(timeout=30)
        connection.close()
    assert doing.returncode == 130, words
    assert words.decode() == "interrupted by signal 2\n"
    left = subprocess.run(["ps", "-ww", "-eo", "args"], capture_output=True, text=True, check=True).stdout
    assert not [line for line in left.splitlines() if line.startswith("ssh ") and str(hosts.key) in line]


def test_ssh_asks_nothing_and_believes_no_new_host():
    host = Host.model_validate({"name": "a", "roles": ["compute"], "ansible_host": "10.0.0.1", "ansible_user": "u"})
    argv = reach(host).command(["true"])
    assert {"BatchMode=yes", "StrictHostKeyChecking=yes", "UpdateHostKeys=no", "ControlPath=none"} <= set(argv)
    assert argv[-3:] == ["--", "10.0.0.1", "true"]


@pytest.mark.parametrize(("offset_ms", "verdict"), [(2000, "fail"), (-2000, "fail"), (100, "warn"), (0, "ok")])
def test_a_clock_that_is_off_is_told(offset_ms, verdict):
    found = _clock(HERE, (50_000, offset_ms * 1e6), "")
    assert (found.verdict, bool(found.remedy)) == (verdict, verdict != "ok")
    assert f"{offset_ms:+.2f} ms from this machine" in found.found


def test_the_table_has_remedies_below_their_rows_and_ends_with_the_counts():
    found = [HostFinding("a", "sudo", "root"), HostFinding("host", "netem", "not in this kernel", "fail", "install it")]
    assert show(found).splitlines() == [
        "ok    a     sudo   root",
        "fail  host  netem  not in this kernel",
        "      → install it",
        "1 fail, 0 warn, 1 ok",
    ]
