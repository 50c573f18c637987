"""The arguments that both sample-aware loaders share, and what follows from them."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Final, Literal, TypedDict

from loaders.errors import LoaderConfigError
from loaders.sample_aware.ipc.control_page import MAX_WORKERS
from loaders.sample_aware.policy.balancer import Order
from loaders.sample_aware.policy.scheduler import Scheduler
from loaders.sample_aware.policy.timeout import SlowTimeout
from loaders.shared.options import check_whole

_DEFAULT_BYTES: Final = 2 << 30
RENAMED: Final = {"most_bytes": "max_bytes"}
"""Arguments by their former names."""


class PolicyKeywords(TypedDict, total=False):
    """The fields of PolicyOptions, as the keywords of a constructor."""

    slow_timeout_s: float | None
    warm_up: int
    min_workers: int | None
    max_workers: int | Literal["cores"] | None
    alpha: float
    beta: float
    theta_c: float
    max_bytes: int


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """How the engine of an epoch works."""

    workers: int
    order: Order
    max_batches_ahead: int
    """Batches that are started and not taken by the consumer."""
    max_bytes: int
    """Of samples and batches ahead of the consumer."""
    on_error: Literal["raise", "skip", "batch"]
    """What a sample that fails ends: the epoch, itself alone, or its batch, for which the error is raised."""
    sample_timeout_s: float | None = None
    scheduler: Scheduler | None = None
    scheduler_interval_s: float = 0.5
    background_share: float = 0.25
    """Of the workers, those that go on with parked samples while there are new ones, at most."""
    max_wait_batches: int = 4
    """Batches after which a parked sample is resumed before anything else."""


@dataclass(frozen=True, slots=True)
class PolicyOptions:
    """When a sample counts as slow, and how many workers and bytes there may be.

    Raises LoaderConfigError for a value out of range.

    Args:
        slow_timeout_s: seconds after which a sample is slow; None profiles the first samples and then adjusts
            (default None).
        warm_up: samples that are profiled (default 32).
        min_workers: fewest workers; with `max_workers` the scheduler changes their number; None for `num_workers`
            (default None).
        max_workers: most workers; "cores" for as many as there are processors, and no fewer than `num_workers`; None
            for `num_workers` (default None).
        alpha: workers that an empty queue of batches is worth, formula 2 of the paper (default 2.0).
        beta: workers that wholly busy processors are worth beyond `theta_c`, formula 2 (default 1.0).
        theta_c: utilisation of the processors above which workers are added, 0 to 1 (default 0.7).
        max_bytes: bytes of shared memory for samples and batches ahead of the consumer (default 2 GiB).
    """

    slow_timeout_s: float | None = None
    warm_up: int = 32
    min_workers: int | None = None
    max_workers: int | Literal["cores"] | None = None
    alpha: float = 2.0
    beta: float = 1.0
    theta_c: float = 0.7
    max_bytes: int = _DEFAULT_BYTES

    def __post_init__(self) -> None:
        check_whole("warm_up", self.warm_up, 1)
        check_whole("max_bytes", self.max_bytes, 1)

    def timeout(self) -> SlowTimeout:
        """Return the timeout above which a sample is slow."""
        return SlowTimeout(warm_up=self.warm_up, fixed_s=self.slow_timeout_s)

    def scheduler(self, workers: int) -> Scheduler | None:
        """Return the scheduler of the number of workers, None where there are no bounds; raise LoaderConfigError."""
        if workers > MAX_WORKERS:
            raise LoaderConfigError(f"num_workers={workers}: expected at most {MAX_WORKERS}")
        if self.max_workers is None and self.min_workers is None:
            return None
        low = workers if self.min_workers is None else self.min_workers
        high = self._max_workers(workers)
        scheduler = Scheduler(low, high, alpha=self.alpha, beta=self.beta, theta_c=self.theta_c)
        if not low <= workers <= high <= MAX_WORKERS:
            raise LoaderConfigError(
                f"num_workers={workers}: expected min_workers={low} to max_workers={high}, and no more than "
                f"{MAX_WORKERS}"
            )
        return scheduler

    def _max_workers(self, workers: int) -> int:
        if self.max_workers == "cores":
            return max(workers, min(len(os.sched_getaffinity(0)), MAX_WORKERS))
        return workers if self.max_workers is None else check_whole("max_workers", self.max_workers, 1)

    def settings(
        self,
        workers: int,
        prefetch_factor: int,
        order: Order,
        on_error: Literal["raise", "skip", "batch"],
        *,
        sample_timeout_s: float | None,
        scheduler: Scheduler | None,
    ) -> EngineSettings:
        """Return how the engine works, with as many batches ahead of the consumer as torch's DataLoader has.

        That is one batch fewer than it has: a batch's memory comes back only after the next one was taken.
        """
        ahead = max(2, workers * prefetch_factor - 1)
        return EngineSettings(workers, order, ahead, self.max_bytes, on_error, sample_timeout_s, scheduler)
