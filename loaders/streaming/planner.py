"""Which records make which batch: pure and deterministic, so that every client can plan for itself.

After EMLIO's Algorithm 2 (planning and dispatch), but slices are shuffled, not whole shards: a slice is a run
of neighbouring records of one shard, and a batch is made of slices from all over the dataset.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from loaders.errors import LoaderConfigError

__all__ = ["BatchPlan", "Slice", "plan"]


class Slice(NamedTuple):
    """A run of neighbouring records of one shard, contiguous in its file."""

    shard: int
    first: int
    records: int


@dataclass(frozen=True, slots=True)
class BatchPlan:
    """The slices of one batch of one epoch."""

    epoch: int
    batch: int
    slices: tuple[Slice, ...]

    @property
    def records(self) -> int:
        """Number of records in the batch."""
        return sum(part.records for part in self.slices)


def plan(
    shard_records: Sequence[int],
    *,
    batch_size: int,
    seed: int,
    epoch: int,
    slice_records: int = 8,
    node: int = 0,
    nodes: int = 1,
    limit: int | None = None,
) -> tuple[BatchPlan, ...]:
    """Return the batches of one compute node for one epoch, from the number of records of every shard.

    Every record is in exactly one slice of one node. Nodes get equal shares, one record more or less; a node
    with a share of n records gets ceil(n / batch_size) batches, of which only the last may be short. `limit`
    keeps the first so many records of the share. Smaller slices mix better and cost more seeks.

    Raises LoaderConfigError for a number out of range.
    """
    for name, value in (("batch_size", batch_size), ("slice_records", slice_records), ("nodes", nodes)):
        if value < 1:
            raise LoaderConfigError(f"{name}={value}: expected 1 or more")
    if not 0 <= node < nodes:
        raise LoaderConfigError(f"node={node}: expected 0 to {nodes - 1}")
    if limit is not None and limit < 1:
        raise LoaderConfigError(f"limit={limit}: expected 1 or more, or none")
    slices = _shuffled(shard_records, slice_records, np.random.default_rng((seed, epoch)))
    total = sum(shard_records)
    start, end = total * node // nodes, total * (node + 1) // nodes
    if limit is not None:
        end = min(end, start + limit)
    return tuple(BatchPlan(epoch, batch, part) for batch, part in enumerate(_pack(slices, start, end, batch_size)))


def _shuffled(shard_records: Sequence[int], slice_records: int, random: np.random.Generator) -> list[Slice]:
    """Cut every shard into slices, at other places every epoch, and shuffle all of them."""
    slices: list[Slice] = []
    for shard, count in enumerate(shard_records):
        first = 0
        end = int(random.integers(1, slice_records + 1))
        while first < count:
            slices.append(Slice(shard, first, min(end, count) - first))
            first, end = min(end, count), end + slice_records
    return [slices[index] for index in random.permutation(len(slices))]


def _pack(slices: list[Slice], start: int, end: int, batch_size: int) -> list[tuple[Slice, ...]]:
    """Pack the records from `start` to `end` into batches, splitting a slice where a batch is full."""
    batches: list[list[Slice]] = []
    at, room = 0, 0
    for whole in slices:
        first, stop = max(start - at, 0), min(end - at, whole.records)
        at += whole.records
        while first < stop:
            if not room:
                batches.append([])
                room = batch_size
            records = min(stop - first, room)
            batches[-1].append(Slice(whole.shard, whole.first + first, records))
            first += records
            room -= records
    return [tuple(batch) for batch in batches]
