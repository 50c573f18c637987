"""Compares samples of an epoch, chosen at random, with what the pipeline makes of their files.

While the epoch runs, a copy of a few samples is kept as the loader delivered them. At the end of the cell, outside of
every clock, the pipeline makes the same samples again: the random numbers of a sample follow from (seed, epoch, id).
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from random import SystemRandom
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from loaders.base import Batch, Samples
from loaders.errors import SampleError
from loaders.pipeline import Item, Pipeline, Tensors, Transform, WrappedPipeline, load_item
from loaders.pipeline.callables import CallablePipeline

MAX_SAMPLES: Final = 8
"""Samples of an epoch that are kept, and below it the fewest that are kept of samples of any size."""
MIN_SAMPLES: Final = 2
MAX_BYTES: Final = 4_000_000
"""Bytes of data that are kept of an epoch, where `MIN_SAMPLES` have not more."""
LIMIT_S: Final = 2.0
"""Time after which no further sample of an epoch is made again."""
SHARE: Final = 0.25
"""Standard deviations of the kept samples' values by which a sample may be off on average: decoders differ by 0.05 at
most, and zeros or another sample by 0.8 and more."""
MIN_SHARE: Final = 0.02
"""The same in means of the absolute values, for samples that hardly vary."""
REPEATS: Final = 4
"""How often a sample that differs is made again, to see whether its transforms draw random numbers of their own."""

Values = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Kept:
    """A sample as the loader delivered it: its row of the batch."""

    id: int
    data: Any
    """None where the batch's data have no rows."""
    labels: Any
    """None of labels of another form than a row of several values a sample."""


class KeptSamples:
    """Keeps copies of a few samples of an epoch, chosen by random numbers of the operating system."""

    def __init__(self, samples: int) -> None:
        """Choose among so many samples, which the epoch is to bring."""
        self._samples = samples
        self._places: list[int] | None = None
        self._seen = 0
        self.rows: list[Kept] = []

    def take(self, batch: Batch) -> None:
        """Copy the chosen samples of the next batch; a tensor on a GPU stays there."""
        if self._places is None:
            self._places = self._choose(batch)
        first, self._seen = self._seen, self._seen + len(batch.ids)
        while self._places and self._places[-1] < self._seen:
            row = self._places.pop() - first
            is_row = np.ndim(batch.labels) > 1 and len(batch.labels) == len(batch.ids)
            labels = _copy_row(batch.labels, row) if is_row else None
            self.rows.append(Kept(int(batch.ids[row]), _copy_row(batch.data, row), labels))

    def leave_device(self) -> None:
        """Bring what is on a GPU into the host's memory."""
        self.rows = [replace(row, data=_on_host(row.data), labels=_on_host(row.labels)) for row in self.rows]

    def _choose(self, batch: Batch) -> list[int]:
        """Return places in the epoch, the last one first."""
        nbytes = getattr(batch.data, "nbytes", 0) // max(1, len(batch.ids))
        count = max(MIN_SAMPLES, min(MAX_SAMPLES, MAX_BYTES // max(1, nbytes)))
        return sorted(SystemRandom().sample(range(self._samples), min(count, self._samples)), reverse=True)


def _copy_row(values: Any, row: int) -> Any:
    try:
        value = values[row]
    except (KeyError, TypeError, IndexError):
        return None
    return value.clone() if hasattr(value, "clone") else np.array(value)


def _on_host(value: Any) -> Any:
    return value.cpu() if hasattr(value, "cpu") else value


@dataclass(frozen=True, slots=True)
class Content:
    """What comparing the kept samples of an epoch found."""

    epoch: int
    compared: Sequence[int]
    """Ids of the samples that were made again."""
    wrong: dict[str, str] = field(default_factory=dict)
    """In what samples differ, by their ids."""
    by_form: bool = False
    """Whether samples are only told from constants and from each other: their random numbers cannot be drawn again."""
    reason: str = ""
    """Why no sample was compared."""
    seconds: float = 0.0

    def to_event(self) -> dict[str, Any]:
        """Return the values of an event."""
        return asdict(self)


@dataclass(frozen=True)
class _WithoutWaits(WrappedPipeline):
    """The pipeline without the steps that only pass time."""

    @property
    def transforms(self) -> tuple[Transform, ...]:
        return tuple(step for step in self.of.transforms if not getattr(step, "only_waits", False))


class Comparison:
    """Makes samples of a dataset again and compares them with those that a loader delivered."""

    def __init__(
        self, samples: Path, data_root: Path | None, pipeline: Pipeline, seed: int, *, augments_itself: bool
    ) -> None:
        """Read the samples of a samples.parquet at the dataset's own root, or where they are not there at `data_root`.

        Args:
            samples: the dataset's samples.parquet.
            data_root: root of the files as the loader saw them; None for a loader that reads a stream.
            pipeline: what the loader was given.
            seed: what the loader was given.
            augments_itself: whether the loader draws random numbers of its own for a sample.
        """
        own = Samples.load(samples)
        self._places = [own, *([] if data_root is None else [own.at(data_root)])]
        self._pipeline, self._seed = _WithoutWaits(pipeline), seed
        self._by_form = augments_itself or isinstance(pipeline, CallablePipeline)

    def compare(self, epoch: int, kept: Sequence[Kept]) -> Content:
        """Return in what the kept samples of an epoch differ from those that the pipeline makes."""
        began, pairs, reason = time.monotonic(), [], "no sample was kept"
        for row in kept:
            if pairs and time.monotonic() > began + LIMIT_S:
                break
            made, reason = self._make(row, epoch)
            if made is not None:
                pairs.append((row, made))
        by_form, wrong = self._by_form, _find_wrong(pairs)
        if wrong and (by_form := by_form or self._draws_own(epoch, pairs, wrong)):
            wrong = _find_constant_or_repeated(pairs)
        took = time.monotonic() - began
        told = {str(sample_id): why for sample_id, why in wrong.items()}
        return Content(epoch, [row.id for row, _ in pairs], told, by_form, "" if pairs else reason, took)

    def _make(self, row: Kept, epoch: int) -> tuple[Tensors | None, str]:
        """Return the tensors of one sample, or why there are none."""
        if row.data is None:
            return None, "the data of a batch have no row for each sample"
        if not 0 <= row.id < len(self._places[0]):
            return None, f"there is no sample {row.id}"
        found = next((samples for samples in self._places if _is_there(samples, row.id)), None)
        if found is None:
            return None, "the samples' files are not on the node that trains"
        try:
            item: Item = load_item(self._pipeline, found, row.id, seed=self._seed, epoch=epoch)
            return self._pipeline.collate([item]), ""
        except SampleError as error:
            return None, str(error)

    def _draws_own(self, epoch: int, pairs: Sequence[tuple[Kept, Tensors]], wrong: dict[int, str]) -> bool:
        """Return whether a sample that differs comes out otherwise when it is made again."""
        row, first = next(pair for pair in pairs if pair[0].id in wrong)
        again = (self._make(row, epoch)[0] for _ in range(REPEATS))
        return any(one is None or not np.array_equal(_values(one.data), _values(first.data)) for one in again)


def _is_there(samples: Samples, sample_id: int) -> bool:
    """Return whether the files of a sample are those of the run, by their sizes."""
    columns = [None, *(name for name in samples.columns if name.endswith("_path"))]
    with suppress(OSError):
        sizes = [samples.path(sample_id, column).stat().st_size for column in columns]
        return sum(sizes) == int(samples.sizes[sample_id])
    return False


def _find_wrong(pairs: Sequence[tuple[Kept, Tensors]]) -> dict[int, str]:
    """Return in what samples differ from those that were made again, by their ids."""
    if not pairs:
        return {}
    made = [_values(tensors.data[0]) for _, tensors in pairs]
    values = np.concatenate([one.ravel() for one in made])
    limit = max(SHARE * float(values.std()), MIN_SHARE * float(np.abs(values).mean()))
    found = {row.id: _describe_difference(row, tensors, limit) for row, tensors in pairs}
    return {sample_id: why for sample_id, why in found.items() if why}


def _describe_difference(row: Kept, made: Tensors, limit: float) -> str:
    """Return in what a sample differs from the one that was made again; empty where it does not."""
    expected = _values(made.data[0])
    part = _cut(row.data, expected.shape)
    if part is None:
        return f"its data have shape {np.shape(row.data)}, expected {expected.shape}"
    off = float(np.abs(part - expected).mean()) if expected.size else 0.0
    if not off <= limit:
        if part.min() == part.max() and expected.size > 1:
            return f"all of its data are {part.flat[0]:g}"
        return f"its data are off by {off:.3g} on average, expected {limit:.3g} at most"
    if made.labels.ndim > 1:
        labels = _values(made.labels[0])
        came = None if row.labels is None else _cut(row.labels, labels.shape)
        if came is None or not np.array_equal(came, labels):
            return "its labels are others"
    return ""


def _find_constant_or_repeated(pairs: Sequence[tuple[Kept, Tensors]]) -> dict[int, str]:
    """Return which samples are constant, or have the data of another one, where those that were made again are not."""
    found: dict[int, str] = {}
    for place, (row, tensors) in enumerate(pairs):
        expected, came = _values(tensors.data[0]), _values(row.data)
        if came.size > 1 and came.min() == came.max() and expected.min() < expected.max():
            found[row.id] = f"all of its data are {came.flat[0]:g}"
        for other, theirs in pairs[:place]:
            is_same = np.array_equal(came, _values(other.data))
            if is_same and other.id != row.id and not np.array_equal(expected, _values(theirs.data[0])):
                found[row.id] = f"it has the data of sample {other.id}"
    return found


def _cut(values: Any, shape: tuple[int, ...]) -> Values | None:
    """Return the part of a shape, from the first value of each dimension on: a batch pads to its largest sample.

    None where the values have other dimensions, or fewer in one.
    """
    if np.ndim(values) != len(shape) or any(has < needed for has, needed in zip(np.shape(values), shape, strict=True)):
        return None
    return _values(values[tuple(map(slice, shape))])


def _values(values: Any) -> Values:
    """Return a tensor's or an array's values as float64."""
    return np.asarray(values.double() if hasattr(values, "double") else values, np.float64)
