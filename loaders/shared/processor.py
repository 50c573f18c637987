"""What a worker does to samples: load each of them, collate them into a batch, say which one failed."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from loaders.base import SampleSource
from loaders.errors import SampleError, SampleTimeoutError
from loaders.pipeline import Data, Item, Pipeline, StageTimes, Tensors, load_item, read_item, transform_item
from loaders.shared.stall_monitor import Stalled, StallMonitor, timeout_error


class Failed(NamedTuple):
    """A sample that failed."""

    sample_id: int
    why: str


class Failures(list[Failed]):
    """The samples of an epoch that failed, in the order in which they did; threads add to it."""

    def __init__(self) -> None:
        super().__init__()
        self._taken = 0

    def take_new(self) -> list[Failed]:
        """Return those that were not returned before."""
        new = self[self._taken :]
        self._taken += len(new)
        return new


class Read(NamedTuple):
    """A sample as it is stored."""

    sample_id: int
    encoded: Data
    ns: int
    """What reading took."""


class Loaded(NamedTuple):
    """A sample after its last transform."""

    item: Item
    ns: int
    """What it took from reading on."""
    times: StageTimes


class Collated(NamedTuple):
    """A batch, on the CPU."""

    ids: npt.NDArray[np.int64]
    tensors: Tensors
    work_s: npt.NDArray[np.float64]
    """Seconds that every sample took from reading to its last transform."""


class SampleProcessor:
    """Loads and collates samples by a pipeline, and monitors every worker that does."""

    def __init__(
        self,
        samples: SampleSource,
        pipeline: Pipeline,
        seed: int,
        *,
        workers: int,
        processes: bool,
        monitor: StallMonitor | None = None,
    ) -> None:
        """Load `samples` in so many threads or processes; `monitor` is one that several processors share."""
        self.monitor = StallMonitor(pipeline, workers, processes=processes) if monitor is None else monitor
        self._samples = samples
        self._pipeline = pipeline
        self._seed = seed

    def load(self, worker: int, epoch: int, sample_id: int) -> Loaded:
        """Load one sample; raise SampleError naming it and the stage."""
        began = time.perf_counter_ns()
        times = self.monitor.begin(worker, sample_id)
        try:
            item = load_item(self._pipeline, self._samples, sample_id, seed=self._seed, epoch=epoch, times=times)
        finally:
            self.monitor.end(worker)
        return Loaded(item, time.perf_counter_ns() - began, times)

    def read(self, worker: int, sample_id: int) -> Read:
        """Read one sample; raise SampleError naming it. `transform` goes on with it, perhaps in another worker."""
        began = time.perf_counter_ns()
        self.monitor.begin(worker, sample_id)
        try:
            encoded = read_item(self._pipeline, self._samples, sample_id)
        finally:
            self.monitor.end(worker)
        return Read(sample_id, encoded, time.perf_counter_ns() - began)

    def transform(self, worker: int, epoch: int, read: Read) -> Loaded:
        """Decode and transform a sample that was read; raise SampleError naming it and the stage."""
        began = time.perf_counter_ns()
        times = self.monitor.begin(worker, read.sample_id, stage="decode", took_ns=read.ns)
        times.ns["read"] = read.ns
        try:
            item = transform_item(
                self._pipeline, self._samples, read.sample_id, read.encoded, seed=self._seed, epoch=epoch, times=times
            )
        finally:
            self.monitor.end(worker)
        return Loaded(item, read.ns + time.perf_counter_ns() - began, times)

    def collate(self, worker: int, loaded: Sequence[Loaded]) -> Collated:
        """Join samples; raise SampleError naming the one whose shape is wrong, or all of them."""
        items = [one.item for one in loaded]
        self.monitor.begin(worker, items[0].id, stage="collate")
        try:
            tensors = collate_items(self._pipeline, self._samples, items)
        finally:
            self.monitor.end(worker)
        ids = np.array([item.id for item in items], np.int64)
        return Collated(ids, tensors, np.array([one.ns for one in loaded]) * 1e-9)

    def timeout_error(self, late: Stalled, who: str) -> SampleTimeoutError:
        """Return the error that names an overdue sample and the worker `who` that is at it."""
        name = f"sample {late.sample_id} ({self._samples.path(late.sample_id)})"
        return timeout_error(name, late.stage, late.seconds, who)


def collate_items(pipeline: Pipeline, samples: SampleSource, items: Sequence[Item]) -> Tensors:
    """Join samples; raise SampleError naming the one whose shape is wrong, or all of them."""
    try:
        return pipeline.collate(items)
    except Exception as error:
        raise _collate_error(samples, items, error) from error


def _collate_error(samples: SampleSource, items: Sequence[Item], error: Exception) -> SampleError:
    shapes = [tuple(getattr(item.data, "shape", ())) for item in items]
    (usual, count), *others = Counter(shapes).most_common()
    if others and count > len(items) // 2:
        at = next(index for index, shape in enumerate(shapes) if shape != usual)
        who = f"sample {items[at].id} ({samples.path(items[at].id)})"
        return SampleError(
            f"{who} failed in collate: its data have the shape {shapes[at]}, those of its batch {usual}: {error}"
        )
    ids = [item.id for item in items]
    return SampleError(f"samples {ids} failed in collate: {type(error).__name__}: {error}")
