"""Runs of neighbouring records as arrays: cut, packed into batches and thinned out without a loop over records."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple, Self, overload

import numpy as np
import numpy.typing as npt

from loaders.shared.options import Remainder, check_ranks, check_whole

_Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class RecordRuns:
    """A sequence of records as runs; arrays of shape (runs,)."""

    shard: _Ints
    first: _Ints
    """Record in the shard with which the run begins."""
    records: _Ints
    """Number of records in the run, 1 or more."""
    position: _Ints
    """Place of the run's first record in the whole sequence."""

    @classmethod
    def of(cls, shard: _Ints, first: _Ints, records: _Ints) -> Self:
        """Return runs that are a whole sequence."""
        return cls(shard, first, records, np.cumsum(records) - records)

    def __len__(self) -> int:
        return len(self.shard)

    @property
    def total(self) -> int:
        """Number of records."""
        return int(self.records.sum())

    def __getitem__(self, which: slice | npt.NDArray[np.bool_] | _Ints) -> RecordRuns:
        return RecordRuns(self.shard[which], self.first[which], self.records[which], self.position[which])

    def select(self, start: int, end: int) -> RecordRuns:
        """Return the records from the `start`-th up to the `end`-th, which keep their positions."""
        ends = np.cumsum(self.records)
        starts = ends - self.records
        low, high = np.maximum(starts, start), np.minimum(ends, end)
        kept, into = low < high, low - starts
        return RecordRuns(self.shard[kept], (self.first + into)[kept], (high - low)[kept], (self.position + into)[kept])

    def shuffle(self, window: int, random: np.random.Generator) -> RecordRuns:
        """Shuffle the records, each within its `window` of records; neighbours that stay together stay one run."""
        total = self.total
        order = np.arange(total)
        whole = order[: total - total % window].reshape(-1, window)
        random.permuted(whole, axis=1, out=whole)
        random.shuffle(order[whole.size :])
        shard, first = self._list_records()
        shard, first = shard[order], first[order]
        begins = np.ones(total, np.bool_)
        begins[1:] = (shard[1:] != shard[:-1]) | (first[1:] != first[:-1] + 1)
        return RecordRuns.of(shard[begins], first[begins], _measure_runs(begins))

    def exclude(self, done: npt.NDArray[np.bool_]) -> RecordRuns:
        """Return the runs less the records whose place in the whole sequence is marked in `done`."""
        shard, first = self._list_records()
        position = np.repeat(self.position - (np.cumsum(self.records) - self.records), self.records)
        position += np.arange(len(position))
        kept = ~done[position]
        run = np.repeat(np.arange(len(self)), self.records)[kept]
        shard, first, position = shard[kept], first[kept], position[kept]
        begins = np.ones(len(run), np.bool_)
        begins[1:] = (run[1:] != run[:-1]) | (first[1:] != first[:-1] + 1)
        return RecordRuns(shard[begins], first[begins], _measure_runs(begins), position[begins])

    def pack(self, batch_size: int) -> tuple[RecordRuns, _Ints]:
        """Split runs where a batch is full; return them and the index of each batch's first run, then the end."""
        total = self.total
        starts = np.cumsum(self.records) - self.records
        batches = np.arange(0, total, batch_size)
        cuts = np.sort(np.concatenate((starts, batches)), kind="stable")  # two sorted runs, which are merged
        cuts = cuts[np.append(True, cuts[1:] != cuts[:-1])] if total else cuts
        run = np.searchsorted(starts, cuts, side="right") - 1
        into = cuts - starts[run]
        split = RecordRuns(
            self.shard[run], self.first[run] + into, np.diff(cuts, append=total), self.position[run] + into
        )
        return split, np.append(np.searchsorted(cuts, batches), len(cuts))

    def _list_records(self) -> tuple[_Ints, _Ints]:
        """Return shard and number of every record."""
        starts = np.cumsum(self.records) - self.records
        first = np.repeat(self.first - starts, self.records)
        return np.repeat(self.shard, self.records), first + np.arange(len(first))


def concatenate_runs(parts: list[RecordRuns]) -> RecordRuns:
    """Return the runs of all parts, one after the other."""
    names = ("shard", "first", "records", "position")
    return RecordRuns(*(np.concatenate([getattr(part, name) for part in parts]) for name in names))


def _measure_runs(begins: npt.NDArray[np.bool_]) -> _Ints:
    """Return the lengths of runs from where they begin."""
    return np.diff(np.flatnonzero(begins), append=len(begins))


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


class EpochPlan(Sequence[BatchPlan]):
    """The batches of one rank for one epoch; each is made when it is asked for."""

    def __init__(self, epoch: int, runs: RecordRuns, batch_size: int, *, number: int = 0) -> None:
        """Pack runs into batches; the first batch has the given number."""
        self.epoch, self.batch_size, self.number = epoch, batch_size, number
        self._runs, self._bounds = runs.pack(batch_size)

    def __len__(self) -> int:
        return len(self._bounds) - 1

    @overload
    def __getitem__(self, index: int) -> BatchPlan: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[BatchPlan, ...]: ...
    def __getitem__(self, index: int | slice) -> BatchPlan | tuple[BatchPlan, ...]:
        if isinstance(index, slice):
            return tuple(self[place] for place in range(*index.indices(len(self))))
        place = range(len(self))[index]
        runs = self._runs[int(self._bounds[place]) : int(self._bounds[place + 1])]
        slices = map(Slice._make, zip(runs.shard.tolist(), runs.first.tolist(), runs.records.tolist(), strict=True))
        return BatchPlan(self.epoch, self.number + place, tuple(slices))

    def __iter__(self) -> Iterator[BatchPlan]:
        return (self[place] for place in range(len(self)))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, EpochPlan) and tuple(self) == tuple(other)

    __hash__ = None  # type: ignore[assignment]

    @property
    def records(self) -> int:
        """Number of records in all batches."""
        return self._runs.total

    def list_positions(self, number: int) -> npt.NDArray[np.int64]:
        """Return the places of a batch's records in the epoch's sequence of all ranks, shape (records,)."""
        place = number - self.number
        runs = self._runs[int(self._bounds[place]) : int(self._bounds[place + 1])]
        starts = np.cumsum(runs.records) - runs.records
        return np.repeat(runs.position - starts, runs.records) + np.arange(runs.total)

    def exclude(self, done: npt.NDArray[np.bool_], *, number: int) -> EpochPlan:
        """Return the plan without the places of the epoch's sequence that `done` marks, numbered from `number`."""
        return EpochPlan(self.epoch, self._runs.exclude(done), self.batch_size, number=number)

    def interleave(self, stretches: int) -> EpochPlan:
        """Return the same batches, taken in turn from so many stretches of the plan of about equal length."""
        if stretches == 1 or len(self) < 2:
            return self
        # Counted from the end: the last batch, which may be short, stays the last one.
        stretch, place = np.divmod(np.arange(len(self))[::-1], math.ceil(len(self) / stretches))
        order = np.lexsort((-stretch, -place)).tolist()
        batches = [self._runs[int(self._bounds[index]) : int(self._bounds[index + 1])] for index in order]
        return EpochPlan(self.epoch, concatenate_runs(batches), self.batch_size, number=self.number)

    def group(self, groups: Sequence[int]) -> EpochPlan:
        """Return the same records in batches of which all but the last few are of one group of shards each.

        `groups` names the group of every shard. As many batches, in the order in which their last records stood.
        """
        group = np.asarray(groups, np.int64)[self._runs.shard]
        batches: list[RecordRuns] = []
        rest: list[RecordRuns] = []
        for name in np.unique(group).tolist():
            runs, bounds = self._runs[group == name].pack(self.batch_size)
            whole = runs.total // self.batch_size
            batches += (runs[low:high] for low, high in pairwise(bounds[: whole + 1].tolist()))
            rest.append(runs[int(bounds[whole]) :])
        batches.sort(key=lambda runs: int(runs.position[-1]))
        left = concatenate_runs(rest) if rest else self._runs
        batches.append(left[np.argsort(left.position)])
        return EpochPlan(self.epoch, concatenate_runs(batches), self.batch_size, number=self.number)


def plan_epoch(
    shard_records: Sequence[int],
    *,
    batch_size: int,
    seed: int,
    epoch: int,
    slice_records: int = 8,
    shuffle_window: int = 0,
    stretches: int = 1,
    rank: int = 0,
    world_size: int = 1,
    remainder: Remainder | None = None,
    limit: int | None = None,
    done: npt.NDArray[np.bool_] | None = None,
) -> EpochPlan:
    """Return the batches of one rank for one epoch, from the number of records of every shard.

    Shards are cut into slices at other places every epoch, and all slices are shuffled; then records are shuffled
    within windows. Smaller slices and a window mix better and cost more frames. A rank with a share of n records gets
    ceil(n / batch_size) batches, of which only the last may be short.

    Slices that are whole shards, with a stretch for each sending thread, are EMLIO's plan (section 4.2). It gives its
    shuffled shards to the nodes in turn, which draws the same shares as consecutive ranges of shuffled shards.

    Raises LoaderConfigError for a number out of range.

    Args:
        shard_records: Number of records of every shard.
        batch_size: Records of a batch.
        seed: Of the order of all epochs.
        epoch: Number of the epoch.
        slice_records: Neighbouring records of a slice; 0 for whole shards (default: 8).
        shuffle_window: Records of a window, 0 for no window (default: 0).
        stretches: Equal stretches of the rank's share from which batches are taken in turn (default: 1).
        rank: Of this process (default: 0).
        world_size: Number of ranks that share the records (default: 1).
        remainder: What happens to records that cannot be shared equally: "uneven" gives some ranks one more, "drop"
            leaves them out (others every epoch), "pad" repeats the epoch's first records; required for several ranks
            (default: None).
        limit: Records of the epoch, from its first on (default: all).
        done: Marks, by place in the epoch of all ranks, of delivered records: the ranks share the others in the same
            order (default: no record).
    """
    batch_size, slice_records = check_whole("batch_size", batch_size, 1), check_whole("slice_records", slice_records, 0)
    seed, epoch = check_whole("seed", seed, 0), check_whole("epoch", epoch, 0)
    shuffle_window = check_whole("shuffle_window", shuffle_window, 0)
    check_ranks(rank, world_size, remainder)
    limit = None if limit is None else check_whole("limit", limit, 1)
    random = np.random.default_rng((seed, epoch))
    counts = np.asarray(shard_records, np.int64)
    runs = (
        _shuffle_slices(counts, slice_records, random) if slice_records else _shuffle_shards(counts, batch_size, random)
    )
    if shuffle_window > 1:
        runs = runs.shuffle(shuffle_window, random)
    if done is not None and done.any():
        runs = runs.select(0, len(done)).exclude(done)
    shares = [runs.select(start, end) for start, end in _share(runs.total, rank, world_size, remainder, limit)]
    share = shares[0] if len(shares) == 1 else concatenate_runs(shares)
    return EpochPlan(epoch, share, batch_size).interleave(stretches)


def _shuffle_slices(counts: npt.NDArray[np.int64], slice_records: int, random: np.random.Generator) -> RecordRuns:
    """Cut every shard into slices, at other places every epoch, and shuffle all of them."""
    shift = random.integers(1, slice_records + 1, len(counts))
    slices = np.where(counts > 0, 1 + np.maximum(0, -((shift - counts) // slice_records)), 0)
    shard = np.repeat(np.arange(len(counts)), slices)
    index = np.arange(len(shard)) - np.repeat(np.cumsum(slices) - slices, slices)
    end = np.minimum(shift[shard] + index * slice_records, counts[shard])
    first = np.where(index == 0, 0, shift[shard] + (index - 1) * slice_records)
    order = random.permutation(len(shard))
    return RecordRuns.of(shard[order], first[order], (end - first)[order])


def _shuffle_shards(counts: npt.NDArray[np.int64], batch_size: int, random: np.random.Generator) -> RecordRuns:
    """Shuffle the shards, and in each the batches into which it is cut from a random record on, past its end."""
    shards = random.permutation(np.flatnonzero(counts))
    pieces = -(-counts[shards] // batch_size)
    shard, begin = np.repeat(shards, pieces), np.repeat(random.integers(0, counts[shards]), pieces)
    into = batch_size * (np.arange(len(shard)) - np.repeat(np.cumsum(pieces) - pieces, pieces))
    total = counts[shard]
    records = np.minimum(batch_size, total - into)
    # A short one stays the last of its shard, so that the others are whole batches of the plan.
    keys = np.where(records < batch_size, 1.0, random.random(len(shard)))
    order = np.lexsort((keys, np.repeat(np.arange(len(shards)), pieces)))
    first = (begin + into) % total
    to_end = np.minimum(records, total - first)
    runs = np.stack(((shard, first, to_end), (shard, np.zeros_like(first), records - to_end)), axis=2)[:, order]
    shard, first, records = runs.reshape(3, -1)
    return RecordRuns.of(shard[records > 0], first[records > 0], records[records > 0])


def count_share(total: int, *, rank: int, world_size: int, remainder: Remainder | None, limit: int | None) -> int:
    """Return the number of a rank's records in an epoch of a dataset with `total` of them."""
    return sum(end - start for start, end in _share(total, rank, world_size, remainder, limit))


def _share(
    total: int, rank: int, world_size: int, remainder: Remainder | None, limit: int | None
) -> list[tuple[int, int]]:
    """Return the ranges of the epoch's records that are a rank's."""
    total = total if limit is None else min(total, limit)
    if remainder != "pad":
        if remainder == "drop":
            total -= total % world_size
        return [(total * rank // world_size, total * (rank + 1) // world_size)]
    left = math.ceil(total / world_size)
    start = rank * left
    ranges = []
    while left:
        start %= total
        end = min(start + left, total)
        ranges.append((start, end))
        left -= end - start
        start = end
    return ranges or [(0, 0)]
