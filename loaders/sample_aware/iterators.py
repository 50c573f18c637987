"""The iterators of SampleAwareDataLoader: batches from workers, and batches made in the calling process."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from multiprocessing.process import BaseProcess
from typing import Any, Final

from loaders.sample_aware.coordinator.engine import Engine
from loaders.sample_aware.ipc.messages import Value
from loaders.sample_aware.workers.jobs import SAMPLE_STEP, SEED_MASK, DatasetJob
from loaders.shared.compat import BaseIterator, InProcessIterator, pin_memory

_EPOCH_STEP: Final = 0xBF58476D1CE4E5B9
"""Between the seeds of two epochs that follow each other."""


class WorkerBatches(BaseIterator):
    """Batches out of an engine, which ends with the iterator, or with its epoch where workers do not persist."""

    _engine: Engine | None = None

    def __init__(self, loader: Any) -> None:
        self._lock = threading.Lock()
        self._over = False
        super().__init__(loader)
        self._begin(loader)

    def _reset(self, loader: Any, first_iter: bool = False) -> None:
        super()._reset(loader, first_iter)
        self._begin(loader)

    def _begin(self, loader: Any) -> None:
        if self._engine is None or self._engine.closed:
            self._engine = loader.start_engine(int(self._base_seed), pin_memory if loader.pins else None)
        self._epoch, self._over = self._engine.epoch(keys_of(self._sampler_iter, loader)), False

    @property
    def _workers(self) -> list[BaseProcess]:
        """The worker processes, those that have ended too; torch's iterator has them by this name."""
        return self._engine.processes if self._engine is not None else []

    def _next_data(self) -> Value:
        with self._lock:
            engine = self._engine
            if self._over or engine is None:
                raise StopIteration
            try:
                batch = self._epoch.next(self._timeout or None)
            except TimeoutError:
                # As torch's DataLoader says it.
                raise RuntimeError(f"DataLoader timed out after {self._timeout} seconds") from None
            except BaseException as error:
                if not isinstance(error, KeyboardInterrupt):
                    self._end(broken=engine.coordinator.error is not None)
                raise
            if batch is None:
                self._end(broken=False)
                raise StopIteration
            if batch.error is not None:
                # As with torch, the batch is lost and the next one may be asked for.
                raise batch.error
            return batch.value

    def __del__(self) -> None:
        self._shutdown_workers()

    def _shutdown_workers(self) -> None:
        """End the workers, wherever they are; trainers call it by torch's name."""
        self._over = True
        if self._engine is not None:
            self._engine.close()

    def _end(self, *, broken: bool) -> None:
        self._over = True
        self._epoch.close()
        if broken or not self._persistent_workers:
            self._shutdown_workers()


class InProcessBatches(InProcessIterator):
    """Batches without workers: in order, each sample when its batch is asked for."""

    def __init__(self, loader: Any) -> None:
        self._lock = threading.Lock()
        super().__init__(loader)
        self._job: DatasetJob = loader.job(int(self._base_seed))
        self._keys, self._pins = keys_of(self._sampler_iter, loader), loader.pins

    def _next_data(self) -> Value:
        with self._lock:
            samples = [self._sample(key) for key in next(self._keys)]
            batch = self._job.apply_collation(samples)
            return pin_memory(batch) if self._pins else batch

    def _sample(self, key: tuple[int, Value]) -> Value:
        partial = None
        for stage in range(len(self._job.stages)):
            partial = self._job.apply(stage, key, partial)
        return partial


def keys_of(batches: Iterator[Value], loader: Any) -> Iterator[list[tuple[int, Value]]]:
    """Yield an epoch's batches of keys (seed, index), drawn when they are wanted.

    A sample's seed depends on its place in the epoch alone. Where the dataset is asked for whole batches, a batch is
    one key, (seed of its first sample, indices).
    """
    loader.epochs += 1
    # A generator apart: with a reference to the loader, which keeps its iterator, it would be garbage of a circle.
    return _keys(batches, _EPOCH_STEP * loader.epochs, is_single=loader.batch_sampler is None, by_batch=loader.by_batch)


def _keys(batches: Iterator[Value], seed: int, *, is_single: bool, by_batch: bool) -> Iterator[list[tuple[int, Value]]]:
    place = 0
    for batch in batches:
        indices = [batch] if is_single else list(batch)
        seeds = [(seed + SAMPLE_STEP * number) & SEED_MASK for number in range(place, place + len(indices))]
        place += len(indices)
        yield [(seeds[0], indices)] if by_batch else list(zip(seeds, indices, strict=True))
