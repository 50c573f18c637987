"""Whole runs on hosts of namespaces: rows, lost hosts, wrong clocks, Ctrl-C, and the death of the controller."""

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from datetime import datetime
from pathlib import Path

import pytest

from energymon.influx.dashboard import template
from harness.testbed.hosts.inventory import LEAD_SSH_CONFIG
from tests.energymon.influx.server import ORG, Server, binary
from tests.energymon.influx.test_tuples import flux, paper_sum
from tests.hosts.lead import connect_lead
from tests.hosts.namespaces import REPO, namespace_hosts, obstacles
from tests.integration.runs import BUSY, SMALL, rows_of, wait_until

pytestmark = [
    pytest.mark.process,
    pytest.mark.root,
    pytest.mark.skipif(bool(obstacles()), reason="; ".join(obstacles())),
    pytest.mark.timeout(400),
]

WIDE = ["checks.link_pause_ms=5000", "checks.link_held_pct=100", "checks.clock_offset_ms=50", "checks.rtt_pct=50"]
WIDE += ["checks.rtt_ms=5", "checks.idle_cpu_pct=100"]
FAR = ["~regimes.local", "~loaders.dali", "+regime@regimes.wan_30ms=wan_30ms", "regimes.wan_30ms.rate_gbit=1"]
SLOW = ["~loaders.pytorch", "accelerator.kind=emulated", "accelerator.time_scale=50"]
SLOW += ["loaders.streaming.prefetch_batches=1", "loaders.streaming.timeout_s=60"]
"""An epoch of some 10 s, in which there is time to end something."""
AHEAD = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <time.h>
int clock_gettime(clockid_t clock, struct timespec *now) {
    int (*real)(clockid_t, struct timespec *) = dlsym(RTLD_NEXT, "clock_gettime");
    int status = real(clock, now);
    if (clock == CLOCK_REALTIME) now->tv_sec += 2;
    return status;
}
"""
"""Sets the wall clock of every program that loads it 2 s ahead: a namespace has no wall clock of its own."""


@pytest.fixture(scope="module")
def hosts():
    with namespace_hosts(storage=1, compute=1) as made:
        connect_lead(made)
        yield made


@pytest.fixture
def start(hosts, tmp_path):
    """Start a run, as the controller does."""
    started = []

    def begin(*overrides):
        where = [f"results_dir={tmp_path / 'results'}", f"testbed.inventory={hosts.inventory}", "testbed=ssh"]
        argv = [sys.executable, "-m", "tests.hosts.lead", "+experiment=smoke", *SMALL, *FAR, *BUSY, *WIDE, *where]
        argv += overrides
        process = subprocess.Popen(argv, cwd=REPO, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        started.append(process)
        return process

    yield begin
    for process in started:
        process.kill()
        process.wait()


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "results" / "latest"


def left_on(hosts, name):
    """What is left of runs on a host: processes of ours, mounts, and files of a run."""
    found = hosts.run(name, "sh", "-c", "ps -eo args | grep -E '[p]ython.*(harness|energymon|loaders)|[s]shfs' || true")
    found += hosts.run(name, "sh", "-c", "grep -E 'sshfs|nfs4' /proc/mounts || true")
    return found + hosts.run(name, "sh", "-c", "ls /run/joulefeed 2>/dev/null | grep -v '^hosts' || true")


def assert_nothing_left(hosts, limit_s=30):
    for name in ("storage1", "compute1"):
        assert wait_until(lambda name=name: not left_on(hosts, name), limit_s), left_on(hosts, name)


def wait_for_epoch(hosts, run):
    """Wait until a cell on the lead is in its epoch, which has begun since; fail where the run ends before."""
    files = f"find /var/lib/joulefeed/results -path '*.partial/events.jsonl' -newermt @{time.time():.3f} 2>/dev/null"
    look = f"{files} | xargs -r grep -l epoch_start || true"
    assert wait_until(lambda: run.poll() is not None or hosts.run("compute1", "sh", "-c", look), 200)
    assert run.poll() is None, run.communicate()[0]


def start_when_free(hosts, start, *overrides):
    """Start a run and wait for its epoch; what a killed controller left may hold the hosts for a moment yet."""
    deadline = time.monotonic() + 60
    while True:
        run = start(*overrides)
        try:
            wait_for_epoch(hosts, run)
            return run
        except AssertionError as error:
            if "is in use by" not in str(error) or time.monotonic() > deadline:
                raise


@pytest.fixture
def server(hosts, tmp_path):
    """An InfluxDB server that all hosts reach."""
    server = Server(binary(), tmp_path / "influxdb", address=f"10.76.{hosts.network}.1")
    yield server
    server.kill()


def assert_on_server(server, run, found):
    """Check that the server has the tuples of both hosts as rows have them, and what the dashboard's cells ask for."""
    for row in found:
        begin_ns, end_ns = (
            round(datetime.fromisoformat(row[key]).timestamp() * 1e9) for key in ("start_utc", "end_utc")
        )
        joules = {"storage1": float(row["storage_j"]), "compute1": float(row["cpu_j"]) - float(row["storage_j"])}
        field = "cpu_energy_estimate" if "cpu=estimate" in row["energy_source"] else "cpu_energy"
        for node, expected in joules.items():
            # Whole ticks: at each edge the joules of one are in or out.
            tick_j = 3 * expected / (float(row["duration_s"]) / 0.1)
            assert paper_sum(server, "first", node, field, begin_ns, end_ns) == pytest.approx(expected, abs=2 * tick_j)
    _, dashboard = (one["spec"] for one in template("first"))
    option = f'option v = {{timeRangeStart: -1h, timeRangeStop: now(), windowPeriod: 1s, joulefeed_run: "{run}"}}\n'
    power, marks, joules, epochs = (
        flux(server, "first", option + chart["queries"][0]["query"]) for chart in dashboard["charts"]
    )
    for cell in (power, joules):
        assert {values["node_id"] for values in cell} == {"storage1", "compute1"}
    assert sorted(values["_value"] for values in marks) == [0.0] * 2 * len(found) + [1.0] * 2 * len(found)
    assert sorted(values["cell"] for values in epochs) == sorted(row["cell_id"] for row in found)


class Secrets:
    """The token and the keys of a run, and the command lines of all processes meanwhile."""

    def __init__(self, hosts, token):
        self.found, self.command_lines = {token}, set()
        self._hosts, self._over = hosts, threading.Event()
        self._watching = threading.Thread(target=self._watch)

    def __enter__(self):
        self._watching.start()
        return self

    def __exit__(self, *_):
        self._over.set()
        self._watching.join()

    def _watch(self):
        keys = "cat $(find /run/joulefeed -path '*/keys-*' -type f) </dev/null 2>/dev/null || true"
        while not self._over.wait(1):
            for process in Path("/proc").glob("[0-9]*/cmdline"):
                with suppress(OSError):
                    self.command_lines.add(process.read_text(errors="replace"))
            if len(self.found) == 1:
                text = self._hosts.run("compute1", "sh", "-c", keys)
                self.found |= {word for word in re.split(r"[\s\"]+", text) if len(word) >= 40}

    def leaks(self, folder, output):
        """Return the places that have a secret."""
        places = {"output": output, **dict(enumerate(self.command_lines))}
        places |= {path: path.read_text(errors="replace") for path in folder.rglob("*") if path.is_file()}
        return [place for place, text in places.items() if any(secret in text for secret in self.found)]


def test_a_daemon_and_a_mount_give_valid_rows_with_the_joules_of_both_hosts(hosts, start, folder, server, tmp_path):
    token = tmp_path / "token"
    token.write_text(server.token)
    with Secrets(hosts, server.token) as secrets:
        run = start(
            *("loaders.streaming.secure=true", "store=influxdb", f"store.url={server.url}", f"store.org={ORG}"),
            *("store.bucket=first", f"store.token_file={token}"),
        )
        output, _ = run.communicate(timeout=380)
    assert run.returncode == 0, output
    assert len(secrets.found) > 2 and len(secrets.command_lines) > 10
    assert secrets.leaks(folder, output) == []
    found = rows_of(folder)
    assert sorted(row["loader"] for row in found) == ["pytorch", "streaming"]
    for row in found:
        total, compute, storage = (float(row[key]) for key in ("total_j", "compute_j", "storage_j"))
        assert row["valid"] == "valid"
        assert min(compute, storage) > 0
        assert total == pytest.approx(compute + storage)
        assert float(row["net_j"]) < total, "each host has an idle baseline"
        served = {"daemon"} if row["loader"] == "streaming" else {"mount"}
        parts = ("loader", "daemon", "mount", "link", "monitor", "other")
        # A host that was busy while its idle power was measured has no parts.
        assert {part for part in parts if row[f"{part}_j"]} in (set(), {"loader", "monitor", "other"} | served)
    checks = json.loads((folder / "checks.json").read_text())
    by_rule = {check["rule"]: check for check in checks if check["rule"].endswith("storage1")}
    assert {check["verdict"] for check in by_rule.values()} == {"pass"}
    assert set(by_rule) == {"missed_ticks_storage1", "clock_offset_storage1"}
    for path in folder.glob("cells/*/cell.json"):
        record = json.loads(path.read_text())
        (host,) = record["hosts"]
        assert host["spin"]["first"]["best_s"] > 0
        start, end = record["host_states"]["storage1"]["1"]
        assert start.keys() == end.keys() >= {"throttled", "memory_wait_s", "disk_wait_s", "devices"}
    provenance = json.loads((folder / "provenance.json").read_text())
    assert provenance["hosts"]["storage1"]["value"]["host"]["hostname"]["value"] == "storage1"
    assert (folder / "hosts" / "storage1" / "energy.sqlite").exists()
    assert_on_server(server, folder.resolve().name, found)
    assert_nothing_left(hosts)


@pytest.fixture
def storage_ahead(hosts, tmp_path):
    """Return a function that sets the clock of the storage host 2 s ahead, for all that starts there from then on."""
    library = "/usr/local/lib/ahead.so"

    def shift():
        (tmp_path / "ahead.c").write_text(AHEAD)
        made = tmp_path / "ahead.so"
        subprocess.run(["cc", "-shared", "-fPIC", "-o", made, tmp_path / "ahead.c", "-ldl"], check=True)
        write = ["sh", "-c", f"cat >{library} && echo {library} >/etc/ld.so.preload"]
        subprocess.run([*hosts.enter("storage1"), *write], stdin=made.open("rb"), check=True)

    yield shift
    hosts.run("storage1", "rm", "-f", "/etc/ld.so.preload", library)


def statuses(folder):
    return sorted(json.loads(path.read_text())["status"] for path in folder.glob("cells/*/cell.json"))


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_run_survives_a_lost_host_and_the_death_of_its_controller_and_tells_a_wrong_clock(
    hosts, start, folder, storage_ahead
):
    cells = (*SLOW, "+regime@regimes.lan_0_1ms=lan_0_1ms", "regimes.lan_0_1ms.rate_gbit=1")
    run = start(*cells, "testbed.on_lost_host=continue")
    try:
        wait_for_epoch(hosts, run)
        # From now on the controller can be killed: the run can be resumed.
        assert (folder / "plan.json").exists() and statuses(folder) == []
        hosts.stop("storage1")
        output, _ = run.communicate(timeout=120)
    finally:
        hosts.start("storage1")
    assert run.returncode == 3, output
    assert "2 cells failed; try them again with: python -m harness resume=" in output
    failures = [json.loads(path.read_text())["failure"] for path in folder.glob("cells/*/cell.json")]
    assert len(failures) == 2 and all("host storage1 is lost" in failure for failure in failures)
    assert_nothing_left(hosts)

    run = start(*cells, "resume=latest")
    wait_for_epoch(hosts, run)
    done = "ls -d /var/lib/joulefeed/results/*/cells/* | grep -vE 'partial|failed' || true"
    assert wait_until(lambda: hosts.run("compute1", "sh", "-c", done), 100)
    wait_for_epoch(hosts, run)
    os.kill(run.pid, signal.SIGKILL)
    assert_nothing_left(hosts, 30)
    assert "done" not in statuses(folder)

    # One cell is done on the lead, and is not measured again. The other one finds a clock that is wrong, and an agent
    # that stands still for a while.
    storage_ahead()
    run = start_when_free(hosts, start, *cells, "resume=latest")
    hosts.run("storage1", "pkill", "-STOP", "-f", "energymon run")
    time.sleep(1)
    hosts.run("storage1", "pkill", "-CONT", "-f", "energymon run")
    output, _ = run.communicate(timeout=200)
    assert run.returncode == 6, output
    found = rows_of(folder)
    events = [json.loads(line) for line in (folder / "ledger.jsonl").read_text().splitlines()]
    first, second = [event["cell_id"] for event in events if event["event"] == "done"]
    assert sorted(row["cell_id"] for row in found) == sorted([first, second])
    checks = json.loads((folder / "checks.json").read_text())
    failed = [check for check in checks if check["rule"] == "clock_offset_storage1" and check["verdict"] == "fail"]
    assert [check["cell_id"] for check in failed] == [second]
    assert [row["valid"] for row in found if row["cell_id"] == second] != ["valid"]
    assert "+2000." in failed[0]["actual"]
    missed = [
        check["cell_id"] for check in checks if check["rule"] == "missed_ticks_storage1" and check["verdict"] == "fail"
    ]
    assert missed == [second]
    assert not hosts.run("compute1", "sh", "-c", "ls -d /var/lib/joulefeed/results/2* 2>/dev/null || true")
    assert_nothing_left(hosts)


@pytest.mark.slow
def test_ctrl_c_brings_home_what_there_is_and_a_lead_that_is_lost_ends_the_run_by_name(hosts, start, folder):
    run = start(*SLOW)
    wait_for_epoch(hosts, run)
    run.send_signal(signal.SIGINT)
    output, _ = run.communicate(timeout=120)
    assert run.returncode == 128 + signal.SIGINT, output
    assert "Go on with" in output
    assert [json.loads(path.read_text())["status"] for path in folder.glob("cells/*/cell.json")] == ["interrupted"]
    assert_nothing_left(hosts)

    run = start(*SLOW, "resume=latest")
    try:
        wait_for_epoch(hosts, run)
        hosts.stop("compute1")
        output, _ = run.communicate(timeout=120)
        assert wait_until(lambda: not left_on(hosts, "storage1"), 30), left_on(hosts, "storage1")
    finally:
        hosts.start("compute1")
        connect_lead(hosts)
    assert run.returncode == 4, output
    assert output.splitlines()[-1].startswith("error: host compute1 is lost: "), output
    assert_nothing_left(hosts)


@pytest.mark.slow
def test_a_host_with_another_key_is_not_trusted(hosts, start):
    config = str(LEAD_SSH_CONFIG)
    hosts.run("compute1", "sh", "-c", f"sed -i.kept 's/UserKnownHostsFile.*/UserKnownHostsFile none/' {config}")
    try:
        output, _ = start().communicate(timeout=120)
    finally:
        hosts.run("compute1", "mv", f"{config}.kept", config)
    assert "error: host storage1: Host key verification failed." in output
    assert_nothing_left(hosts)
