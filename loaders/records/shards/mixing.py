"""How well the order of an epoch mixes the classes of some shards, and which order mixes them well enough."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Final

import numpy as np
import numpy.typing as npt

from loaders.arguments import as_number, as_whole
from loaders.records.planner import plan_epoch

SLICE_RECORDS: Final = 8
SHUFFLE_WINDOW: Final = 0
"""The usual order, for records that were shuffled when they were converted."""
BATCH: Final = 32
"""Records of the batches whose classes are counted."""
ENOUGH: Final = 0.9
"""Share of the classes of a full shuffle that the usual order has to reach."""
_CHOSEN: Final = 0.95
"""Share that another order has to reach, which then costs the same whether it reaches more."""
_FIRST_WINDOW: Final = 256
_MAX_RECORDS: Final = 2**31 - 1
_COUNTED: Final = 1000
"""Most batches that are counted of an epoch; fewer than a tenth of that many are counted in several epochs."""


@dataclass(frozen=True, slots=True)
class Mixing:
    """The mean number of classes in a batch of 32 records, in the usual order and in the one that was chosen."""

    shuffled: float
    """After a full shuffle."""
    usual: float
    """With slices of 8 records and no window."""
    chosen: float
    """With the slices and the window that follow."""
    slice_records: int
    shuffle_window: int

    @classmethod
    def of(cls, values: object) -> Mixing | None:
        """Read what `asdict` made of one, None for anything else."""
        if not isinstance(values, dict) or set(values) != {field.name for field in fields(cls)}:
            return None
        read = cls(**values)
        order = as_whole(read.slice_records, 1, _MAX_RECORDS), as_whole(read.shuffle_window, 0, _MAX_RECORDS)
        means = [as_number(mean, 0, BATCH) for mean in (read.shuffled, read.usual, read.chosen)]
        return read if None not in order and all(means) else None

    def classes(self, slice_records: int, shuffle_window: int) -> float | None:
        """Return the mean number of classes in an order, or what it has at least; None where that is not known."""
        if slice_records == 1:
            return self.shuffled
        if 0 < slice_records <= self.slice_records and shuffle_window >= self.shuffle_window:
            return self.chosen
        if (slice_records, shuffle_window) == (SLICE_RECORDS, SHUFFLE_WINDOW):
            return self.usual
        return None


def measure_mixing(labels: Sequence[npt.NDArray[np.int64]]) -> Mixing:
    """Count classes in orders of the records of some shards, given their labels, and choose one that mixes enough."""
    names, of_record = np.unique(np.concatenate(labels), return_inverse=True)
    shards = np.split(of_record, np.cumsum([len(shard) for shard in labels])[:-1])
    shuffled = _count_shuffled_classes(np.bincount(of_record, minlength=len(names)))
    usual = _count_classes(shards, SLICE_RECORDS, SHUFFLE_WINDOW)
    chosen, order = usual, (SLICE_RECORDS, SHUFFLE_WINDOW)
    if usual < ENOUGH * shuffled:
        for order in _orders(len(of_record)):
            chosen = _count_classes(shards, *order)
            if chosen >= _CHOSEN * shuffled:
                break
    return Mixing(round(shuffled, 2), round(usual, 2), round(chosen, 2), *order)


def _orders(records: int) -> Iterator[tuple[int, int]]:
    """Yield orders, those first that cost less: a window sends every record by itself, whatever its size."""
    yield 4, 0
    yield 2, 0
    window = _FIRST_WINDOW
    while window < records:
        yield SLICE_RECORDS, window
        window *= 2
    yield SLICE_RECORDS, window


def _count_shuffled_classes(counts: npt.NDArray[np.int64]) -> float:
    """Return the mean number of classes in a batch drawn from classes of so many records, without replacement."""
    total = int(counts.sum())
    absent = np.ones(len(counts))
    for drawn in range(min(BATCH, total)):
        absent *= np.maximum(0, total - counts - drawn) / (total - drawn)
    return float((1 - absent).sum())


def _count_classes(labels: Sequence[npt.NDArray[np.int64]], slice_records: int, shuffle_window: int) -> float:
    found: list[int] = []
    records = [len(shard) for shard in labels]
    whole = max(1, sum(records) // BATCH)  # a short last batch has fewer classes whatever its order
    for epoch in range(math.ceil(_COUNTED / 10 / whole)):
        planned = plan_epoch(
            records,
            batch_size=BATCH,
            seed=0,
            epoch=epoch,
            slice_records=slice_records,
            shuffle_window=shuffle_window,
        )
        for number in np.unique(np.linspace(0, whole - 1, min(whole, _COUNTED)).astype(int)).tolist():
            slices = planned[number].slices
            batch = np.concatenate([labels[part.shard][part.first : part.first + part.records] for part in slices])
            found.append(len(np.unique(batch)))
    return sum(found) / len(found)
