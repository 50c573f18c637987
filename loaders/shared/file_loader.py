"""What the loaders of files have in common: checked arguments, a share of the samples, counts, an end."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from types import TracebackType
from typing import Self

from loaders.base import Batch, LoaderStats, Samples
from loaders.errors import LoaderError
from loaders.options import OnError, Remainder, check_on_error
from loaders.shared.files import check_arguments
from loaders.shared.processor import Failed
from loaders.shared.shares import Share, place_among_ranks

__all__ = ["FileLoader"]


class FileLoader(ABC):
    """Counts the batches that what derives from it makes, and what was waited for them."""

    notes: tuple[str, ...] = ()

    def __init__(
        self,
        samples: Samples,
        device: str,
        *,
        batch_size: int,
        seed: int,
        rank: int | None,
        world_size: int | None,
        remainder: Remainder | None,
        sample_timeout_s: float | None,
        on_error: OnError,
        **least: tuple[int, int],
    ) -> None:
        """Check the arguments; raise LoaderConfigError. `least` is of the loader's own, see `check_arguments`."""
        self._device = check_arguments(samples, device, batch_size=(batch_size, 1), **least)
        check_on_error(on_error, sample_timeout_s)
        self._samples = samples
        self._batch_size = batch_size
        self._seed = seed
        self._share = Share(len(samples), seed, *place_among_ranks(rank, world_size), remainder)
        self._timeout_s = sample_timeout_s
        self._on_error = on_error
        self._stats = LoaderStats(details={"wait_s": 0.0})
        self._closed = False

    def __len__(self) -> int:
        """Return the number of this rank's samples in an epoch."""
        return len(self._share)

    def epoch(self, epoch: int) -> Iterator[Batch]:
        """Yield the epoch's batches; raise SampleError naming a sample, WorkerError naming a worker."""
        self._check_open()
        yield from self._counted(self._batches(epoch))

    def stats(self) -> LoaderStats:
        """Return the counts so far; `wait_s` is the time spent waiting for batches, the start of an epoch included."""
        return self._stats

    @abstractmethod
    def close(self) -> None:
        """End workers and threads, in the middle of an epoch too; may be called twice."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @abstractmethod
    def _batches(self, epoch: int) -> Iterator[Batch]:
        """Make the epoch's batches."""

    def _check_open(self) -> None:
        if self._closed:
            raise LoaderError("the loader is closed: make a new one")

    def _counted(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        """Count batches, and what is waited for them."""
        while True:
            began = time.perf_counter_ns()
            batch = next(batches, None)
            self._stats.details["wait_s"] += (time.perf_counter_ns() - began) * 1e-9
            if batch is None:
                return
            self._stats.count(batch)
            yield batch
            # While the next one is made, its memory is the consumer's to keep or to give back.
            del batch

    def _skip(self, failed: Iterable[Failed]) -> None:
        """Tell of samples that are left out."""
        for one in failed:
            self._stats.skip(one.sample_id, one.why)
