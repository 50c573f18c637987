"""The first page of the arena: the coordinator's settings for all workers, and the sample that each worker is at.

Whole numbers of 64 bits, each written by one process and read by others without a lock.
"""

from __future__ import annotations

import mmap
import pickle
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from loaders.sample_aware.ipc.messages import IN_ROW, Report
from loaders.sample_aware.ipc.serialize import Spec, spec_of
from loaders.shared.stall_monitor import MONITOR_BYTES, WorkerTable


class Roots(NamedTuple):
    """What every sample's random numbers derive from, for each generator, whichever worker has the sample."""

    torch: int
    random: int
    numpy: int


NO_ROOTS: Final = Roots(0, 0, 0)


MAX_STAGES: Final = 256
MAX_WORKERS: Final = 4096
_EPOCH, _TIMEOUT_NS, _MAY_PARK, _SPEC_BYTES, _ROOTS = range(5)
_REMAINING: Final = _ROOTS + len(NO_ROOTS)
_CELLS: Final = _REMAINING + MAX_STAGES
_SPEC_AT: Final = 8 * _CELLS + MONITOR_BYTES * MAX_WORKERS
_MAX_SPEC: Final = 64 * 1024
RESERVED_BYTES: Final = _SPEC_AT + _MAX_SPEC


class ControlPage:
    """A view of the page; the coordinator has one, and every worker another."""

    def __init__(self, whole: mmap.mmap) -> None:
        self._map = whole
        self._numbers = memoryview(whole)[: 8 * _CELLS].cast("q")
        self.workers = WorkerTable(memoryview(whole)[8 * _CELLS : _SPEC_AT])

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

    def set_spec(self, spec: Spec) -> bool:
        """Set the layout that all samples have had so far; return False where it does not fit."""
        pickled = pickle.dumps(spec)
        if len(pickled) > _MAX_SPEC:
            return False
        self._map[_SPEC_AT : _SPEC_AT + len(pickled)] = pickled
        # Last, because it makes the rest count.
        self._numbers[_SPEC_BYTES] = len(pickled)
        return True

    def spec(self) -> Spec:
        """Return the layout that was set with `set_spec`."""
        # Written by the process that started this one.
        spec: Spec = pickle.loads(self._map[_SPEC_AT : _SPEC_AT + self._numbers[_SPEC_BYTES]])  # noqa: S301
        return spec

    def set_roots(self, roots: Roots) -> None:
        """Set what the samples' random numbers derive from."""
        for place, root in enumerate(roots, _ROOTS):
            self._numbers[place] = root

    def roots(self) -> Roots:
        """Return the roots of `set_roots`, which are set before the first task."""
        return Roots(*self._numbers[_ROOTS : _ROOTS + len(NO_ROOTS)])


class Layout:
    """Checks whether all samples have equal tensor shapes and dtypes, so that workers can write into rows of a batch.

    It looks at the samples that lie apart, in blocks of their own; at first all of them do.
    """

    def __init__(self, control: ControlPage) -> None:
        self._control = control
        self._varied = False
        self.spec: Spec | None = None
        """The tensors of a sample; None before the first one, and for good once two samples have differed."""

    def learn(self, report: Report, memory: npt.NDArray[np.uint8]) -> None:
        """Take a sample that is done into account."""
        if self._varied or report.offset == IN_ROW:
            return
        spec = spec_of(memory, report.offset, report.nbytes) if report.offset >= 0 else ()
        if self.spec is None and spec and self._control.set_spec(spec):
            self.spec = spec
        elif spec != self.spec:
            self._varied, self.spec = True, None
