"""PyTorch's DataLoader with AutoOrder before it: the order is chosen once, from the bytes of a few samples.

Workers measure the bytes into and out of every transform.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import pyarrow as pa
import torch
from PIL import Image
from pydantic import Field

from loaders.base import Samples
from loaders.errors import LoaderError
from loaders.pecan.order import Flow, Kind, Measured, TransformOrder, auto_order, reorder
from loaders.pipeline import Item, Pipeline, Tensors, Transform, WrappedPipeline
from loaders.pipeline.callables import AnyTransform, as_pipeline
from loaders.pytorch.loader import TorchLoader, TorchOptions
from loaders.shared.options import Count, takes_options

_LOG: Final = logging.getLogger("loaders.pecan.loader")
_TIMEOUT_S: Final = 60.0
"""For a sample that is measured, unless the loader has a limit of its own."""
_KEY: Final = "bytes in and out"


class PecanOptions(TorchOptions):
    """What a DataLoader takes, and AutoOrder."""

    profile_samples: Count = Field(default=5, description="samples from which AutoOrder chooses")


def choose_order(pipeline: Pipeline, samples: Samples, options: PecanOptions) -> TransformOrder:
    """Measure a few samples, choose the order of the pipeline's transforms and log it; raises LoaderConfigError."""
    if options.sample_timeout_s is None and options.num_workers:
        options = options.replaced(sample_timeout_s=_TIMEOUT_S)
    order = auto_order(pipeline.transforms, measure(pipeline, samples, options, count=options.profile_samples))
    _LOG.info("AutoOrder, %d samples measured:\n%s", order.samples, order)
    return order


def measure(pipeline: Pipeline, samples: Samples, options: TorchOptions, *, count: int) -> Measured:
    """Send `count` samples that lie evenly in the dataset through the pipeline, and measure every transform.

    A sample that fails is left out; one that exceeds `sample_timeout_s`, or kills its worker, ends the measurement.
    """
    chosen = _evenly(samples, count)
    probing = TorchOptions(
        batch_size=1,
        seed=options.seed,
        rank=0,
        world_size=1,
        sample_timeout_s=options.sample_timeout_s,
        on_error="skip",
        num_workers=min(options.num_workers, len(chosen)),
        persistent_workers=False,
    )
    table: list[torch.Tensor] = []
    failure = ""
    with TorchLoader(chosen, _Weighing(pipeline), probing) as loader:
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


def notes_of(order: TransformOrder) -> tuple[str, ...]:
    """Return the order as sentences for a report: the choice, then a line for each transform that changes bytes."""
    if not order.changes:
        chosen = "AutoOrder moves nothing"
    else:
        moved = ", ".join(f"{one.name} from {one.before} to {one.after}" for one in order.placed if one.moved)
        chosen = f"AutoOrder moves {moved}, of {len(order.placed)} transforms"
    lines = [
        f"{one.name}: "
        + (
            ""
            if one.factor is None
            else f"{one.bytes_in:,.0f} to {one.bytes_out:,.0f} bytes ({one.factor:.3g} times), "
        )
        + f"{one.kind.value}, {one.reason}"
        for one in order.placed
        if one.kind is not Kind.NEUTRAL
    ]
    return f"{chosen} ({order.samples} samples measured)", *lines


def bytes_of(value: object) -> int:
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


@dataclass(frozen=True)
class _Weighing(WrappedPipeline):
    """A pipeline whose batches are the bytes that went into and came out of its transforms."""

    @property
    def transforms(self) -> tuple[Transform, ...]:
        return tuple(_Weighed(transform) for transform in self.of.transforms)

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


class PecanLoader(TorchLoader):
    """Runs a pipeline whose transforms are in Pecan's order in DataLoader workers (MinatoLoader paper, section 5.1)."""

    notes: tuple[str, ...]
    """The order and what led to it, transform by transform."""
    order: TransformOrder
    """The same as data; its str() is the table that is logged."""

    @takes_options(PecanOptions)
    def __init__(self, *, samples: Samples, transform: AnyTransform, **keywords: Any) -> None:
        """Measure some samples, choose the order, log it; raise LoaderConfigError.

        `stats` has `profile_s`, the seconds that it took to choose the order.

        Args:
            samples: the files.
            transform: a pipeline, or a callable on the decoded sample.
        """
        options, pipeline = PecanOptions(**keywords), as_pipeline(transform)
        began = time.perf_counter_ns()
        self.order = choose_order(pipeline, samples, options)
        self.notes = notes_of(self.order)
        super().__init__(samples, reorder(pipeline, self.order), options)
        self._stats.details["profile_s"] = (time.perf_counter_ns() - began) * 1e-9
