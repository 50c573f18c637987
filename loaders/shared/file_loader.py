"""The common part of the loaders of files: checked arguments, a share of the samples, counts, an end."""

from __future__ import annotations

import math
import time
from abc import abstractmethod
from collections.abc import Iterable, Iterator
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from joulefeed.closing import Closing
from loaders.base import Batch, LoaderStats, Samples
from loaders.errors import LoaderConfigError, LoaderError, SampleError
from loaders.pipeline import Tensors
from loaders.shared.device import usable_device
from loaders.shared.options import LoaderOptions
from loaders.shared.processor import Failed
from loaders.shared.shares import Share, place_among_ranks
from loaders.shared.stage_table import StageTable
from loaders.shared.threads import DaemonThreads


class FileLoader(Closing):
    """Counts the batches that a subclass makes in `_batches`, and the time that the consumer waits for them."""

    notes: tuple[str, ...] = ()

    def __init__(self, samples: Samples, options: LoaderOptions) -> None:
        """Take a share of the samples; raise LoaderConfigError for no samples, and for what options say together."""
        if not len(samples):
            raise LoaderConfigError(f"no samples under {samples.root}: expected at least one")
        self._device = usable_device(options.device)
        self._samples, self._options = samples, options
        ranks = place_among_ranks(options.rank, options.world_size)
        self._share = Share(len(samples), options.seed, *ranks, options.remainder, options.imbalance)
        self._stats = LoaderStats(details={"wait_s": 0.0})
        self._epochs = 0
        self._closed = False

    def __len__(self) -> int:
        """Return the number of this rank's samples in an epoch."""
        return len(self._share)

    def epoch(self, epoch: int) -> Iterator[Batch]:
        """Yield the epoch's batches, and end the epoch before it.

        Of several ranks under on_error "skip", the last batch comes once more for each that has no sample left, so that
        all ranks take as many steps as planned; `details["repeated_samples"]` counts its samples.

        Raises SampleError naming a sample, WorkerError naming a worker, LoaderError once the loader is closed or
        another epoch was started.
        """
        if self._closed:
            raise LoaderError("the loader is closed: make a new one")
        self._epochs += 1
        if self._options.on_error == "skip" and self._share.world_size > 1:
            yield from self._fill_up(self._epochs, self._batches(epoch))
            return
        for batch in self._timed(self._epochs, self._batches(epoch)):
            self._stats.count(batch)
            yield batch
            # While the next one is made, its memory is the consumer's to keep or to give back.
            del batch

    def _timed(self, this: int, batches: Iterator[Batch]) -> Iterator[Batch]:
        """Yield the batches of an epoch, by its number, and count the time that they take to come."""
        while True:
            if this != self._epochs:
                raise LoaderError("another epoch was started: its batches are not this one's")
            began = time.perf_counter_ns()
            batch = next(batches, None)
            self._stats.details["wait_s"] += (time.perf_counter_ns() - began) * 1e-9
            if batch is None:
                return
            yield batch
            del batch

    def _fill_up(self, this: int, batches: Iterator[Batch]) -> Iterator[Batch]:
        """Yield the batches of an epoch, and the last one again until there are as many as planned.

        Each is yielded when the next one is there, so that its copies are made before the consumer may change it.
        """
        left = math.ceil(len(self) / self._options.batch_size)
        last: Batch | None = None
        for batch in self._timed(this, batches):
            if last is not None:
                self._stats.count(last)
                yield last
            last, left = batch, left - 1
        if last is None:
            first = next(iter(self._stats.skipped.values()), "")
            raise SampleError(
                f"all {len(self)} samples of this rank's epoch failed, one of them: {first}; on_error=skip has no "
                "batch for the other ranks' steps: repair the samples, or the transform"
            )
        repeats = [last.copy() for _ in range(left)]
        self._stats.count(last)
        yield last
        for batch in repeats:
            self._stats.count(batch, is_repeat=True)
            yield batch

    def stats(self) -> LoaderStats:
        """Return the counts so far; `wait_s` is the time spent waiting for batches, the start of an epoch included."""
        return self._stats

    @abstractmethod
    def close(self) -> None:
        """End workers and threads, in the middle of an epoch too; may be called twice."""

    @abstractmethod
    def _batches(self, epoch: int) -> Iterator[Batch]:
        """Make the epoch's batches."""

    def _batch(
        self, ids: npt.NDArray[np.int64], tensors: Tensors, work_s: npt.NDArray[np.float64] | None = None
    ) -> Batch:
        data, labels, extra = tensors
        return Batch(ids, data, labels, self._samples.encoded_bytes(ids), extra, work_s)

    def _skip(self, failed: Iterable[Failed]) -> None:
        """Count samples that are left out."""
        for one in failed:
            self._stats.skip(one.sample_id, one.why)


class ThreadedLoader(FileLoader):
    """A loader with threads, from the first epoch that needs them to its end, and with times of every stage."""

    _name: ClassVar[str]
    """The threads' names begin with it."""

    def __init__(self, samples: Samples, options: LoaderOptions, *, num_threads: int) -> None:
        """Check what FileLoader does; raise LoaderConfigError.

        A subclass calls `close_at_exit` when it can be closed.
        """
        super().__init__(samples, options)
        self._num_threads = num_threads
        self._stages = StageTable()
        self._threads: DaemonThreads | None = None

    def stats(self) -> LoaderStats:
        """Return the counts so far; `wait_s` is the time spent waiting for the engine.

        Of every stage that threads of the loader run: STAGE_count, STAGE_mean_s, STAGE_p99_s (of the last 10 000).
        """
        self._stats.details |= self._stages.figures()
        return self._stats

    def close(self) -> None:
        """End the pipeline and its threads; may be called twice."""
        self._closed = True
        self._stop()
        if self._threads is not None:
            self._threads.shutdown()
            self._threads = None

    @abstractmethod
    def _stop(self) -> None:
        """End the epoch that is running, if one is."""

    def _own_threads(self, first: int = 0) -> DaemonThreads:
        """Return the threads, whose numbers begin with `first`; they are started now if there are none."""
        if self._threads is None:
            self._threads = DaemonThreads(self._num_threads, self._name, first=first)
        return self._threads
