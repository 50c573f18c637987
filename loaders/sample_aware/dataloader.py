"""A drop-in for torch's DataLoader in which a slow sample does not hold up the others."""

from __future__ import annotations

import multiprocessing
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final, TypeVar

import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    IterableDataset,
    MapDataPipe,
    RandomSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from loaders.errors import LoaderConfigError
from loaders.sample_aware.coordinator.engine import Engine
from loaders.sample_aware.coordinator.stats import ShowsHistory, Stats
from loaders.sample_aware.ipc.messages import Value
from loaders.sample_aware.iterators import InProcessBatches, WorkerBatches
from loaders.sample_aware.options import DataLoaderOptions, batches_ahead
from loaders.sample_aware.policy.balancer import Order
from loaders.sample_aware.workers.jobs import DatasetJob, asks_by_batch
from loaders.shared.options import takes_options

T_co = TypeVar("T_co", covariant=True)

_warned: Final[set[str]] = set()
"""Warnings that this process has given and does not repeat."""


class SampleAwareDataLoader(ShowsHistory, DataLoader[T_co]):
    """torch's DataLoader, with workers that share all samples and batches of those that are done first.

    All arguments of `torch.utils.data.DataLoader` mean what they mean there; `order` goes before `in_order`. An
    IterableDataset is served by torch's DataLoader itself, with a warning.
    """

    order: Order | None
    sample_timeout_s: float | None
    seed_samples: bool

    @takes_options(DataLoaderOptions)
    def __init__(
        self,
        dataset: Value,
        batch_size: int | None = 1,
        shuffle: bool | None = None,
        sampler: Value = None,
        batch_sampler: Value = None,
        num_workers: int = 0,
        collate_fn: Callable[[Value], Value] | None = None,
        pin_memory: bool = False,
        drop_last: bool = False,
        timeout: float = 0,
        worker_init_fn: Callable[[int], None] | None = None,
        multiprocessing_context: Value = None,
        generator: torch.Generator | None = None,
        *,
        prefetch_factor: int | None = None,
        persistent_workers: bool = False,
        pin_memory_device: str = "",
        in_order: bool = True,
        transforms: Sequence[Callable[[Value], Value]] = (),
        **keywords: Any,
    ) -> None:
        """Check the arguments; raises what torch's DataLoader raises, and LoaderConfigError.

        The arguments up to `in_order` are those of `torch.utils.data.DataLoader`, with its defaults.

        Args:
            dataset: map-style; an IterableDataset is served by torch's DataLoader itself.
            batch_size: samples of a batch; None yields single samples (default 1).
            shuffle: whether to draw the samples in random order (default False).
            sampler: draws indices (default None).
            batch_sampler: draws batches of indices (default None).
            num_workers: processes that load samples; 0 loads in the calling process (default 0).
            collate_fn: makes a batch of a list of samples (default torch's `default_collate`).
            pin_memory: whether batches are page-locked, where there is an accelerator (default False).
            drop_last: whether a last batch that is short is left out (default False).
            timeout: seconds that a batch may take; 0 for no limit (default 0).
            worker_init_fn: called in each worker with its number (default None).
            multiprocessing_context: a context, or the name of a start method (default None).
            generator: of random numbers, for the sampler and the workers' seeds (default None).
            prefetch_factor: batches for each worker, which all workers fill together (default 2 with workers).
            persistent_workers: whether workers live on after an epoch (default False).
            pin_memory_device: as in torch, where it has no effect any more (default "").
            in_order: where false, `order` None means "arrival" (default True).
            transforms: applied one after another to what the dataset returns; between two of them a slow sample makes
                way (default none).
        """
        self.options = DataLoaderOptions(**keywords)
        # Trainers make a loader again from the attributes that have the names of its arguments.
        for name, value in self.options:
            setattr(self, name, value)
        self.transforms = tuple(transforms)
        super().__init__(
            dataset,
            batch_size,
            shuffle,
            sampler,
            batch_sampler,
            num_workers,
            collate_fn,
            pin_memory,
            drop_last,
            timeout,
            worker_init_fn,
            multiprocessing_context,
            generator,
            prefetch_factor=prefetch_factor,
            persistent_workers=persistent_workers,
            pin_memory_device=pin_memory_device,
            in_order=in_order,
        )
        self.by_batch = self.batch_sampler is not None and asks_by_batch(dataset)
        """Whether the dataset is asked for whole batches, by `__getitems__`."""
        self._as_torch = isinstance(dataset, IterableDataset | MapDataPipe)
        if self._as_torch:
            self._pass_on()
        self.epochs = 0
        """Number of epochs that were started, for the iterators."""
        self._begin_figures()

    def _begin_figures(self) -> None:
        self._settings = self.options.settings(self.num_workers, self.prefetch_factor or 0, self._order(), "batch")
        self._run_stats = Stats(self.job(0).stages)

    def __getstate__(self) -> dict[str, Value]:
        left_out = ("_iterator", "_run_stats", "_settings")
        return {name: value for name, value in self.__dict__.items() if name not in left_out}

    def __setstate__(self, state: dict[str, Value]) -> None:
        self.__dict__.update(state, _iterator=None)
        self._begin_figures()

    def stats(self) -> dict[str, float]:
        """Return figures of stages, queues, slow samples and workers, as SampleAwareLoader has them."""
        return self._run_stats.details()

    def _get_iterator(self) -> Value:
        # Called by torch's `__iter__`, once for all epochs where workers persist.
        if self._as_torch:
            return super()._get_iterator()
        if self.num_workers:
            self.check_worker_number_rationality()
            _warn_if_opaque(self.transforms, self._order())
            return WorkerBatches(self)
        return InProcessBatches(self)

    def job(self, base_seed: int) -> DatasetJob:
        """Return the work on a sample, for the iterators."""
        return DatasetJob(
            self.dataset, self.transforms, self.worker_init_fn, base_seed, self.collate_fn,
            is_single=self.batch_sampler is None or self.by_batch, by_batch=self.by_batch,
            seeded=self.seed_samples,
        )  # fmt: skip

    @property
    def pins(self) -> bool:
        """Whether batches are page-locked, which needs an accelerator; for the iterators."""
        return bool(self.pin_memory) and torch.accelerator.is_available()

    def start_engine(self, base_seed: int, finish: Callable[[Value], Value] | None) -> Engine:
        """Start the workers, for the iterators; as in torch, attributes that were set since the last time count."""
        settings = replace(
            self._settings,
            workers=self.num_workers,
            order=self._order(),
            max_batches_ahead=batches_ahead(self.num_workers, self.prefetch_factor or 0),
            sample_timeout_s=self.sample_timeout_s,
        )
        context = self.multiprocessing_context or multiprocessing.get_context()
        try:
            return Engine(self.job(base_seed), settings, self._run_stats, finish, context)
        except LoaderConfigError as error:
            if error.__cause__ is None:
                raise
            # What does not pickle is the error that torch's DataLoader raises.
            error.__cause__.add_note(str(error))
            raise error.__cause__ from None

    def _pass_on(self) -> None:
        """Warn that torch's own iterators serve an IterableDataset; raises LoaderConfigError for what they lack."""
        name = type(self.dataset).__name__
        given = {"transforms": self.transforms or None} | {
            name: getattr(self, name)
            for name in ("order", "slow_timeout_s", "min_workers", "max_workers", "sample_timeout_s")
        }
        unknown = [argument for argument, value in given.items() if value is not None]
        if unknown:
            raise LoaderConfigError(
                f"{name} cannot be asked for single samples, so there is nothing that {', '.join(unknown)} would do; "
                "leave it out, or give the dataset __getitem__ and __len__"
            )
        warnings.warn(
            f"{name} cannot be asked for single samples: torch's own DataLoader serves it, and a slow sample holds up "
            "its worker",
            stacklevel=4,
        )

    def _order(self) -> Order:
        if self.order is not None:
            return self.order
        if not self.in_order:
            return "arrival"
        sampler: Value = self.sampler
        if self.batch_sampler is not None:
            if type(self.batch_sampler) is not BatchSampler:
                # It decides which samples share a batch.
                return "strict"
            sampler = self.batch_sampler.sampler
        # Only torch's own: a class that derives from one of them may decide which samples share a batch.
        if type(sampler) is DistributedSampler:
            return "arrival" if sampler.shuffle else "strict"
        return "arrival" if type(sampler) in (RandomSampler, SubsetRandomSampler, WeightedRandomSampler) else "strict"


def _warn_if_opaque(transforms: Sequence[object], order: Order) -> None:
    if transforms or order == "strict" or "opaque" in _warned:
        return
    _warned.add("opaque")
    warnings.warn(
        "the dataset does all of a sample's work in one call: a slow sample is found, but does not make way for "
        "the others; give transforms=[...] to the loader to have them applied one by one",
        stacklevel=3,
    )
