"""The iterators of SampleAwareDataLoader: batches from workers, and batches made in the calling process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Self

import torch
from torch.utils.data._utils.pin_memory import pin_memory

from loaders.sample_aware.engine import Engine
from loaders.sample_aware.jobs import DatasetJob, is_default
from loaders.sample_aware.keys import EpochKeys

__all__ = ["InProcess", "TorchCollate", "WorkerBatches", "can_pin"]


class TorchCollate:
    """A DataLoader's collate_fn, and page-locked memory where that is asked for."""

    def __init__(self, collate_fn: Callable[[Any], Any], *, single: bool, pin: bool) -> None:
        self._collate_fn, self._single, self._pin = collate_fn, single, pin
        self.in_place = is_default(collate_fn)
        """Whether a batch may share memory with its samples."""

    def __call__(self, keys: Sequence[Any], samples: Sequence[Any], work_ns: Sequence[int]) -> Any:
        """Return what the consumer is given."""
        return self._collate_fn(samples[0] if self._single else list(samples))

    def finish(self, batch: Any) -> Any:
        """Return the batch, page-locked where that is asked for."""
        return pin_memory(batch) if self._pin else batch  # type: ignore[no-untyped-call]


class WorkerBatches:
    """One epoch out of an engine."""

    def __init__(self, engine: Engine, keys: EpochKeys, *, timeout_s: float, close: bool) -> None:
        """Begin the epoch; with `close` the engine ends with it."""
        self.keys: EpochKeys | None = keys
        """None once the epoch has ended."""
        self._engine, self._timeout_s, self._close = engine, timeout_s, close
        self._epoch = engine.epoch(keys)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        if self.keys is None:
            raise StopIteration
        try:
            built = self._epoch.next(self._timeout_s or None)
        except TimeoutError:
            # As torch's DataLoader says it.
            raise RuntimeError(f"DataLoader timed out after {self._timeout_s} seconds") from None
        except BaseException as error:
            if not isinstance(error, KeyboardInterrupt):
                self._end(broken=self._engine.coordinator.error is not None)
            raise
        if built is None:
            self._end(broken=False)
            raise StopIteration
        self.keys.came_back(built.samples)
        return built.value

    def __del__(self) -> None:
        if getattr(self, "keys", None) is not None:
            self._end(broken=False)

    def _end(self, *, broken: bool) -> None:
        self.keys = None
        self._epoch.close()
        if self._close or broken:
            self._engine.close()


class InProcess:
    """One epoch without workers: in order, each sample when its batch is asked for."""

    def __init__(self, job: DatasetJob, collate: TorchCollate, keys: EpochKeys) -> None:
        self.keys: EpochKeys | None = keys
        """None once the epoch has ended."""
        self._job, self._collate, self._done = job, collate, 0

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        if self.keys is None:
            raise StopIteration
        batch = next(self.keys, None)
        if batch is None:
            self.keys = None
            raise StopIteration
        samples = []
        for key in batch:
            partial = None
            for stage in range(len(self._job.stages)):
                partial = self._job.apply(stage, key, partial)
            samples.append(partial)
        value = self._collate.finish(self._collate(batch, samples, ()))
        self.keys.came_back(range(self._done, self._done + len(batch)))
        self._done += len(batch)
        return value


def can_pin(wanted: bool) -> bool:
    """Tell whether batches are to be page-locked, which needs an accelerator."""
    return wanted and torch.accelerator.is_available()
