"""Where the ranks of a cell run, what each needs to know, and how what each wrote becomes the cell's files."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import numpy as np
import pyarrow as pa

from harness.cell.events import CellEvent, read_events
from harness.cell.messages import CellSpec, RankSpec
from harness.cell.skipped import EVENT as SKIPPED
from harness.config.specs import Experiment
from harness.datasets.placement import PlacedData, Role
from harness.errors import CellError
from harness.results.cells import RankEpoch, RankRecord
from harness.testbed import Node, Testbed
from harness.testbed.base import LOOPBACK
from harness.testbed.hosts.connection import RemoteNode

LOADER_EVENTS: Final = "loader-events.jsonl"
_EVENTS: Final = "events.jsonl"
_SAMPLES: Final = "samples.parquet"
_KEYS: Final = "keys"
_COLUMNS: Final = [
    ("epoch", pa.int32()),
    ("step", pa.int32()),
    ("samples", pa.int32()),
    ("bytes", pa.int64()),
    ("wait_s", pa.float64()),
    ("step_s", pa.float64()),
    ("ids", pa.list_(pa.int64())),
    ("labels", pa.list_(pa.int64())),
    ("loss", pa.float64()),
    ("work_s", pa.list_(pa.float64())),
    ("sync_s", pa.float64()),
]
"""Columns of the batches; ids, labels and work_s have an item a sample."""
_BATCHES: Final = "batches-*.jsonl"


def rank_nodes(testbed: Testbed, experiment: Experiment, world_size: int) -> list[Node]:
    """Return the node of each rank: the testbed's compute nodes in turn.

    On one machine the storage node is a compute node where placement=sharded alone: elsewhere no data would be far.

    Raises CellError where placement=sharded has other than two compute nodes.
    """
    if world_size == 1:
        return [testbed.compute]
    nodes = list(testbed.computes)
    if experiment.placement != "sharded":
        shared = testbed.storage.namespace
        nodes = [node for node in nodes if shared is None or node.namespace != shared]
    elif len(nodes) != 2 and testbed.link is not None:
        raise CellError(f"placement=sharded: the testbed has {len(nodes)} compute nodes; expected 2")
    return [nodes[rank % len(nodes)] for rank in range(world_size)]


def rank_spec(nodes: Sequence[Node], rank: int, experiment: Experiment) -> RankSpec:
    """Return what a rank knows of its place. Ranks on one node keep to its loopback interface."""
    node, alone = nodes[rank], len(set(nodes)) == 1
    return RankSpec(
        rank=rank,
        world_size=len(nodes),
        local_rank=nodes[:rank].count(node),
        local_world_size=nodes.count(node),
        host=node.host,
        backend=experiment.distributed.backend,
        address=LOOPBACK if alone else nodes[0].address,
        interface="lo" if alone or node.interface is None else node.interface,
        # A rank may wait for as long as another one may make no progress; the driver ends all when one is lost.
        timeout_s=2 * 60 * experiment.cell_stall_min,
    )


def make_folders(cell: Path, world_size: int) -> list[Path]:
    """Return the folder of each rank; rank 0 has the cell's, and the others are made in it."""
    folders = [cell, *(cell / "ranks" / str(rank) for rank in range(1, world_size))]
    for folder in folders[1:]:
        folder.mkdir(parents=True)
    return folders


def send_spec(node: Node, spec: CellSpec) -> CellSpec:
    """Bring what a rank on another host reads there; return its spec with the paths of that host.

    Raises TestbedError when it cannot be brought.
    """
    if not isinstance(node, RemoteNode):
        return spec
    assert spec.ranks is not None, "a cell of one process is on the lead"
    there = folder_there(node, spec.ranks.rank)
    node.run(["sh", "-euc", 'rm -rf "$0"; mkdir -m 700 "$0" "$0/out"', str(there)])
    with TemporaryDirectory(prefix="joulefeed-rank-") as name:
        shutil.copy(spec.samples, Path(name, _SAMPLES))
        if spec.keys is not None:
            shutil.copytree(spec.keys, Path(name, _KEYS))
        node.send(Path(name), there / "in")
    return replace(
        spec,
        out=there / "out",
        samples=there / "in" / _SAMPLES,
        keys=None if spec.keys is None else there / "in" / _KEYS,
        stream_events=None if spec.stream_events is None else there / "out" / LOADER_EVENTS,
        # Neither the agent nor the run's first process is on that host.
        energy_store=there / "out" / "energy.sqlite",
        link_pid=None,
        run_pid=None,
    )


def folder_there(node: Node, rank: int) -> Path:
    """Return the folder of a rank on another host; `in` has what it reads, `out` what it writes."""
    return node.folder / f"rank-{rank}"


def rank_events(folder: Path, rank: int) -> list[CellEvent]:
    """Return the events of a rank above 0, which carry its number; those that rank 0 has too are named "rank.…"."""
    events = read_events(folder / _EVENTS)
    return [
        {**event, "event": event["event"] if event["event"] == SKIPPED else f"rank.{event['event']}", "rank": rank}
        for event in events
    ]


def join_batches(folders: Sequence[Path]) -> pa.Table:
    """Return the batches of a cell; of several ranks one after the other, with a column `rank`."""
    lines = [
        {**json.loads(line), "rank": rank}
        for rank, folder in enumerate(folders)
        for path in sorted(folder.glob(_BATCHES))
        for line in path.read_text(encoding="utf-8").splitlines()
    ]
    columns = _COLUMNS if len(folders) == 1 else [*_COLUMNS, ("rank", pa.int32())]
    return pa.Table.from_pylist(lines, pa.schema(columns))


def temporary_files(folder: Path) -> Iterable[Path]:
    """Return the files of a rank that are part of the cell's own now."""
    return [*folder.glob(_BATCHES), folder / _EVENTS, folder / LOADER_EVENTS]


def rank_records(
    nodes: Sequence[Node], batches: pa.Table, data: PlacedData, *, gradient_bytes: int, has_link: bool
) -> list[RankRecord]:
    """Return what cell.json says of each rank of several. `gradient_bytes` are of one step."""
    if len(nodes) == 1:
        return []
    ranks, epochs = batches["rank"].to_numpy(), batches["epoch"].to_numpy()
    # Ranks on a node need the gradients of the other nodes' ranks: as one, they get 2 (n - 1) / n of them in each step.
    count = len(set(nodes))
    step_bytes = 2 * (count - 1) * gradient_bytes // count if has_link else 0
    found = []
    for rank, node in enumerate(nodes):
        side: Role = "storage" if data.kind == "sharded" and node != nodes[0] else "compute"
        far = ~data.is_local(side) if has_link else np.zeros(len(data.sizes), np.bool_)
        each = []
        for epoch in np.unique(epochs).tolist():
            part = batches.filter((ranks == rank) & (epochs == epoch))
            ids = part["ids"].combine_chunks().flatten().to_numpy()
            first = nodes.index(node) == rank
            each.append(RankEpoch(epoch, int(data.sizes[ids[far[ids]]].sum()), step_bytes * len(part) if first else 0))
        found.append(RankRecord(rank, node.host, node.address, each))
    return found
