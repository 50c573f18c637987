"""Runs of neighbouring records as arrays: cut, packed into batches and thinned out without a loop over records."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np
import numpy.typing as npt

__all__ = ["Runs", "joined"]

_Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Runs:
    """A sequence of records, told by its runs; arrays of shape (runs,)."""

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

    def __getitem__(self, which: slice | npt.NDArray[np.bool_] | _Ints) -> Runs:
        return Runs(self.shard[which], self.first[which], self.records[which], self.position[which])

    def within(self, start: int, end: int) -> Runs:
        """Return the records from the `start`-th up to the `end`-th as a whole sequence."""
        ends = np.cumsum(self.records)
        starts = ends - self.records
        low, high = np.maximum(starts, start), np.minimum(ends, end)
        kept = low < high
        return Runs.of(self.shard[kept], (self.first + low - starts)[kept], (high - low)[kept])

    def shuffled_within(self, window: int, random: np.random.Generator) -> Runs:
        """Shuffle the records, each within its `window` of records; neighbours that stay together stay one run."""
        total = self.total
        order = np.arange(total)
        whole = order[: total - total % window].reshape(-1, window)
        random.permuted(whole, axis=1, out=whole)
        random.shuffle(order[whole.size :])
        shard, first = self._each()
        shard, first = shard[order], first[order]
        begins = np.ones(total, np.bool_)
        begins[1:] = (shard[1:] != shard[:-1]) | (first[1:] != first[:-1] + 1)
        return Runs.of(shard[begins], first[begins], _lengths(begins))

    def without(self, done: npt.NDArray[np.bool_]) -> Runs:
        """Return the runs less the records whose place in the whole sequence is marked in `done`."""
        shard, first = self._each()
        position = np.repeat(self.position - (np.cumsum(self.records) - self.records), self.records)
        position += np.arange(len(position))
        kept = ~done[position]
        run = np.repeat(np.arange(len(self)), self.records)[kept]
        shard, first, position = shard[kept], first[kept], position[kept]
        begins = np.ones(len(run), np.bool_)
        begins[1:] = (run[1:] != run[:-1]) | (first[1:] != first[:-1] + 1)
        return Runs(shard[begins], first[begins], _lengths(begins), position[begins])

    def packed(self, batch_size: int) -> tuple[Runs, _Ints]:
        """Split runs where a batch is full; return them and the index of each batch's first run, then the end."""
        total = self.total
        starts = np.cumsum(self.records) - self.records
        batches = np.arange(0, total, batch_size)
        cuts = np.sort(np.concatenate((starts, batches)), kind="stable")  # two sorted runs, which are merged
        cuts = cuts[np.append(True, cuts[1:] != cuts[:-1])] if total else cuts
        run = np.searchsorted(starts, cuts, side="right") - 1
        into = cuts - starts[run]
        split = Runs(self.shard[run], self.first[run] + into, np.diff(cuts, append=total), self.position[run] + into)
        return split, np.append(np.searchsorted(cuts, batches), len(cuts))

    def _each(self) -> tuple[_Ints, _Ints]:
        """Return shard and number of every record."""
        starts = np.cumsum(self.records) - self.records
        first = np.repeat(self.first - starts, self.records)
        return np.repeat(self.shard, self.records), first + np.arange(len(first))


def joined(parts: list[Runs]) -> Runs:
    """Return the runs of all parts, one after the other."""
    names = ("shard", "first", "records", "position")
    return Runs(*(np.concatenate([getattr(part, name) for part in parts]) for name in names))


def _lengths(begins: npt.NDArray[np.bool_]) -> _Ints:
    """Return the lengths of runs from where they begin."""
    return np.diff(np.flatnonzero(begins), append=len(begins))
