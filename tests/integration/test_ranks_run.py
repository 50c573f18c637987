"""Whole runs of two ranks on two compute nodes, each of which has half of the data: on one machine, and on hosts."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator

import pyarrow.parquet as pq
import pytest

from tests.hosts.namespaces import REPO, Hosts, ansible_obstacles, harness_testbed, namespace_hosts
from tests.hosts.snapshot import differences
from tests.integration.runs import BUSY, command, ids_of, places, rows_of, run, wait_until

SAMPLES = 32
SMALL = [f"dataset.samples={SAMPLES}", "repeats=1", "warmup_samples=8", "workloads.resnet50.batch_size=16"]
CHOSEN = ["+experiment=emlio_fig10_ddp", "~regimes.lan_0_1ms", "~regimes.wan_30ms", "~loaders.dali"]
CHOSEN += ["~loaders.fixed", "epochs=1", "energy.idle_s=0", *BUSY]
SLOW = ["~loaders.pytorch", "accelerator.time_scale=100", "repeats=3", "warmup_samples=0", "figures=[]"]
"""Three cells, in whose epochs there is time to end something."""
OBSTACLES = ansible_obstacles()

pytestmark = [
    pytest.mark.process,
    pytest.mark.root,
    pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces need root"),
]


def test_two_namespaces_of_one_machine_share_each_epoch(tmp_path):
    argv = command(*CHOSEN, *SMALL, "~loaders.streaming", "figures=[]", "testbed.caches=tree", *places(tmp_path))
    done = run(argv)
    folder = tmp_path / "results" / "latest"
    assert done.returncode in (0, 6), done.stderr + done.stdout
    check_shares(folder, {"pytorch"})
    check_rows_by_rank(folder)


@pytest.fixture(scope="module")
def hosts() -> Iterator[Hosts]:
    with namespace_hosts(storage=2, compute=2, apart=True, disk_mb=1024) as made:
        yield made


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.skipif(bool(OBSTACLES), reason=f"no namespace hosts here: {'; '.join(OBSTACLES)}")
def test_site_yml_two_hosts_that_share_each_epoch_a_rank_that_dies_a_host_that_is_lost_and_teardown_yml(
    hosts, tmp_path
):
    names = [machine.name for machine in hosts.machines]
    before = {name: hosts.snapshot(name) for name in names}
    where = ["testbed=ssh", f"testbed.inventory={hosts.inventory}", f"results_dir={tmp_path}"]
    where += ["checks.clock_offset_ms=50", "checks.link_pause_ms=5000", "checks.link_held_pct=100"]
    done = run(command(*CHOSEN, *SMALL, *where, "testbed.keep=true"), timeout_s=600)
    assert done.returncode in (0, 6), done.stderr + done.stdout
    assert harness_testbed(hosts, "up").startswith("up: changed nothing")
    check_shares(tmp_path / "latest", {"pytorch", "streaming"})
    check_rows_by_rank(tmp_path / "latest")
    check_joules_by_host(tmp_path / "latest")
    assert (tmp_path / "latest" / "figures" / "emlio_fig10_ddp.png").stat().st_size > 10_000
    claims = json.loads((tmp_path / "latest" / "claims.json").read_text())
    assert {claim["id"] for claim in claims if "fig10" in claim["id"]}
    check_faults(hosts, [*CHOSEN, *SMALL, *SLOW, *where, "placement=remote"], tmp_path / "latest")
    harness_testbed(hosts, "down")
    after = {name: hosts.snapshot(name) for name in names}
    assert {name: differences(before[name], after[name]) for name in names} == {name: {} for name in names}


def check_faults(hosts, overrides, folder):
    """A rank that dies fails its cell, and a host that is lost ends the run; all are named. Two hosts store here."""
    argv = [sys.executable, "-m", "tests.hosts.lead", *overrides]
    run = subprocess.Popen(argv, cwd=REPO, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        for number, host in enumerate(("compute2", "compute1"), 1):
            wait_for_epochs(hosts, number)
            hosts.run(host, "pkill", "-KILL", "-f", "harness[.]cell")
        wait_for_epochs(hosts, 3)
        hosts.stop("compute2")
        output, _ = run.communicate(timeout=120)
    finally:
        run.kill()
        hosts.start("compute2")
    assert run.returncode == 4, output
    cells = {cell["repeat"]: cell for cell in (json.loads(p.read_text()) for p in folder.glob("cells/*/cell.json"))}
    assert [cells[number]["status"] for number in (1, 2, 3)] == ["failed"] * 3, output
    assert "rank 1 of 2 on compute2 (10.77.1.14): the cell's process on host compute2 exited" in cells[1]["failure"]
    assert "rank 0 of 2" in cells[2]["failure"]
    assert "host compute2 is lost" in cells[3]["failure"]
    logs = {path.name for path in folder.glob("cells/*/daemon*.log")}
    assert logs == {"daemon-storage.log", "daemon-storage-2.log"}


def wait_for_epochs(hosts, cells):
    """Wait until so many cells on the lead have begun an epoch."""
    look = "cat /var/lib/joulefeed/results/2*/cells/*.partial/events.jsonl 2>/dev/null | grep -c epoch_start || true"
    begun = wait_until(lambda: int(hosts.run("compute1", "sh", "-c", look) or 0) >= cells, 300)
    assert begun, f"no epoch of cell {cells} began"


def check_shares(folder, loaders):
    """Every sample comes once over both ranks, and half of them come over the link."""
    rows = rows_of(folder)
    assert {row["loader"] for row in rows} == loaders
    checks = json.loads((folder / "checks.json").read_text())
    verdicts = {(check["cell_id"], check["rule"]): check for check in checks}
    for row in rows:
        cell = folder / "cells" / row["cell_id"]
        batches = pq.read_table(cell / "batches.parquet")
        assert ids_of(cell) == list(range(SAMPLES))
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
    ranks = rows_of(folder, "ranks.csv")
    for row in rows_of(folder):
        own = [rank for rank in ranks if rank["cell_id"] == row["cell_id"]]
        assert [rank["rank"] for rank in own] == ["0", "1"]
        assert len({rank["address"] for rank in own}) == 2
        assert sum(int(rank["samples"]) for rank in own) == SAMPLES
        # Ranks learn up to a round trip apart that all are ready.
        assert max(float(rank["duration_s"]) for rank in own) <= float(row["duration_s"]) + 0.1
        assert all(float(rank["sync_s"]) > 0 for rank in own)
        assert row["stall_s"] == max((rank["stall_s"] for rank in own), key=float)


def check_joules_by_host(folder):
    """The joules are those of the two hosts that train; the two that only store have no part."""
    assert {row["host"] for row in rows_of(folder, "ranks.csv")} == {"compute1", "compute2"}
    for row in rows_of(folder):
        assert row["valid"] == "valid"
        record = json.loads((folder / "cells" / row["cell_id"] / "cell.json").read_text())
        assert [(host["host"], host["roles"]) for host in record["hosts"]] == [("compute2", ["compute", "storage"])]
        assert float(row["total_j"]) == pytest.approx(float(row["compute_j"]))
    assert (folder / "hosts" / "compute2" / "energy.sqlite").exists()
