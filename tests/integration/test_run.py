"""Whole runs, as a user starts them: rows, faults, signals, death and resume."""

import csv
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pyarrow.parquet as pq
import pytest

# Small enough for a test: few images, one repeat, steps of no length.
SMALL = ["dataset.samples=48", "repeats=1", "warmup_samples=8", "workloads.resnet50.batch_size=8", "figures=[]"]

ENVIRONMENT = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def harness(tmp_path, cache):
    def command(*overrides):
        where = [f"results_dir={tmp_path / 'results'}", f"cache_dir={cache}"]
        return [sys.executable, "-m", "harness", "+experiment=smoke", *SMALL, *where, *overrides]

    return command


def run(command, **options):
    return subprocess.run(command, capture_output=True, text=True, timeout=240, check=False, **options)


def rows(tmp_path):
    with (tmp_path / "results" / "latest" / "epochs.csv").open() as file:
        return list(csv.DictReader(file))


def descendants_gone(before):
    """Whether no process but those of `before` is this run's any more."""
    deadline = time.monotonic() + 15
    while time.monotonic() < deadline:
        if not [p for p in psutil.process_iter(["environ"]) if p.pid not in before and _of_a_run(p)]:
            return True
        time.sleep(0.2)
    return False


def _of_a_run(process):
    return "JOULEFEED_RUN" in (process.info["environ"] or {})


@pytest.fixture
def leaves_nothing():
    shm, before = set(Path("/dev/shm").iterdir()), set(psutil.pids())
    yield
    assert descendants_gone(before)
    # So sem_open(3) calls a semaphore in the making; a process that is killed in that instant leaves 32 bytes, and
    # nobody can tell whose they were.
    left = {path.name for path in set(Path("/dev/shm").iterdir()) - shm if not re.fullmatch(r"sem\.\w{6}", path.name)}
    assert not left


def wait_for_epoch(tmp_path, process, loader="pytorch"):
    """Wait until a cell of the loader has begun its epoch; return its folder."""
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and process.poll() is None:
        for events in (tmp_path / "results").glob(f"*/cells/{loader}-*.partial/events.jsonl"):
            if "epoch_start" in events.read_text():
                return events.parent
        time.sleep(0.02)
    pytest.fail(f"no epoch began; status {process.poll()}")


def test_a_run_yields_valid_rows_a_report_and_leaves_nothing(harness, tmp_path, leaves_nothing):
    done = run(harness())
    assert done.returncode == 0, done.stderr
    found = rows(tmp_path)
    assert {r["loader"] for r in found} == {"pytorch", "dali", "streaming"}
    assert {r["valid"] for r in found} == {"valid"}
    assert {r["samples"] for r in found} == {"48"}
    assert len({r["bytes"] for r in found}) == 1
    assert all(float(r["cpu_j"]) > 0 for r in found)
    assert all("cpu=" in r["energy_source"] for r in found)
    folder = tmp_path / "results" / "latest"
    for name in ("config.yaml", "plan.json", "ledger.jsonl", "provenance.json", "checks.json", "report.html"):
        assert (folder / name).stat().st_size > 0, name
    for cell in (folder / "cells").iterdir():
        assert {p.name for p in cell.iterdir()} >= {
            "cell.json", "events.parquet", "batches.parquet", "energy.parquet", "link.json", "log.txt",
        }  # fmt: skip


def test_the_harness_killed_in_mid_epoch_is_resumed_to_the_same_rows(harness, tmp_path, leaves_nothing):
    process = subprocess.Popen(
        harness("accelerator.kind=emulated", "accelerator.time_scale=20"), stderr=subprocess.DEVNULL
    )
    wait_for_epoch(tmp_path, process)
    process.kill()
    process.wait()
    done = run(harness("accelerator.kind=emulated", "accelerator.time_scale=20", "resume=latest"))
    assert done.returncode == 0, done.stderr
    planned = json.loads((tmp_path / "results" / "latest" / "plan.json").read_text())["cells"]
    assert [r["cell_id"] for r in rows(tmp_path)] == [c["cell_id"] for c in planned]
    assert {r["samples"] for r in rows(tmp_path)} == {"48"}
    assert len(list((tmp_path / "results").glob("2*"))) == 1


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_run_with_its_status_and_says_how_to_go_on(harness, tmp_path, leaves_nothing, number):
    process = subprocess.Popen(
        harness("accelerator.kind=emulated", "accelerator.time_scale=20"), stderr=subprocess.PIPE, text=True
    )
    wait_for_epoch(tmp_path, process)
    process.send_signal(number)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 128 + number
    assert f"resume={(tmp_path / 'results' / 'latest').resolve().name}" in said
    assert "Traceback" not in said


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces need root")
def test_a_run_over_the_link_survives_sigkill_and_is_resumed_to_the_same_samples(harness, tmp_path, leaves_nothing):
    def remote(*overrides):
        command = harness("~loaders.dali", "regimes.wan_30ms.rtt_ms=20", *overrides)
        return ["+experiment=wan30ms" if part == "+experiment=smoke" else part for part in command]

    namespaces, mounts = traces()
    process = subprocess.Popen(remote(), stderr=subprocess.DEVNULL)
    wait_for_epoch(tmp_path, process, "pytorch-resnet50-wan_30ms")
    assert traces()[0] - namespaces
    process.kill()
    process.wait()
    deadline = time.monotonic() + 15
    while traces() != (namespaces, mounts) and time.monotonic() < deadline:
        time.sleep(0.2)
    assert traces() == (namespaces, mounts)
    done = run(remote("resume=latest"))
    assert done.returncode == 0, done.stderr
    assert traces() == (namespaces, mounts)
    found = rows(tmp_path)
    assert sorted((r["loader"], r["rtt_ms"]) for r in found) == [
        ("pytorch", "0.1"),
        ("pytorch", "20.0"),
        ("streaming", "0.1"),
        ("streaming", "20.0"),
    ]
    cells = tmp_path / "results" / "latest" / "cells"
    for row in found:
        ids = pq.read_table(cells / row["cell_id"] / "batches.parquet")["ids"].combine_chunks().flatten()
        assert sorted(ids.to_pylist()) == list(range(48))
        link = json.loads((cells / row["cell_id"] / "link.json").read_text())
        assert link["epochs"][0]["rx_bytes"] >= int(row["bytes"])
        # A busy machine may spoil a probe; then the row says so.
        assert row["valid"] == "valid" or "expected" in row["valid"]


def traces():
    """Return the named network namespaces and the mounts of this machine."""
    names = Path("/run/netns")
    namespaces = {path.name for path in names.iterdir()} if names.is_dir() else set()
    mounts = {line.split()[1] for line in Path("/proc/mounts").read_text().splitlines()}
    return namespaces, mounts - {"/run/netns"}


def test_a_killed_daemon_fails_its_cell_alone(harness, tmp_path, leaves_nothing):
    slow = ["accelerator.kind=emulated", "accelerator.time_scale=20", "loaders.streaming.timeout_s=2"]
    process = subprocess.Popen(
        harness(*slow, "loaders.streaming.prefetch_batches=1"), stderr=subprocess.PIPE, text=True
    )
    wait_for_epoch(tmp_path, process, "streaming")
    (daemon,) = [
        p
        for p in psutil.Process(process.pid).children(recursive=True)
        if "loaders.streaming" in p.cmdline() and "serve" in p.cmdline()
    ]
    daemon.kill()
    _, said = process.communicate(timeout=120)
    assert process.returncode == 3, said
    assert "daemon" in said
    assert {r["loader"] for r in rows(tmp_path)} == {"pytorch", "dali"}
    done = run(harness(*slow, "loaders.streaming.prefetch_batches=1", "resume=latest"))
    assert done.returncode == 0, done.stderr
    assert {r["loader"] for r in rows(tmp_path)} == {"pytorch", "dali", "streaming"}
    assert list((tmp_path / "results" / "latest" / "cells").glob("streaming-*.failed-1"))


def _workers(harness_pid):
    cells = [p for p in psutil.Process(harness_pid).children(recursive=True) if "harness.cell" in p.cmdline()]
    return [child for cell in cells for child in cell.children()]


def test_a_killed_worker_fails_its_cell_alone(harness, tmp_path, leaves_nothing):
    process = subprocess.Popen(
        harness("accelerator.kind=emulated", "accelerator.time_scale=20", "~loaders.dali"),
        stderr=subprocess.PIPE,
        text=True,
    )
    wait_for_epoch(tmp_path, process)
    deadline = time.monotonic() + 30
    while not (workers := _workers(process.pid)):  # the epoch begins before they do
        assert time.monotonic() < deadline
        time.sleep(0.02)
    workers[0].kill()
    _, said = process.communicate(timeout=120)
    assert process.returncode == 3, said
    assert "worker" in said
    assert {r["loader"] for r in rows(tmp_path)} == {"streaming"}


BAD = {
    "+experiment=nowhere": "wan30ms",
    "loaders.pytorch.workers=3": "workers",
    "+loaders.pytorch.workers=3": "takes no such key",
    "regimes.local.rtt_ms=-1": "regimes.local.rtt_ms",
    "workloads.resnet50.batch_size=4096": "larger than the dataset",
    "dataset.root=/no/such/place": "dataset.root",
    "loaders.pytorch._target_=no.such.Loader": "cannot be imported",
    "resume=nothing": "no run with a plan.json",
    "loaders.pytorch.num_workers=two": "expected a whole number",
    "loaders.streaming.daemon.module=null": "daemon.module",
    "figures=[nope]": "nope",
    "accelerator=cuda": "accelerator",
}
"""Overrides, and what the message has to have in it."""

# Importing takes longer than refusing, so one process imports and its children are given a command each.
IMPORTED_ONCE = """
import json, os, sys
import torch
import loaders.dali, loaders.pytorch, loaders.streaming.loader
from harness import run
from harness.cli import main
for number, argv in enumerate(json.load(sys.stdin)):
    child = os.fork()
    if child == 0:
        os.dup2(os.open(f"stderr-{number}", os.O_WRONLY | os.O_CREAT), 2)
        sys.argv[1:] = argv
        main()
        sys.exit(0)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


def test_bad_input_is_one_message_and_no_run(harness, tmp_path):
    commands = [
        harness(override)[3 + override.startswith("+experiment") :] for override in BAD
    ]  # without `python -m harness`, nor an experiment beside the bad one
    done = run([sys.executable, "-c", IMPORTED_ONCE], input=json.dumps(commands), cwd=tmp_path, env=ENVIRONMENT)
    assert not done.stderr
    for number, (status, message) in enumerate(zip(done.stdout.split(), BAD.values(), strict=True)):
        said = (tmp_path / f"stderr-{number}").read_text()
        assert status in ("1", "2"), said
        assert message in said
        assert "Traceback" not in said
    assert not list((tmp_path / "results").glob("2*"))


def test_a_taken_port_fails_the_cell_with_the_port(harness, tmp_path):
    import socket

    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = run(harness(f"loaders.streaming.daemon.port={port}", "~loaders.dali", "~loaders.pytorch"))
    assert done.returncode == 3
    assert str(port) in done.stderr


def test_a_run_is_not_resumed_with_another_config(harness, tmp_path):
    only = ["~loaders.dali", "~loaders.pytorch"]
    assert run(harness(*only)).returncode == 0
    done = run(harness(*only, "resume=latest", "seed=7"))
    assert done.returncode == 2
    assert "seed: 7, was 0" in done.stderr


def test_help_names_every_experiment():
    done = run([sys.executable, "-m", "harness", "--help"])
    assert done.returncode == 0
    for path in Path("conf/experiment").glob("*.yaml"):
        assert path.stem in done.stdout
