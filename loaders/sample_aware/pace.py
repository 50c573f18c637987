"""How many tasks wait for each worker: of quick samples several, so that their reports can be heard together."""

from __future__ import annotations

from typing import Final

__all__ = ["REST_S", "is_for_one", "tasks_ahead"]

REST_S: Final = 0.001
"""For which reports of quick samples may lie."""
_QUICK_NS: Final = 250_000
"""What a sample takes at most to be a quick one."""
_HANDLING_NS: Final = 50_000
"""What a worker takes from one sample to the next."""


_BUNDLED_NS: Final = 500_000
"""What a sample takes at most for a worker to make a whole batch of them, of whatever size."""
_BUNDLE_NS: Final = 30_000_000
"""What the samples of a batch take together at most for one worker to make it."""


def is_for_one(sample_ns: int, batch: int) -> bool:
    """Tell whether one worker makes a whole batch of samples that take so long: giving out each would cost more."""
    return 0 < sample_ns < _BUNDLED_NS or 0 < sample_ns * batch < _BUNDLE_NS


def tasks_ahead(sample_ns: int) -> int:
    """Return how many tasks lie ready for each worker where samples take so long on average, 0 for not known."""
    if not 0 < sample_ns < _QUICK_NS:
        return 1
    return 1 + int(2 * REST_S * 1e9) // (sample_ns + _HANDLING_NS)
