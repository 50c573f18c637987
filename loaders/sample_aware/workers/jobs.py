"""The work on a sample, stage by stage: a pipeline over files, or a dataset of torch's with transforms."""

from __future__ import annotations

import ctypes
import hashlib
import pickle
import random
import reprlib
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
import torch
from torch.utils.data import StackDataset, Subset, default_collate

from loaders.base import Samples
from loaders.errors import LoaderError, SampleError
from loaders.pipeline import Item, Pipeline, Tensors, apply_transform, sample_error
from loaders.sample_aware.ipc.control_page import NO_ROOTS, Roots
from loaders.sample_aware.ipc.messages import Value
from loaders.shared.compat import ExceptionWrapper, enter_worker, has_own_collations, outside_worker, worker_seed
from loaders.shared.processor import collate_items

SEED_MASK: Final = (1 << 63) - 1
SAMPLE_STEP: Final = 0x9E3779B97F4A7C15
"""Between the seeds of two samples that follow each other in the epoch."""
_NUMPY_SEED_BITS: Final = (1 << 32) - 1


class WorkerPlace(NamedTuple):
    """Which worker it is that works."""

    worker: int
    workers: int


def unwrapped(failure: Exception | ExceptionWrapper) -> Exception:
    """Return the error of a failure, with the worker's traceback in its notes or its message."""
    if isinstance(failure, Exception):
        return failure
    try:
        failure.reraise()  # type: ignore[no-untyped-call]
    except Exception as error:  # noqa: BLE001 - the error is the result, of any type
        return error
    raise AssertionError("torch's wrapper raises")


class SampleJob(ABC):
    """A sequence of stages, and a collation; it is copied or pickled to every worker."""

    @property
    @abstractmethod
    def stacks_in_place(self) -> bool:
        """Whether a batch may share memory with its samples: the collation neither changes nor keeps them."""

    @property
    @abstractmethod
    def stages(self) -> tuple[str, ...]:
        """The stages' names; between any two of them another worker may go on with a sample."""

    def begin_worker(self, place: WorkerPlace) -> Roots:
        """Prepare the worker process; return the roots of its random numbers, of which worker 0's count for all."""
        return NO_ROOTS

    def begin_samples(self, roots: Roots) -> None:
        """Note the roots before the first sample."""
        return

    @abstractmethod
    def run(self, stage: int, key: Value, partial: Value) -> Value:
        """Return the partial sample after a stage; `partial` is None before the first."""

    def random_state(self) -> Value:
        """Return what another worker needs to go on with the random numbers of a partial sample."""
        return None

    def set_random_state(self, state: Value) -> None:
        """Go on with the random numbers of a partial sample."""
        return

    def result(self, partial: Value) -> Value:
        """Return what a worker sends of the last stage's partial sample."""
        return partial

    @abstractmethod
    def collate(self, keys: Sequence[Value], samples: Sequence[Value]) -> Value:
        """Return a batch of samples."""

    @abstractmethod
    def failure(self, place: WorkerPlace, stage: str, key: Value, error: Exception) -> Exception | ExceptionWrapper:
        """Return why a sample failed, or a collation where the key is None; it pickles."""

    @abstractmethod
    def name(self, key: Value) -> str:
        """Return how messages name a sample."""


@dataclass(frozen=True)
class PipelineJob(SampleJob):
    """Reads, decodes and transforms the files of a dataset; keys are (epoch, sample id)."""

    samples: Samples
    pipeline: Pipeline
    seed: int

    @property
    def stages(self) -> tuple[str, ...]:
        """Read, decode and the pipeline's transforms."""
        return "read", "decode", *(transform.name for transform in self.pipeline.transforms)

    def run(self, stage: int, key: tuple[int, int], partial: Value) -> Value:
        """Return the stored bytes, then the item."""
        epoch, sample_id = key
        if stage == 0:
            return self.pipeline.read(self.samples, sample_id)
        if stage == 1:
            return Item(sample_id, self.seed, epoch, *self.pipeline.decode(partial, self.samples, sample_id))
        return apply_transform(self.pipeline.transforms[stage - 2], partial)

    def result(self, partial: Item) -> Value:
        """Return data and target, for the rest of the item is known."""
        return partial.data, partial.target

    @property
    def stacks_in_place(self) -> bool:
        """Whether the pipeline is one of this project: one of the user's own may do anything with the samples."""
        return str(self.pipeline.collate.__module__).startswith("loaders.")

    def collate(self, keys: Sequence[tuple[int, int]], samples: Sequence[Value]) -> Tensors:
        """Return the batch's tensors."""
        items = [
            Item(sample_id, self.seed, epoch, *sample) for (epoch, sample_id), sample in zip(keys, samples, strict=True)
        ]
        return collate_items(self.pipeline, self.samples, items)

    def failure(self, place: WorkerPlace, stage: str, key: tuple[int, int] | None, error: Exception) -> LoaderError:
        """Return a SampleError that names the sample and the stage, with the traceback in its notes."""
        if key is None:
            failure = error if isinstance(error, SampleError) else LoaderError(f"{stage} failed: {error}")
        else:
            failure = sample_error(self.samples, key[1], stage, error)
        failure.add_note("".join(traceback.format_exception(error)).rstrip())
        return failure

    def name(self, key: tuple[int, int]) -> str:
        """Return id and file."""
        return f"sample {key[1]} ({self.samples.path(key[1])})"


@dataclass
class DatasetJob(SampleJob):
    """Asks a map-style dataset for a sample, or for a whole batch of them, and applies transforms to it.

    Keys are (seed, index), or (seed, indices) with `by_batch`; a seed depends on the place in the epoch alone.
    """

    dataset: Value
    transforms: Sequence[Callable[[Value], Value]]
    worker_init_fn: Callable[[int], None] | None
    base_seed: int
    collate_fn: Callable[[Value], Value]
    is_single: bool
    """Whether the collation gets the one sample of a batch and not a list."""
    by_batch: bool
    """Whether the dataset gives whole batches; a batch is one sample here, and the collation gets it as it is."""
    seeded: bool
    """Whether each sample has random numbers of its own; else those of a worker go on from sample to sample."""
    _roots: Roots = NO_ROOTS
    _initial_seed: bytes = b""

    @property
    def stacks_in_place(self) -> bool:
        """Whether the collation is torch's own."""
        return is_default(self.collate_fn) and not self.is_single

    def collate(self, keys: Sequence[tuple[int, Value]], samples: Sequence[Value]) -> Value:
        """Return what collate_fn makes of the samples; what it draws depends on the first one's place in the epoch."""
        if self.seeded:
            self._seed(keys[0][0] + len(self.stages))
        if not is_default(self.collate_fn):
            return self.apply_collation(samples)
        with outside_worker():
            return self.apply_collation(samples)

    def apply_collation(self, samples: Sequence[Value]) -> Value:
        """Do the same with the random numbers of the process as they are."""
        return self.collate_fn(samples[0] if self.is_single else samples)

    @property
    def stages(self) -> tuple[str, ...]:
        """The dataset's own work, then the transforms."""
        return "dataset", *(_name(transform) for transform in self.transforms)

    def begin_worker(self, place: WorkerPlace) -> Roots:
        """Do what torch's worker does before its first sample."""
        seed = self.base_seed + place.worker
        random.seed(seed)
        torch.manual_seed(seed)
        np.random.seed(worker_seed(self.base_seed, place.worker))
        enter_worker(place.worker, place.workers, seed, self.dataset)
        if self.worker_init_fn is None:
            return Roots(self.base_seed, self.base_seed, self.base_seed)
        before = _digests()
        self.worker_init_fn(place.worker)
        # A generator that the function has seeded gives every sample other numbers, the same in every run with it.
        return Roots(*(self.base_seed if old == new else new for old, new in zip(before, _digests(), strict=True)))

    def begin_samples(self, roots: Roots) -> None:
        """Note the roots, and the seed that `torch.initial_seed()` returns in this worker."""
        self._roots = roots
        self._initial_seed = torch.initial_seed().to_bytes(8, "little")

    def run(self, stage: int, key: tuple[int, Value], partial: Value) -> Value:
        """Return the dataset's sample, then the transformed one, with random numbers of the sample's own.

        The numbers depend on the sample's place in the epoch and on nothing else: not on the worker that happens to be
        idle, nor on the one that goes on with it. A sample is seeded once: between two stages that sleep or read, code
        and generators have left the processor's caches, and seeding takes some 100 us.
        """
        if not self.seeded:
            return self.apply(stage, key, partial)
        seed = key[0] + stage
        if not self.by_batch or stage == 0:
            if stage == 0:
                self._seed(seed)
            return self.apply(stage, key, partial)
        transform, done = self.transforms[stage - 1], []
        for row, sample in enumerate(partial):
            self._seed(seed + SAMPLE_STEP * row)
            done.append(transform(sample))
        return done

    def random_state(self) -> Value:
        """Return the states of the three generators; None where samples are not seeded."""
        if not self.seeded or self.by_batch:
            return None
        return torch.default_generator.get_state(), random.getstate(), np.random.get_state()

    def set_random_state(self, state: Value) -> None:
        """Go on with the three generators as another worker left them."""
        if state is not None:
            torch.default_generator.set_state(state[0].clone())
            random.setstate(state[1])
            np.random.set_state(state[2])

    def apply(self, stage: int, key: tuple[int, Value], partial: Value) -> Value:
        """Do the same with the random numbers of the process as they are."""
        if stage == 0:
            return self.dataset.__getitems__(key[1]) if self.by_batch else self.dataset[key[1]]
        transform = self.transforms[stage - 1]
        return [transform(sample) for sample in partial] if self.by_batch else transform(partial)

    def failure(
        self, place: WorkerPlace, stage: str, key: tuple[int, Value] | None, error: Exception
    ) -> ExceptionWrapper:
        """Return what torch's worker would."""
        failure = ExceptionWrapper(  # type: ignore[no-untyped-call]
            (type(error), error, error.__traceback__),
            where=f"in {f'{stage} of {self.name(key)} in ' if key else ''}DataLoader worker process {place.worker}",
        )
        try:
            pickle.loads(pickle.dumps(failure))  # noqa: S301 - pickled in the line itself
        except Exception as unpicklable:  # noqa: BLE001 - an exception of the user's own may raise anything
            failure = ExceptionWrapper(  # type: ignore[no-untyped-call]
                (RuntimeError, unpicklable, unpicklable.__traceback__), where=failure.where
            )
            failure.exc_msg = "".join(traceback.format_exception(error))
        return failure

    def name(self, key: tuple[int, Value] | None) -> str:
        """Return the index."""
        if key is None:
            return "no sample"
        return f"samples {reprlib.repr(key[1])}" if self.by_batch else f"sample {key[1]!r}"

    def _seed(self, seed: int) -> None:
        roots = self._roots
        # `torch.manual_seed` would set up every GPU's as well, which costs more than many a transform.
        generator = torch.default_generator
        generator.manual_seed((roots.torch + seed) & SEED_MASK)
        state = generator.get_state()
        # The seed that it reports is the first number of its state, and no part of what it draws.
        ctypes.memmove(state.data_ptr(), self._initial_seed, 8)
        generator.set_state(state)
        random.seed((roots.random + seed) & SEED_MASK)
        np.random.seed((roots.numpy + seed) & _NUMPY_SEED_BITS)


def asks_by_batch(dataset: object) -> bool:
    """Return whether torch's DataLoader would ask a dataset for whole batches, and not for each of their samples.

    Subset and StackDataset have `__getitems__` in any case, so what they are made of decides.
    """
    if type(dataset) is Subset:
        return asks_by_batch(dataset.dataset)
    if type(dataset) is StackDataset:
        parts = dataset.datasets
        return any(asks_by_batch(part) for part in (parts.values() if isinstance(parts, dict) else parts))
    return bool(getattr(dataset, "__getitems__", None))


def is_default(collate_fn: object) -> bool:
    """Return whether a collation is torch's own, without a function of the user's that might change the samples."""
    return collate_fn is default_collate and not has_own_collations()


def _name(transform: object) -> str:
    named = getattr(transform, "name", None) or getattr(transform, "__name__", None)
    return named if isinstance(named, str) else type(transform).__name__


def _digests() -> Roots:
    name, keys, *rest = np.random.get_state(legacy=True)
    states = (
        torch.get_rng_state().numpy().tobytes(),
        repr(random.getstate()).encode(),
        repr((name, np.asarray(keys).tobytes(), rest)).encode(),
    )
    return Roots(*(int.from_bytes(hashlib.blake2b(state, digest_size=8).digest()) & SEED_MASK for state in states))
