"""PyTorch's DataLoader over files: worker processes that read, decode and transform samples."""

from __future__ import annotations

import functools
import math
import multiprocessing.util
import os
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, NamedTuple, TypeAlias

from torch.utils.data import DataLoader, Dataset, Sampler, get_worker_info

from loaders.base import Batch, Samples
from loaders.errors import LoaderConfigError, LoaderError, SampleError, WorkerError
from loaders.options import OnError, Remainder
from loaders.pipelines.callables import AnyTransform, as_pipeline
from loaders.pytorch.shared import check_room, share
from loaders.pytorch.workers import (
    WorkerDeaths,
    begin_worker,
    dead_worker,
    end_workers,
    explained,
    in_main_thread,
)
from loaders.shared.file_loader import FileLoader
from loaders.shared.files import encoded_bytes
from loaders.shared.forking import gc_frozen
from loaders.shared.processor import Collated, Failed, Loaded, SampleProcessor
from loaders.shared.shares import Share

__all__ = ["PyTorchLoader"]

_POLLS: Final = 4
"""How often within `sample_timeout_s` the workers are looked at."""
_LONGEST_POLL_S: Final = 1.0

_Key: TypeAlias = tuple[int, int]
"""Epoch and sample id: persistent workers learn the epoch from what they are asked for."""


class _Delivered(NamedTuple):
    """What a worker hands over. A tuple of tuples, for torch page-locks no other."""

    collated: Collated | None
    """None where every sample of the batch failed."""
    failed: Sequence[Failed]
    error: LoaderError | None
    """What ends the epoch; an error raised in a worker would lose its wording."""


class PyTorchLoader(FileLoader):
    """Reads files with `torch.utils.data.DataLoader` and its worker processes."""

    def __init__(
        self,
        *,
        samples: Samples,
        transform: AnyTransform,
        batch_size: int,
        seed: int,
        device: str = "cpu",
        num_workers: int = 4,
        prefetch_factor: int = 2,
        persistent_workers: bool = True,
        pin_memory: bool | None = None,
        rank: int | None = None,
        world_size: int | None = None,
        remainder: Remainder | None = None,
        sample_timeout_s: float | None = None,
        on_error: OnError = "raise",
    ) -> None:
        """Check the arguments; raise LoaderConfigError.

        Each of `num_workers` processes (0: the calling one alone) holds `prefetch_factor` batches ready.
        `pin_memory` None means page-locked memory where `device` is a GPU. `rank`, `world_size` and `remainder` share
        the samples among ranks, see `Share`. A sample that is not back after `sample_timeout_s` seconds ends the
        epoch. With on_error "skip" a sample that fails is left out of its batch and told in `stats`, and a batch of
        which nothing is left is left out too.
        """
        transform = as_pipeline(transform)
        super().__init__(
            samples,
            device,
            batch_size=batch_size,
            seed=seed,
            rank=rank,
            world_size=world_size,
            remainder=remainder,
            sample_timeout_s=sample_timeout_s,
            on_error=on_error,
            num_workers=(num_workers, 0),
            prefetch_factor=(prefetch_factor, 1),
        )
        if sample_timeout_s is not None and not num_workers:
            raise LoaderConfigError(
                "sample_timeout_s: needs num_workers of 1 or more, for who loads cannot watch itself"
            )
        self._keys = _EpochKeys(self._share, batch_size)
        self._work = SampleProcessor(samples, transform, seed, workers=num_workers, processes=True)
        with _any_number_of_workers():
            self._torch: DataLoader[Any] = DataLoader(
                _Files(self._work),
                batch_sampler=self._keys,
                collate_fn=functools.partial(_collate, self._work, on_error),
                num_workers=num_workers,
                prefetch_factor=prefetch_factor if num_workers else None,
                persistent_workers=persistent_workers and num_workers > 0,
                pin_memory=self._device.type == "cuda" if pin_memory is None else pin_memory,
                timeout=min(_LONGEST_POLL_S, sample_timeout_s / _POLLS) if sample_timeout_s else 0,
            )
        self._iterator: Any = None
        self._epochs = 0
        self._deaths = WorkerDeaths()

    def close(self) -> None:
        """End the workers, in the middle of a read too; may be called twice."""
        self._closed = True
        self._end_workers()

    def _batches(self, epoch: int) -> Iterator[Batch]:
        yield from self._run(self._start(epoch))

    def _start(self, epoch: int) -> int:
        """Have the workers begin with an epoch; return which of all epochs that were begun it is."""
        # Where workers keep their sockets. Asked for here, it is made before them and shared by them, so it goes
        # with this process even when one of them is killed.
        multiprocessing.util.get_temp_dir()
        if not self._torch.persistent_workers:
            self._end_workers()
        self._keys.epoch = epoch
        self._begin()
        self._deaths.watch()
        self._epochs += 1
        return self._epochs

    def _run(self, this: int) -> Iterator[Batch]:
        while True:
            if this != self._epochs:
                raise LoaderError("another epoch was begun: its batches are not this one's")
            batch = self._next()
            if batch is None:
                return
            yield batch

    def _begin(self) -> None:
        """Start the workers, or have those that are there go on with another epoch."""
        # Told by the thread that starts them, which need not be the one that made the loader.
        self._torch.worker_init_fn = functools.partial(begin_worker, os.getpid(), in_main_thread())
        while True:
            try:
                with _any_number_of_workers(), gc_frozen():
                    self._iterator = iter(self._torch)
            except (RuntimeError, OSError) as error:
                # What is left of an epoch that was broken off may take them longer than a poll.
                self._after(error)
            else:
                return
            self._end_workers()

    def _end_workers(self) -> None:
        iterator, self._iterator, self._torch._iterator = self._iterator, None, None
        with self._deaths.expected():
            end_workers(iterator)

    def _next(self) -> Batch | None:
        while True:
            delivered = self._delivered()
            if delivered is None:
                return None
            self._skip(delivered.failed)
            if delivered.error is not None:
                self.close()
                raise delivered.error
            if delivered.collated is not None:
                return self._batch(delivered.collated)

    def _delivered(self) -> _Delivered | None:
        while True:
            if self._iterator is None:
                raise LoaderError("the loader is closed: make a new one")
            try:
                delivered: _Delivered | None = next(self._iterator, None)
            except WorkerError:
                self.close()
                raise
            except (RuntimeError, OSError, EOFError) as error:
                self._after(error)
            else:
                return delivered

    def _after(self, error: Exception) -> None:
        """Return where the workers were only looked at, and none is overdue; else close and raise."""
        late = self._watch_overdue() if _is_poll(error) else None
        if _is_poll(error) and late is None:
            return
        # A worker that dies while it hands a batch over shows as a broken socket.
        dead = dead_worker(self._iterator) if late is None else None
        self.close()
        raise late or dead or explained(error) from error

    def _watch_overdue(self) -> SampleError | None:
        late = self._work.watch.overdue(self._timeout_s) if self._timeout_s is not None else None
        if late is None:
            return None
        workers = getattr(self._iterator, "_workers", ())
        who = f"worker {late.worker}" + (f" (pid {workers[late.worker].pid})" if workers else "")
        return self._work.timeout_error(late, who)

    def _batch(self, collated: Collated) -> Batch:
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


class _Files(Dataset[Loaded | Failed]):
    """Gives a sample, or what is told of the one that failed."""

    def __init__(self, work: SampleProcessor) -> None:
        self._work = work

    def __getitem__(self, key: _Key) -> Loaded | Failed:
        epoch, sample_id = key
        try:
            return self._work.load(_worker(), epoch, sample_id)
        except SampleError as error:
            return Failed(sample_id, str(error))


class _EpochKeys(Sampler[list[_Key]]):
    """The keys of each batch of the epoch that is set."""

    def __init__(self, share: Share, batch_size: int) -> None:
        self._share = share
        self._batch_size = batch_size
        self.epoch = 0

    def __len__(self) -> int:
        return math.ceil(len(self._share) / self._batch_size)

    def __iter__(self) -> Iterator[list[_Key]]:
        keys = [(self.epoch, sample_id) for sample_id in self._share.order(self.epoch).tolist()]
        for start in range(0, len(keys), self._batch_size):
            yield keys[start : start + self._batch_size]


def _collate(work: SampleProcessor, on_error: OnError, batch: list[Loaded | Failed]) -> _Delivered:
    """Collate a batch, inside the worker; the first sample that failed stands for the whole batch."""
    failed = [one for one in batch if isinstance(one, Failed)]
    if failed and on_error == "raise":
        return _Delivered(None, (), SampleError(failed[0].why))
    loaded = [one for one in batch if isinstance(one, Loaded)]
    in_worker = get_worker_info() is not None
    try:
        if in_worker:
            # A pipeline may collate in shared memory, as `default_collate` does.
            check_room(sum(getattr(one.item.data, "nbytes", 0) for one in loaded))
        collated = work.collate(_worker(), loaded) if loaded else None
        if collated is not None and in_worker:
            share(collated.tensors)
    except LoaderError as error:
        return _Delivered(None, failed, error)
    return _Delivered(collated, failed, None)


def _worker() -> int:
    info = get_worker_info()
    return 0 if info is None else info.id


def _is_poll(error: Exception) -> bool:
    # torch has no type for it, only this wording.
    return str(error).startswith("DataLoader timed out after")


@contextmanager
def _any_number_of_workers() -> Iterator[None]:
    """Let an experiment take more workers than processors, as reading from afar wants, without a warning."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="This DataLoader will create")
        yield
