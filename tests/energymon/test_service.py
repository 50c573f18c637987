"""The agent as a service: a group's windows, its unit, what it deletes, and what it tells Prometheus."""

import grp
import json
import os
import shutil
import socket
import sqlite3
import stat
import subprocess
import sys
import time
import urllib.request
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from energymon import ClockOffset, Event, OptionError, Reading, SqliteStore, StoreError, Ticks
from energymon.agent.main import AgentConfig
from energymon.agent.prometheus import metrics, serve
from energymon.agent.service import group_of
from energymon.influx.cursor import StoreCursor
from energymon.sampling.edges import socket_path
from energymon.sampling.outages import Jitter
from energymon.sampling.writer import StoreWriter

S = 10**9
REPO = Path(__file__).parents[2]
GROUP = grp.getgrgid(1).gr_name
AS_NOBODY = """
import json, os, sys, time, urllib.parse  # which Python 3.13 imports late, from where another user may not read
import energymon
from energymon import Window
os.setgroups([int(gid) for gid in sys.argv[1:]])
os.setgid(65534)
os.setuid(65534)
try:
    with Window() as window:
        time.sleep(0.2)
    print(json.dumps([window.joules, window.error_j]))
except energymon.EnergyError as error:
    print(json.dumps(str(error)))
"""


@pytest.mark.process
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become somebody who is not")
def test_a_member_of_the_group_has_readings_at_the_edges_and_another_user_has_none(rapl, public_path, start_agent):
    store = public_path / "energy.sqlite"
    with rapl.running():
        agent = start_agent("--sysfs", str(rapl.root), "--interval-ms", "2000", "--group", GROUP, store=store)
        env = {**os.environ, "PYTHONPATH": str(REPO), "ENERGYMON_STORE": str(store)}
        argv = [sys.executable, "-c", AS_NOBODY]
        joules, error_j = json.loads(subprocess.check_output([*argv, "1"], env=env, text=True, timeout=120))
        refused = json.loads(subprocess.check_output(argv, env=env, text=True, timeout=120))
        modes = {file.name: file.stat() for file in (store, store.with_name(f"{store.name}-wal"), socket_path(store))}
        agent.end()
    watts = sum(zone.watts for zone in (*rapl.packages, *rapl.drams))
    assert joules > 0.2 * watts / 2
    # By the ticks alone it would be two seconds of all of the power.
    assert error_j < watts
    assert GROUP not in refused
    assert "--group" in refused
    assert {name: (stat.S_IMODE(found.st_mode), found.st_gid) for name, found in modes.items()} == {
        "energy.sqlite": (0o640, 1),
        "energy.sqlite-wal": (0o640, 1),
        "energy.sqlite-edge": (0o660, 1),
    }


@pytest.mark.parametrize(("mode", "why"), [(0o700, "cannot enter"), (0o777, "may write"), (0o1777, "may write")])
def test_a_folder_that_a_group_cannot_enter_or_that_others_may_write_is_refused(public_path, mode, why):
    assert group_of(GROUP, public_path / "energy.sqlite") == 1
    public_path.chmod(mode)
    with pytest.raises(OptionError, match=rf"{public_path}.*chmod" if why == "may write" else why):
        group_of(GROUP, public_path / "energy.sqlite")
    with pytest.raises(OptionError, match="no such group"):
        group_of("no-such-group", public_path / "energy.sqlite")


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to give a folder away")
def test_a_folder_of_another_user_is_refused_on_the_path_as_given_too(public_path):
    theirs = public_path / "theirs"
    theirs.mkdir(mode=0o755)
    (theirs / "energy.sqlite").symlink_to(public_path / "energy.sqlite")
    os.chown(theirs, 65534, -1)
    for store in ("energy.sqlite", "new.sqlite"):
        with pytest.raises(OptionError, match=f"{theirs} is another user's"):
            group_of(GROUP, theirs / store)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to give files to a group")
def test_a_file_is_given_to_the_group_once_it_is_known_to_be_a_store(tmp_path, monkeypatch):
    foreign = tmp_path / "theirs.sqlite"
    with closing(sqlite3.connect(foreign)) as connection:
        connection.execute("CREATE TABLE passwords (one)")
    foreign.chmod(0o600)
    with pytest.raises(StoreError, match="another program"):
        SqliteStore.create(foreign, 1)
    assert (stat.S_IMODE(foreign.stat().st_mode), foreign.stat().st_gid) == (0o600, 0)
    modes = []
    monkeypatch.setattr("energymon.database.connect", lambda path, *_: modes.append(path.stat().st_mode) or 1 / 0)
    with pytest.raises(ZeroDivisionError):
        SqliteStore.create(tmp_path / "new.sqlite", 1)
    assert [stat.S_IMODE(mode) for mode in modes] == [0o600]


@pytest.mark.process
@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="there is no systemd-analyze")
def test_the_unit_is_one_that_systemd_takes(tmp_path):
    unit = tmp_path / "energymon.service"
    argv = [sys.executable, "-m", "energymon", "unit", "--group", GROUP]
    unit.write_text(subprocess.run(argv, cwd=REPO, capture_output=True, text=True, check=True).stdout)
    assert f'ExecStart="{sys.executable}" -P -m energymon run' in unit.read_text()
    told = subprocess.run(["systemd-analyze", "verify", unit], capture_output=True, text=True, check=False)
    assert (told.returncode, told.stderr) == (0, "")


def filled(path, ticks=1000):
    """Make a store of ticks a second apart, 5 W of a processor by a sensor and 7 W of it by an estimate."""
    store = SqliteStore.create(path)
    store.begin_session(
        "n", S, S, {"sensors": [{"channels": [{"device": "package-0", "domain": "cpu", "source": "rapl-perf"}]}]}
    )
    rows = [
        Reading(k * S, k * S, "n", "package-0", "cpu", source, watts * k)
        for k in range(1, ticks + 1)
        for source, watts in (("rapl-perf", 5.0), ("estimate", 7.0))
    ]
    store.append(rows, [Ticks(S, "n", False, ticks, S)])
    return store


def kept(store):
    """Return the seconds of the ticks that have readings, and of those that begin a row of ticks."""
    readings, ticks = store.readings(0, 2000 * S), store.ticks(0, 2000 * S)
    return sorted({r.tick_ns // S for r in readings}), [t.first_ns // S for t in ticks]


def test_old_readings_are_deleted_in_small_steps_and_later_ones_stay(tmp_path):
    with filled(tmp_path / "e.sqlite") as store:
        steps = 0
        while store.forget(400 * S, 100):
            steps += 1
        assert steps == 8, "two series, a hundred readings at a time"
        assert kept(store) == (list(range(401, 1001)), [401])
        assert not store.forget(400 * S, 100)


def test_the_readings_of_a_host_that_was_renamed_go_too_and_offsets_of_clocks(tmp_path):
    with filled(tmp_path / "e.sqlite") as store:
        store.append([Reading(k * S, k * S, "old", "package-0", "cpu", "rapl-perf", 5.0 * k) for k in range(1, 9)])
        clocks = [ClockOffset(k * S, "n", peer, 0, 0) for k in (3, 500) for peer in ("chrony", "wall")]
        store.append([], news=clocks)
        assert store.forget(400 * S, 100)
        assert {r.node for r in store.readings(0, 2000 * S)} == {"n"}
        assert store.clocks() == clocks[1:]
        assert store.clocks("n", ["wall"]) == clocks[1::2]


def test_readings_are_kept_for_the_baseline_and_the_edges_of_a_window():
    assert AgentConfig(Path("e"), "n", idle_s=10, keep_ns=70 * S).keep_ns == 70 * S
    with pytest.raises(OptionError, match="--keep: expected 70s or more"):
        AgentConfig(Path("e"), "n", idle_s=10, keep_ns=69 * S)


def test_what_a_server_has_not_acknowledged_is_not_deleted(tmp_path):
    with filled(tmp_path / "e.sqlite") as store:
        with StoreCursor(store.path) as cursor:
            assert not store.forget(400 * S, 10**6)
            while (batch := cursor.next_batch(last=True)) is not None:
                cursor.acknowledge(batch)
        assert store.forget(400 * S, 10**6)
        assert kept(store)[1] == [401]


def test_the_writer_deletes_what_is_older_than_it_is_to_keep(tmp_path, monkeypatch):
    monkeypatch.setattr("energymon.sampling.writer._FULL_NS", 0)
    stored, failures = [], []
    with filled(tmp_path / "e.sqlite") as store:
        writer = StoreWriter(
            store, "n", [], S, on_stored=stored.append, on_failure=failures.append, on_event=print, keep_ns=3600 * S
        )
        writer.start()
        writer.put(Event(2000 * S, "n", "clock-step", ""))
        writer.stop()
        assert (stored, failures) == ([0], [])
        assert kept(store) == ([], [])
        assert [event.kind for event in store.events()] == ["clock-step"]


@contextmanager
def serving(option, families):
    """Answer on a port as `--prometheus` does."""
    server = serve(option, families)
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()


def scraped(port):
    parser = pytest.importorskip("prometheus_client.parser", reason="prometheus-client is not installed")
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
        text = answer.read().decode()
    families = {family.name: family for family in parser.text_string_to_metric_families(text)}
    kinds = {name: family.type for name, family in families.items()}
    samples = [s for family in families.values() for s in family.samples]
    values = {(s.name, s.labels.get("source", "")): s.value for s in samples if s.labels.get("domain") != "module"}
    values |= {s.name: s.value for s in samples if s.labels.get("domain") == "module"}
    assert all(s.labels["node"] == 'a "node"\n' for family in families.values() for s in family.samples)
    return kinds, values


def test_prometheus_reads_joules_watts_and_missed_ticks_and_no_estimate_among_the_measured(tmp_path):
    pytest.importorskip("prometheus_client", reason="prometheus-client is not installed")
    node = 'a "node"\n'
    with SqliteStore.create(tmp_path / "e.sqlite") as store:
        device = {"package-0": ("cpu", "rapl-perf", 5.0), "gpu-0": ("gpu", "nvml-counter", 300.0)}
        rows = [(d, *of) for d, of in device.items()]
        rows += [("gpu-0", "gpu", "nvml-power", 290.0), ("cpu", "cpu", "estimate", 7.0)]
        rows += [("gpu-0", "module", "nvml-counter", 500.0), ("plug", "wall", "shelly-energy", 0.0)]
        rows.append(("plug", "wall", "shelly-power", 900.0))
        last = {"nvml-counter": 80, "shelly-energy": 30, "shelly-power": 30}
        for d, domain, source, watts in rows:
            ticks = range(1, last.get(source, 100) + 1)
            store.append([Reading(k * S // 10, k * S // 10, node, d, domain, source, watts * k / 10) for k in ticks])
        jitter = Jitter()
        jitter.add(0, 0)
        jitter.missed += 2
        meter = {"period_s": 2.0, "channels": [{"device": "plug"}]}
        session = store.begin_session(node, 0, S // 10, {"sensors": [meter]})
        with serving("0", lambda: metrics(store, session, 10 * S, jitter)) as server:
            kinds, values = scraped(server.server_port)
            with pytest.raises(OptionError, match="in use"):
                serve(str(server.server_port), list)
    assert (
        kinds["energymon_joules"] == kinds["energymon_estimated_joules"] == kinds["energymon_ticks_missed"] == "counter"
    )
    assert kinds["energymon_watts"] == kinds["energymon_up"] == "gauge"
    assert values.pop(("energymon_watts", "rapl-perf")) == pytest.approx(5)
    assert values.pop(("energymon_watts", "nvml-counter")) == pytest.approx(300)
    assert values.pop(("energymon_estimated_watts", "estimate")) == pytest.approx(7)
    assert values.pop(("energymon_wall_watts", "shelly-power")) == pytest.approx(900)
    assert values.pop("energymon_module_watts") == pytest.approx(500)
    assert values == {
        ("energymon_joules_total", "rapl-perf"): 50,
        ("energymon_joules_total", "nvml-counter"): 2400,
        ("energymon_estimated_joules_total", "estimate"): 70,
        ("energymon_wall_joules_total", "shelly-energy"): 0,
        "energymon_module_joules_total": 4000,
        "energymon_up": 1,
        **{("energymon_up", source): 1 for source in ("rapl-perf", "nvml-counter", "estimate", "shelly-energy")},
        ("energymon_ticks_total", ""): 1,
        ("energymon_ticks_missed_total", ""): 2,
    }


def test_a_client_that_drips_its_request_is_cut_off(monkeypatch):
    pytest.importorskip("prometheus_client", reason="prometheus-client is not installed")
    monkeypatch.setattr("energymon.agent.prometheus._REQUEST_S", 0.5)
    with serving("0", list) as server:
        client = socket.create_connection(("127.0.0.1", server.server_port), 30)
        with closing(client), pytest.raises(OSError, match=r"Broken pipe|reset"):
            for _ in range(600):
                client.send(b"G")
                time.sleep(0.1)


@pytest.mark.parametrize("option", ["", "x", "1.2.3.4", "70000", "::1"])
def test_an_endpoint_that_names_no_port_is_refused(option):
    pytest.importorskip("prometheus_client", reason="prometheus-client is not installed")
    with pytest.raises(OptionError, match="ADDRESS:PORT"):
        serve(option, list)


def test_an_endpoint_listens_on_loopback_alone_unless_told():
    pytest.importorskip("prometheus_client", reason="prometheus-client is not installed")
    with serving("0", list) as server:
        assert server.server_address[0] == "127.0.0.1"
        with closing(socket.socket()) as other, pytest.raises(OSError, match="refused"):
            other.connect(("127.0.0.2", server.server_port))
