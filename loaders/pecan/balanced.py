"""The heuristic of sizes: what has a large file is taken for slow, and prepared by workers of its own.

Section 3.2 of the MinatoLoader paper extends PyTorch's DataLoader by "a custom load balancer" with this heuristic. It
does not say from which size on a sample is slow, how the balancer treats it, or how many workers it has for it; nor is
it in the paper's public code. Here the threshold is the paper's own for times, the 75th percentile, and the balancer
its own too with the size in the place of the timeout: the quick samples are what batches are made of first, the slow
ones are prepared in the background meanwhile. Whether a sample is slow is a guess from its file, so that a small file
that takes long holds up the quick ones: that is what the paper shows of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import TracebackType
from typing import Any, Final, Self

import numpy as np
import numpy.typing as npt

from loaders.base import Batch, LoaderStats, Samples
from loaders.errors import LoaderConfigError, LoaderError
from loaders.options import OnError, Remainder, check_on_error
from loaders.pecan.lanes import Lane, Lanes, due
from loaders.pecan.loader import chosen_order, notes_of
from loaders.pecan.reorder import reorder
from loaders.pipelines.callables import AnyTransform, as_pipeline
from loaders.shared.files import check_arguments
from loaders.shared.shares import Share, place_among_ranks

__all__ = ["SizeBalancedLoader"]

_PERCENTILE: Final = 75.0


class SizeBalancedLoader:
    """Two PyTorch loaders, one of the quick samples and one of those with large files, whose batches take turns.

    Batches are of quick or of slow samples alone. The slow ones come evenly among the others, each as late as that
    allows: its workers have had the time of the quick batches before it. The order is settled before the epoch, and
    a batch that is not ready when it is due is waited for.
    """

    notes: tuple[str, ...]

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
        percentile: float = _PERCENTILE,
        background_workers: int | None = None,
        reorder_transforms: bool = False,
        profile_samples: int = 5,
    ) -> None:
        """Check the arguments and split the samples; raise LoaderConfigError.

        Samples whose files are above the `percentile` of all sizes are slow. `background_workers` of the `num_workers`
        are theirs; None gives them the share that the slow samples have of all bytes, which is what the heuristic takes
        for the work. With `reorder_transforms` the transforms are in AutoOrder's order, chosen from `profile_samples`
        samples: the paper's other heuristic. The other arguments are PyTorchLoader's.
        """
        transform = as_pipeline(transform)
        check_arguments(samples, device, batch_size=(batch_size, 1), num_workers=(num_workers, 2))
        check_on_error(on_error, sample_timeout_s)
        if not 0 <= percentile <= 100:
            raise LoaderConfigError(f"percentile={percentile}: expected 0 to 100")
        threshold = float(np.percentile(samples.sizes, percentile))
        slow = samples.sizes > threshold
        background = _background(samples.sizes, slow, num_workers, background_workers)
        self.notes = (
            f"samples above {threshold:,.0f} bytes, the {percentile:g}th percentile, are in batches of their own, "
            f"which {background} of {num_workers} workers prepare",
        )
        if reorder_transforms:
            order = chosen_order(
                transform,
                samples,
                profile_samples=profile_samples,
                seed=seed,
                num_workers=num_workers,
                sample_timeout_s=sample_timeout_s,
            )
            self.notes += notes_of(order)
            transform = reorder(transform, order)
        share = Share(len(samples), seed, *place_among_ranks(rank, world_size), remainder)
        self._lanes = Lanes(share, samples.sizes, slow, batch_size)
        common: dict[str, Any] = {
            "samples": samples,
            "transform": transform,
            "batch_size": batch_size,
            "seed": seed,
            "device": device,
            "prefetch_factor": prefetch_factor,
            "persistent_workers": persistent_workers,
            "pin_memory": pin_memory,
            "sample_timeout_s": sample_timeout_s,
            "on_error": on_error,
            # A lane takes its samples from the share above.
            "rank": 0,
            "world_size": 1,
        }
        self._quick = Lane(self._lanes.quick, num_workers=num_workers - background, **common)
        self._slow = Lane(self._lanes.slow, num_workers=background, **common)
        self._stats = LoaderStats()
        self._epochs = 0

    def __len__(self) -> int:
        """Return the number of this rank's samples in an epoch."""
        return len(self._lanes.share)

    def epoch(self, epoch: int) -> Iterator[Batch]:
        """Yield the epoch's batches; raise SampleError naming a sample, WorkerError naming a worker's pid."""
        self._epochs += 1
        this = self._epochs
        # Both begin to work before the first batch is waited for.
        lanes = [lane.started(epoch) for lane in (self._quick, self._slow)]
        for turn in due(self._lanes.quick.batches(epoch), self._lanes.slow.batches(epoch)):
            if this != self._epochs:
                raise LoaderError("another epoch was begun: its batches are not this one's")
            try:
                batch = next(lanes[turn], None)
            except LoaderError:
                self.close()
                raise
            if batch is not None:  # of a batch of which nothing could be loaded nothing comes
                self._stats.count(batch)
                yield batch

    def stats(self) -> LoaderStats:
        """Return the counts of both loaders; `wait_s` is the time spent waiting for workers of either."""
        for lane in (self._quick.stats(), self._slow.stats()):
            self._stats.skipped.update(lane.skipped)
        for key in ("wait_s", "skipped_samples"):
            values = [lane.stats().details.get(key) for lane in (self._quick, self._slow)]
            if any(value is not None for value in values):
                self._stats.details[key] = sum(value or 0.0 for value in values)
        return self._stats

    def close(self) -> None:
        """End the workers, in the middle of a read too."""
        self._quick.close()
        self._slow.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


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
