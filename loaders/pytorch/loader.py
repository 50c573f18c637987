"""torch's DataLoader as an engine of loaders: worker processes that load whole batches, started epoch by epoch."""

from __future__ import annotations

import functools
import multiprocessing.util
import os
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Annotated, Any, Final, Literal, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from pydantic import Field
from torch.utils.data import DataLoader, Dataset, Sampler, get_worker_info

from loaders.base import Batch, Samples
from loaders.errors import LoaderConfigError, LoaderError, SampleError, WorkerError
from loaders.pipeline import Pipeline
from loaders.pipeline.callables import AnyTransform, as_pipeline
from loaders.pytorch.workers import (
    WorkerDeaths,
    begin_worker,
    check_room,
    dead_worker,
    end_workers,
    in_main_thread,
    is_timeout,
    share,
    to_loader_error,
)
from loaders.shared.compat import check_socket_paths, drop_iterator, iterator_workers
from loaders.shared.file_loader import FileLoader
from loaders.shared.options import Count, LoaderOptions, OnError, takes_options, whole
from loaders.shared.processor import Collated, Failed, Loaded, SampleProcessor
from loaders.shared.threads import gc_frozen

_POLLS: Final = 4
"""How often within `sample_timeout_s` the workers are looked at."""
_MAX_POLL_S: Final = 1.0

_Key: TypeAlias = tuple[int, int]
"""Epoch and sample id: persistent workers learn the epoch from what they are asked for."""


class TorchOptions(LoaderOptions):
    """What every loader takes, and a DataLoader."""

    num_workers: Annotated[int, whole(0)] = Field(
        default=4, description="processes that load samples; 0 loads in the calling process"
    )
    prefetch_factor: Count = Field(default=2, description="batches that each worker keeps ready")
    multiprocessing_context: Literal["fork", "spawn"] | None = Field(
        default=None,
        description='how workers start: "fork", which copies nothing at first, or "spawn", to which the samples are '
        "pickled; None for Python's default",
    )
    persistent_workers: bool = Field(
        default=True, description="whether workers live as long as the loader, and not for one epoch"
    )
    pin_memory: bool | None = Field(
        default=None, description="whether batches are page-locked; None where `device` is a GPU"
    )
    in_order: bool = Field(
        default=True,
        description="whether batches come in the epoch's order, and not in the order in which workers finish them",
    )

    def model_post_init(self, context: object) -> None:
        """Check what several arguments say together; raises LoaderConfigError."""
        super().model_post_init(context)
        if self.sample_timeout_s is not None and not self.num_workers:
            raise LoaderConfigError("sample_timeout_s: needs num_workers of 1 or more, which can be watched")


class TorchDelivery(NamedTuple):
    """What a worker sends. A tuple of tuples, because torch page-locks nothing else."""

    collated: Collated | None
    """None where every sample of the batch failed."""
    failed: Sequence[Failed]
    error: LoaderError | None
    """What ends the epoch; an error raised in a worker would lose its wording."""


class TorchBatches:
    """A DataLoader, its workers, and the batches of one epoch after another."""

    def __init__(
        self,
        samples: Samples,
        pipeline: Pipeline,
        options: TorchOptions,
        *,
        num_workers: int,
        device: torch.device,
        order: Callable[[int], npt.NDArray[np.int64]],
        skip: Callable[[Iterable[Failed]], None],
    ) -> None:
        """Start no worker yet.

        `order` returns the sample ids of an epoch in their order; `skip` is called with the samples that are left out.
        Raises LoaderConfigError for a folder of temporary files whose path is too long for the workers' sockets.
        """
        if num_workers:
            check_socket_paths()
        self.closed = False
        self._samples, self._device, self._skip = samples, device, skip
        self._timeout_s = timeout_s = options.sample_timeout_s
        self._keys = _BatchKeys(order, options.batch_size)
        self._work = SampleProcessor(samples, pipeline, options.seed, workers=num_workers, processes=True)
        with _any_number_of_workers():
            self._torch: DataLoader[Loaded | Failed] = DataLoader(
                _Files(self._work),
                batch_sampler=self._keys,
                collate_fn=functools.partial(_collate, self._work, options.on_error),
                num_workers=num_workers,
                prefetch_factor=options.prefetch_factor if num_workers else None,
                multiprocessing_context=options.multiprocessing_context if num_workers else None,
                persistent_workers=options.persistent_workers and num_workers > 0,
                pin_memory=device.type == "cuda" if options.pin_memory is None else options.pin_memory,
                timeout=min(_MAX_POLL_S, timeout_s / _POLLS) if timeout_s else 0,
                in_order=options.in_order,
            )
        self._iterator: Iterator[TorchDelivery] | None = None
        self._sockets = ""
        self._deaths = WorkerDeaths()

    def start(self, epoch: int) -> Iterator[Batch]:
        """Have the workers start an epoch now; return its batches.

        The iterator raises SampleError naming a sample, WorkerError naming a worker, and LoaderError once closed.
        """
        # Where workers keep their sockets. Asked for here, it is made before them and shared by them, so it goes
        # with this process even when one of them is killed.
        self._sockets = multiprocessing.util.get_temp_dir()
        if not self._torch.persistent_workers:
            self._end_workers()
        self._keys.epoch = epoch
        self._begin()
        self._deaths.watch()
        return self._batches()

    def close(self) -> None:
        """End the workers, in the middle of a read too; may be called twice."""
        self.closed = True
        self._end_workers()

    def _begin(self) -> None:
        """Start the workers, or have those that are there go on with another epoch."""
        # Set by the thread that starts them, which need not be the one that made the loader.
        self._torch.worker_init_fn = functools.partial(begin_worker, os.getpid(), in_main_thread(), self._sockets)
        while True:
            try:
                with _any_number_of_workers(), gc_frozen():
                    self._iterator = iter(self._torch)
            except (RuntimeError, OSError) as error:
                # The rest of an epoch that was broken off may take them longer than a poll.
                self._after(error)
            else:
                return
            self._end_workers()

    def _end_workers(self) -> None:
        iterator, self._iterator = self._iterator, None
        drop_iterator(self._torch)
        with self._deaths.expected():
            end_workers(iterator)

    def _batches(self) -> Iterator[Batch]:
        while (delivered := self._delivered()) is not None:
            self._skip(delivered.failed)
            if delivered.error is not None:
                self.close()
                raise delivered.error
            if delivered.collated is not None:
                yield self._batch(delivered.collated)

    def _delivered(self) -> TorchDelivery | None:
        while True:
            if self._iterator is None:
                raise LoaderError("the loader is closed: make a new one")
            try:
                return next(self._iterator, None)
            except WorkerError:
                self.close()
                raise
            except (RuntimeError, OSError, EOFError) as error:
                self._after(error)

    def _after(self, error: Exception) -> None:
        """Return where the workers were only looked at, and none is overdue; else close and raise."""
        late = self._late_sample() if is_timeout(error) else None
        if is_timeout(error) and late is None:
            return
        # A worker that dies while it sends a batch shows as a broken socket.
        dead = dead_worker(self._iterator) if late is None else None
        self.close()
        raise late or dead or to_loader_error(error) from error

    def _late_sample(self) -> SampleError | None:
        late = self._work.monitor.overdue(self._timeout_s) if self._timeout_s is not None else None
        if late is None:
            return None
        workers = iterator_workers(self._iterator)
        who = f"worker {late.worker}" + (f" (pid {workers[late.worker].pid})" if workers else "")
        return self._work.timeout_error(late, who)

    def _batch(self, collated: Collated) -> Batch:
        ids, tensors, work_s = collated
        data, labels, extra = tensors.each(lambda tensor: tensor.to(self._device, non_blocking=True))
        return Batch(ids, data, labels, self._samples.encoded_bytes(ids), extra, work_s)


class TorchLoader(FileLoader):
    """A loader of files whose batches all come from one DataLoader."""

    def __init__(self, samples: Samples, pipeline: Pipeline, options: TorchOptions) -> None:
        """Check the arguments; raise LoaderConfigError."""
        super().__init__(samples, options)
        self._torch = TorchBatches(
            samples,
            pipeline,
            options,
            num_workers=options.num_workers,
            device=self._device,
            order=self._share.order,
            skip=self._skip,
        )

    def close(self) -> None:
        """End the workers, in the middle of a read too; may be called twice."""
        self._closed = True
        self._torch.close()

    def _batches(self, epoch: int) -> Iterator[Batch]:
        try:
            yield from self._torch.start(epoch)
        finally:
            self._closed = self._torch.closed


class PyTorchLoader(TorchLoader):
    """Reads files with `torch.utils.data.DataLoader` and its worker processes."""

    @takes_options(TorchOptions)
    def __init__(self, *, samples: Samples, transform: AnyTransform, **keywords: Any) -> None:
        """Check the arguments; raise LoaderConfigError.

        With on_error "skip" a batch of which every sample failed is left out too.

        Args:
            samples: the files.
            transform: a pipeline, or a callable on the decoded sample.
        """
        super().__init__(samples, as_pipeline(transform), TorchOptions(**keywords))


class _Files(Dataset[Loaded | Failed]):
    """Returns a sample, or why it failed."""

    def __init__(self, work: SampleProcessor) -> None:
        self._work = work

    def __getitem__(self, key: _Key) -> Loaded | Failed:
        epoch, sample_id = key
        try:
            return self._work.load(_worker(), epoch, sample_id)
        except SampleError as error:
            return Failed(sample_id, str(error))


class _BatchKeys(Sampler[list[_Key]]):
    """The keys of each batch of the epoch that is set."""

    def __init__(self, order: Callable[[int], npt.NDArray[np.int64]], batch_size: int) -> None:
        self._order, self._batch_size = order, batch_size
        self.epoch = 0

    def __iter__(self) -> Iterator[list[_Key]]:
        keys = [(self.epoch, sample_id) for sample_id in self._order(self.epoch).tolist()]
        for start in range(0, len(keys), self._batch_size):
            yield keys[start : start + self._batch_size]


def _collate(work: SampleProcessor, on_error: OnError, batch: list[Loaded | Failed]) -> TorchDelivery:
    """Collate a batch, inside the worker; the first sample that failed stands for the whole batch."""
    failed = [one for one in batch if isinstance(one, Failed)]
    if failed and on_error == "raise":
        return TorchDelivery(None, (), SampleError(failed[0].why))
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
        return TorchDelivery(None, failed, error)
    return TorchDelivery(collated, failed, None)


def _worker() -> int:
    info = get_worker_info()
    return 0 if info is None else info.id


@contextmanager
def _any_number_of_workers() -> Iterator[None]:
    """Let an experiment take more workers than processors, as reading from afar wants, without a warning."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="This DataLoader will create")
        yield
