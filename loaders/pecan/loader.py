"""PyTorch's DataLoader with AutoOrder before it: the order of transforms is chosen once, from a few samples."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from types import TracebackType
from typing import Final, Self

from loaders.base import Batch, LoaderStats, Samples
from loaders.options import OnError, Remainder, check_on_error
from loaders.pecan.flow import measure
from loaders.pecan.order import Kind, Order, auto_order
from loaders.pecan.reorder import reorder
from loaders.pipeline import Pipeline
from loaders.pipelines.callables import AnyTransform, as_pipeline
from loaders.pytorch import PyTorchLoader
from loaders.shared.files import check_arguments

__all__ = ["PecanLoader", "chosen_order"]

_LOG: Final = logging.getLogger(__name__)
_TIMEOUT_S: Final = 60.0
"""For a sample that is measured, unless the loader has a limit of its own."""


class PecanLoader:
    """The PyTorch loader over a pipeline whose transforms are in Pecan's order (MinatoLoader paper, section 5.1)."""

    notes: tuple[str, ...]
    """The order and what led to it, transform by transform."""
    order: Order
    """The same as data; its str() is the table that is logged."""

    def __init__(
        self,
        *,
        samples: Samples,
        transform: AnyTransform,
        batch_size: int,
        seed: int,
        device: str = "cpu",
        num_workers: int = 4,
        prefetch_factor: int = 2,
        persistent_workers: bool = True,
        pin_memory: bool | None = None,
        rank: int | None = None,
        world_size: int | None = None,
        remainder: Remainder | None = None,
        sample_timeout_s: float | None = None,
        on_error: OnError = "raise",
        profile_samples: int = 5,
    ) -> None:
        """Measure `profile_samples` samples, choose the order, log it; raise LoaderConfigError.

        The other arguments are PyTorchLoader's.
        """
        transform = as_pipeline(transform)
        check_arguments(
            samples,
            device,
            batch_size=(batch_size, 1),
            num_workers=(num_workers, 0),
            profile_samples=(profile_samples, 1),
        )
        check_on_error(on_error, sample_timeout_s)
        began = time.perf_counter_ns()
        self.order = chosen_order(
            transform,
            samples,
            profile_samples=profile_samples,
            seed=seed,
            num_workers=num_workers,
            sample_timeout_s=sample_timeout_s,
        )
        self.notes = notes_of(self.order)
        self._loader = PyTorchLoader(
            samples=samples,
            transform=reorder(transform, self.order),
            batch_size=batch_size,
            seed=seed,
            device=device,
            num_workers=num_workers,
            prefetch_factor=prefetch_factor,
            persistent_workers=persistent_workers,
            pin_memory=pin_memory,
            rank=rank,
            world_size=world_size,
            remainder=remainder,
            sample_timeout_s=sample_timeout_s,
            on_error=on_error,
        )
        self._loader.stats().details["profile_s"] = (time.perf_counter_ns() - began) * 1e-9

    def __len__(self) -> int:
        """Return the number of this rank's samples in an epoch."""
        return len(self._loader)

    def epoch(self, epoch: int) -> Iterator[Batch]:
        """Yield the epoch's batches, in PyTorchLoader's order; raises what that raises."""
        return self._loader.epoch(epoch)

    def stats(self) -> LoaderStats:
        """Return PyTorchLoader's counts; `profile_s` is what it took to choose the order."""
        return self._loader.stats()

    def close(self) -> None:
        """End the workers, in the middle of a read too."""
        self._loader.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def chosen_order(
    pipeline: Pipeline,
    samples: Samples,
    *,
    profile_samples: int,
    seed: int,
    num_workers: int,
    sample_timeout_s: float | None = None,
) -> Order:
    """Measure a few samples, choose the order of the pipeline's transforms and log it."""
    limit = sample_timeout_s if sample_timeout_s is not None or not num_workers else _TIMEOUT_S
    measured = measure(
        pipeline, samples, count=profile_samples, seed=seed, num_workers=num_workers, sample_timeout_s=limit
    )
    order = auto_order(pipeline.transforms, measured)
    _LOG.info("AutoOrder, %d samples measured:\n%s", order.samples, order)
    return order


def notes_of(order: Order) -> tuple[str, ...]:
    """Return the order as sentences for a report: what was chosen, then a line for each that changes bytes."""
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
