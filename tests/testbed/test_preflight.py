"""What `doctor --inventory` finds on hosts of namespaces, good and broken, and that it changes nothing on them."""

import ast
import json
import os
import platform
import shlex
import signal
import socket
import subprocess
import sys
import time
from importlib.resources import files

import pytest

from harness.errors import TestbedError
from harness.testbed.hosts.claim import hosts_claimed
from harness.testbed.hosts.inventory import Host, Inventory
from harness.testbed.hosts.preflight import Finding, _clock, examine_hosts, show
from harness.testbed.hosts.session import ssh_command
from tests.hosts.namespaces import REPO, namespace_hosts, obstacles

OBSTACLES = obstacles()
pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(bool(OBSTACLES), reason="; ".join(OBSTACLES)),
]


@pytest.fixture(scope="module")
def hosts():
    """One storage and one compute host."""
    with namespace_hosts() as made:
        yield made


@pytest.fixture(scope="module")
def inventory(hosts, ansible):
    return Inventory.load(hosts.inventory)


def changed(inventory, name, **changes):
    """Return the inventory with a host's variables changed."""
    return Inventory(
        inventory.source,
        tuple(host.model_copy(update=changes) if host.name == name else host for host in inventory.all),
    )


def rows(inventory, host=None):
    return {(f.host, f.what): f for f in examine_hosts(inventory) if host is None or f.host == host}


def doctor(*options):
    argv = [sys.executable, "-m", "harness.testbed", "doctor", *options]
    return subprocess.run(argv, cwd=REPO, capture_output=True, text=True, timeout=120, check=False)


def test_good_hosts_pass_and_nothing_on_them_changes(hosts, ansible):
    names = [machine.name for machine in hosts.machines]
    before = [hosts.snapshot(name) for name in names]
    known = hosts.known_hosts.read_bytes()
    done = doctor("--inventory", str(hosts.inventory), "--json")
    assert done.returncode == 0, done.stderr + done.stdout
    assert [hosts.snapshot(name) for name in names] == before
    assert hosts.known_hosts.read_bytes() == known
    report = json.loads(done.stdout)
    assert report["verdict"] in ("ok", "warn")
    found = {(row["host"], row["what"]): row for row in report["findings"]}
    for name in names:
        for what in (
            "reachable",
            "system",
            "python3",
            "sudo",
            "joulefeed_python",
            "link",
            "data interface",
            "data address",
        ):
            assert found[name, what]["verdict"] == "ok", found[name, what]
        assert "from this machine, ±" in found[name, "clock"]["found"]
        assert (name, "RAPL") in found
    assert found["storage1", "port"]["verdict"] == "ok"
    (pair,) = (row for (_, what), row in found.items() if what == "data network")
    assert pair["verdict"] == "ok"
    assert "Gbit/s" in pair["found"]
    assert all(row["remedy"] for row in report["findings"] if row["verdict"] != "ok")


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"data_interface": "eth9"}, "data interface: there is no eth9: correct joulefeed_data_interface; it has"),
        ({"data_interface": "mgmt0"}, "is on data0, not on mgmt0: correct joulefeed_data_interface to data0"),
        ({"user": "plain"}, "sudo: sudo: a password is required: let plain run sudo without a password"),
        ({"port": 9}, "reachable: ssh: connect to host .* check that the host runs"),
        (
            {"python": "/no/python"},
            "joulefeed_python: /no/python: .*(not found|No such file).*: name one that has this",
        ),
        ({"python": "/usr/bin/python3"}, "joulefeed_python: .* No module named 'harness'"),
    ],
)
def test_a_controller_takes_no_hosts_of_which_one_cannot_work(inventory, changes, expected):
    wrong = changed(inventory, "storage1", **changes)
    with pytest.raises(TestbedError, match=rf"^host storage1: .*{expected}") as raised, hosts_claimed(wrong, "up"):
        pass
    assert "\n" not in str(raised.value)


def test_hosts_belong_to_one_controller_at_a_time_and_a_host_that_is_off_does_not_keep_down(hosts, inventory):
    with hosts_claimed(inventory, "a run"):
        for must_reach in (True, False):
            with (
                pytest.raises(
                    TestbedError, match=rf"^host compute1 is in use by .*process {os.getpid()}, a run, since"
                ),
                hosts_claimed(inventory, "down", must_reach=must_reach),
            ):
                pass
    twice = inventory.host("storage1").model_copy(update={"name": "again"})
    with (
        pytest.raises(TestbedError, match="host again of the inventory is a machine that has another name"),
        hosts_claimed(Inventory(inventory.source, (*inventory.all, twice)), "up"),
    ):
        pass
    with hosts_claimed(changed(inventory, "storage1", port=9), "down", must_reach=False):
        pass


def test_a_host_whose_key_is_not_known_is_not_trusted(hosts, inventory, tmp_path):
    empty = tmp_path / "known_hosts"
    empty.write_text("")
    args = inventory.host("storage1").ssh_args.replace(str(hosts.known_hosts), str(empty))
    found = rows(changed(inventory, "storage1", ssh_args=args))
    broken = found["storage1", "reachable"]
    assert broken.verdict == "fail"
    assert "Host key verification failed" in broken.found
    assert "fingerprint" in broken.remedy
    assert empty.read_text() == ""
    assert [key for key in found if key[0] == "storage1"] == [("storage1", "reachable")]
    assert found["compute1", "reachable"].verdict == "ok"


def test_a_wrong_private_key_is_refused_in_one_line(inventory, tmp_path):
    key = tmp_path / "key"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key], check=True)
    found = rows(changed(inventory, "storage1", identity_file=str(key)), "storage1")
    broken = found["storage1", "reachable"]
    assert broken.verdict == "fail"
    assert "Permission denied" in broken.found
    assert "ansible_ssh_private_key_file" in broken.remedy
    assert "\n" not in broken.found + broken.remedy


def test_an_unreachable_host_is_one_row_and_the_others_are_looked_at(hosts, inventory):
    hosts.stop("storage1")
    try:
        begin = time.monotonic()
        found = rows(inventory)
        assert time.monotonic() - begin < 60
    finally:
        hosts.start("storage1")
    assert [key for key in found if "storage1" in key[0]] == [("storage1", "reachable")]
    broken = found["storage1", "reachable"]
    assert broken.verdict == "fail"
    assert broken.remedy
    assert found["compute1", "data address"].verdict == "ok"


def test_a_name_that_no_server_knows_is_told(inventory):
    found = rows(changed(inventory, "storage1", address="nowhere.invalid"), "storage1")
    assert "correct ansible_host" in found["storage1", "reachable"].remedy


def test_a_user_without_sudo_is_told_what_to_allow(inventory):
    found = rows(changed(inventory, "compute1", user="plain"), "compute1")
    broken = found["compute1", "sudo"]
    assert broken.verdict == "fail"
    assert "plain ALL=(ALL) NOPASSWD:ALL" in broken.remedy
    assert found["compute1", "reachable"].verdict == "ok"


def test_a_wrong_interface_is_told_with_those_that_are_there(inventory):
    found = rows(changed(inventory, "storage1", data_interface="eth9"), "storage1")
    broken = found["storage1", "data interface"]
    assert (broken.verdict, broken.found) == ("fail", "there is no eth9")
    assert "data0" in broken.remedy
    other = rows(changed(inventory, "storage1", data_interface="lo"), "storage1")
    assert other["storage1", "data address"].verdict == "fail"
    assert "to data0" in other["storage1", "data address"].remedy


def test_a_wrong_data_address_is_told_with_the_right_one(inventory):
    right = inventory.host("storage1").data_address
    found = rows(changed(inventory, "storage1", data_address="10.99.0.1"))
    broken = found["storage1", "data address"]
    assert broken.verdict == "fail"
    assert right in broken.remedy
    assert not [what for _, what in found if what == "data network"]


def test_a_pulled_cable_of_the_data_network_is_told_for_the_pair(hosts, inventory):
    hosts.cable("storage1", "data", plugged=False)
    try:
        found = rows(inventory)
    finally:
        hosts.cable("storage1", "data", plugged=True)
    (pair,) = (row for (_, what), row in found.items() if what == "data network")
    assert pair.verdict == "fail"
    assert "does not reach" in pair.found


def test_a_delay_line_that_is_not_there_is_told(inventory):
    found = rows(changed(inventory, "storage1", link_socket="/nowhere"), "storage1")
    assert found["storage1", "link"].verdict == "fail"


def test_a_full_port_and_disk_are_told(hosts, inventory):
    blocked = subprocess.Popen(
        [*hosts.enter("storage1"), "python3", "-c", _LISTEN], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    try:
        assert blocked.stdout.readline()
        found = rows(changed(inventory, "storage1", python="/opt/joulefeed/venv/bin/python"), "storage1")
    finally:
        blocked.communicate(b"")
    assert (found["storage1", "port"].verdict, found["storage1", "port"].found) == ("fail", "2049 is taken")
    assert "ss -ltnp" in found["storage1", "port"].remedy
    # What is installed takes more than the hosts have.
    (disk,) = (f for f in examine_hosts(changed(inventory, "storage1", python=_INSTALLED)) if "/opt" in f.found)
    assert disk.verdict == "fail"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("size=64k", "0 MB free in /var/lib/joulefeed: free 100 MB there"),
        ("ro", "/var/lib/joulefeed is read-only: mount it for writing"),
        ("nr_inodes=10", r"\d more files have room in /var/lib/joulefeed \(inodes\): remove files there"),
    ],
)
def test_a_file_system_that_cannot_keep_what_was_before_is_told_and_nothing_is_begun(hosts, inventory, options, words):
    state = "/var/lib/joulefeed"
    hosts.run("storage1", "sh", "-ec", f"mkdir {state}; mount -t tmpfs -o {options} disk {state}")
    try:
        found = [f for f in examine_hosts(inventory) if f.verdict == "fail"]
        with pytest.raises(TestbedError, match=f"^host storage1: disk: {words}"), hosts_claimed(inventory, "up"):
            pass
    finally:
        hosts.run("storage1", "sh", "-ec", f"umount {state}; rmdir {state}")
    assert [(f.host, f.what) for f in found] == [("storage1", "disk")]
    assert state in found[0].found


_INSTALLED = "/opt/joulefeed/venv/bin/python"
_LISTEN = (
    "import socket, sys; s = socket.socket(); s.bind(('', 2049)); s.listen(); print('up', flush=True); sys.stdin.read()"
)


_LOCAL = {"ansible_connection": "local", "ansible_host": "127.0.0.1"}
HERE = Inventory("hosts.yml", (Host.model_validate({"name": "here", "roles": ["storage", "compute"], **_LOCAL}),))


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


def test_the_oldest_python_of_ansible_is_enough(old_python):
    old_python((3, 8, 0))
    ast.parse((files("harness.testbed.hosts") / "host_facts.py").read_text(), feature_version=(3, 8))
    found = rows(HERE)
    assert (found["here", "python3"].verdict, found["here", "python3"].found) == ("ok", "Python 3.8.0")
    assert found["here", "reachable"].verdict == "ok"


@pytest.mark.parametrize("version", [(3, 6, 9), (3, 7, 3)])
def test_an_older_python_is_named_and_ssh_is_not_blamed(old_python, version):
    old_python(version)
    (found,) = examine_hosts(HERE)
    assert (found.what, found.verdict) == ("python3", "fail")
    assert found.found == f"Python {'.'.join(map(str, version))} is too old"
    assert found.remedy == "Ansible needs Python 3.8 or later there, as python3"


def test_this_machine_is_looked_at_without_ssh():
    found = rows(HERE)
    assert found["here", "reachable"].found == "this machine"
    assert found["here", "clock"].found.startswith(("+0.", "-0."))
    # One host needs no netem.
    assert found["here", "netem"].verdict != "fail"


_INTERRUPTED = """
import sys
from harness.system.program import run_program
from harness.testbed.hosts import preflight
from harness.testbed.hosts.inventory import Inventory
run_program(lambda: print(preflight.examine_hosts(Inventory.from_json(sys.argv[1]))))
"""


def test_ctrl_c_ends_it_and_every_ssh_though_a_host_says_nothing(hosts, inventory):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        slow = changed(inventory, "storage1", address="127.0.0.1", port=silent.getsockname()[1])
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
    argv = ssh_command(host)
    assert {"BatchMode=yes", "StrictHostKeyChecking=yes", "UpdateHostKeys=no"} <= set(argv)
    assert argv[-2:] == ["--", "10.0.0.1"]


@pytest.mark.parametrize(("seconds", "verdict"), [(2.0, "fail"), (-2.0, "fail"), (0.1, "warn"), (0.0, "ok")])
def test_a_clock_that_is_off_is_told(seconds, verdict):
    class Session:
        """A host whose clock is off: no namespace has a clock of its own."""

        host = Host.model_validate(
            {"name": "a", "roles": ["compute"], "ansible_connection": "local", "ansible_host": "127.0.0.1"}
        )

        def ask(self, request, timeout_s):
            return {"utc_ns": time.time_ns() + round(seconds * 1e9)}

    found = _clock(Session(), {})
    assert found.verdict == verdict
    assert f"{1e3 * seconds:.0f}"[:3].removeprefix("-") in found.found
    assert bool(found.remedy) == (verdict != "ok")


def test_a_greeting_of_the_login_shell_is_passed_over(hosts, inventory):
    hosts.run("compute1", "sh", "-c", "mkdir -p /home/tester; echo 'echo Welcome to compute1' >> /home/tester/.bashrc")
    try:
        found = rows(inventory, "compute1")
    finally:
        hosts.run("compute1", "sh", "-c", "sed -i '/Welcome/d' /home/tester/.bashrc")
    assert found["compute1", "reachable"].verdict == "ok"


def test_the_table_has_remedies_below_their_rows_and_ends_with_the_counts():
    found = [Finding("a", "sudo", "root", "ok"), Finding("host", "netem", "not in this kernel", "fail", "install it")]
    assert show(found).splitlines() == [
        "ok    a     sudo   root",
        "fail  host  netem  not in this kernel",
        "      → install it",
        "1 fail, 0 warn, 1 ok",
    ]


def test_the_doctor_of_this_machine_speaks_json_too():
    done = doctor("--json")
    report = json.loads(done.stdout)
    assert done.returncode == 0
    assert {row["host"] for row in report["findings"]} == {platform.node()}
    assert any(row["what"] == "mount by NFSv4" for row in report["findings"])
