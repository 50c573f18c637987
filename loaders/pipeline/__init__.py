"""The steps of a sample from its file to its batch: defined once a workload, run by every loader."""

from __future__ import annotations

import functools
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple, Protocol, TypeAlias, runtime_checkable

import numpy as np
import torch
from torch.utils.data import default_collate

from loaders.base import SampleSource
from loaders.errors import LoaderError, SampleError

Data: TypeAlias = Any
"""A sample as a pipeline has it: bytes, a picture, an array, a tensor, or a type of the user's own."""
Target: TypeAlias = dict[str, Any]
"""The values that a sample is to be recognised as, by names that are the pipeline's own."""


class UndecodableError(LoaderError):
    """The bytes that were read are not whole, or of no known format."""


@dataclass(slots=True)
class Item:
    """One sample on its way through a pipeline."""

    id: int
    seed: int
    epoch: int
    data: Data
    """As decoded at first; a tensor after the last transform."""
    target: Target = field(default_factory=dict)
    """What the sample is to be recognised as, by names that are the pipeline's own."""

    def generator(self, name: str) -> np.random.Generator:
        """Return the random numbers of the transform `name` for this sample in this epoch.

        They depend on nothing else, so no loader, worker, order of samples or order of transforms changes them.
        """
        return np.random.Generator(np.random.SFC64([self.seed, self.epoch, self.id, zlib.crc32(name.encode())]))


class Transform(Protocol):
    """One step of a pipeline; a frozen dataclass, for it is pickled and compared by value."""

    @property
    def name(self) -> str:
        """The step's name as in the papers' tables, such as RandomCrop; unique in its pipeline."""
        ...

    def __call__(self, item: Item) -> Item:
        """Return the item with data and target after this step; the one that was given may be changed."""
        ...


class Tensors(NamedTuple):
    """The tensors of one batch, whose first dimension counts its samples unless said otherwise."""

    data: torch.Tensor
    """What the model takes."""
    labels: torch.Tensor
    """What it is to answer."""
    extra: dict[str, torch.Tensor]
    """What else the workload's loss needs, by name; empty for classification."""

    def each(self, change: Callable[[torch.Tensor], torch.Tensor]) -> Tensors:
        """Return what a change makes of each tensor."""
        extra = {name: change(tensor) for name, tensor in self.extra.items()}
        return Tensors(change(self.data), change(self.labels), extra)


@runtime_checkable
class Pipeline(Protocol):
    """Reading, decoding, transforms and collation of one workload's samples."""

    @property
    def transforms(self) -> tuple[Transform, ...]:
        """The steps between decoding and collation, in order."""
        ...

    def read(self, samples: SampleSource, sample_id: int) -> Data:
        """Return one sample as it is stored; raises OSError.

        What asks `samples.read` for a sample's files runs over a stream too, where there is no file to open.
        """
        ...

    def decode(self, encoded: Data, samples: SampleSource, sample_id: int) -> tuple[Data, Target]:
        """Return data and target of the bytes that `read` returned; raises UndecodableError."""
        ...

    def collate(self, items: Sequence[Item]) -> Tensors:
        """Join transformed items, in their order; the tensors share no memory with them."""
        ...


class FilePipeline:
    """The part of pipelines whose samples are one file each."""

    __slots__ = ()
    labels_are_classes: ClassVar[bool] = False
    """Whether a batch's labels are `Samples.labels` of its ids. The harness then compares them."""

    def read(self, samples: SampleSource, sample_id: int) -> bytes | memoryview:
        """Return one sample's file, whole; raises OSError."""
        return samples.read(sample_id)


class ClassPipeline(FilePipeline):
    """The part of pipelines whose samples have a class, `label` in their targets, and data of one shape."""

    __slots__ = ()
    labels_are_classes: ClassVar[bool] = True

    def collate(self, items: Sequence[Item]) -> Tensors:
        """Return data, stacked, and int64 classes of shape (n,)."""
        # Unlike torch.stack, in shared memory at once where a worker of torch is to hand the batch over.
        return Tensors(default_collate([item.data for item in items]), labels_of(items), {})


def labels_of(items: Sequence[Item]) -> torch.Tensor:
    """Return the classes of samples, int64 of shape (n,)."""
    return torch.tensor([item.target["label"] for item in items], dtype=torch.int64)


@dataclass(frozen=True)
class WrappedPipeline:
    """A pipeline that does what another one does; a subclass replaces some of its parts."""

    of: Pipeline

    @property
    def transforms(self) -> tuple[Transform, ...]:
        """The steps of the other pipeline."""
        return self.of.transforms

    def read(self, samples: SampleSource, sample_id: int) -> Data:
        """Return one sample as it is stored; raises OSError."""
        return self.of.read(samples, sample_id)

    def decode(self, encoded: Data, samples: SampleSource, sample_id: int) -> tuple[Data, Target]:
        """Return data and target of the bytes that `read` returned; raises UndecodableError."""
        return self.of.decode(encoded, samples, sample_id)

    def collate(self, items: Sequence[Item]) -> Tensors:
        """Join transformed items."""
        return self.of.collate(items)


@dataclass(slots=True)
class StageTimes:
    """Nanoseconds that one sample spent in every stage: read, decode, then the transforms by name."""

    ns: dict[str, int] = field(default_factory=dict)

    def add(self, stage: str, began_ns: int) -> int:
        """Add the time since `began_ns` to a stage; return now, in ns of the monotonic clock."""
        now = time.perf_counter_ns()
        self.ns[stage] = self.ns.get(stage, 0) + now - began_ns
        return now

    def seconds(self) -> Mapping[str, float]:
        """Return the stages' times in seconds."""
        return {stage: ns * 1e-9 for stage, ns in self.ns.items()}


def stage_name(transform: object) -> str:
    """Return a step's own name, or that of its function or class."""
    while isinstance(transform, functools.partial):
        transform = transform.func
    name = getattr(transform, "name", None) or getattr(transform, "__name__", type(transform).__name__)
    return "lambda" if name == "<lambda>" else str(name)


def load_item(
    pipeline: Pipeline, samples: SampleSource, sample_id: int, *, seed: int, epoch: int, times: StageTimes | None = None
) -> Item:
    """Read, decode and transform one sample; raise SampleError naming it and the stage that failed."""
    return transform_item(
        pipeline,
        samples,
        sample_id,
        read_item(pipeline, samples, sample_id, times),
        seed=seed,
        epoch=epoch,
        times=times,
    )


def read_item(pipeline: Pipeline, samples: SampleSource, sample_id: int, times: StageTimes | None = None) -> Data:
    """Return one sample as it is stored; raise SampleError naming it."""
    began = time.perf_counter_ns()
    try:
        encoded = pipeline.read(samples, sample_id)
    except Exception as error:
        raise sample_error(samples, sample_id, "read", error) from error
    if times:
        times.add("read", began)
    return encoded


def transform_item(
    pipeline: Pipeline,
    samples: SampleSource,
    sample_id: int,
    encoded: Data,
    *,
    seed: int,
    epoch: int,
    times: StageTimes | None = None,
) -> Item:
    """Decode and transform what `read_item` returned; raise SampleError naming the sample and the stage that failed."""
    now = time.perf_counter_ns()
    stage = "decode"
    try:
        data, target = pipeline.decode(encoded, samples, sample_id)
        del encoded
        now = times.add(stage, now) if times else now
        item = Item(sample_id, seed, epoch, data, target)
        del data
        for transform in pipeline.transforms:
            stage = stage_name(transform)
            item = apply_transform(transform, item)
            now = times.add(stage, now) if times else now
    except Exception as error:
        raise sample_error(samples, sample_id, stage, error) from error
    return item


def apply_transform(transform: Transform, item: Item) -> Item:
    """Return what a transform made of an item; raise TypeError where it is no item."""
    made = transform(item)
    if not isinstance(made, Item):
        raise TypeError(f"it returned {made!r:.80}, expected the item: a transform ends with `return item`")
    return made


def sample_error(samples: SampleSource, sample_id: int, stage: str, error: Exception) -> SampleError:
    """Return the error that names a sample and the stage in which it failed."""
    if isinstance(error, SampleError):
        return error
    who = f"sample {sample_id} ({samples.path(sample_id)})"
    if stage == "read" and isinstance(error, OSError):
        streamed = "" if samples.on_disk else "; it was streamed: have the pipeline read it by samples.read"
        return SampleError(f"{who} cannot be read: {error.strerror or error}{streamed}")
    if isinstance(error, UndecodableError):
        return SampleError(f"{who} cannot be decoded: {error}")
    return SampleError(f"{who} failed in {stage}: {type(error).__name__}: {error}")
