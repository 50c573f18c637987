"""From what a cell of several ranks stored to one row an epoch and rank; pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from harness.cell.events import CellEvent
from harness.results.cells import RankRecord
from harness.results.epochs import CellData, EpochBatches, find_epoch_edges


@dataclass(frozen=True, slots=True)
class RankRow:
    """One row of ranks.csv: what one rank did in the epoch of epochs.csv with the same cell_id and epoch."""

    cell_id: str
    epoch: int
    rank: int
    host: str
    address: str
    """Of its node on the data network."""
    duration_s: float
    """From the epoch's start to the end of the rank's own last step; the epoch is that of the slowest rank."""
    samples: int
    bytes: int
    steps: int
    stall_s: float
    """Time the rank waited for batches."""
    compute_s: float
    """Time of its steps without the synchronisation."""
    sync_s: float | None
    """Time after its own gradients until those of all ranks were there; None where no gradients are synchronised."""
    ranks_wait_s: float | None
    """The part of it in which the rank waited for slower ones: what it waited longer than the last one of each step."""
    au: float | None
    rx_bytes: int | None
    """On the data interface of its node, of all ranks there; None for local data."""


def rank_rows(data: CellData) -> list[RankRow]:
    """Return a row for every epoch and rank; none for a cell of one process."""
    edges = rank_edges(data.events)
    return [
        _row(data, record, epoch, part, waited, *edges[record.rank][epoch])
        for epoch, batches in data.batches.items()
        if data.cell.ranks
        for record, part, waited in zip(data.cell.ranks, batches.of_ranks(), _waits(batches.of_ranks()), strict=True)
    ]


def rank_edges(events: Iterable[CellEvent]) -> Mapping[int, Mapping[int, tuple[CellEvent, CellEvent]]]:
    """Return the events that begin and end each epoch, by rank and epoch."""
    by_rank: dict[int, list[CellEvent]] = {0: []}
    for event in events:
        kind = str(event["event"])
        if kind in ("epoch_start", "epoch_end"):
            by_rank[0].append(event)
        elif kind in ("rank.epoch_start", "rank.epoch_end"):
            by_rank.setdefault(event["rank"], []).append({**event, "event": kind.removeprefix("rank.")})
    return {rank: find_epoch_edges(of_rank) for rank, of_rank in by_rank.items()}


def _waits(parts: list[EpochBatches]) -> list[float | None]:
    """Return for how long each rank waited for slower ones, over the steps that all of them made."""
    steps = min(len(part.wait_s) for part in parts)
    known = [part.sync_s[:steps] for part in parts if part.sync_s is not None and not np.isnan(part.sync_s).any()]
    if len(known) < len(parts) or not steps:
        return [None] * len(parts)
    table: npt.NDArray[np.float64] = np.stack(known)
    return [float(waited) for waited in (table - table.min(axis=0)).sum(axis=1)]


def _row(
    data: CellData,
    record: RankRecord,
    epoch: int,
    part: EpochBatches,
    waited: float | None,
    start: CellEvent,
    end: CellEvent,
) -> RankRow:
    sync_s = None if waited is None or part.sync_s is None else float(part.sync_s.sum())
    received = None if end["rx_bytes"] is None or start["rx_bytes"] is None else end["rx_bytes"] - start["rx_bytes"]
    return RankRow(
        cell_id=data.cell.cell_id,
        epoch=epoch,
        rank=record.rank,
        host=record.host,
        address=record.address,
        duration_s=end["own_ns"] / 1e9,
        samples=int(part.samples.sum()),
        bytes=int(part.nbytes.sum()),
        steps=len(part.wait_s),
        stall_s=float(part.wait_s.sum()),
        compute_s=float(part.compute_s.sum()),
        sync_s=sync_s,
        ranks_wait_s=waited,
        au=part.utilisation,
        rx_bytes=received,
    )
