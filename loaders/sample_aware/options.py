"""Arguments that both loaders have, checked once."""

from __future__ import annotations

from typing import Final, get_args

from loaders.errors import LoaderConfigError
from loaders.sample_aware.ipc.control_page import MOST_WORKERS
from loaders.sample_aware.policy.balancer import Order
from loaders.sample_aware.policy.scheduler import Scheduler

__all__ = ["DEFAULT_BYTES", "ahead_of", "check_order", "scheduler_of"]

DEFAULT_BYTES: Final = 2 << 30
"""Of samples and batches ahead of the consumer."""


def ahead_of(workers: int, prefetch_factor: int) -> int:
    """Return how many batches may be begun that the consumer does not have, with as much memory as torch's DataLoader.

    That is one less than it has, for one's memory comes back only after the next one was handed over.
    """
    return max(2, workers * prefetch_factor - 1)


def check_order(order: str | None) -> None:
    """Refuse an order that there is none of; raises LoaderConfigError."""
    if order is not None and order not in get_args(Order):
        raise LoaderConfigError(f"order={order!r}: expected one of {', '.join(get_args(Order))}")


def scheduler_of(
    workers: int, least: int | None, most: int | None, *, alpha: float, beta: float, theta_c: float
) -> Scheduler | None:
    """Return the scheduler that bounds ask for, None where there are none; raises LoaderConfigError."""
    if workers > MOST_WORKERS:
        raise LoaderConfigError(f"num_workers={workers}: expected at most {MOST_WORKERS}")
    if most is None and least is None:
        return None
    bounds = workers if least is None else least, workers if most is None else most
    scheduler = Scheduler(*bounds, alpha=alpha, beta=beta, theta_c=theta_c)
    if not scheduler.least <= workers <= scheduler.most <= MOST_WORKERS:
        raise LoaderConfigError(
            f"num_workers={workers}: expected min_workers={scheduler.least} to max_workers={scheduler.most}, and no "
            f"more than {MOST_WORKERS}"
        )
    return scheduler
