"""Batches made ahead by a pool of threads, in order; for engines that take whole batches."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from loaders.errors import SampleError
from loaders.shared.options import LoaderOptions
from loaders.shared.processor import Collated, Failed, Loaded, SampleProcessor
from loaders.shared.stage_table import StageTable
from loaders.shared.threads import thread_number

_POLLS: Final = 4
"""How often within `timeout_s` the threads are looked at."""


class PrefetchedBatch(NamedTuple):
    """A batch, and the samples of it that were left out."""

    collated: Collated | None
    """None where every sample of the batch failed."""
    failed: Sequence[Failed]


@dataclass(slots=True)
class _LoadingBatch:
    """A batch whose samples are being loaded."""

    ids: Sequence[int]
    made: Future[PrefetchedBatch] = field(default_factory=Future)
    samples: list[Loaded | BaseException | None] = field(default_factory=list)
    """In the order of `ids`; None until a sample is loaded or has failed."""
    left: int = 0
    """Samples that are neither."""


class Prefetcher:
    """Keeps `depth` batches of an epoch under way until it is closed.

    The thread that loads the last sample of a batch collates it, so that no thread waits for samples of others.
    """

    def __init__(
        self,
        work: SampleProcessor,
        ids: npt.NDArray[np.int64],
        *,
        epoch: int,
        options: LoaderOptions,
        depth: int,
        threads: Executor,
        stages: StageTable,
    ) -> None:
        self._work, self._epoch, self._threads, self._stages = work, epoch, threads, stages
        self._on_error, self._timeout_s = options.on_error, options.sample_timeout_s
        size = options.batch_size
        self._left = deque(ids[start : start + size].tolist() for start in range(0, len(ids), size))
        self._under_way: deque[_LoadingBatch] = deque()
        self._loads: deque[Future[None]] = deque()
        self._counting = threading.Lock()
        for _ in range(depth):
            self._begin_one()

    def next(self) -> PrefetchedBatch | None:
        """Return the next batch, None after the last; raise SampleError naming the sample that failed or is late."""
        if not self._under_way:
            return None
        self._wait(self._under_way[0].made)
        self._begin_one()
        return self._under_way.popleft().made.result()

    def close(self) -> None:
        """Cancel the samples that are not started."""
        self._left.clear()
        for load in self._loads:
            load.cancel()
        for batch in self._under_way:
            batch.made.cancel()
        self._loads.clear()
        self._under_way.clear()

    def _begin_one(self) -> None:
        if self._left:
            ids = self._left.popleft()
            batch = _LoadingBatch(ids, samples=[None] * len(ids), left=len(ids))
            self._under_way.append(batch)
            self._loads.extend(self._threads.submit(self._load, batch, place) for place in range(len(ids)))
            while self._loads and self._loads[0].done():
                self._loads.popleft()

    def _wait(self, future: Future[PrefetchedBatch]) -> None:
        while not future.done():
            try:
                future.exception(None if self._timeout_s is None else self._timeout_s / _POLLS)
            except TimeoutError:
                assert self._timeout_s is not None
                late = self._work.monitor.overdue(self._timeout_s)
                if late is not None:
                    raise self._work.timeout_error(late, f"thread {late.worker}") from None

    def _load(self, batch: _LoadingBatch, place: int) -> None:
        """Load a sample of a batch; make the batch if it is the last one."""
        try:
            loaded = self._work.load(thread_number(), self._epoch, batch.ids[place])
            self._stages.add(loaded.times.seconds())
            batch.samples[place] = loaded
        except BaseException as error:  # noqa: BLE001 - raised again where the batch is taken
            batch.samples[place] = error
        with self._counting:
            batch.left -= 1
            is_last = not batch.left
        if is_last and batch.made.set_running_or_notify_cancel():
            try:
                batch.made.set_result(self._make(batch))
            except BaseException as error:  # noqa: BLE001 - raised again where the batch is taken
                batch.made.set_exception(error)

    def _make(self, batch: _LoadingBatch) -> PrefetchedBatch:
        loaded, failed = [], []
        for sample_id, sample in zip(batch.ids, batch.samples, strict=True):
            if isinstance(sample, SampleError) and self._on_error == "skip":
                failed.append(Failed(sample_id, str(sample)))
            elif isinstance(sample, BaseException):
                raise sample
            elif sample is not None:
                loaded.append(sample)
        began = time.perf_counter_ns()
        collated = self._work.collate(thread_number(), loaded) if loaded else None
        self._stages.add({"collate": (time.perf_counter_ns() - began) * 1e-9})
        return PrefetchedBatch(collated, failed)
