"""A whole run over a dataset of which half is local, with keys of its own."""

import json
import os
import subprocess
import time
from collections import defaultdict
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from harness.testbed.state import state_root
from tests.integration.runs import BUSY, SAMPLES, SMALL, command, ids_of, places, rows_of

pytestmark = [
    pytest.mark.process,
    pytest.mark.root,
    pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces need root"),
]


@dataclass(frozen=True)
class Finished:
    """A run that has ended."""

    folder: Path
    secrets: set[str]
    """The secret keys that there were while it ran."""

    @property
    def rows(self):
        return rows_of(self.folder)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """The run that all tests of this module look at."""
    root = tmp_path_factory.mktemp("run")
    overrides = ["+experiment=emlio_fig10", "~regimes.lan_0_1ms", "~regimes.wan_30ms", "loaders.streaming.secure=true"]
    overrides += ["~loaders.fixed", "epochs=1", "loaders.pytorch.num_workers=2"]
    overrides += ["loaders.dali.num_threads=2", "checks.rtt_ms=9", "checks.rate_pct=99", "energy.idle_s=0"]
    argv = command(*overrides, *SMALL, *BUSY, *places(root))
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        secrets = secrets_of(process)
        _, said = process.communicate(timeout=120)
    assert process.returncode == 0, said
    return Finished(root / "results" / "latest", secrets)


def secrets_of(process):
    """Return the secret keys of the runs that there are while a process lives."""
    found = set()
    deadline = time.monotonic() + 240
    while process.poll() is None and time.monotonic() < deadline:
        for path in state_root().glob("*/keys-*/*/*.secret"):
            found.add(path.read_text().strip())
        time.sleep(0.05)
    return found


def test_half_of_the_samples_come_over_the_link_for_every_loader(finished):
    assert {row["loader"] for row in finished.rows} == {"pytorch", "dali", "streaming"}
    assert len({row["bytes"] for row in finished.rows}) == 1
    for row in finished.rows:
        cell = finished.folder / "cells" / row["cell_id"]
        placement = json.loads((cell / "cell.json").read_text())["placement"]
        received = json.loads((cell / "link.json").read_text())["epochs"][0]["rx_bytes"]
        assert placement["kind"] == "half"
        assert 0.35 < placement["remote_bytes"] / int(row["bytes"]) < 0.65
        assert placement["remote_bytes"] <= received < 0.85 * int(row["bytes"])
        assert ids_of(cell) == list(range(SAMPLES))


def test_the_probe_between_two_cells_of_a_regime_is_of_both(finished):
    cells = sorted({row["cell_id"]: row["start_utc"] for row in finished.rows}.items(), key=lambda cell: cell[1])
    links = [json.loads((finished.folder / "cells" / name / "link.json").read_text()) for name, _ in cells]
    for earlier, later in pairwise(links):
        assert later["before"] == earlier["after"] != later["after"]


def test_keys_go_with_the_run(finished):
    assert len(finished.secrets) == 2
    assert not list(state_root().glob("*/keys-*"))
    for path in finished.folder.rglob("*"):
        if path.is_file():
            stored = path.read_bytes()
            assert not any(secret.encode() in stored for secret in finished.secrets), path


def test_batches_of_both_daemons_and_of_the_loader_stand_among_the_cell_s_events(finished):
    (row,) = [row for row in finished.rows if row["loader"] == "streaming"]
    events = pq.read_table(finished.folder / "cells" / row["cell_id"] / "events.parquet").to_pylist()
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
