"""How punctual an agent's ticks were: how late their first sample was, and how far apart first and last."""

from __future__ import annotations

from collections import deque
from typing import Final

__all__ = ["Jitter"]

_TICKS: Final = 100_000
"""The latest ticks that the summary is of."""


class Jitter:
    """Collects ticks and sums them up."""

    def __init__(self) -> None:
        self._late_ns: deque[int] = deque(maxlen=_TICKS)
        self._skew_ns: deque[int] = deque(maxlen=_TICKS)
        self._ticks = 0
        self._missed = 0

    def add(self, late_ns: int, skew_ns: int) -> None:
        """Take a tick: from the tick to its first sample, and from there to the end of its last, ns."""
        self._late_ns.append(late_ns)
        self._skew_ns.append(skew_ns)
        self._ticks += 1

    def miss(self, ticks: int) -> None:
        """Take ticks that no sample was taken at."""
        self._missed += ticks

    def summary(self) -> dict[str, float | int]:
        """Return quantiles of both, µs, and how many ticks were sampled and missed."""
        found: dict[str, float | int] = {"ticks": self._ticks, "missed": self._missed}
        for name, values_ns in (("late", sorted(self._late_ns)), ("skew", sorted(self._skew_ns))):
            if values_ns:
                for quantile, label in ((0.5, "p50"), (0.99, "p99"), (1.0, "max")):
                    at = min(len(values_ns) - 1, int(quantile * len(values_ns)))
                    found[f"{name}_{label}_us"] = values_ns[at] / 1e3
        return found
