"""PyTorch's DataLoader over files: worker processes that read, decode and transform samples."""

from __future__ import annotations

import functools
import math
import multiprocessing.util
import os
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Self

import numpy as np
import numpy.typing as npt
from torch.utils.data import DataLoader, Dataset, Sampler

from loaders.base import Batch, LoaderStats, Samples
from loaders.errors import LoaderError, SampleError, WorkerError
from loaders.files import check_arguments, encoded_bytes
from loaders.image import epoch_order
from loaders.pipeline import Item, Pipeline, Tensors, load_item
from loaders.torch_workers import WorkerDeaths, begin_worker, dead_worker, end_workers, explained, in_main_thread

__all__ = ["PyTorchLoader"]

_Key = tuple[int, int]
"""Epoch and sample id: persistent workers learn the epoch from what they are asked for."""
_Loaded = tuple[Item, int] | SampleError
"""An item, and the nanoseconds that it took."""
_Collated = tuple[npt.NDArray[np.int64], Tensors, npt.NDArray[np.float64]] | SampleError
"""Ids, tensors, and the seconds that every sample took."""


class PyTorchLoader:
    """Reads files with `torch.utils.data.DataLoader` and its worker processes."""

    notes: tuple[str, ...] = ()

    def __init__(
        self,
        *,
        samples: Samples,
        transform: Pipeline,
        batch_size: int,
        seed: int,
        device: str = "cpu",
        num_workers: int = 4,
        prefetch_factor: int = 2,
        persistent_workers: bool = True,
        pin_memory: bool | None = None,
    ) -> None:
        """Check the arguments; raise LoaderConfigError.

        Each of `num_workers` processes (0: the calling one alone) holds `prefetch_factor` batches ready.
        `pin_memory` None means page-locked memory where `device` is a GPU.
        """
        self._device = check_arguments(
            samples,
            device,
            batch_size=(batch_size, 1),
            num_workers=(num_workers, 0),
            prefetch_factor=(prefetch_factor, 1),
        )
        self._samples = samples
        self._stats = LoaderStats(details={"wait_s": 0.0})
        self._batches = _EpochBatches(len(samples), batch_size, seed)
        with _any_number_of_workers():
            self._torch: DataLoader[Any] | None = DataLoader(
                _Files(samples, transform, seed),
                batch_sampler=self._batches,
                collate_fn=functools.partial(_collate, transform),
                num_workers=num_workers,
                prefetch_factor=prefetch_factor if num_workers else None,
                persistent_workers=persistent_workers and num_workers > 0,
                pin_memory=self._device.type == "cuda" if pin_memory is None else pin_memory,
                worker_init_fn=functools.partial(begin_worker, os.getpid(), in_main_thread()),
            )
        self._iterator: Any = None
        self._epochs = 0
        self._deaths = WorkerDeaths()

    def epoch(self, epoch: int) -> Iterator[Batch]:
        """Yield the epoch's batches; raise SampleError naming a sample, WorkerError naming a worker's pid."""
        if self._torch is None:
            raise LoaderError("the loader is closed: make a new one")
        # Where workers keep their sockets. Asked for here, it is made before them and shared by them, so it goes
        # with this process even when one of them is killed.
        multiprocessing.util.get_temp_dir()
        if not self._torch.persistent_workers:
            self._end_workers()
        self._batches.epoch = epoch
        with _any_number_of_workers():
            self._iterator = iter(self._torch)
        self._deaths.watch()
        self._epochs += 1
        this = self._epochs
        while True:
            if this != self._epochs:
                raise LoaderError("another epoch was begun: its batches are not this one's")
            began = time.perf_counter_ns()
            batch = self._next()
            self._stats.details["wait_s"] += (time.perf_counter_ns() - began) * 1e-9
            if batch is None:
                return
            self._stats.count(batch)
            yield batch

    def stats(self) -> LoaderStats:
        """Return the counts so far; `wait_s` is the time spent waiting for the workers."""
        return self._stats

    def close(self) -> None:
        """End the workers, in the middle of a read too."""
        self._torch = None
        self._end_workers()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _end_workers(self) -> None:
        iterator, self._iterator = self._iterator, None
        with self._deaths.expected():
            end_workers(iterator)

    def _next(self) -> Batch | None:
        if self._iterator is None:
            raise LoaderError("the loader is closed: make a new one")
        try:
            collated: _Collated | None = next(self._iterator, None)
        except WorkerError:
            self.close()
            raise
        except (RuntimeError, OSError, EOFError) as error:
            # A worker that dies while it hands a batch over shows as a broken socket.
            dead = dead_worker(self._iterator)
            self.close()
            raise dead or explained(error) from error
        if collated is None:
            return None
        if isinstance(collated, SampleError):
            self.close()
            raise collated
        ids, tensors, work_s = collated
        device = self._device
        return Batch(
            ids,
            tensors.data.to(device, non_blocking=True),
            tensors.labels.to(device, non_blocking=True),
            encoded_bytes(self._samples, ids),
            {name: tensor.to(device, non_blocking=True) for name, tensor in tensors.extra.items()},
            work_s,
        )


class _Files(Dataset[_Loaded]):
    """Gives an item, or the error that names the sample: an error raised here would lose its wording."""

    def __init__(self, samples: Samples, pipeline: Pipeline, seed: int) -> None:
        self._samples = samples
        self._pipeline = pipeline
        self._seed = seed

    def __getitem__(self, key: _Key) -> _Loaded:
        epoch, sample_id = key
        began = time.perf_counter_ns()
        try:
            item = load_item(self._pipeline, self._samples, sample_id, seed=self._seed, epoch=epoch)
        except SampleError as error:
            return error
        return item, time.perf_counter_ns() - began


class _EpochBatches(Sampler[list[_Key]]):
    """The keys of each batch of the epoch that is set."""

    def __init__(self, count: int, batch_size: int, seed: int) -> None:
        self._count = count
        self._batch_size = batch_size
        self._seed = seed
        self.epoch = 0

    def __len__(self) -> int:
        return math.ceil(self._count / self._batch_size)

    def __iter__(self) -> Iterator[list[_Key]]:
        keys = [(self.epoch, sample_id) for sample_id in self._order()]
        for start in range(0, len(keys), self._batch_size):
            yield keys[start : start + self._batch_size]

    def _order(self) -> list[int]:
        order: list[int] = epoch_order(self._count, seed=self._seed, epoch=self.epoch).tolist()
        return order


def _collate(pipeline: Pipeline, loaded: list[_Loaded]) -> _Collated:
    """Collate a batch, inside the worker; the first sample that failed stands for the whole batch."""
    items, work_s = [], []
    for one in loaded:
        if isinstance(one, SampleError):
            return one
        items.append(one[0])
        work_s.append(one[1] * 1e-9)
    ids = [item.id for item in items]
    try:
        tensors = pipeline.collate(items)
    except Exception as error:  # noqa: BLE001 - told as the batch's error
        return SampleError(f"samples {ids} cannot be collated: {type(error).__name__}: {error}")
    return np.array(ids, np.int64), tensors, np.array(work_s)


@contextmanager
def _any_number_of_workers() -> Iterator[None]:
    """Let an experiment take more workers than processors, as reading from afar wants, without a warning."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="This DataLoader will create")
        yield
