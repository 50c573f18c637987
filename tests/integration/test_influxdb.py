"""A run that sends its readings to a real InfluxDB server."""

import csv
import platform
import subprocess
import sys
from datetime import datetime

import pyarrow.parquet as pq
import pytest

from energymon import SqliteStore
from tests.energymon.influx.bucket import Bucket
from tests.energymon.influx.server import ORG, Server, binary
from tests.energymon.influx.test_tuples import flux, paper_sum, stored_points

pytestmark = pytest.mark.process


@pytest.fixture
def server(tmp_path):
    server = Server(binary(), tmp_path / "influxdb")
    yield server
    server.kill()


def test_a_runs_readings_are_on_the_server_and_its_token_is_nowhere(server, tmp_path):
    bucket = server.bucket()
    token_file = tmp_path / "token"
    token_file.write_text(server.token)
    token_file.chmod(0o600)
    overrides = ["dataset.samples=48", "repeats=1", "warmup_samples=8", "workloads.resnet50.batch_size=8", "figures=[]"]
    overrides += [
        "testbed.caches=tree",
        "~loaders.dali",
        "~loaders.streaming",
        "store=influxdb",
        f"store.token_file={token_file}",
    ]
    overrides += ["checks.others_cpu_pct=100", "checks.others_cpus=1000", "checks.steal_pct=100"]
    overrides += [f"store.url={server.url}", f"store.org={ORG}", f"store.bucket={bucket}"]
    overrides += [f"results_dir={tmp_path / 'results'}", f"cache_dir={tmp_path / 'cache'}"]
    done = subprocess.run(
        [sys.executable, "-m", "harness", "+experiment=smoke", *overrides],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    folder = tmp_path / "results" / "latest"
    with (folder / "epochs.csv").open() as file:
        (row,) = csv.DictReader(file)
    assert row["energy_source"].startswith("cpu=")
    assert float(row["cpu_j"]) > 0
    (energy,) = folder.glob("cells/*/energy.parquet")
    ours = pq.read_table(energy).to_pylist()
    with Bucket(server.settings(bucket)) as remote, SqliteStore.open(folder / "energy.sqlite") as local:
        assert remote.readings(0, 2**62) == local.readings(0, 2**62)
        sent = {(r.tick_ns, r.device, r.source, r.joules) for r in remote.readings(0, 2**62)}
    assert {(r["tick_ns"], r["device"], r["source"], r["joules"]) for r in ours} <= sent
    run = folder.resolve().name
    (mark,) = flux(
        server,
        bucket,
        f'from(bucket: "{bucket}") |> range(start: 0) |> filter(fn: (r) => r._measurement == "epochs")'
        f' |> filter(fn: (r) => r.run == "{run}" and r._field == "end_ns")',
    )
    assert (mark["cell"], mark["loader"]) == (row["cell_id"], row["loader"])
    start_ns, end_ns = (round(datetime.fromisoformat(row[key]).timestamp() * 1e9) for key in ("start_utc", "end_utc"))
    assert abs(mark["_value"] - end_ns) < 10_000_000
    measured = "cpu=estimate" not in row["energy_source"]
    field = "cpu_energy" if measured else "cpu_energy_estimate"
    tick_j = max(one[field] for one in stored_points(server, bucket, run).values())
    error_j = float(row["energy_error_j"] or 0)
    assert abs(paper_sum(server, bucket, platform.node(), field, start_ns, end_ns) - float(row["cpu_j"])) <= (
        error_j + 2 * tick_j
    )
    # An estimate is in no sum of measurements.
    assert measured or paper_sum(server, bucket, platform.node(), "cpu_energy", start_ns, end_ns) is None
    assert server.token not in done.stdout + done.stderr
    for path in folder.rglob("*"):
        if path.is_file():
            assert server.token.encode() not in path.read_bytes(), path
    assert not [args for args in _running() if "energymon send" in args and str(tmp_path) in args]


def _running():
    return subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout.splitlines()
