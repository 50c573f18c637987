"""What a cell uses is seen from outside: of a real process with a worker, and of a board that the fake NVML shows."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import psutil
import pyarrow.parquet as pq
import pytest

from harness.cell.resources import ResourceSampler
from harness.system.procfs import cpu_s, disk_bytes, family, nic_bytes, pss_bytes, read_bytes, rss_bytes
from harness.testbed.caches import drop_caches
from tests.energymon.nvml import fake

pytestmark = pytest.mark.process

REPO = Path(__file__).parents[3]
# A parent that holds 64 MB, and a forked child that shares them and works.
CELL = """
import os, sys
held = bytearray(os.urandom(1 << 20)) * 64
pid = os.fork()
while pid == 0:
    sum(range(1000))
print(pid, flush=True)
sys.stdin.read()
os.kill(pid, 9)
"""
BOARD = """
import json, sys
from pathlib import Path
from harness.cell.resources import Boards
boards = Boards(sys.argv[2:], Path(sys.argv[1]))
print(json.dumps(boards.read()))
boards.close()
boards.close()
"""


@pytest.fixture
def cell():
    process = subprocess.Popen([sys.executable, "-c", CELL], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    process.worker = int(process.stdout.readline())
    yield process
    process.communicate()


def rows_until(sampler, path, done, timeout_s=20.0):
    """Sample until `done` holds for the rows so far; they are written when the sampler is left."""
    with sampler:
        sampler.start(())
        deadline = time.monotonic() + timeout_s
        while not done(sampler._rows):
            assert time.monotonic() < deadline
            time.sleep(0.02)
    return pq.read_table(path).to_pylist()


def test_memory_and_cpu_of_workers_count_and_what_they_share_counts_once(cell):
    assert family(cell.pid) == [cell.pid, cell.worker]
    pids = [cell.pid, cell.worker]
    assert rss_bytes(pids) > 2 * 64e6
    assert 64e6 < pss_bytes(pids) < 2 * 64e6
    before = cpu_s([cell.worker])
    while cpu_s([cell.worker]) == before:
        time.sleep(0.01)
    assert cpu_s(pids) > before


def test_bytes_read_from_a_disk_are_those_that_no_cache_had():
    # A temporary folder may lie in memory, where nothing is read from a disk.
    with TemporaryDirectory(dir=REPO) as folder:
        file = Path(folder, "file")
        file.write_bytes(os.urandom(4 << 20))
        drop_caches(Path(folder), "tree")
        before = read_bytes([os.getpid()])
        file.read_bytes()
        from_disk = read_bytes([os.getpid()]) - before
        file.read_bytes()
        again = read_bytes([os.getpid()]) - before - from_disk
    assert from_disk >= 4 << 20 > again
    assert read_bytes([]) is None


def test_rows_are_written_with_what_the_cell_uses_over_time(cell, tmp_path):
    path = tmp_path / "resources.parquet"
    sampler = ResourceSampler([cell.pid], "lo", path)
    rows = rows_until(sampler, path, lambda rows: len(rows) >= 3)
    assert [row["utc_ns"] for row in rows] == sorted(row["utc_ns"] for row in rows)
    assert all(0 <= row["cpu_util"] <= 1 for row in rows[1:])
    assert rows[-1]["cell_cpu_s"] > rows[0]["cell_cpu_s"]
    assert rows[0]["pss_bytes"] > 64e6
    assert rows[0]["rss_bytes"] > rows[0]["pss_bytes"]
    assert rows[0]["rx_bytes"] >= 0
    assert rows[0]["gpu_util"] is None
    assert nic_bytes(None) is nic_bytes("no-such-interface") is None, "local data has no interface"
    assert sampler.cost["rows"] == len(rows)
    assert sampler.cost["cpu_s"] > 0


def test_a_cell_that_ends_ends_the_rows_and_not_the_harness(cell, tmp_path):
    path = tmp_path / "resources.parquet"
    with ResourceSampler([cell.pid], None, path):
        pass
    assert pq.read_table(path).num_rows == 0, "it was never started"
    sampler = ResourceSampler([cell.pid], None, path)
    with sampler:
        sampler.start(())
        while not sampler._rows:
            time.sleep(0.01)
        cell.communicate()
        sampler._thread.join(5)
        assert not sampler._thread.is_alive()
    assert pq.read_table(path).num_rows >= 1


def test_the_host_s_disks_are_counted_once_each_as_psutil_counts_them():
    def told():
        disks = psutil.disk_io_counters(perdisk=True) or {}
        real = [
            name for name in disks if Path("/sys/block", name).exists() and not name.startswith(("loop", "zram", "dm-"))
        ]
        return sum(disks[name].read_bytes for name in real), sum(disks[name].write_bytes for name in real)

    before, ours, after = told(), disk_bytes() or (0, 0), told()
    assert all(low <= found <= high for low, found, high in zip(before, ours, after, strict=True))


def read_boards(library, control, *uuids):
    environment = {**os.environ, "PYTHONPATH": str(REPO), "FAKE_NVML": str(control)}
    argv = [sys.executable, "-c", BOARD, str(library), *uuids]
    return json.loads(subprocess.run(argv, env=environment, capture_output=True, text=True, check=True).stdout)


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    return fake.build(tmp_path_factory.mktemp("nvml"))


ONE, TWO = "GPU-00000000", "GPU-00000001"


@pytest.mark.parametrize(
    ("state", "uuids", "told"),
    [
        ({"util_pct": {0: 12, 1: 87}, "used_mib": {1: 1024}}, [TWO], [pytest.approx(0.87), 1 << 30]),
        ({"util_pct": {0: 10, 1: 90}, "used_mib": {0: 2, 1: 1024}}, [ONE, TWO], [pytest.approx(0.5), 1 << 30]),
        ({}, [ONE, TWO, "GPU-of-another-host"], [None, None]),
        ({"no_util": {0: 1}}, [ONE], [None, 0]),
        ({"lost": [0]}, [ONE], [None, None]),
        ({}, ["GPU-00000007"], [None, None]),
        ({"no_driver": True}, [ONE], [None, None]),
    ],
)
def test_boards_tell_their_mean_utilisation_and_the_most_memory_and_what_one_does_not_tell_is_unknown(
    library, tmp_path, state, uuids, told
):
    boards = fake.Boards(tmp_path / "boards")
    boards(2, **state)
    assert read_boards(library, boards.control, *uuids) == told
