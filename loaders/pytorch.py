"""PyTorch's DataLoader over single files: worker processes that read, decode and transform with PIL."""

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
import torch
from torch.utils.data import DataLoader, Dataset, Sampler

from loaders.base import Batch, LoaderStats, Samples
from loaders.errors import LoaderError, SampleError, WorkerError
from loaders.files import check_arguments, encoded_bytes, load_sample
from loaders.image import ImageTransform, epoch_order
from loaders.torch_workers import WorkerDeaths, begin_worker, dead_worker, end_workers, explained, in_main_thread

__all__ = ["PyTorchLoader"]

_Key = tuple[int, int]
"""Epoch and sample id: persistent workers learn the epoch from what they are asked for."""
_Item = tuple[int, torch.Tensor] | SampleError
_Collated = tuple[npt.NDArray[np.int64], torch.Tensor] | SampleError


class PyTorchLoader:
    """Reads image files with `torch.utils.data.DataLoader` and its worker processes."""

    notes: tuple[str, ...] = ()

    def __init__(
        self,
        *,
        samples: Samples,
        transform: ImageTransform,
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
                _ImageFiles(samples, transform, seed),
                batch_sampler=self._batches,
                collate_fn=_collate,
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
        ids, data = collated
        labels = torch.from_numpy(self._samples.labels[ids])
        return Batch(
            ids,
            data.to(self._device, non_blocking=True),
            labels.to(self._device),
            encoded_bytes(self._samples, ids),
        )


class _ImageFiles(Dataset[_Item]):
    """Gives a sample's tensor, or the error that names it: an error raised here would lose its wording."""

    def __init__(self, samples: Samples, transform: ImageTransform, seed: int) -> None:
        self._samples = samples
        self._transform = transform
        self._seed = seed

    def __getitem__(self, key: _Key) -> _Item:
        epoch, sample_id = key
        try:
            return sample_id, load_sample(
                self._samples, sample_id, transform=self._transform, seed=self._seed, epoch=epoch
            )
        except SampleError as error:
            return error


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


def _collate(items: list[_Item]) -> _Collated:
    """Stack a batch, inside the worker; the first sample that failed stands for the whole batch."""
    ids, images = [], []
    for item in items:
        if isinstance(item, SampleError):
            return item
        ids.append(item[0])
        images.append(item[1])
    return np.array(ids, np.int64), torch.stack(images)


@contextmanager
def _any_number_of_workers() -> Iterator[None]:
    """Let an experiment take more workers than processors, as reading from afar wants, without a warning."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="This DataLoader will create")
        yield
