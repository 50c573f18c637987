"""The arguments of both sample-aware loaders, and what follows from them."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field

from loaders.errors import LoaderConfigError
from loaders.sample_aware.ipc.control_page import MAX_WORKERS
from loaders.sample_aware.policy.balancer import Order
from loaders.sample_aware.policy.scheduler import Scheduler
from loaders.sample_aware.policy.timeout import SlowTimeout
from loaders.shared.options import Count, LoaderOptions, Options, Seconds, whole_or


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
    sample_timeout_s: float | None
    slow_timeout: SlowTimeout
    scheduler: Scheduler | None


def batches_ahead(workers: int, prefetch_factor: int) -> int:
    """Return how many batches the engine has ahead of the consumer.

    It is one fewer than torch's DataLoader has: a batch's memory comes back only after the next one was taken.
    """
    return max(2, workers * prefetch_factor - 1)


class PolicyOptions(Options):
    """When a sample counts as slow, and how many workers and bytes there may be."""

    sample_timeout_s: Seconds | None = Field(
        default=None, description="seconds after which a sample that is not ready ends the epoch; None for no limit"
    )
    slow_timeout_s: Seconds | None = Field(
        default=None,
        description="seconds after which a sample is slow; None profiles the first samples and then adjusts",
    )
    warm_up: Count = Field(default=32, description="samples that are profiled")
    min_workers: Count | None = Field(
        default=None,
        description="fewest workers; with `max_workers` the scheduler changes their number; None for `num_workers`",
    )
    max_workers: Annotated[int | Literal["cores"], whole_or("cores", MAX_WORKERS)] | None = Field(
        default=None,
        description='most workers; "cores" for as many as there are processors, and no fewer than `num_workers`; None '
        "for `num_workers`",
    )
    alpha: float = Field(
        default=2.0, description="workers that an empty queue of batches is worth, formula 2 of the paper"
    )
    beta: float = Field(
        default=1.0, description="workers that wholly busy processors are worth beyond `theta_c`, formula 2"
    )
    theta_c: float = Field(
        default=0.7, description="utilisation of the processors above which workers are added, 0 to 1"
    )
    max_bytes: Count = Field(
        default=2 << 30, description="bytes of shared memory for samples and batches ahead of the consumer"
    )

    def settings(
        self, workers: int, prefetch_factor: int, order: Order, on_error: Literal["raise", "skip", "batch"]
    ) -> EngineSettings:
        """Return how the engine works; raise LoaderConfigError for a number of workers out of bounds."""
        return EngineSettings(
            workers,
            order,
            batches_ahead(workers, prefetch_factor),
            self.max_bytes,
            on_error,
            self.sample_timeout_s,
            SlowTimeout(warm_up=self.warm_up, fixed_s=self.slow_timeout_s),
            self._scheduler(workers),
        )

    def _scheduler(self, workers: int) -> Scheduler | None:
        """Return the scheduler of the number of workers, None where there are no bounds."""
        if workers > MAX_WORKERS:
            raise LoaderConfigError(f"num_workers={workers}: expected at most {MAX_WORKERS}")
        if not workers or (self.max_workers is None and self.min_workers is None):
            return None
        low = self.min_workers or workers
        if isinstance(self.max_workers, str):
            high = max(workers, min(len(os.sched_getaffinity(0)), MAX_WORKERS))
        else:
            high = self.max_workers or workers
        if not low <= workers <= high:
            raise LoaderConfigError(
                f"num_workers={workers}, min_workers={low}, max_workers={high}: expected num_workers between the two"
            )
        return Scheduler(low, high, alpha=self.alpha, beta=self.beta, theta_c=self.theta_c)


class SampleAwareOptions(LoaderOptions, PolicyOptions):
    """What every loader takes, and the sample-aware loader of files."""

    num_workers: Count = Field(default=4, description="processes that load samples")
    prefetch_factor: Count = Field(default=2, description="batches for each worker, which all workers fill together")
    order: Order = Field(
        default="arrival", description='"arrival", first come, first used, or "strict", the epoch\'s own order'
    )
    start_method: Literal["fork", "spawn", "forkserver"] | None = Field(
        default=None, description="fork, spawn or forkserver; None for the usual one"
    )


class DataLoaderOptions(PolicyOptions):
    """What SampleAwareDataLoader takes besides the arguments of torch's DataLoader."""

    order: Order | None = Field(
        default=None,
        description='"arrival" fills batches with the samples that are done first, "strict" keeps the sampler\'s '
        "batches; None is arrival where the sampler is a random one of torch's, strict elsewhere",
    )
    seed_samples: bool = Field(
        default=True,
        description="whether what a sample draws depends on its place in the epoch alone, for 10 µs a sample; "
        "otherwise a worker's random numbers go on from one of its samples to the next, as torch's do",
    )
