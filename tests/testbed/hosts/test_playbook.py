"""site.yml makes a testbed of bare hosts, a second time changes nothing, and teardown.yml leaves them as they were."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

from harness.errors import TestbedError
from harness.testbed.hosts.inventory import Inventory
from harness.testbed.hosts.playbook import run_playbook
from tests.hosts.namespaces import namespace_hosts, obstacles
from tests.hosts.rack import ALLOWED
from tests.hosts.services import ask_for_daemons, make_shards, read_daemon_health
from tests.hosts.snapshot import differences
from tests.testbed.conftest import Steps

pytestmark = [
    pytest.mark.process,
    pytest.mark.timeout(900),
    pytest.mark.root,
    pytest.mark.usefixtures("ansible"),
    pytest.mark.skipif(bool(obstacles()), reason="; ".join(obstacles())),
]

HOSTS = ("storage1", "compute1")


@pytest.fixture(scope="module")
def hosts():
    with namespace_hosts(storage=1, compute=1) as running:
        yield running


@pytest.fixture
def play(hosts, tmp_path, monkeypatch):
    """Run a playbook on the hosts, with some variables of the inventory changed."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))

    def run(name, *, change=None, progress=None, **options):
        described = hosts.describe()
        if change:
            change(described["all"])
        inventory = tmp_path / "hosts.yml"
        inventory.write_text(yaml.safe_dump(described))
        return run_playbook(name, Inventory.load(inventory), progress or Steps(), **options)

    return run


def assert_as_before(hosts, before):
    found = {name: differences(snapshot, hosts.snapshot(name)) for name, snapshot in before.items()}
    assert not any(found.values()), found


def ssh_of_lead(hosts, *command, options=()):
    """Run a command on the storage host with the lead's key, as root of the lead does."""
    return subprocess.run(
        [*hosts.enter("compute1"), "ssh", "-F", "/var/lib/joulefeed/ssh/config", *options, "storage1", *command],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.fixture(scope="module")
def influxd():
    """The InfluxDB server, found or built."""
    found = subprocess.run(["playbooks/influxdb.sh"], capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr[-2000:]
    return Path(found.stdout.strip())


@pytest.fixture
def ask_for_services(hosts, influxd):
    """Have the inventory ask for an agent on both hosts, a daemon with shards to serve, and an InfluxDB server."""
    for name in HOSTS:
        command = [*hosts.enter(name), "sh", "-c", "cat >/usr/local/bin/influxd; chmod 755 /usr/local/bin/influxd"]
        subprocess.run(command, stdin=influxd.open("rb"), check=True)
    shards = make_shards(hosts, "storage1")

    def change(everything):
        ask_for_daemons({"all": everything}, shards)
        everything["children"]["tsdb"] = {"hosts": {"compute1": None}}

    return change


@pytest.mark.slow
def test_hosts_and_their_services_come_up_once_and_go_down_to_what_they_were(hosts, play, ask_for_services):
    before = {name: hosts.snapshot(name) for name in HOSTS}
    seen = Steps()

    checked = play("site.yml", change=ask_for_services, check=True)
    assert all(checked.changed[name] for name in HOSTS)
    assert_as_before(hosts, before)

    first = play("site.yml", change=ask_for_services, progress=seen)
    assert all(first.changed[name] for name in HOSTS)
    assert any(note.startswith("site.yml: storage1: base: Make the user: changed") for note in seen.notes)
    assert any(step.startswith("compute1: sysctl: ") for step in seen.steps)
    assert hosts.run("storage1", "sysctl", "-n", "net.ipv4.tcp_rmem").split() == ["4096", "131072", "67108864"]
    assert_only_the_supervisor(hosts)
    assert_services(hosts, first.log.read_text() + "".join(seen.notes))

    # The tampered supervisor is the one thing to mend.
    mended = play("site.yml", change=ask_for_services)
    assert mended.changed["storage1"] == 1 and not mended.changed.get("compute1")

    status = play("status.yml")
    assert all("is up" in status.answers[name]["Look"] for name in HOSTS)
    assert not any(status.changed.values())
    assert status.log.stat().st_mode & 0o077 == 0
    # Neither a connection to a host nor a file but the logs outlives a playbook.
    pattern = f"^ssh .*{hosts.key}"
    deadline = time.monotonic() + 10
    while (running := subprocess.run(["pgrep", "-f", pattern], check=False).returncode == 0) and (
        time.monotonic() < deadline
    ):
        time.sleep(0.05)
    assert not running
    assert {path.name.partition("-")[0] for path in status.log.parent.iterdir()} == {"site", "status"}

    play("teardown.yml")
    assert_as_before(hosts, before)
    assert not any(play("teardown.yml").changed.values())


def assert_only_the_supervisor(hosts):
    """Check that the lead's key starts the supervisor, whatever it is asked for, and nothing else."""
    answer = ssh_of_lead(hosts, "cat", "/etc/shadow")
    assert "root:" not in answer.stdout
    hosts.run("storage1", "sh", "-c", "printf '#!/bin/sh\\nid -u; echo supervisor\\n' >/opt/joulefeed/remote")
    assert ssh_of_lead(hosts, "cat", "/etc/shadow").stdout == "0\nsupervisor\n"
    assert "prohibited" in ssh_of_lead(hosts, options=("-W", "localhost:22")).stderr
    refused = hosts.run("storage1", "su", "joulefeed", "-c", "sudo -n id || echo refused")
    assert "refused" in refused and "uid=0" not in refused


def assert_services(hosts, told):
    """Check that the services answer each other, and that the token is where it is needed and not in what was told."""
    token = hosts.run("compute1", "cat", "/var/lib/joulefeed/influxdb.token")
    assert len(token) > 40 and token == hosts.run("storage1", "cat", "/var/lib/joulefeed/influxdb.token")
    assert token not in told + hosts.run("compute1", "ps", "-ef")
    assert hosts.run("storage1", "stat", "-c", "%a", "/var/lib/joulefeed/influxdb.token") == "600\n"
    ask = (
        "import sys, influxdb_client as i\n"
        "c = i.InfluxDBClient(sys.argv[1], open(sys.argv[2]).read(), org='joulefeed')\n"
        "print([b.name for b in c.buckets_api().find_buckets().buckets])"
    )
    url = f"http://{hosts.address('compute1')}:8086"
    assert "'energy'" in hosts.run("storage1", sys.executable, "-c", ask, url, "/var/lib/joulefeed/influxdb.token")
    assert "uptime" in read_daemon_health(hosts)
    for name in HOSTS:
        assert "energymon run" in hosts.run(name, "ps", "-e", "-o", "args")


@pytest.mark.slow
def test_what_an_interrupted_task_and_one_that_refuses_leave_is_taken_back(hosts, play):
    before = {name: hosts.snapshot(name) for name in HOSTS}

    def command(name):
        return [sys.executable, "-m", "harness.testbed", name, "--inventory", str(hosts.inventory)]

    with subprocess.Popen(command("up"), stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as up:
        for line in up.stderr:
            if "sysctl: Note the previous values" in line:
                break
        up.send_signal(signal.SIGINT)
        _, words = up.communicate(timeout=120)
    assert up.returncode == 130
    assert words.strip().splitlines()[-1].startswith("interrupted by signal 2; ")
    assert hosts.run("storage1", "ls", "/var/lib/joulefeed")
    assert "half up, because up did not finish" in play("status.yml").answers["storage1"]["Look"]
    reason = r"storage1: gpu: Refuse a host without its GPUs: joulefeed_gpus=1: nvidia-smi finds 0 .*NVIDIA driver"
    with pytest.raises(TestbedError, match=reason):
        play("site.yml", change=lambda everything: everything["hosts"]["storage1"].update(joulefeed_gpus=1))
    down = subprocess.run(command("down"), capture_output=True, text=True, check=False)
    assert down.returncode == 0, down.stderr
    assert down.stdout.startswith("down: changed ")
    assert_as_before(hosts, before)


@pytest.mark.slow
def test_down_names_what_it_cannot_take_back(hosts, play):
    before = {name: hosts.snapshot(name) for name in HOSTS}
    ours, note = "/etc/sysctl.d/90-joulefeed.conf", "/var/lib/joulefeed/before/sysctl.conf"
    hosts.run("storage1", "touch", ours)
    with pytest.raises(TestbedError, match=f"storage1: Look for what stays: {ours} stay, because no note says"):
        play("teardown.yml")
    key = "net.ipv4.tcp_no_metrics_save"
    was = hosts.run("storage1", "sysctl", "-n", key).strip()
    hosts.run("storage1", "sh", "-ec", f"mkdir -p {Path(note).parent}; sysctl -qw {key}={1 - int(was)}")
    hosts.run("storage1", "sh", "-ec", f"printf 'net.ipv4.gone = 1\\n{key} = {was}\\n' >{note}")
    with pytest.raises(TestbedError, match=r"storage1: sysctl: Write the previous values back: .*net/ipv4/gone"):
        play("teardown.yml")
    assert hosts.run("storage1", "sysctl", "-n", key).strip() == was
    hosts.run("storage1", "sed", "-i", "/gone/d", note)
    play("teardown.yml")
    assert_as_before(hosts, before)


@pytest.mark.slow
def test_a_congestion_control_that_is_built_in_needs_no_modules(hosts, play):
    if "bbr" not in ALLOWED.read_text().split():
        pytest.skip("the kernel has no bbr, or no namespace may choose it")
    before = {name: hosts.snapshot(name) for name in HOSTS}
    play("site.yml", change=lambda everything: everything["vars"].update(sysctl_congestion="bbr"))
    assert hosts.run("storage1", "sysctl", "-n", "net.ipv4.tcp_congestion_control") == "bbr\n"
    play("teardown.yml")
    assert_as_before(hosts, before)


def test_a_host_that_refuses_is_one_line(play):
    seen = Steps()
    with pytest.raises(TestbedError, match=r"^status\.yml: storage1: Look: .*Permission denied.*; log: ") as raised:
        play(
            "status.yml",
            progress=seen,
            change=lambda everything: everything["hosts"]["storage1"].update(ansible_user="nobody-of-the-name"),
        )
    assert "\n" not in str(raised.value)
    assert len(seen.notes) == 1


def test_what_a_run_left_on_hosts_comes_home_though_one_of_them_is_off(hosts, tmp_path):
    made = tmp_path / "results" / "2026-01-01_smoke"
    there = "/var/lib/joulefeed/results/2026-01-01_smoke"
    files = f"echo results_dir: /gone >{there}/config.yaml; echo {{}} >{there}/plan.json; ln -s . {there}/../latest"
    hosts.run("compute1", "sh", "-euc", f"mkdir -p {there}; {files}; mkdir {there}/../../influxdb")
    hosts.run("compute1", "sh", "-euc", "echo words >/var/lib/joulefeed/influxdb/log")
    before = {"compute1": hosts.snapshot("compute1")}
    hosts.stop("storage1")
    try:
        argv = [
            sys.executable,
            "-m",
            "harness.testbed",
            "collect",
            "--inventory",
            str(hosts.inventory),
            str(made.parent),
        ]
        environment = {**os.environ, "ANSIBLE_SSH_ARGS": "-o ConnectTimeout=5 -o BatchMode=yes"}
        done = subprocess.run(argv, env=environment, capture_output=True, text=True, check=False, timeout=120)
    finally:
        hosts.start("storage1")
    assert done.returncode == 4
    line = done.stderr.strip().splitlines()[-1]
    assert re.match(r"error: collect\.yml: storage1: Pack: .*(timed out|No route|refused)", line)
    assert line.endswith(f"what came from other hosts: {made}")
    assert made.samefile(made.parent / "latest")
    assert f"results_dir: {made.parent}" in (made / "config.yaml").read_text()
    assert (made / "hosts" / "compute1" / "influxdb.log").read_text() == "words\n"
    assert "hostname" in (made / "hosts" / "compute1" / "provenance.json").read_text()
    assert_as_before(hosts, before)
    hosts.run("compute1", "rm", "-r", "/var/lib/joulefeed")


def test_a_playbook_that_takes_too_long_is_ended(play):
    with pytest.raises(TestbedError, match=r"status\.yml ran for more than 1 s"):
        play("status.yml", job_timeout_s=1)
