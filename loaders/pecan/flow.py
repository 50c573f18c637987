"""Bytes into and out of every transform, measured on real samples in the worker processes of a loader."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import pyarrow as pa
import torch
from PIL import Image

from loaders.base import Samples
from loaders.errors import LoaderError
from loaders.pipeline import Item, Pipeline, Tensors, Transform
from loaders.pytorch import PyTorchLoader

__all__ = ["Flow", "Measured", "bytes_of", "measure"]

_KEY: Final = "bytes in and out"


@dataclass(frozen=True, slots=True)
class Flow:
    """What goes through one transform, of the measured samples together."""

    bytes_in: int
    """Data and target of the item before."""
    bytes_out: int
    enlarged: int = 0
    """Samples that had more bytes after than before."""


@dataclass(frozen=True, slots=True)
class Measured:
    """The flows of a pipeline's transforms, in their order."""

    flows: tuple[Flow, ...]
    samples: int
    """How many were measured; 0 where none could be, and then there are no flows."""
    failure: str = ""
    """Why the rest of the samples, or all of them, could not be measured."""


def measure(
    pipeline: Pipeline, samples: Samples, *, count: int, seed: int, num_workers: int, sample_timeout_s: float | None
) -> Measured:
    """Send `count` samples that lie evenly in the dataset through the pipeline, and measure every transform.

    A sample that fails is left out; one that is not back after `sample_timeout_s`, or kills its worker, ends it.
    """
    chosen = _evenly(samples, count)
    probe = _Probe(pipeline)
    table: list[torch.Tensor] = []
    failure = ""
    with PyTorchLoader(
        samples=chosen,
        transform=probe,
        batch_size=1,
        seed=seed,
        num_workers=min(num_workers, len(chosen)),
        persistent_workers=False,
        sample_timeout_s=sample_timeout_s,
        on_error="skip",
        rank=0,
        world_size=1,
    ) as loader:
        try:
            table = [batch.data for batch in loader.epoch(0)]
        except LoaderError as error:
            failure = str(error)
        failure = failure or next(iter(loader.stats().skipped.values()), "")
    if not table:
        return Measured((), 0, failure)
    sizes = torch.cat(table).numpy()
    totals = sizes.sum(axis=0)
    grown = (sizes[:, :, 1] > sizes[:, :, 0]).sum(axis=0)
    flows = tuple(Flow(int(into), int(out), int(more)) for (into, out), more in zip(totals, grown, strict=True))
    return Measured(flows, len(sizes), failure)


def bytes_of(value: Any) -> int:
    """Return the bytes that a value's arrays, tensors, pictures and texts hold; numbers count nothing."""
    if isinstance(value, dict):
        return sum(bytes_of(one) for one in value.values())
    if isinstance(value, list | tuple):
        return sum(bytes_of(one) for one in value)
    if isinstance(value, Image.Image):
        return value.width * value.height * len(value.getbands())
    if isinstance(value, bytes | bytearray | str):
        return len(value)
    return int(value.nbytes) if isinstance(value, torch.Tensor | np.ndarray | memoryview) else 0


def _evenly(samples: Samples, count: int) -> Samples:
    ids = np.unique(np.linspace(0, len(samples) - 1, min(count, len(samples))).astype(np.int64))
    return replace(
        samples,
        paths=tuple(samples.paths[k] for k in ids),
        labels=samples.labels[ids],
        sizes=samples.sizes[ids],
        columns={name: column.take(pa.array(ids)) for name, column in samples.columns.items()},
    )


@dataclass(frozen=True, slots=True)
class _Probe:
    """The pipeline whose batches tell what went through its transforms."""

    of: Pipeline

    @property
    def transforms(self) -> tuple[Transform, ...]:
        return tuple(_Weighed(transform) for transform in self.of.transforms)

    def read(self, samples: Samples, sample_id: int) -> Any:
        return self.of.read(samples, sample_id)

    def decode(self, encoded: Any, samples: Samples, sample_id: int) -> tuple[Any, dict[str, Any]]:
        return self.of.decode(encoded, samples, sample_id)

    def collate(self, items: Sequence[Item]) -> Tensors:
        """Return bytes in and out, int64 of shape (n, transforms, 2)."""
        rows = [item.target.get(_KEY, []) for item in items]
        return Tensors(torch.tensor(rows, dtype=torch.int64).view(len(rows), -1, 2), torch.zeros(len(rows)), {})


@dataclass(frozen=True, slots=True)
class _Weighed:
    of: Transform

    @property
    def name(self) -> str:
        return self.of.name

    def __call__(self, item: Item) -> Item:
        # Kept out of the transform's sight and of the sum.
        seen = item.target.pop(_KEY, [])
        before = bytes_of(item.data) + bytes_of(item.target)
        item = self.of(item)
        item.target[_KEY] = [*seen, (before, bytes_of(item.data) + bytes_of(item.target))]
        return item
