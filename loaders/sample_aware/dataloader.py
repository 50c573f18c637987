"""A drop-in for torch's DataLoader in which a slow sample holds nobody up."""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, TypeVar

import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from loaders.errors import LoaderConfigError
from loaders.sample_aware.balancer import Order
from loaders.sample_aware.coordinator import Settings
from loaders.sample_aware.engine import Engine, Policy
from loaders.sample_aware.figures import Figures
from loaders.sample_aware.jobs import DatasetJob
from loaders.sample_aware.keys import EpochKeys
from loaders.sample_aware.options import DEFAULT_BYTES, ahead_of, check_order, scheduler_of
from loaders.sample_aware.scheduler import Decision
from loaders.sample_aware.timeout import SlowTimeout, TimeoutChange
from loaders.sample_aware.torch_batches import InProcess, TorchCollate, WorkerBatches, can_pin

__all__ = ["SampleAwareDataLoader"]

T_co = TypeVar("T_co", covariant=True)

_EPOCH_STEP: Final = 0xBF58476D1CE4E5B9
_said: Final[set[str]] = set()
"""What was said in this process and is not said again."""


class SampleAwareDataLoader(DataLoader[T_co]):
    """torch's DataLoader, with workers that share all samples and batches of those that are done first.

    All arguments of `torch.utils.data.DataLoader` mean what they mean there, but for `in_order`, of which `order`
    takes the place. Datasets are map-style.
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
    ) -> None:
        """Check the arguments; raises what torch's DataLoader does, and LoaderConfigError.

        `transforms` are applied one after another to what the dataset gives; between two of them a slow sample makes
        way. `order` "arrival" fills batches with what is done first, "strict" keeps the sampler's batches; None is
        arrival where the sampler is a random one of torch's, strict elsewhere. See SampleAwareLoader for the others.
        """
        if isinstance(dataset, IterableDataset):
            raise LoaderConfigError(
                f"{type(dataset).__name__} is an IterableDataset, whose samples cannot be asked for one by one; use "
                "torch.utils.data.DataLoader for it, or give it __getitem__ and __len__"
            )
        check_order(order)
        self.transforms, self.order = tuple(transforms), order
        self.slow_timeout_s, self.warm_up, self.sample_timeout_s = slow_timeout_s, warm_up, sample_timeout_s
        self.min_workers, self.max_workers, self.most_bytes = min_workers, max_workers, most_bytes
        self.alpha, self.beta, self.theta_c = alpha, beta, theta_c
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
        self._scheduler = (
            scheduler_of(num_workers, min_workers, max_workers, alpha=alpha, beta=beta, theta_c=theta_c)
            if num_workers
            else None
        )
        self._slow_timeout = SlowTimeout(warm_up=warm_up, fixed_s=slow_timeout_s)
        self._figures = Figures(DatasetJob(dataset, self.transforms, None, 0).stages)
        self._engine: Engine | None = None
        # Weakly, for workers end with the iterator that they work for.
        self._current: weakref.ref[WorkerBatches | InProcess] | None = None
        self._state: dict[str, Any] | None = None
        self._epochs = 0
        self._base_seed: int | None = None

    @property
    def timeout_history(self) -> Sequence[TimeoutChange]:
        """The timeouts above which samples were slow, from the end of the warm-up on."""
        return tuple(self._slow_timeout.history)

    @property
    def decisions(self) -> Sequence[Decision]:
        """Everything that the scheduler has decided."""
        return tuple(self._figures.decisions)

    @property
    def workers_over_time(self) -> Sequence[tuple[float, int]]:
        """Seconds since the loader was made, and the number of workers from then on."""
        return tuple(self._figures.workers)

    def stats(self) -> dict[str, float]:
        """Return figures of stages, queues, slow samples and workers, as SampleAwareLoader has them."""
        return self._figures.details()

    def __iter__(self) -> Any:
        single = self.batch_sampler is None
        keys = self._resumed_keys() or self._fresh_keys(single)
        collate = TorchCollate(self.collate_fn, single=single, pin=can_pin(self.pin_memory))
        job = DatasetJob(
            self.dataset, self.transforms, self.worker_init_fn, self._base_seed or 0, self.collate_fn, single=single
        )
        if not self.num_workers:
            in_process = InProcess(job, collate, keys)
            self._current = weakref.ref(in_process)
            return in_process
        _say_if_opaque(self.transforms, self._order())
        engine = self._engine if self._engine is not None and not self._engine.closed else None
        if engine is None:
            engine = self._start(job, collate)
            self._engine = engine if self.persistent_workers else None
        batches = WorkerBatches(engine, keys, timeout_s=self.timeout, close=not self.persistent_workers)
        self._current = weakref.ref(batches)
        return batches

    def state_dict(self) -> dict[str, Any]:
        """Return what is left of the epoch under way, for `load_state_dict` of a loader that is made like this one.

        Batches that were handed out count as used. The states of the sampler and of torch's generators are not in it.
        """
        if self._state is not None:
            return self._state
        current = self._current() if self._current is not None else None
        left = current.keys.state() if current is not None and current.keys is not None else None
        return {"epochs": self._epochs, "base_seed": self._base_seed, "left": left}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Have the next epoch go on where `state_dict` was called."""
        self._state = state

    def _resumed_keys(self) -> EpochKeys | None:
        state, self._state = self._state, None
        if state is None:
            return None
        self._epochs, self._base_seed = state["epochs"], state["base_seed"]
        return None if state["left"] is None else EpochKeys.resumed(state["left"])

    def _fresh_keys(self, single: bool) -> EpochKeys:
        # In torch's own order, so that the same seed gives the same epochs.
        batches = iter(self._index_sampler)
        if self._base_seed is None or not self.persistent_workers:
            self._base_seed = int(torch.empty((), dtype=torch.int64).random_(generator=self.generator).item())
        self._epochs += 1
        drawn: Iterable[Sequence[Any]] = ([index] for index in batches) if single else batches
        return EpochKeys(drawn, self._base_seed + _EPOCH_STEP * self._epochs)

    def _start(self, job: DatasetJob, collate: TorchCollate) -> Engine:
        ahead = ahead_of(self.num_workers, self.prefetch_factor or 0)
        try:
            return Engine(
                job,
                collate,
                workers=self.num_workers,
                policy=Policy(self._order(), ahead),
                settings=Settings(self.most_bytes, self.sample_timeout_s, self._scheduler, queue_size=ahead),
                timeout=self._slow_timeout,
                figures=self._figures,
                start_method=self.multiprocessing_context,
            )
        except LoaderConfigError as error:
            if error.__cause__ is None:
                raise
            # What does not pickle is the error that torch's DataLoader raises.
            error.__cause__.add_note(str(error))
            raise error.__cause__ from None

    def _order(self) -> Order:
        if self.order is not None:
            return self.order
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
