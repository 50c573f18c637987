"""How many tasks wait for each worker: of quick samples several, so that their reports can be heard together."""

from __future__ import annotations

from typing import Final

REST_S: Final = 0.004
"""For which reports of quick samples may lie at most."""
_QUICK_NS: Final = 10_000_000
"""What a sample takes at most to be a quick one."""
_RESTS_NS: Final = 50_000_000
"""What a sample takes at most for reports to lie at all."""
_HANDLING_NS: Final = 50_000
"""What a worker takes from one sample to the next."""


_TINY_NS: Final = 500_000
"""What a sample takes at most for a worker to make a whole batch of them, of whatever size."""
_SHORT_NS: Final = 5_000_000
"""The same for batches of at most _SHORT_BATCH_NS."""
_SHORT_BATCH_NS: Final = 100_000_000
_ANY_BATCH_NS: Final = 30_000_000
"""What the samples of a batch take together at most for one worker to make it, whatever each takes."""
_LAST_BATCH_NS: Final = 10_000_000
"""The same of the last batches of an epoch, at whose end workers would be idle beside one that has a batch to make."""


def is_for_one(sample_ns: int, batch: int, *, last: bool = False) -> bool:
    """Return whether one worker makes a whole batch of samples that take so long: a task for each would cost more.

    `last` is for the last batches of an epoch.
    """
    batch_ns = sample_ns * batch
    if not sample_ns or (last and batch_ns > _LAST_BATCH_NS):
        return False
    return sample_ns < _TINY_NS or batch_ns < _ANY_BATCH_NS or (sample_ns < _SHORT_NS and batch_ns < _SHORT_BATCH_NS)


def tasks_ahead(sample_ns: int) -> int:
    """Return how many tasks lie ready for each worker where samples take so long on average, 0 for not known."""
    if not 0 < sample_ns < _QUICK_NS:
        return 1
    return 1 + int(2 * REST_S * 1e9) // (sample_ns + _HANDLING_NS)


def rest_s(sample_ns: int, tasks: int, workers: int) -> float:
    """Return for how long reports may lie without a worker running out of tasks, in seconds.

    Each wake of the coordinator takes a processor from a worker. Of slow samples there are few, so it does not rest.
    """
    if not 0 < sample_ns < _RESTS_NS:
        return 0.0
    return min(REST_S, max(0.0, (tasks / workers - 1.5) * sample_ns * 1e-9 / 2))
