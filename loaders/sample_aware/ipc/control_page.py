"""The first page of the arena: the coordinator's settings for all workers, and the sample that each worker is at.

Whole numbers of 64 bits, each written by one process and read by others without a lock.
"""

from __future__ import annotations

import mmap
from typing import Final, NamedTuple

from loaders.shared.stall_monitor import MONITOR_BYTES, WorkerTable


class Roots(NamedTuple):
    """What every sample's random numbers derive from, for each generator, whichever worker has the sample."""

    torch: int
    random: int
    numpy: int


NO_ROOTS: Final = Roots(0, 0, 0)


MAX_STAGES: Final = 256
MAX_WORKERS: Final = 4096
_EPOCH, _TIMEOUT_NS, _MAY_PARK, _ROOTS = range(4)
_REMAINING: Final = _ROOTS + len(NO_ROOTS)
_CELLS: Final = _REMAINING + MAX_STAGES
RESERVED_BYTES: Final = 8 * _CELLS + MONITOR_BYTES * MAX_WORKERS


class ControlPage:
    """A view of the page; the coordinator has one, and every worker another."""

    def __init__(self, whole: mmap.mmap) -> None:
        self._map = whole
        self._numbers = memoryview(whole)[: 8 * _CELLS].cast("q")
        self.workers = WorkerTable(memoryview(whole)[8 * _CELLS : RESERVED_BYTES])

    @property
    def epoch(self) -> int:
        """The epoch that is under way, counted by the engine; samples of another one are dropped."""
        return self._numbers[_EPOCH]

    @epoch.setter
    def epoch(self, number: int) -> None:
        self._numbers[_EPOCH] = number

    def set_timeout(self, timeout_ns: int) -> None:
        """Set the time above which a sample is slow; 0: none is."""
        self._numbers[_TIMEOUT_NS] = timeout_ns

    def set_may_park(self, may_park: bool) -> None:
        """Set whether slow samples may be parked."""
        self._numbers[_MAY_PARK] = int(may_park)

    def set_remaining(self, stage: int, ns: int) -> None:
        """Set how long samples usually take from a stage on."""
        self._numbers[_REMAINING + stage] = ns

    def worth_parking(self, spent_ns: int, next_stage: int, min_ns: int) -> bool:
        """Return whether a sample is slow, and has enough before it to be worth parking."""
        numbers = self._numbers
        timeout_ns = numbers[_TIMEOUT_NS]
        if not timeout_ns or spent_ns <= timeout_ns or not numbers[_MAY_PARK]:
            return False
        return bool(numbers[_REMAINING + next_stage] >= min_ns)

    def set_roots(self, roots: Roots) -> None:
        """Set what the samples' random numbers derive from."""
        for place, root in enumerate(roots, _ROOTS):
            self._numbers[place] = root

    def roots(self) -> Roots:
        """Return the roots of `set_roots`, which are set before the first task."""
        return Roots(*self._numbers[_ROOTS : _ROOTS + len(NO_ROOTS)])
