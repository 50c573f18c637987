"""How many tasks wait for each worker: of quick samples several, so that their reports can be heard together."""

from __future__ import annotations

from typing import Final

__all__ = ["REST_S", "tasks_ahead"]

REST_S: Final = 0.001
"""For which reports of quick samples may lie."""
_QUICK_NS: Final = 250_000
"""What a sample takes at most to be a quick one."""
_HANDLING_NS: Final = 50_000
"""What a worker takes from one sample to the next."""


def tasks_ahead(sample_ns: int) -> int:
    """Return how many tasks lie ready for each worker where samples take so long on average, 0 for not known."""
    if not 0 < sample_ns < _QUICK_NS:
        return 1
    return 1 + int(2 * REST_S * 1e9) // (sample_ns + _HANDLING_NS)
