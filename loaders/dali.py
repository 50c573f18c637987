"""NVIDIA DALI over single files: its own file reader, decoder and augmentations, on the CPU or a GPU."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from types import TracebackType
from typing import Self

import numpy as np
import numpy.typing as npt
import torch

from loaders.base import Batch, LoaderStats, Samples
from loaders.dali_epoch import READER_DEPTH, DaliEpoch
from loaders.errors import LoaderError, SampleError
from loaders.files import check_arguments, encoded_bytes, find_bad_sample
from loaders.image import ImageTransform, epoch_order

__all__ = ["DaliLoader"]


class DaliLoader:
    """Reads image files with DALI's `readers.file` and decodes them in its pipeline.

    A pipeline lives for one epoch: it starts cold, as the other loaders' epochs do, reads every file of the
    epoch once and nothing beyond it. Decoding is on the GPU too ("mixed") where `device` is one.
    """

    notes: tuple[str, ...] = (
        "DALI decodes only the crop of an image and resizes in floating point: pixels differ from PIL's by "
        "0.2 of 255 grey levels on average",
    )

    def __init__(
        self,
        *,
        samples: Samples,
        transform: ImageTransform,
        batch_size: int,
        seed: int,
        device: str = "cpu",
        num_threads: int = 2,
        prefetch_queue_depth: int = 2,
        mmap: bool = True,
    ) -> None:
        """Check the arguments; raise LoaderConfigError.

        `num_threads` decode; one more reads. `prefetch_queue_depth` batches are under way at once. `mmap` maps
        files into memory, DALI's default, so that the decoding threads fetch their pages; without it the one
        reading thread copies file after file.
        """
        self._device = check_arguments(
            samples,
            device,
            batch_size=(batch_size, 1),
            num_threads=(num_threads, 1),
            prefetch_queue_depth=(prefetch_queue_depth, 1),
        )
        self._samples = samples
        self._transform = transform
        self._batch_size = batch_size
        self._seed = seed
        self._num_threads = num_threads
        self._depth = prefetch_queue_depth
        self._mmap = mmap
        self._stats = LoaderStats(details={"wait_s": 0.0})
        self._running: DaliEpoch | None = None

    def epoch(self, epoch: int) -> Iterator[Batch]:
        """Yield the epoch's batches; raise SampleError naming a sample that DALI cannot read or decode."""
        self.close()
        order = epoch_order(len(self._samples), seed=self._seed, epoch=epoch)
        running = self._running = DaliEpoch(
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
        try:
            for start in range(0, len(order), self._batch_size):
                began = time.perf_counter_ns()
                batch = self._next(running, order, start)
                self._stats.details["wait_s"] += (time.perf_counter_ns() - began) * 1e-9
                self._stats.count(batch)
                yield batch
        finally:
            running.close()

    def stats(self) -> LoaderStats:
        """Return the counts so far; `wait_s` is the time spent waiting for DALI."""
        return self._stats

    def close(self) -> None:
        """End the pipeline and its threads."""
        if self._running is not None:
            self._running.close()
            self._running = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

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
        raise self._explained(failure, order, start)

    def _explained(self, message: str, order: npt.NDArray[np.int64], start: int) -> LoaderError:
        """Return the error of the sample that broke the pipeline, for DALI seldom names it."""
        # What was read ahead may be at fault as well as the batch that was asked for.
        ahead = (1 + self._depth + READER_DEPTH) * self._batch_size
        window = [int(sample_id) for sample_id in order[start : start + ahead]]
        position = re.search(r"[Ff]ailed to decode sample #(\d+)", message)
        at = int(position[1]) if position else None
        named = [
            sample_id
            for index, sample_id in enumerate(window)
            if index % self._batch_size == at or self._samples.paths[sample_id] in message
        ]
        bad = find_bad_sample(self._samples, [*named, *window])
        if bad is not None:
            return bad
        if at is not None and at < len(window):
            path = self._samples.path(window[at])
            return SampleError(f"sample {window[at]} ({path}) cannot be decoded by DALI, though PIL can: {message}")
        return LoaderError(f"DALI's pipeline failed at samples {window[: self._batch_size]}: {message}")
