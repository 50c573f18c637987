"""The first page of the arena: what the coordinator tells all workers, and what each worker is at.

Whole numbers of 64 bits, each written by one process and read by others without a lock.
"""

from __future__ import annotations

import mmap
import pickle
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

__all__ = ["MAX_STAGES", "MAX_WORKERS", "NO_ROOTS", "RESERVED_BYTES", "ControlPage", "Roots", "WorkerStatus"]


class Roots(NamedTuple):
    """What every sample's random numbers derive from, for each generator, whichever worker has the sample."""

    torch: int
    random: int
    numpy: int


NO_ROOTS: Final = Roots(0, 0, 0)


MAX_STAGES: Final = 256
MAX_WORKERS: Final = 4096
_RUN, _TIMEOUT_NS, _MAY_PARK, _SPEC_BYTES, _ROOTS = range(5)
_REMAINING: Final = _ROOTS + len(NO_ROOTS)
_CELLS: Final = _REMAINING + MAX_STAGES
_SAMPLE, _STAGE, _SINCE, _OF_RUN, _CELL = range(5)
_SPEC_AT: Final = 8 * (_CELLS + _CELL * MAX_WORKERS)
_SPEC_MOST: Final = 64 * 1024
RESERVED_BYTES: Final = _SPEC_AT + _SPEC_MOST


class WorkerStatus(NamedTuple):
    """What a worker is at."""

    worker: int
    sample: int
    stage: int
    since_ns: int
    """Of the monotonic clock, less what the sample took before it was parked."""
    run: int


class ControlPage:
    """A view of the page; the coordinator has one, and every worker another."""

    def __init__(self, whole: mmap.mmap) -> None:
        self._map = whole
        self._workers = 0
        self._numbers: Any = memoryview(whole)[:_SPEC_AT].cast("q")
        self._cells: npt.NDArray[np.int64] = np.frombuffer(whole, np.int64, _CELL * MAX_WORKERS, 8 * _CELLS).reshape(
            -1, _CELL
        )

    @property
    def run(self) -> int:
        """The epoch that is under way, counted by the engine; what is left of another is dropped."""
        number: int = self._numbers[_RUN]
        return number

    @run.setter
    def run(self, number: int) -> None:
        self._numbers[_RUN] = number

    def set_timeout(self, timeout_ns: int) -> None:
        """Tell above which time a sample is slow; 0: none is."""
        self._numbers[_TIMEOUT_NS] = timeout_ns

    def set_may_park(self, may_park: bool) -> None:
        """Tell whether slow samples may be handed over."""
        self._numbers[_MAY_PARK] = int(may_park)

    def set_remaining(self, stage: int, ns: int) -> None:
        """Tell how long samples usually take from a stage on."""
        self._numbers[_REMAINING + stage] = ns

    def worth_parking(self, spent_ns: int, next_stage: int, least_ns: int) -> bool:
        """Tell whether a sample is slow, and has enough before it to be worth handing over."""
        numbers = self._numbers
        timeout_ns = numbers[_TIMEOUT_NS]
        if not timeout_ns or spent_ns <= timeout_ns or not numbers[_MAY_PARK]:
            return False
        return bool(numbers[_REMAINING + next_stage] >= least_ns)

    def set_spec(self, spec: Any) -> bool:
        """Tell the layout that all samples have had so far; return False where it is too long to be told."""
        told = pickle.dumps(spec)
        if len(told) > _SPEC_MOST:
            return False
        self._map[_SPEC_AT : _SPEC_AT + len(told)] = told
        # Last, for it makes the rest count.
        self._numbers[_SPEC_BYTES] = len(told)
        return True

    def spec(self) -> Any:
        """Return what was told with `set_spec`."""
        # Written by the process that started this one.
        return pickle.loads(self._map[_SPEC_AT : _SPEC_AT + self._numbers[_SPEC_BYTES]])  # noqa: S301

    def set_roots(self, roots: Roots) -> None:
        """Tell what the samples' random numbers derive from."""
        for place, root in enumerate(roots, _ROOTS):
            self._numbers[place] = root

    def roots(self) -> Roots:
        """Return what was told with `set_roots`; it is there before the first task."""
        return Roots(*self._numbers[_ROOTS : _ROOTS + len(NO_ROOTS)])

    def watch(self, worker: int) -> None:
        """Look at a worker, too, when asked for ages."""
        self._workers = max(self._workers, worker + 1)

    def begin(self, worker: int, run: int, sample: int, stage: int, since_ns: int) -> None:
        """Note that a worker takes up a sample."""
        first = _CELLS + _CELL * worker
        numbers = self._numbers
        numbers[first + _SAMPLE], numbers[first + _STAGE], numbers[first + _OF_RUN] = sample, stage, run
        numbers[first + _SINCE] = since_ns

    def at_stage(self, worker: int, stage: int) -> None:
        """Note that a worker goes on with the next stage."""
        self._numbers[_CELLS + _CELL * worker + _STAGE] = stage

    def end(self, worker: int) -> None:
        """Note that a worker is done with what it was at."""
        self._numbers[_CELLS + _CELL * worker + _SINCE] = 0

    def ages_ns(self, now_ns: int) -> npt.NDArray[np.int64]:
        """Return for how long each worker has been at its sample, shape (workers,); below 0 where it is at none."""
        since = self._cells[: self._workers, _SINCE]
        ages: npt.NDArray[np.int64] = np.where(since == 0, -1, now_ns - since)
        return ages

    def held_by(self, worker: int) -> WorkerStatus:
        """Return what a worker is at; `since_ns` is 0 where that is nothing."""
        sample, stage, since, run = (int(number) for number in self._cells[worker])
        return WorkerStatus(worker, sample, stage, since, run)
