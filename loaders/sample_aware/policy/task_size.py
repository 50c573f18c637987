"""How many samples a worker gets at once (pure)."""

from __future__ import annotations

from typing import Final, NamedTuple

_WHOLE_BATCH_NS: Final = 100_000_000
"""What the samples of a batch take together at most for one worker to run all of them."""
_LAST_WHOLE_NS: Final = 10_000_000
"""The same at the end of an epoch, where workers would be idle beside one that has a batch to make."""
_COPY_NS: Final = 0.5
"""What a copy of a byte takes."""
_MIN_COPIES: Final = 10
"""As how many copies of itself a sample takes at least where several workers share its batch."""
_PART_NS: Final = 50_000_000
"""What the samples take together at most that a worker gets at once of a batch that several share."""


class TaskSize(NamedTuple):
    """What the next tasks are."""

    is_whole: bool
    """Whether one worker runs all samples of a batch: quick ones, because a task for each would cost more."""
    part: int
    """Samples that a worker gets at once where several share a batch."""
    seconds: float
    """What a task takes, as a rule; 0 before the first sample is done."""


def task_size(sample_ns: int, sample_bytes: float, batch_size: int, workers: int, *, is_ending: bool) -> TaskSize:
    """Return the size of tasks from what samples take lately, 0 where that is not known.

    `is_ending` says whether the sampler has ended.
    """
    if not sample_ns:
        return TaskSize(is_whole=False, part=1, seconds=0.0)
    limit_ns = _LAST_WHOLE_NS if is_ending else _WHOLE_BATCH_NS
    is_whole = sample_ns < _MIN_COPIES * _COPY_NS * sample_bytes or sample_ns * batch_size < limit_ns
    part = 1 if is_ending else max(1, min(_PART_NS // sample_ns, batch_size // max(1, workers)))
    return TaskSize(is_whole, part, sample_ns * (batch_size if is_whole else part) * 1e-9)
