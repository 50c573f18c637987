"""PyTorch's DataLoader with AutoOrder before it: the order is chosen once, from the bytes of a few samples.

Workers measure the bytes into and out of every transform.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from pydantic import Field

from loaders.base import Samples
from loaders.errors import LoaderError
from loaders.pecan.order import Kind, TransformOrder, auto_order, reorder
from loaders.pipeline import Item, Pipeline, Tensors, Transform, WrappedPipeline
from loaders.pipeline.callables import AnyTransform, as_pipeline
from loaders.pytorch.loader import TorchBatches, TorchLoader, TorchOptions
from loaders.shared.options import Count, takes_options
from loaders.shared.processor import Failed

_LOG: Final = logging.getLogger("loaders.pecan.loader")
_TIMEOUT_S: Final = 60.0
"""For a sample that is measured, unless the loader has a limit of its own."""
_KEY: Final = "bytes in and out"


class PecanOptions(TorchOptions):
    """What a DataLoader takes, and AutoOrder."""

    profile_samples: Count = Field(default=5, description="samples from which AutoOrder chooses")


def choose_order(pipeline: Pipeline, samples: Samples, options: PecanOptions) -> TransformOrder:
    """Measure a few samples, choose the order of the pipeline's transforms and log it; raises LoaderConfigError."""
    order = auto_order(pipeline.transforms, *measure(pipeline, samples, options))
    _LOG.info("AutoOrder, %d samples measured:\n%s", order.samples, order)
    return order


def measure(pipeline: Pipeline, samples: Samples, options: PecanOptions) -> tuple[npt.NDArray[np.int64], str]:
    """Send samples that lie evenly in the dataset through the pipeline, and measure every transform.

    Returns the bytes into and out of each transform, int64 of shape (samples, transforms, 2), and why a sample is not
    among them: one that fails is left out; one that exceeds `sample_timeout_s`, or kills its worker, ends the
    measurement.
    """
    count = min(options.profile_samples, len(samples))
    ids = np.unique(np.linspace(0, len(samples) - 1, count).astype(np.int64))
    workers = min(options.num_workers, len(ids))
    probing = TorchOptions(
        batch_size=1,
        seed=options.seed,
        sample_timeout_s=options.sample_timeout_s or (_TIMEOUT_S if workers else None),
        on_error="skip",
        num_workers=workers,
        persistent_workers=False,
    )
    measured: list[torch.Tensor] = []
    failed: list[Failed] = []
    failure = ""
    batches = TorchBatches(
        samples,
        _Weighing(pipeline),
        probing,
        num_workers=workers,
        device=torch.device("cpu"),
        order=lambda _: ids,
        skip=failed.extend,
    )
    try:
        measured += (batch.data for batch in batches.start(0))
    except LoaderError as error:
        failure = str(error)
    finally:
        batches.close()
    failure = failure or next((one.why for one in failed), "")
    sizes = [*measured, torch.empty(0, len(pipeline.transforms), 2, dtype=torch.int64)]
    return torch.cat(sizes).numpy(), failure


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


@dataclass(frozen=True)
class _Weighing(WrappedPipeline):
    """A pipeline whose batches are the bytes that went into and came out of its transforms."""

    @property
    def transforms(self) -> tuple[Transform, ...]:
        return tuple(_Weighed(transform) for transform in self.of.transforms)

    def collate(self, items: Sequence[Item]) -> Tensors:
        """Return bytes in and out, int64 of shape (n, transforms, 2)."""
        rows = [item.target.get(_KEY, []) for item in items]
        sizes = torch.tensor(rows, dtype=torch.int64).view(len(rows), len(self.of.transforms), 2)
        return Tensors(sizes, torch.zeros(len(rows)), {})


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
