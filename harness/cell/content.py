"""Compares samples of an epoch, chosen at random, with what the pipeline makes of their files.

While the epoch runs, a copy of a few samples is kept as the loader delivered them. At the end of the cell, outside of
every clock, the pipeline makes the same samples again: the random numbers of a sample follow from (seed, epoch, id).
"""

from __future__ import annotations

import math
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
"""Samples of an epoch that are kept."""
MAX_ROW_BYTES: Final = 250_000
"""Of a larger sample, every second or every n-th row or slice is kept."""
LIMIT_S: Final = 2.0
"""Time after which no further sample of an epoch is made again."""
SHARE: Final = 0.25
"""Standard deviations of the kept samples' values by which a sample may be off on average: decoders differ by 0.05 at
most, another crop by 0.4 and more, zeros and another sample by 0.7."""
MIN_SHARE: Final = 0.02
"""The same in means of the absolute values, for samples that hardly vary."""
REPEATS: Final = 4
"""How often a sample that differs is made again, to see whether its transforms draw random numbers of their own."""

_RANDOM: Final = SystemRandom()
Values = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Part:
    """The values that are kept of one sample's tensor."""

    values: Any
    shape: tuple[int, ...]
    """Of the whole tensor."""
    index: tuple[slice, ...]
    """Where the values are in it."""

    def on_host(self) -> Part:
        """Return the part in the host's memory."""
        return replace(self, values=self.values.cpu()) if hasattr(self.values, "cpu") else self


@dataclass(frozen=True, slots=True)
class Kept:
    """A sample as the loader delivered it: its row of the batch."""

    id: int
    data: Part | None
    """None where the batch's data have no rows."""
    labels: Part | None
    """None of labels of another form than a row of several values a sample."""


class KeptSamples:
    """Keeps copies of a few samples of an epoch, chosen by random numbers of the operating system."""

    def __init__(self, samples: int) -> None:
        """Choose among so many samples, which the epoch is to bring."""
        chosen = _RANDOM.sample(range(samples), min(MAX_SAMPLES, samples))
        self._places = sorted(chosen, reverse=True)
        self._seen, self._offset = 0, _RANDOM.random()
        self.rows: list[Kept] = []

    def take(self, batch: Batch) -> None:
        """Copy the chosen samples of the next batch; a tensor on a GPU stays there."""
        first, self._seen = self._seen, self._seen + len(batch.ids)
        while self._places and self._places[-1] < self._seen:
            row = self._places.pop() - first
            is_row = np.ndim(batch.labels) > 1 and len(batch.labels) == len(batch.ids)
            labels = _copy_part(batch.labels, row, self._offset) if is_row else None
            self.rows.append(Kept(int(batch.ids[row]), _copy_part(batch.data, row, self._offset), labels))

    def leave_device(self) -> None:
        """Bring tensors on a GPU into the host's memory."""
        self.rows = [
            replace(row, data=row.data and row.data.on_host(), labels=row.labels and row.labels.on_host())
            for row in self.rows
        ]


def _copy_part(values: Any, row: int, offset: float) -> Part | None:
    """Return a copy of one row; of a large one every n-th row or slice, from `offset` times n on.

    None where the values have no rows.
    """
    try:
        value = values[row]
    except (KeyError, TypeError, IndexError):
        return None
    value = value if hasattr(value, "clone") else np.asarray(value)
    shape: tuple[int, ...] = tuple(value.shape)
    index: tuple[slice, ...] = ()
    if shape:
        # Channels come first; of anything else time or the only dimension does.
        axis = 1 if len(shape) > 2 else 0
        step = min(math.ceil(value.nbytes / MAX_ROW_BYTES), shape[axis]) or 1
        index = (*[slice(None)] * axis, slice(int(offset * step), None, step))
    part = value[index]
    return Part(part.clone() if hasattr(part, "clone") else np.array(part), shape, index)


@dataclass(frozen=True, slots=True)
class Content:
    """What comparing the kept samples of an epoch found."""

    epoch: int
    compared: Sequence[int]
    """Ids of the samples that were made again."""
    wrong: dict[str, str] = field(default_factory=dict)
    """In what samples differ, by their ids."""
    by_form: bool = False
    """Whether only constants and copies are found, for the random numbers of a sample cannot be drawn again."""
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
        """Return in what the kept samples of an epoch differ from what the pipeline makes, or why that is unknown."""
        try:
            return self._compare(epoch, kept)
        except Exception as error:  # noqa: BLE001 - the pipeline, and what it makes of a sample, may be the user's
            return Content(epoch, [], reason=f"cannot be compared: {type(error).__name__}: {error}")

    def _compare(self, epoch: int, kept: Sequence[Kept]) -> Content:
        pairs: list[tuple[Kept, Tensors]] = []
        began, reason = time.monotonic(), "no sample was kept"
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
        found = {str(sample_id): why for sample_id, why in wrong.items()}
        return Content(epoch, [row.id for row, _ in pairs], found, by_form, "" if pairs else reason, took)

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
        return any(one is None or not _is_equal(_values(one.data), _values(first.data)) for one in again)


def _is_equal(one: Values, other: Values) -> bool:
    return np.array_equal(one, other, equal_nan=True)


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
    values = np.concatenate([_values(tensors.data[0]).ravel() for _, tensors in pairs])
    values = values[np.isfinite(values)]
    limit = max(SHARE * float(values.std()), MIN_SHARE * float(np.abs(values).mean())) if values.size else 0.0
    found = {row.id: _describe_difference(row, tensors, limit) for row, tensors in pairs}
    return {sample_id: why for sample_id, why in found.items() if why}


def _describe_difference(row: Kept, made: Tensors, limit: float) -> str:
    """Return in what a sample differs from the one that was made again; empty where it does not."""
    assert row.data is not None
    whole = _values(made.data[0])
    if (both := _find_common(row.data, whole)) is None:
        return f"its data have shape {row.data.shape}, expected {whole.shape}"
    came, expected = both
    off = 0.0 if _is_equal(came, expected) else float(np.abs(came - expected).mean())
    if not off <= limit:
        if came.min() == came.max() and expected.size > 1:
            return f"all of its data are {came.flat[0]:g}"
        return f"its data are off by {off:.3g} on average, expected {limit:.3g} at most"
    if np.ndim(made.labels) > 1:
        labels = None if row.labels is None else _find_common(row.labels, _values(made.labels[0]))
        if labels is None or not np.array_equal(*labels):
            return "its labels are others"
    return ""


def _find_constant_or_repeated(pairs: Sequence[tuple[Kept, Tensors]]) -> dict[int, str]:
    """Return which samples are constant, or have the data of another one, where those that were made again are not."""
    found: dict[int, str] = {}
    for place, (row, tensors) in enumerate(pairs):
        assert row.data is not None
        expected, came = _values(tensors.data[0]), _values(row.data.values)
        if came.size > 1 and came.min() == came.max() and expected.min() < expected.max():
            found[row.id] = f"all of its data are {came.flat[0]:g}"
        for other, theirs in pairs[:place]:
            assert other.data is not None
            is_same = row.data.index == other.data.index and np.array_equal(came, _values(other.data.values))
            if is_same and other.id != row.id and not np.array_equal(expected, _values(theirs.data[0])):
                found[row.id] = f"it has the data of sample {other.id}"
    return found


def _find_common(part: Part, whole: Values) -> tuple[Values, Values] | None:
    """Return the kept values and those of the sample that was made again at the same places.

    A batch pads to its largest sample, behind the values. None where the kept tensor does not contain the other one.
    """
    if len(part.shape) != whole.ndim or any(has < needed for has, needed in zip(part.shape, whole.shape, strict=True)):
        return None
    expected = whole[part.index]
    return _values(part.values)[tuple(map(slice, expected.shape))], expected


def _values(values: Any) -> Values:
    """Return a tensor's or an array's values as float64."""
    return np.asarray(values.double() if hasattr(values, "double") else values, np.float64)
