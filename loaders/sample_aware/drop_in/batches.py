"""The iterators of SampleAwareDataLoader: batches from workers, and batches made in the calling process."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from multiprocessing.process import BaseProcess
from typing import TYPE_CHECKING

import torch

from loaders.sample_aware.coordinator.collator import Collate
from loaders.sample_aware.coordinator.engine import Engine
from loaders.sample_aware.drop_in.keys import EpochKeys, State, check_state
from loaders.sample_aware.drop_in.samplers import restore, sampler_states
from loaders.sample_aware.ipc.messages import Value
from loaders.sample_aware.workers.jobs import is_default
from loaders.shared.compat import BaseIterator, InProcessIterator, pin_memory

if TYPE_CHECKING:
    from loaders.sample_aware.dataloader import SampleAwareDataLoader


class TorchCollate(Collate):
    """A DataLoader's collate_fn, and page-locked memory where that is asked for."""

    def __init__(self, collate_fn: Callable[[Value], Value], *, single: bool, pin: bool) -> None:
        self._collate_fn, self._single = collate_fn, single
        self.in_place, self.finishes = is_default(collate_fn) and not single, pin

    def __call__(self, keys: Sequence[object], samples: Sequence[object], work_ns: Sequence[int]) -> object:
        """Return what the consumer takes."""
        return self._collate_fn(samples[0] if self._single else list(samples))

    def finish(self, batch: object) -> object:
        """Return the batch, page-locked where that is asked for."""
        return pin_memory(batch) if self.finishes else batch


class _Batches(BaseIterator):
    """What both iterators share: the keys of the epoch, and where they go on after `load_state_dict`."""

    def __init__(self, loader: SampleAwareDataLoader[object]) -> None:
        self.keys: EpochKeys | None = None
        """None once the epoch has ended."""
        self._lock = threading.Lock()
        self._start = sampler_states(loader)
        super().__init__(loader)
        self._begin(loader, drew_seed=True)

    def _reset(self, loader: SampleAwareDataLoader[object], first_iter: bool = False) -> None:
        self._start = sampler_states(loader)
        super()._reset(loader, first_iter)
        self._begin(loader, drew_seed=False)

    def state(self, max_drawn: int) -> State:
        """Return the rest of the epoch, which is not over."""
        assert self.keys is not None
        return {"left": self.keys.state(max_drawn), "start": self._start, "drew_seed": self._drew_seed}

    def _begin(self, loader: SampleAwareDataLoader[object], *, drew_seed: bool) -> None:
        self._drew_seed = drew_seed
        how = {"single": not self._auto_collation, "by_batch": loader.by_batch}
        progress, resumed = loader.progress, loader.take_state()
        if resumed is None:
            progress.begin(int(self._base_seed))
            self.keys = EpochKeys(self._sampler_iter, progress.seed, **how)
            return
        check_state(resumed)
        left = resumed["left"]
        begin = resumed["now"] if left is None else resumed["start"]
        restore(loader, begin, samplers=True)
        self._start, self._drew_seed = begin, resumed["drew_seed"]
        self._sampler_iter = iter(self._index_sampler)
        if self._drew_seed:
            self._base_seed = draw_seed(loader)
        progress.epochs, base_seed = resumed["epochs"], resumed["base_seed"]
        if left is None:
            progress.begin(int(self._base_seed if self._drew_seed or base_seed is None else base_seed))
            self.keys = EpochKeys(self._sampler_iter, progress.seed, **how)
        else:
            progress.base_seed = base_seed
            self.keys = EpochKeys.resumed(left, self._sampler_iter, **how)
            restore(loader, resumed["now"], samplers=False)
        assert progress.base_seed is not None
        self._base_seed = progress.base_seed


class WorkerBatches(_Batches):
    """Batches out of an engine, which ends with the iterator, or with its epoch where workers do not persist."""

    _engine: Engine | None = None
    _engine_seed = 0

    def _begin(self, loader: SampleAwareDataLoader[object], *, drew_seed: bool) -> None:
        super()._begin(loader, drew_seed=drew_seed)
        seed, engine = int(self._base_seed), self._engine
        if engine is None or engine.closed or self._engine_seed != seed:
            if engine is not None:
                engine.close()
            engine = self._engine = loader.start_engine(seed)
            self._engine_seed = seed
        assert self.keys is not None
        self._epoch = engine.epoch(self.keys)

    @property
    def _workers(self) -> list[BaseProcess]:
        """The worker processes, those that have ended too; torch's iterator has them by this name."""
        return self._engine.processes if self._engine is not None else []

    def _next_data(self) -> Value:
        with self._lock:
            engine = self._engine
            if self.keys is None or engine is None:
                raise StopIteration
            try:
                built = self._epoch.next(self._timeout or None)
            except TimeoutError:
                # As torch's DataLoader says it.
                raise RuntimeError(f"DataLoader timed out after {self._timeout} seconds") from None
            except BaseException as error:
                if not isinstance(error, KeyboardInterrupt):
                    self._end(broken=engine.coordinator.error is not None)
                raise
            if built is None:
                self._end(broken=False)
                raise StopIteration
            self.keys.came_back(built.samples)
            if built.error is not None:
                # As with torch, the batch is lost and the next one may be asked for.
                raise built.error
            return built.value

    def __del__(self) -> None:
        self._shutdown_workers()

    def _shutdown_workers(self) -> None:
        """End the workers, wherever they are; trainers call it by torch's name."""
        self.keys = None
        if self._engine is not None:
            self._engine.close()

    def _end(self, *, broken: bool) -> None:
        self.keys = None
        self._epoch.close()
        if broken or not self._persistent_workers:
            self._shutdown_workers()


class InProcess(_Batches, InProcessIterator):
    """Batches without workers: in order, each sample when its batch is asked for."""

    def _begin(self, loader: SampleAwareDataLoader[object], *, drew_seed: bool) -> None:
        super()._begin(loader, drew_seed=drew_seed)
        self._job, self._collate, self._done = loader.job(int(self._base_seed)), loader.collate(), 0

    def _next_data(self) -> Value:
        with self._lock:
            if self.keys is None:
                raise StopIteration
            batch = next(self.keys, None)
            if batch is None:
                self.keys = None
                raise StopIteration
            numbers = range(self._done, self._done + len(batch))
            self._done += len(batch)
            try:
                value = self._collate.finish(self._collate(batch, [self._sample(key) for key in batch], ()))
            except Exception:
                # As with torch, the batch is lost and the next one may be asked for.
                self.keys.came_back(numbers)
                raise
            self.keys.came_back(numbers)
            return value

    def _sample(self, key: tuple[int, object]) -> object:
        partial = None
        for stage in range(len(self._job.stages)):
            partial = self._job.apply(stage, key, partial)
        return partial


def draw_seed(loader: SampleAwareDataLoader[object]) -> int:
    """Return what torch's DataLoader draws for the seeds of its workers."""
    return int(torch.empty((), dtype=torch.int64).random_(generator=loader.generator).item())


def can_pin(wanted: bool) -> bool:
    """Return whether batches can be page-locked, which needs an accelerator."""
    return wanted and torch.accelerator.is_available()
