"""Batches made ahead by a pool of threads, in order; for engines that take whole batches."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Executor, Future
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


class Prefetcher:
    """Keeps `depth` batches of an epoch under way until it is closed."""

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
        self._under_way: deque[Future[PrefetchedBatch]] = deque()
        self._samples: deque[Future[Loaded]] = deque()
        for _ in range(depth):
            self._begin_one()

    def next(self) -> PrefetchedBatch | None:
        """Return the next batch, None after the last; raise SampleError naming the sample that failed or is late."""
        if not self._under_way:
            return None
        self._wait(self._under_way[0])
        self._begin_one()
        return self._under_way.popleft().result()

    def close(self) -> None:
        """Cancel the samples that are not started."""
        self._left.clear()
        for sample in self._samples:
            sample.cancel()
        for batch in self._under_way:
            batch.cancel()
        self._samples.clear()
        self._under_way.clear()

    def _begin_one(self) -> None:
        if self._left:
            ids = self._left.popleft()
            samples = [self._threads.submit(self._load, sample_id) for sample_id in ids]
            # Behind its samples in the pool's queue, so what it waits for is done, or under way in another thread.
            self._under_way.append(self._threads.submit(self._make, ids, samples))
            self._samples.extend(samples)
            while self._samples and self._samples[0].done():
                self._samples.popleft()

    def _wait(self, future: Future[PrefetchedBatch]) -> None:
        while not future.done():
            try:
                future.exception(None if self._timeout_s is None else self._timeout_s / _POLLS)
            except TimeoutError:
                assert self._timeout_s is not None
                late = self._work.monitor.overdue(self._timeout_s)
                if late is not None:
                    raise self._work.timeout_error(late, f"thread {late.worker}") from None

    def _load(self, sample_id: int) -> Loaded:
        loaded = self._work.load(thread_number(), self._epoch, sample_id)
        self._stages.add(loaded.times.seconds())
        return loaded

    def _make(self, ids: Sequence[int], samples: Sequence[Future[Loaded]]) -> PrefetchedBatch:
        loaded, failed = [], []
        for sample_id, future in zip(ids, samples, strict=True):
            try:
                loaded.append(future.result())
            except SampleError as error:
                if self._on_error == "raise":
                    raise
                failed.append(Failed(sample_id, str(error)))
        began = time.perf_counter_ns()
        collated = self._work.collate(thread_number(), loaded) if loaded else None
        self._stages.add({"collate": (time.perf_counter_ns() - began) * 1e-9})
        return PrefetchedBatch(collated, failed)
