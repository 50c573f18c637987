"""Hosts of namespaces are apart as machines are, their link follows its regime, and nothing of them stays."""

from __future__ import annotations

import json
import signal
import socket
import stat
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median

import pytest

from harness.config.regime import Regime
from harness.errors import TestbedError
from harness.system.process import processes_of_run
from harness.testbed.link.measure.roundtrip import Pinger
from harness.testbed.link.namespace import inside
from harness.testbed.link.socket_link import ask
from harness.testbed.state import RunNames, state_root
from tests.hosts.namespaces import REPO, Hosts, namespace_hosts, obstacles
from tests.hosts.snapshot import differences

OBSTACLES = obstacles()
pytestmark = [
    pytest.mark.process,
    pytest.mark.root,
    pytest.mark.skipif(bool(OBSTACLES), reason=f"no namespace hosts here: {'; '.join(OBSTACLES)}"),
]
FAR = Regime(name="far", rtt_ms=40.0, rate_gbit=1.0)
NEAR = Regime(name="near", rtt_ms=1.0, rate_gbit=1.0)


@pytest.fixture(scope="module")
def hosts() -> Iterator[Hosts]:
    with namespace_hosts(storage=2, compute=1) as made:
        yield made


def round_trip_ms(hosts: Hosts, source: str, target: str) -> float:
    namespace = f"/proc/{hosts.pid(source)}/ns/net"
    with inside(namespace, lambda: Pinger(hosts.data_address(target))) as pinger:
        return median(pinger.ping(0.3)) / 1e6


def assert_gone(hosts: Hosts, within_s: float = 20) -> None:
    names = RunNames(hosts.run_id, state_root())
    deadline = time.monotonic() + within_s
    interface = Path(f"/sys/class/net/jfm{hosts.network}")
    while time.monotonic() < deadline and (names.state_file.exists() or interface.exists()):
        time.sleep(0.05)
    assert not names.state_file.exists()
    assert not names.folder.exists()
    assert not interface.exists()
    assert processes_of_run(hosts.run_id) == []
    assert hosts.run_id not in Path("/proc/self/mounts").read_text()


def test_a_host_has_users_of_its_own_and_sees_nothing_of_others(hosts):
    for machine in hosts.machines:
        done = hosts.ssh(machine.name, "hostname; sudo -n id -u; /usr/bin/python3 -c 'print(40 + 2)'")
        assert done.stdout.split() == [machine.name, "0", "42"], done.stderr
    assert "password is required" in hosts.ssh("storage1", "sudo -n id -u", user="plain").stderr
    for folder in ("/etc", "/home", "/root", "/opt", "/var/lib", "/run", "/tmp", "/dev/shm"):
        hosts.run("storage1", "touch", f"{folder}/mine")
        assert "mine" not in hosts.run("storage2", "ls", folder).split()
        assert not Path(folder, "mine").exists()
        hosts.run("storage1", "rm", f"{folder}/mine")
    seen = hosts.run("compute1", "sh", "-c", "cat /proc/[0-9]*/cmdline | tr '\\0' ' '")
    assert seen.count("init.py") == 1
    assert "tests.hosts.rack" not in seen
    interfaces = [each["ifname"] for each in json.loads(hosts.run("compute1", "ip", "-j", "link"))]
    assert interfaces == ["lo", "mgmt0", "data0"]


@pytest.mark.serial
def test_the_sites_are_as_far_apart_as_the_regime_says_and_neighbours_are_near(hosts):
    for regime in (FAR, NEAR):
        hosts.set_regime(regime)
        assert 0.9 * regime.rtt_ms < round_trip_ms(hosts, "compute1", "storage2") < regime.rtt_ms + 10
        assert round_trip_ms(hosts, "storage1", "storage2") < FAR.rtt_ms / 4
    assert ask(hosts.link_socket, "counters")["packets"] > 0


def test_the_links_socket_is_there_on_every_host_and_refuses_nonsense_in_one_line(hosts):
    path = hosts.link_socket
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    client = f"import sys; sys.path.insert(0, {str(REPO)!r}); from pathlib import Path\n"
    client += f"from harness.testbed.link.socket_link import ask\nprint(ask(Path({str(path)!r}), 'counters')['drops'])"
    assert int(hosts.run("storage2", sys.executable, "-c", client)) >= 0
    assert "Permission denied" in hosts.ssh("storage2", f"'{sys.executable}' - {path}", user="plain").stderr
    for do, arguments, words in (
        ("set", {"regime": {"name": "x", "rtt_ms": -1}}, "rtt_ms"),
        ("set", {"regime": {"name": "local"}}, "rate_gbit"),
        ("jump", {}, "jump.*expected .* set, counters, describe"),
    ):
        with pytest.raises(TestbedError, match=words) as caught:
            ask(path, do, **arguments)
        assert "\n" not in str(caught.value)
    with socket.socket(socket.AF_UNIX) as silent, socket.socket(socket.AF_UNIX) as garbage:
        silent.connect(str(path))
        garbage.connect(str(path))
        garbage.sendall(b"\xff\n")
        assert ask(path, "describe")["kind"] == "relay"
    unequal = Regime(name="unequal", rtt_ms=5.0, rate_gbit=1.0, paths=({}, {"loss_pct": 1.0}))
    hosts.set_regime(unequal)
    assert len(ask(path, "counters")["paths"]) == 2
    before = ask(path, "describe")["calibrations"]
    ask(path, "set", regime=unequal.model_dump(), recalibrate=True)
    *known, new = ask(path, "describe")["calibrations"]
    assert (known, new["rtt_ms"]) == (before, unequal.rtt_ms)


def test_a_snapshot_shows_what_changed_and_nothing_else(hosts):
    before = hosts.snapshot("storage1")
    assert hosts.snapshot("storage1") == before
    hosts.run("storage1", "sh", "-c", "echo x > /etc/new; chmod 600 /etc/profile; mkdir /opt/folder; useradd another")
    shape = ["rate", "1mbit", "burst", "10k", "limit", "10k"]
    hosts.run("storage1", "tc", "qdisc", "add", "dev", "data0", "root", "tbf", *shape)
    changed = differences(before, hosts.snapshot("storage1"))
    assert set(changed) == {"files", "qdiscs", "users"}
    assert changed["files"].keys() >= {"/etc/new", "/etc/profile", "/opt/folder", "/etc/passwd"}
    hosts.run("storage1", "sh", "-c", "rm /etc/new; chmod 644 /etc/profile; rmdir /opt/folder; userdel another")
    hosts.run("storage1", "tc", "qdisc", "del", "dev", "data0", "root")
    assert hosts.snapshot("storage1") == before


def test_hosts_beside_others_go_with_the_process_that_made_them_even_if_it_is_killed(hosts):
    script = textwrap.dedent("""
        import sys
        from tests.hosts.namespaces import namespace_hosts
        with namespace_hosts(delays=False) as hosts:
            print(hosts.folder, flush=True)
            sys.stdin.read()
    """)
    owner = subprocess.Popen(
        [sys.executable, "-c", script], cwd=REPO, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    others = Hosts.of(Path(owner.stdout.readline().strip()) / "hosts.yml")
    assert others.network != hosts.network
    assert others.ssh("storage1", "hostname").stdout.strip() == "storage1"
    assert round_trip_ms(others, "compute1", "storage1") < 10
    owner.send_signal(signal.SIGKILL)
    owner.communicate()
    assert_gone(others)
