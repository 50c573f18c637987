"""A drop-in for torch's DataLoader in which a slow sample holds nobody up."""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Callable, Sequence
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
from loaders.sample_aware.coordinator.engine import Engine, Policy
from loaders.sample_aware.coordinator.stats import Stats
from loaders.sample_aware.coordinator.thread import Settings
from loaders.sample_aware.drop_in.batches import InProcess, TorchCollate, WorkerBatches, can_pin
from loaders.sample_aware.drop_in.keys import Progress
from loaders.sample_aware.drop_in.samplers import draws_again, noted
from loaders.sample_aware.ipc import nontemporal_copy
from loaders.sample_aware.options import DEFAULT_BYTES, ahead_of, check_order, scheduler_of
from loaders.sample_aware.policy.balancer import Order
from loaders.sample_aware.policy.scheduler import Decision
from loaders.sample_aware.policy.timeout import SlowTimeout, TimeoutChange
from loaders.sample_aware.workers.jobs import DatasetJob, asks_by_batch

__all__ = ["SampleAwareDataLoader"]

T_co = TypeVar("T_co", covariant=True)

_said: Final[set[str]] = set()
"""What was said in this process and is not said again."""


class SampleAwareDataLoader(DataLoader[T_co]):
    """torch's DataLoader, with workers that share all samples and batches of those that are done first.

    All arguments of `torch.utils.data.DataLoader` mean what they mean there; `order` goes before `in_order`. An
    IterableDataset is served by torch's DataLoader itself, with a warning.
    """

    def __init__(
        self,
        dataset: Any,
        batch_size: int | None = 1,
        shuffle: bool | None = None,
        sampler: Any = None,
        batch_sampler: Any = None,
        num_workers: int = 0,
        collate_fn: Callable[[Any], Any] | None = None,
        pin_memory: bool = False,
        drop_last: bool = False,
        timeout: float = 0,
        worker_init_fn: Callable[[int], None] | None = None,
        multiprocessing_context: Any = None,
        generator: torch.Generator | None = None,
        *,
        prefetch_factor: int | None = None,
        persistent_workers: bool = False,
        pin_memory_device: str = "",
        in_order: bool = True,
        transforms: Sequence[Callable[[Any], Any]] = (),
        order: Order | None = None,
        slow_timeout_s: float | None = None,
        warm_up: int = 32,
        min_workers: int | None = None,
        max_workers: int | None = None,
        alpha: float = 2.0,
        beta: float = 1.0,
        theta_c: float = 0.7,
        most_bytes: int = DEFAULT_BYTES,
        sample_timeout_s: float | None = None,
        seed_samples: bool = True,
    ) -> None:
        """Check the arguments; raises what torch's DataLoader does, and LoaderConfigError.

        `transforms` are applied one after another to what the dataset gives; between two of them a slow sample makes
        way. `order` "arrival" fills batches with what is done first, "strict" keeps the sampler's batches; None is
        arrival where the sampler is a random one of torch's or `in_order` is false, strict elsewhere. With
        `seed_samples` what a sample draws depends on its place in the epoch alone, for 10 µs a sample; without, a
        worker's random numbers go on from one of its samples to the next, as torch's do. See SampleAwareLoader for the
        others.
        """
        check_order(order)
        self.transforms, self.order = tuple(transforms), order
        self.slow_timeout_s, self.warm_up, self.sample_timeout_s = slow_timeout_s, warm_up, sample_timeout_s
        self.min_workers, self.max_workers, self.most_bytes = min_workers, max_workers, most_bytes
        self.alpha, self.beta, self.theta_c = alpha, beta, theta_c
        self.seed_samples = seed_samples
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
        self.progress = Progress()
        """Which epoch it is, for the iterators."""
        self._state: dict[str, Any] | None = None
        self._begin_figures()

    def _begin_figures(self) -> None:
        if self.num_workers and not self._as_torch:
            # Compiled here, where it is outside of every epoch.
            nontemporal_copy.library()
        self._scheduler = (
            scheduler_of(
                self.num_workers, self.min_workers, self.max_workers, alpha=self.alpha, beta=self.beta,
                theta_c=self.theta_c,
            )
            if self.num_workers
            else None
        )  # fmt: skip
        self._slow_timeout = SlowTimeout(warm_up=self.warm_up, fixed_s=self.slow_timeout_s)
        self._stats = Stats(self.job(0).stages)
        # Weakly, for workers end with the iterator that they work for.
        self._current: weakref.ref[WorkerBatches | InProcess] | None = None

    def __getstate__(self) -> dict[str, Any]:
        left_out = ("_iterator", "_current", "_stats", "_slow_timeout", "_scheduler")
        return {name: value for name, value in self.__dict__.items() if name not in left_out}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _iterator=None)
        self._begin_figures()

    @property
    def timeout_history(self) -> Sequence[TimeoutChange]:
        """The timeouts above which samples were slow, from the end of the warm-up on."""
        return tuple(self._slow_timeout.history)

    @property
    def decisions(self) -> Sequence[Decision]:
        """Everything that the scheduler has decided."""
        return tuple(self._stats.decisions)

    @property
    def workers_over_time(self) -> Sequence[tuple[float, int]]:
        """Seconds since the loader was made, and the number of workers from then on."""
        return tuple(self._stats.workers)

    def stats(self) -> dict[str, float]:
        """Return figures of stages, queues, slow samples and workers, as SampleAwareLoader has them."""
        return self._stats.details()

    def _get_iterator(self) -> Any:
        # Called by torch's `__iter__`, once for all epochs where workers persist.
        if self._as_torch:
            return super()._get_iterator()
        if self.num_workers:
            self.check_worker_number_rationality()
            _say_if_opaque(self.transforms, self._order())
        iterator = WorkerBatches(self) if self.num_workers else InProcess(self)
        self._current = weakref.ref(iterator)
        return iterator

    def state_dict(self) -> dict[str, Any]:
        """Return where the loader is, for `load_state_dict` of a loader that is made like this one.

        Batches that the consumer has count as used. The state has the samples that were drawn and not used, and the
        states of the samplers and of the generators that they draw from, torch's own where they have none: some
        kilobytes. What a sampler of the user's own has left is in it too, unless it has `state_dict` and
        `load_state_dict`, or no length. Raises LoaderConfigError for an IterableDataset.
        """
        if self._as_torch:
            raise LoaderConfigError(
                f"{type(self.dataset).__name__} cannot be asked for single samples, so where it is in an epoch is not "
                "known; keep its state in the dataset"
            )
        if self._state is not None:
            return self._state
        current = self._current() if self._current is not None else None
        epoch: dict[str, Any] = {"left": None, "start": None, "drew_seed": not self.persistent_workers}
        if current is not None and current.keys is not None:
            epoch = current.state(0 if draws_again(self) else _length(self._index_sampler) + 1)
        return {"epochs": self.progress.epochs, "base_seed": self.progress.base_seed, **epoch, "now": noted(self)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Have the next epoch go on where `state_dict` was called.

        When it begins, the samplers and the generators that they draw from are put where they were, torch's own too.
        """
        self._state = state

    def take_state(self) -> dict[str, Any] | None:
        """Return what was loaded, once, for the iterators."""
        state, self._state = self._state, None
        return state

    def job(self, base_seed: int) -> DatasetJob:
        """Return what is done to a sample, for the iterators."""
        return DatasetJob(
            self.dataset, self.transforms, self.worker_init_fn, base_seed, self.collate_fn,
            single=self.batch_sampler is None, by_batch=self.by_batch, seeded=self.seed_samples,
        )  # fmt: skip

    def collate(self) -> TorchCollate:
        """Return what is done to a batch, for the iterators."""
        single = self.batch_sampler is None or self.by_batch
        return TorchCollate(self.collate_fn, single=single, pin=can_pin(self.pin_memory))

    def start_engine(self, base_seed: int) -> Engine:
        """Start the workers, for the iterators."""
        collate = self.collate()
        # Batches of a collate_fn of the user's own have no memory before they are collated, as with torch.
        ahead = ahead_of(self.num_workers, self.prefetch_factor or 0) + (not collate.in_place)
        try:
            return Engine(
                self.job(base_seed),
                collate,
                workers=self.num_workers,
                policy=Policy(self._order(), ahead),
                settings=Settings(
                    self.most_bytes, self.sample_timeout_s, self._scheduler, queue_size=ahead, on_error="batch"
                ),
                timeout=self._slow_timeout,
                stats=self._stats,
                start_method=self.multiprocessing_context,
            )
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
        sampler: Any = self.sampler
        if self.batch_sampler is not None:
            if type(self.batch_sampler) is not BatchSampler:
                # It decides which samples share a batch.
                return "strict"
            sampler = self.batch_sampler.sampler
        if isinstance(sampler, DistributedSampler):
            return "arrival" if sampler.shuffle else "strict"
        random = isinstance(sampler, RandomSampler | SubsetRandomSampler | WeightedRandomSampler)
        return "arrival" if random else "strict"


def _say_if_opaque(transforms: Sequence[Any], order: Order) -> None:
    if transforms or order == "strict" or "opaque" in _said:
        return
    _said.add("opaque")
    warnings.warn(
        "the dataset does all of a sample's work in one call: a slow sample is told from the others, but does not make "
        "way for them; give transforms=[...] to the loader to have them applied one by one",
        stacklevel=3,
    )


def _length(sampler: Any) -> int:
    """Return how many batches a sampler has, -1 where it does not tell."""
    try:
        return len(sampler)
    except (TypeError, NotImplementedError):
        return -1
