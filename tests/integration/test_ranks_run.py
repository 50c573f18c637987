"""A whole run of two ranks on two compute nodes, each of which has half of the data."""

import csv
import json
import os
import subprocess
import sys

import pyarrow.parquet as pq
import pytest

SAMPLES = 32
SMALL = [f"dataset.samples={SAMPLES}", "repeats=1", "warmup_samples=8", "workloads.resnet50.batch_size=16"]
# What else runs on this machine meanwhile is none of this test's matter.
SMALL += ["checks.others_cpu_pct=100", "checks.others_cpus=1000", "checks.steal_pct=100"]
CHOSEN = ["+experiment=emlio_fig10_ddp", "~regimes.lan_0_1ms", "~regimes.wan_30ms", "~loaders.dali"]

pytestmark = [
    pytest.mark.process,
    pytest.mark.root,
    pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces need root"),
]


@pytest.fixture
def folder(tmp_path):
    """The results of the run."""
    where = [f"results_dir={tmp_path / 'results'}", f"cache_dir={tmp_path / 'cache'}"]
    done = subprocess.run(
        [sys.executable, "-m", "harness", *CHOSEN, *SMALL, *where],
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    found = tmp_path / "results" / "latest"
    assert found.exists(), done.stderr
    assert done.returncode in (0, 6), done.stderr + done.stdout
    return found


def rows_of(path):
    with path.open() as file:
        return list(csv.DictReader(file))


def test_two_nodes_share_each_epoch_with_a_row_for_each_rank_and_a_figure(folder):
    check_shares(folder)
    check_rows_by_rank(folder)
    assert (folder / "figures" / "emlio_fig10_ddp.png").stat().st_size > 10_000
    claims = json.loads((folder / "claims.json").read_text())
    assert {claim["id"] for claim in claims if "fig10" in claim["id"]}


def check_shares(folder):
    """Every sample comes once over both ranks, and half of them come over the link."""
    rows = rows_of(folder / "epochs.csv")
    assert {row["loader"] for row in rows} == {"pytorch", "streaming"}
    checks = json.loads((folder / "checks.json").read_text())
    verdicts = {(check["cell_id"], check["rule"]): check for check in checks}
    for row in rows:
        cell = folder / "cells" / row["cell_id"]
        batches = pq.read_table(cell / "batches.parquet")
        assert sorted(batches["ids"].combine_chunks().flatten().to_pylist()) == list(range(SAMPLES))
        assert set(batches["rank"].to_pylist()) == {0, 1}
        assert verdicts[row["cell_id"], "exactly_once"]["verdict"] == "pass"
        assert "over 2 ranks" in verdicts[row["cell_id"], "exactly_once"]["expected"]
        assert verdicts[row["cell_id"], "bytes_received"]["verdict"] == "pass"
        record = json.loads((cell / "cell.json").read_text())
        assert record["placement"]["kind"] == "sharded"
        remote = sum(rank["epochs"][0]["remote_bytes"] for rank in record["ranks"])
        assert 0.2 < remote / int(row["bytes"]) < 0.8


def check_rows_by_rank(folder):
    """Each rank has a row of its own node, and the epoch is that of the slowest."""
    ranks = rows_of(folder / "ranks.csv")
    for row in rows_of(folder / "epochs.csv"):
        own = [rank for rank in ranks if rank["cell_id"] == row["cell_id"]]
        assert [rank["rank"] for rank in own] == ["0", "1"]
        assert len({rank["address"] for rank in own}) == 2
        assert sum(int(rank["samples"]) for rank in own) == SAMPLES
        assert max(float(rank["duration_s"]) for rank in own) <= float(row["duration_s"])
        assert all(float(rank["sync_s"]) > 0 for rank in own)
        assert row["stall_s"] == max((rank["stall_s"] for rank in own), key=float)
