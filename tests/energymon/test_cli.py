"""The command line where its input or its output cannot be used."""

import json
import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

from energymon import Reading, SqliteStore, Ticks
from energymon.__main__ import main

REPO = Path(__file__).parents[2]
MS = 1_000_000
RUN = f'"{sys.executable}" -m energymon'


@pytest.fixture
def store(tmp_path):
    path = tmp_path / "energy.sqlite"
    with SqliteStore.create(path) as store:
        store.begin_session("a", 0, 100 * MS, {})
        store.append([Reading(k * 100 * MS, k * 100 * MS, "a", "cpu", "cpu", "estimate", 2.0 * k) for k in range(50)])
    return path


def shell(line):
    return subprocess.run(["sh", "-c", line], cwd=REPO, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.process
@pytest.mark.parametrize("stdout", [">/dev/full", ">&-"])
@pytest.mark.parametrize(
    "command",
    [
        "query --store STORE --start 0 --end 1000000000",
        "query --store STORE --start 0 --end 1000000000 --json",
        "export --store STORE --format csv --out -",
        "clock --listen 127.0.0.1",
    ],
)
def test_output_that_cannot_be_written_is_one_line_of_stderr_and_status_2(store, command, stdout):
    done = shell(f"{RUN} {command.replace('STORE', str(store))} {stdout}")
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert line.startswith("energymon: ")


@pytest.mark.process
def test_an_error_without_a_stderr_is_not_said_on_stdout():
    done = shell(f"{RUN} query --store /no/such --start 0 --end 1 2>&-")
    assert (done.returncode, done.stdout) == (2, "")


@pytest.mark.parametrize(
    "instant", ["9000-01-01", "1969-12-31", "0001-01-01T00:00+23:00", str(2**62 + 1), "²", "9" * 5000, "yesterday"]
)
def test_instants_that_no_store_can_hold_are_refused(store, capsys, instant):
    assert main(["query", "--store", str(store), "--start", "0", "--end", instant]) == 2
    assert capsys.readouterr().err.startswith("energymon: ")


@pytest.mark.parametrize("times", ["--start 1", "--start 2 --end 1", "--last 60", "--last 5m --start 1 --end 2"])
def test_times_of_a_query_that_make_no_window_end_in_one_line(store, capsys, times):
    assert main(["query", "--store", str(store), *times.split()]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("energymon: ")


def test_an_instant_without_an_offset_is_utc_and_help_says_so(store, capsys):
    for command in ("query", "export"):
        with pytest.raises(SystemExit):
            main([command, "--help"])
        assert "which is UTC too unless it has an offset" in " ".join(capsys.readouterr().out.split())
    told = []
    for start, end in (
        ("1970-01-01T00:00:01.000001", "1970-01-01T00:00:02"),
        ("1970-01-01T01:00:01.000001+01:00", "2000000000"),
    ):
        assert main(["query", "--store", str(store), "--start", start, "--end", end, "--json"]) == 0
        told.append(json.loads(capsys.readouterr().out))
    assert told[0] == told[1]
    assert told[0]["windows"][0]["start_ns"] == 1_000_001_000


def test_a_query_before_the_first_agent_says_when_that_one_started(tmp_path, capsys):
    with SqliteStore.create(tmp_path / "late.sqlite") as late:
        late.begin_session("a", 10**18, 100 * MS, {})
    assert main(["query", "--store", str(tmp_path / "late.sqlite"), "--start", "0", "--end", "1"]) == 3
    assert "2001-09-09T01:46:40" in capsys.readouterr().out


@pytest.mark.parametrize("interval", ["nan", "0", "inf", "-5", "1e18", "0.5", "10001"])
def test_the_doctor_refuses_the_intervals_that_the_agent_refuses(capsys, interval):
    assert main(["doctor", f"--interval-ms={interval}", "--seconds", "0"]) == 2
    assert "1 to 10000 ms" in capsys.readouterr().err


@pytest.mark.parametrize(
    "listen", ["127.0.0.1:abc", "127.0.0.1:", "127.0.0.1:65536", "127.0.0.1:-1", "::1", "[::1", ""]
)
def test_an_address_to_listen_on_that_is_none_is_refused(capsys, listen):
    assert main(["clock", f"--listen={listen}"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "expected ADDRESS or ADDRESS:PORT" in line


@pytest.mark.process
@pytest.mark.parametrize("listen", ["127.0.0.1", "127.0.0.1:0", "[::1]:0"])
def test_the_address_that_the_clock_prints_is_one_to_measure_against(listen):
    from energymon.clock.sync import measure

    argv = [sys.executable, "-m", "energymon", "clock", "--listen", listen]
    with subprocess.Popen(argv, cwd=REPO, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        said = process.stdout.readline()
        if not said and "::1" in listen:
            pytest.skip("no IPv6 loopback")
        try:
            assert measure(json.loads(said)["address"], "n").node == "n"
        finally:
            process.send_signal(signal.SIGTERM)
        assert process.wait(10) == 0


@pytest.mark.parametrize(
    ("spoil", "told"),
    [
        (lambda path: os.truncate(path, path.stat().st_size // 8192 * 4096), "is damaged (database disk image"),
        (lambda path: path.write_bytes(random.Random(1).randbytes(5000)), "is not a store of energymon"),
        (lambda path: path.write_bytes(b""), "holds nothing yet"),
        (lambda path: path.unlink(), "there is no store here"),
        (lambda path: (path.unlink(), path.mkdir()), "there is no store here"),
        (lambda path: (path.unlink(), os.mkfifo(path)), "there is no store here"),
    ],
)
@pytest.mark.parametrize("command", ["query --start 0 --end 1000000000", "export --format csv --out OUT"])
def test_a_store_that_cannot_be_read_is_told_in_a_line(store, capsys, spoil, told, command):
    spoil(store)
    out = store.with_name("out.csv")
    assert main([*command.replace("OUT", str(out)).split(), "--store", str(store)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"energymon: {store}: {told}")
    assert not out.exists()


@pytest.mark.process
def test_a_store_on_a_full_disk_is_read(store, tmp_path):
    (disk := tmp_path / "full").mkdir()
    line = (
        f"mount -t tmpfs -o size=1m tmpfs {disk} && cp {store} {disk} && (cat /dev/zero >{disk}/fill; "
        f"{RUN} query --store {disk}/{store.name} --start 0 --end 1000000000)"
    )
    done = subprocess.run(
        ["unshare", "-m", "sh", "-c", line], cwd=REPO, capture_output=True, text=True, timeout=60, check=False
    )
    if "unshare" in done.stderr or "mount" in done.stderr:
        pytest.skip(f"no disk of its own here: {done.stderr}")
    assert done.returncode == 0, done.stderr
    assert "20.000" in done.stdout


def test_sessions_lists_each_run_of_an_agent_with_its_sources_and_gaps(tmp_path, capsys):
    path = tmp_path / "energy.sqlite"
    sensors = [
        {"channels": [{"device": "gpu-0", "domain": "gpu", "source": s} for s in ("nvml-power", "nvml-counter")]}
    ]
    with SqliteStore.create(path) as store:
        first = store.begin_session("b", 1000 * MS, 100 * MS, {"sensors": sensors})
        runs = ((10, 20, False), (30, 5, True), (35, 5, False))
        store.append([], [Ticks(k * 100 * MS, "b", missed, count, 100 * MS) for k, count, missed in runs])
        store.end_session(first, 4000 * MS, 0.1)
        store.begin_session("b", 5000 * MS, 50 * MS, {})
        store.append([], [Ticks(5000 * MS, "b", False, 10, 50 * MS)])
        store.begin_session("a", 0, 100 * MS, {})
    assert main(["sessions", "--store", str(path), "--json"]) == 0
    a, one, two = json.loads(capsys.readouterr().out)
    assert (a["node"], a["begin_ns"], a["end_ns"], a["is_ended"]) == ("a", None, None, False)
    assert one == {
        "node": "b",
        "begin_ns": 1000 * MS,
        "end_ns": 3900 * MS,
        "is_ended": True,
        "interval_ms": 100,
        "sources": ["nvml-counter", "nvml-power"],
        "missed_ticks": 5,
        "gaps": [[3000 * MS, 3400 * MS]],
    }
    assert (two["begin_ns"], two["end_ns"], two["gaps"]) == (5000 * MS, 5450 * MS, [])
    assert main(["sessions", "--store", str(path)]) == 0
    told = capsys.readouterr().out
    assert "nvml-counter+nvml-power" in told
    assert "0.5" in told


@pytest.mark.parametrize("form", ["csv", "parquet"])
def test_a_query_as_a_table_has_a_row_for_each_sum_and_series_with_their_co2_and_cost(store, tmp_path, capsys, form):
    argv = ["query", "--store", str(store), "--start", "0", "--end", "1970-01-01T00:00:04"]
    argv += ["--co2-g-per-kwh", "400", "--price-per-kwh", "0.3"]
    out = tmp_path / f"q.{form}"
    assert main([*argv, "--out", str(out)]) == 0
    frame = pd.read_csv(out) if form == "csv" else pd.read_parquet(out)
    assert list(frame["part"]) == ["sum", "sum", "summed"]
    assert list(frame["domain"]) == ["cpu", "total", "cpu"]
    assert frame["joules"].tolist() == pytest.approx([80] * 3)
    assert frame["co2_g"].tolist() == pytest.approx([80 / 3.6e6 * 400] * 3)
    assert frame["cost"].tolist() == pytest.approx([80 / 3.6e6 * 0.3] * 3)
    assert frame["accuracy_j"].isna().all()
    assert main([*argv, "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["total"]["co2_g"] == pytest.approx(80 / 3.6e6 * 400)
    assert main(argv) == 0
    assert "g CO2" in capsys.readouterr().out
    assert main([*argv, "--json", "--out", str(out)]) == 2
    capsys.readouterr()
    lines = tmp_path / "q.line"
    assert (main([*argv, "--out", str(lines)]), lines.exists()) == (2, False)
    assert "expected .parquet or .csv at its end" in capsys.readouterr().err
    with pytest.raises(SystemExit, match="2"):
        main([*argv, "--json", "--format", form])
