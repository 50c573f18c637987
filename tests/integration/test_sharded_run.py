"""Whole runs over a dataset of which half is local, with keys of their own, and runs that are not alone."""

import csv
import json
import os
import subprocess
import sys
import time
from collections import defaultdict

import pyarrow.parquet as pq
import pytest

from harness.testbed.state import RunState, state_root

SAMPLES = 48
SMALL = [f"dataset.samples={SAMPLES}", "repeats=1", "warmup_samples=8", "workloads.resnet50.batch_size=8", "figures=[]"]


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def start(tmp_path, cache):
    def started(*overrides):
        where = [f"results_dir={tmp_path / 'results'}", f"cache_dir={cache}"]
        command = [sys.executable, "-m", "harness", *SMALL, *where, *overrides]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    return started


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "results" / "latest"


def rows(folder):
    with (folder / "epochs.csv").open() as file:
        return list(csv.DictReader(file))


def secrets_of(process):
    """Return the secret keys of the runs that there are while a process lives."""
    found = set()
    deadline = time.monotonic() + 240
    while process.poll() is None and time.monotonic() < deadline:
        for path in state_root().glob("*/keys-*/*/*.secret"):
            found.add(path.read_text().strip())
        time.sleep(0.05)
    return found


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces need root")
def test_half_of_the_samples_come_over_the_link_for_every_loader_and_keys_go_with_the_run(start, folder):
    process = start("+experiment=emlio_fig10", "~regimes.lan_0_1ms", "~regimes.wan_30ms")
    secrets = secrets_of(process)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 0, said
    found = rows(folder)
    assert {row["loader"] for row in found} == {"pytorch", "dali", "streaming"}
    assert len({row["bytes"] for row in found}) == 1
    for row in found:
        cell = folder / "cells" / row["cell_id"]
        placement = json.loads((cell / "cell.json").read_text())["placement"]
        received = json.loads((cell / "link.json").read_text())["epochs"][0]["rx_bytes"]
        assert placement["kind"] == "half"
        assert 0.35 < placement["remote_bytes"] / int(row["bytes"]) < 0.65
        assert placement["remote_bytes"] <= received < 0.85 * int(row["bytes"])
        ids = pq.read_table(cell / "batches.parquet")["ids"].combine_chunks().flatten()
        assert sorted(ids.to_pylist()) == list(range(SAMPLES))
    assert len(secrets) == 2
    assert not list(state_root().glob("*/keys-*"))
    for path in folder.rglob("*"):
        if path.is_file():
            stored = path.read_bytes()
            assert not any(secret.encode() in stored for secret in secrets), path


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces need root")
def test_batches_of_both_daemons_and_of_the_loader_stand_among_the_cell_s_events(start, folder):
    overrides = ["~regimes.lan_0_1ms", "~regimes.wan_30ms", "~loaders.pytorch", "~loaders.dali"]
    process = start("+experiment=emlio_fig10", *overrides)
    _, said = process.communicate(timeout=200)
    assert process.returncode == 0, said
    (row,) = rows(folder)
    events = pq.read_table(folder / "cells" / row["cell_id"] / "events.parquet").to_pylist()
    assert [event["utc_ns"] for event in events] == sorted(event["utc_ns"] for event in events)
    bounds = {e["event"]: e["utc_ns"] for e in events if e["event"] in ("epoch_start", "epoch_end")}
    sent = defaultdict(int)
    received = 0
    for event in events:
        values = json.loads(event["values"])
        if values.get("epoch") != 1:
            continue
        if event["event"] == "daemon.batch_sent":
            sent[values["endpoint"]] += values["bytes"]
        if event["event"] == "loader.batch_received":
            received += values["bytes"]
            assert bounds["epoch_start"] <= event["utc_ns"] <= bounds["epoch_end"]
    assert len(sent) == 2
    assert sum(sent.values()) >= int(row["bytes"])
    assert received >= int(row["bytes"])


def test_a_run_beside_another_warns_of_it_in_every_row(start, folder):
    other = RunState.create("beside1")
    try:
        process = start("+experiment=smoke", "~loaders.pytorch", "~loaders.streaming")
        _, said = process.communicate(timeout=200)
    finally:
        other.names.folder.rmdir()
        other.forget()
    assert process.returncode == 0, said
    checks = json.loads((folder / "checks.json").read_text())
    (alone,) = [check for check in checks if check["rule"] == "alone"]
    assert alone["verdict"] == "warn"
    assert "beside1" in alone["actual"]
    assert {row["valid"] for row in rows(folder)} == {"valid"}


def test_a_key_that_the_daemon_does_not_take_is_refused_before_anything_is_made(start, folder):
    process = start("+experiment=smoke", "+loaders.streaming.daemon.treads=2")
    _, said = process.communicate(timeout=60)
    assert process.returncode == 2
    assert "loaders.streaming.daemon.treads" in said
    assert not folder.exists()
