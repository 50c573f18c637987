"""What driver and cell send each other is the same on both sides, and their events are on the same clock."""

import json
from pathlib import Path

import pytest

from harness.cell.events import EventLog, read_events, read_timestamps, save_events
from harness.cell.messages import CellSpec, RankSpec
from harness.results import cell_folder
from harness.results.edges import find_epoch_edges
from tests.harness.configs import experiment


@pytest.fixture
def spec():
    made = experiment("+experiment=wan30ms")
    return CellSpec(
        cell_id="streaming-resnet50-wan_30ms-r1-0",
        out=Path("/results/cells/a.partial"),
        loader=made.loaders["streaming"],
        workload=made.workloads["resnet50"],
        accelerator=made.accelerator,
        samples=Path("/results/samples.parquet"),
        endpoints=("tcp://10.0.0.1:5555",),
        keys=Path("/keys/client"),
        seed=7,
        warmup_samples=32,
        energy_store=Path("/results/energy.sqlite"),
        interface="data0",
        link_pid=12,
        ranks=RankSpec(rank=1, world_size=2, address="10.0.0.2", port=5, timeout_s=60.0),
    )


def test_a_spec_comes_out_as_it_went_in(spec):
    sent = spec.to_json()
    assert b"\n" not in sent
    received = CellSpec.from_json(sent)
    assert received.loader == spec.loader
    assert received.ranks == spec.ranks
    assert (received.workload.target, received.workload.params) == (spec.workload.target, spec.workload.params)
    assert received.to_json() == sent


def test_timestamps_become_events_of_whoever_wrote_them_and_a_torn_line_is_left_out(tmp_path):
    path = tmp_path / "daemon.jsonl"
    whole = {"t_ns": 17, "event": "batch_sent", "epoch": 1, "batch": 3, "bytes": 900}
    path.write_text(json.dumps(whole) + "\n" + '{"t_ns": 18, "event": "epo')
    assert read_timestamps(path, "daemon") == [
        {"event": "daemon.batch_sent", "utc_ns": 17, "mono_ns": None, "epoch": 1, "batch": 3, "bytes": 900}
    ]
    assert read_timestamps(tmp_path / "none.jsonl", "daemon") == []


def test_epochs_of_the_loader_are_not_taken_for_the_cell_s_own_and_survive_storing(tmp_path):
    with EventLog(tmp_path / "events.jsonl") as log:
        log.add("epoch_start", epoch=1)
        log.add("epoch_end", epoch=1, duration_ns=5)
    own = read_events(tmp_path / "events.jsonl")
    theirs = tmp_path / "loader.jsonl"
    theirs.write_text(
        "".join(
            json.dumps({"t_ns": own[0]["utc_ns"] + 1, "event": e, "epoch": 1}) + "\n"
            for e in ("epoch_start", "epoch_end")
        )
    )
    save_events(sorted([*own, *read_timestamps(theirs, "loader")], key=lambda e: e["utc_ns"]), tmp_path / "e.parquet")
    stored = cell_folder.read_events(tmp_path / "e.parquet")
    assert [e["event"] for e in stored] == ["epoch_start", "loader.epoch_start", "loader.epoch_end", "epoch_end"]
    start, end = find_epoch_edges(stored)[1]
    assert (start["mono_ns"], end["duration_ns"]) == (own[0]["mono_ns"], 5)
    assert stored[1]["mono_ns"] is None
