"""NVIDIA DALI over files: its own reader, decoder and augmentations for images, Python operators for the rest."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Final, Self

import numpy as np
import numpy.typing as npt
import torch

from loaders.base import Batch, LoaderStats, Samples
from loaders.batches_ahead import BatchesAhead
from loaders.dali.epoch import READER_DEPTH, DaliEpoch, device_index
from loaders.dali.failure import explained
from loaders.dali.python import DaliPythonEpoch
from loaders.errors import LoaderConfigError, LoaderError, SampleTimeoutError
from loaders.files import check_arguments, encoded_bytes
from loaders.image import ImageTransform
from loaders.pipeline import Pipeline
from loaders.shares import Share
from loaders.stage_table import StageTable
from loaders.streaming.planner import Remainder
from loaders.threads import DaemonThreads
from loaders.work import OnError, Work, check_policy

__all__ = ["DaliLoader"]

_NATIVE_NOTE: Final = (
    "DALI decodes only the crop of an image and resizes in floating point: pixels differ from PIL's by 0.2 of 255 grey "
    "levels on average"
)


class DaliLoader:
    """Reads files with DALI, in a pipeline that lives for one epoch.

    It starts cold, as the other loaders' epochs do, reads every file of the epoch once and nothing beyond it. Images
    are read with `readers.file` and decoded in DALI, on the GPU too ("mixed") where `device` is one. Of any other
    pipeline the steps are Python operators: threads of this loader run them, and DALI takes the batches in.
    """

    def __init__(
        self,
        *,
        samples: Samples,
        transform: Pipeline,
        batch_size: int,
        seed: int,
        device: str = "cpu",
        num_threads: int = 2,
        prefetch_queue_depth: int = 2,
        mmap: bool = True,
        rank: int = 0,
        world_size: int = 1,
        remainder: Remainder | None = None,
        sample_timeout_s: float | None = None,
        on_error: OnError = "raise",
    ) -> None:
        """Check the arguments; raise LoaderConfigError.

        `num_threads` decode; of images one more reads. `prefetch_queue_depth` batches are under way at once. `mmap`
        maps image files into memory, DALI's default, so that the decoding threads fetch their pages; without it the
        one reading thread copies file after file. `rank`, `world_size` and `remainder` share the samples among ranks,
        see `Share`. `sample_timeout_s` and on_error "skip" are of Python operators alone, and as `SpdlLoader` has
        them: DALI's own end with the first file that fails, and do not end at all with one that hangs.
        """
        self._device = check_arguments(
            samples,
            device,
            batch_size=(batch_size, 1),
            num_threads=(num_threads, 1),
            prefetch_queue_depth=(prefetch_queue_depth, 1),
        )
        check_policy(on_error, sample_timeout_s)
        self._samples = samples
        self._transform = transform
        self._batch_size = batch_size
        self._seed = seed
        self._num_threads = num_threads
        self._depth = prefetch_queue_depth
        self._mmap = mmap
        self._share = Share(len(samples), seed, rank, world_size, remainder)
        self._timeout_s: float | None = sample_timeout_s
        self._on_error: OnError = on_error
        self._stats = LoaderStats(details={"wait_s": 0.0})
        self._stages = StageTable()
        self._work: Work | None = None
        self._threads: DaemonThreads | None = None
        self._end: Callable[[], None] | None = None
        self._closed = False
        self.notes: tuple[str, ...] = (_NATIVE_NOTE,)
        if not isinstance(transform, ImageTransform):
            self._work = Work(samples, transform, seed, workers=num_threads, processes=False)
            self.notes = (_python_note(transform),)
        elif on_error == "skip":
            raise LoaderConfigError("on_error=skip: DALI's image pipeline ends with a sample that fails; use raise")
        elif sample_timeout_s is not None:
            raise LoaderConfigError(
                "sample_timeout_s: a read of DALI's image pipeline cannot be given up; use null, or another loader"
            )

    def __len__(self) -> int:
        """Return the number of this rank's samples in an epoch."""
        return len(self._share)

    def epoch(self, epoch: int) -> Iterator[Batch]:
        """Yield the epoch's batches; raise SampleError naming a sample that cannot be read or decoded."""
        if self._closed:
            raise LoaderError("the loader is closed: make a new one")
        self._stop()
        order = self._share.order(epoch)
        batches = self._native(order, epoch) if self._work is None else self._in_python(self._work, order, epoch)
        while True:
            began = time.perf_counter_ns()
            batch = next(batches, None)
            self._stats.details["wait_s"] += (time.perf_counter_ns() - began) * 1e-9
            if batch is None:
                return
            self._stats.count(batch)
            yield batch

    def stats(self) -> LoaderStats:
        """Return the counts so far; `wait_s` is the time spent waiting for DALI.

        Of Python operators also STAGE_count, STAGE_mean_s and STAGE_p99_s (of the last 10 000) of every stage.
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

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _stop(self) -> None:
        end, self._end = self._end, None
        if end is not None:
            end()

    def _native(self, order: npt.NDArray[np.int64], epoch: int) -> Iterator[Batch]:
        """Yield batches of images that DALI reads and decodes."""
        assert isinstance(self._transform, ImageTransform)
        if not len(order):
            return
        running = DaliEpoch(
            self._samples,
            order,
            transform=self._transform,
            batch_size=self._batch_size,
            seed=self._seed,
            epoch=epoch,
            device=self._device,
            num_threads=self._num_threads,
            prefetch_queue_depth=self._depth,
            mmap=self._mmap,
        )
        self._end = running.close
        try:
            for start in range(0, len(order), self._batch_size):
                yield self._next(running, order, start)
        finally:
            running.close()

    def _next(self, running: DaliEpoch, order: npt.NDArray[np.int64], start: int) -> Batch:
        try:
            data, ids = running.next()
        except RuntimeError as error:
            failure = str(error)
        else:
            count = min(self._batch_size, len(order) - start)
            ids, data = ids[:count], data[:count]
            labels = torch.from_numpy(self._samples.labels[ids]).to(self._device)
            return Batch(ids, data, labels, encoded_bytes(self._samples, ids))
        # Out of the handler, whose traceback would keep the pipeline and its threads alive.
        running.close()
        ahead = (1 + self._depth + READER_DEPTH) * self._batch_size
        window = [int(sample_id) for sample_id in order[start : start + ahead]]
        raise explained(failure, self._samples, window, self._batch_size)

    def _in_python(self, work: Work, order: npt.NDArray[np.int64], epoch: int) -> Iterator[Batch]:
        """Yield batches that this loader's threads make."""
        if self._threads is None:
            self._threads = DaemonThreads(self._num_threads, "dali-loader")
        ahead = BatchesAhead(
            work,
            order,
            epoch=epoch,
            batch_size=self._batch_size,
            depth=self._depth,
            threads=self._threads,
            stages=self._stages,
            on_error=self._on_error,
            timeout_s=self._timeout_s,
        )
        running = DaliPythonEpoch(
            ahead, device=self._device, device_id=device_index(self._device), prefetch_queue_depth=self._depth
        )
        self._end = running.close
        told = 0
        try:
            while True:
                made = running.next()
                for failed in running.failed[told:]:
                    self._stats.skip(*failed)
                    told += 1
                if made is None:
                    return
                ids, tensors, work_s = made
                yield Batch(ids, tensors.data, tensors.labels, encoded_bytes(self._samples, ids), tensors.extra, work_s)
        except SampleTimeoutError:
            self.close()
            raise
        finally:
            running.close()


def _python_note(transform: Pipeline) -> str:
    steps = ", ".join(("reading", "decoding", *(step.name for step in transform.transforms), "collation"))
    return (
        f"Python operators: DALI has no operators with the random numbers of {type(transform).__name__}, so threads "
        f"run {steps} and hand batches to DALI's external_source"
    )
