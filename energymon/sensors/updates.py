"""How often a counter is updated, as seen by whoever polls it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

__all__ = ["Updates", "updates"]


@dataclass(frozen=True, slots=True)
class Updates:
    """What polling a counter showed."""

    median_ms: float
    longest_ms: float


def updates(shown: Iterable[tuple[int, object]]) -> Updates | None:
    """Return the times between changes of a value; `shown` are (time in ns, value) in order.

    None when fewer than two changes were seen: their distance is then unknown.
    """
    changes = [after for before, after in pairwise(shown) if before[1] != after[1]]
    gaps_ms = [(after[0] - before[0]) / 1e6 for before, after in pairwise(changes)]
    return Updates(median(gaps_ms), max(gaps_ms)) if gaps_ms else None
