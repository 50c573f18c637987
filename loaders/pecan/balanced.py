"""The heuristic of sizes: what has a large file is taken for slow, and prepared by workers of its own.

Section 3.2 of the MinatoLoader paper extends PyTorch's DataLoader by "a custom load balancer" with this heuristic. It
does not say from which size on a sample is slow, how the balancer treats it, or how many workers it has for it; nor is
it in the paper's public code. Here the threshold is the paper's own for times, the 75th percentile, and the balancer
its own too with the size in the place of the timeout: the quick samples are what batches are made of first, the slow
ones are prepared in the background meanwhile. Whether a sample is slow is a guess from its file, so that a small file
that takes long holds up the quick ones: that is what the paper shows of it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt
from pydantic import Field

from loaders.base import Batch, Samples
from loaders.errors import LoaderConfigError, LoaderError
from loaders.pecan.loader import PecanOptions, choose_order, notes_of
from loaders.pecan.order import reorder
from loaders.pipeline.callables import AnyTransform, as_pipeline
from loaders.pytorch.loader import TorchBatches
from loaders.shared.file_loader import FileLoader
from loaders.shared.options import check_whole, takes_options


class BalancedOptions(PecanOptions):
    """What AutoOrder over a DataLoader takes, and the heuristic."""

    percentile: Annotated[float, Field(ge=0, le=100)] = Field(
        75.0, description="of all sizes, 0 to 100; samples with larger files are slow"
    )
    background_workers: int | None = Field(
        None,
        description="those of `num_workers` that load the slow samples; None gives them the share that the slow "
        "samples have of all bytes, by which the heuristic estimates the work",
    )
    reorder_transforms: bool = Field(
        False, description="whether the transforms are in AutoOrder's order, the paper's other heuristic"
    )


class SizeBalancedLoader(FileLoader):
    """Two DataLoaders, one of the quick samples and one of those with large files, whose batches take turns.

    A batch has only quick or only slow samples. The slow batches come evenly among the others, each as late as that
    allows: its workers have had the time of the quick batches before it. The order is fixed before the epoch, and the
    consumer waits for a batch that is not ready when it is due.
    """

    notes: tuple[str, ...]

    @takes_options(BalancedOptions)
    def __init__(self, *, samples: Samples, transform: AnyTransform, **keywords: Any) -> None:
        """Check the arguments and split the samples; raise LoaderConfigError.

        Args:
            samples: the files.
            transform: a pipeline, or a callable on the decoded sample.
        """
        options, pipeline = BalancedOptions(**keywords), as_pipeline(transform)
        check_whole("num_workers", options.num_workers, 2)
        super().__init__(samples, options)
        threshold = float(np.percentile(samples.sizes, options.percentile))
        slow = samples.sizes > threshold
        background = _background(samples.sizes, slow, options.num_workers, options.background_workers)
        self.notes = (
            f"samples above {threshold:,.0f} bytes, the {options.percentile:g}th percentile, are in batches of their "
            f"own, which {background} of {options.num_workers} workers prepare",
        )
        if options.reorder_transforms:
            order = choose_order(pipeline, samples, options)
            self.notes += notes_of(order)
            pipeline = reorder(pipeline, order)
        self._is_slow = slow
        self._classes = [
            TorchBatches(
                samples, pipeline, options, num_workers=workers, device=self._device, order=order, skip=self._skip
            )
            for workers, order in (
                (options.num_workers - background, lambda epoch: self._split(epoch)[0]),
                (background, lambda epoch: self._split(epoch)[1]),
            )
        ]

    def _split(self, epoch: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        return split_by_size(self._share.order(epoch), self._samples.sizes, self._is_slow, self._options.batch_size)

    def close(self) -> None:
        """End the workers, in the middle of a read too."""
        self._closed = True
        for batches in self._classes:
            batches.close()

    def _batches(self, epoch: int) -> Iterator[Batch]:
        counts = [math.ceil(len(ids) / self._options.batch_size) for ids in self._split(epoch)]
        try:
            # Both start to work before the first batch is waited for. A class without samples starts no workers.
            begun = [
                batches.start(epoch) if count else iter(())
                for batches, count in zip(self._classes, counts, strict=True)
            ]
            for turn in interleave(*counts):
                batch = next(begun[turn], None)
                if batch is not None:  # nothing comes of a batch whose samples have all failed
                    yield batch
        except LoaderError:
            self.close()
            raise


def _background(sizes: npt.NDArray[np.int64], slow: npt.NDArray[np.bool_], num_workers: int, wanted: int | None) -> int:
    if wanted is None:
        share = float(sizes[slow].sum()) / max(1.0, float(sizes.sum()))
        return min(num_workers - 1, max(1, round(num_workers * share)))
    if not 1 <= wanted < num_workers:
        raise LoaderConfigError(
            f"background_workers={wanted}: expected 1 to {num_workers - 1}, so that of num_workers={num_workers} one "
            "is left for the quick samples"
        )
    return wanted


def split_by_size(
    order: npt.NDArray[np.int64], sizes: npt.NDArray[np.int64], is_slow: npt.NDArray[np.bool_], batch_size: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return the quick and the slow ones of the ids of an epoch, each in the epoch's order.

    The quick ones fill whole batches, so that an epoch has no more batches than its samples need: those of them that
    would be left over are counted as slow, the largest first. `sizes` are bytes of all samples' files, by id.
    """
    slow = is_slow[order]
    if slow.any():
        quick = np.flatnonzero(~slow)
        left_over = len(quick) % batch_size
        largest = np.argsort(sizes[order[quick]], kind="stable")[len(quick) - left_over :]
        slow[quick[largest]] = True
    return order[~slow], order[slow]


def interleave(quick: int, slow: int) -> list[int]:
    """Return 0 for a quick batch and 1 for a slow one, in the order in which an epoch yields them.

    The slow ones lie evenly among the others, each at the end of its part; so an epoch's last batch is slow if any is.
    """
    places = [(place, 0) for place in range(1, quick + 1)]
    places += [(math.ceil(turn * quick / slow), 1) for turn in range(1, slow + 1)]
    return [kind for _, kind in sorted(places)]
