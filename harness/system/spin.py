"""How long a fixed piece of work takes a processor: its speed, whatever sets it."""

from __future__ import annotations

import hashlib
import statistics
import time
from dataclasses import dataclass
from typing import Final

TRIES: Final = 60
"""Each takes some 0.6 ms, so that all of them take some 40 ms."""
_ROUNDS: Final = 50
_BLOCK: Final = bytes(16384)
"""It stays in a processor's own cache, so that neither memory nor a neighbour's use of it counts."""


@dataclass(frozen=True, slots=True)
class Spin:
    """CPU seconds of a fixed piece of work. What the thread waits for a processor does not count."""

    best_s: float
    """The least of several tries."""
    median_s: float
    """It lies further from the least the more the processor's speed changes meanwhile."""

    @property
    def scatter(self) -> float:
        """How far apart the tries lie, as a share of the best one."""
        return self.median_s / self.best_s - 1


def measure_spin() -> Spin:
    """Do a fixed piece of work `TRIES` times on this thread; returns what it took."""
    tries = sorted(_spin_s() for _ in range(TRIES))
    return Spin(tries[0], statistics.median(tries))


def _spin_s() -> float:
    began_ns = time.thread_time_ns()
    digest = hashlib.sha256()
    for _ in range(_ROUNDS):
        digest.update(_BLOCK)
    return (time.thread_time_ns() - began_ns) / 1e9
