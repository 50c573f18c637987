"""Which epoch an iteration is of: kept by a dataset, in memory that the workers of its DataLoader share.

torch calls nothing of a dataset in the parent when DataLoader begins an iteration. So every worker names its iteration,
and the first one of an iteration that is not known yet begins the next epoch for all of them.
"""

from __future__ import annotations

import fcntl
import os
import pickle
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from multiprocessing import current_process
from multiprocessing.context import get_spawning_popen
from multiprocessing.reduction import DupFd
from typing import Any

from torch.utils.data import get_worker_info

from loaders.streaming.checkpoint import State

_KNOWN = 64
"""Iterations that are remembered: a worker that starts late, of an iteration that was left, begins no other epoch."""


@dataclass(frozen=True, slots=True)
class Worker:
    """A worker of a DataLoader, in one of its iterations."""

    id: int
    of: int
    """Number of workers."""
    seed: int
    """DataLoader's base seed."""
    process: int
    """Number of the first worker's process among those that the parent has made, if no other was made meanwhile."""
    count: int
    """Earlier iterations of the worker; above 0 for persistent ones."""

    @classmethod
    def here(cls, count: int) -> Worker | None:
        """Return the worker that this process is, None outside of a DataLoader's worker."""
        info = get_worker_info()
        if info is None:
            return None
        return cls(info.id, info.num_workers, info.seed - info.id, current_process()._identity[-1] - info.id, count)

    def beside(self, other: Worker) -> bool:
        """Return whether both are of one iteration."""
        # A user who seeds torch before every epoch gives all DataLoaders one base seed; their processes differ.
        same = (self.seed, self.count, self.of) == (other.seed, other.count, other.of)
        return same and abs(self.process - other.process) < self.of


@dataclass(frozen=True, slots=True)
class Iteration:
    """An iteration that has started."""

    epoch: int
    state: State | None = None
    """From where the epoch goes on; None: from its beginning."""
    worker: Worker | None = None
    """The worker that began it; None for an iteration without workers."""
    ended: frozenset[int] = frozenset()
    """The workers that have come to the epoch's end."""


@dataclass(frozen=True, slots=True)
class Position:
    """Where a dataset is."""

    epoch: int = 0
    """Of the iteration that is under way, or else of the next one."""
    has_started: bool = False
    """Whether an iteration of that epoch has started."""
    state: State | None = None
    """The state from which the epoch starts; None: its beginning."""
    last: Iteration | None = None
    """The iteration that began last, unless the position was chosen since."""
    known: tuple[Iteration, ...] = field(default=(), repr=False)
    """Iterations of workers, the newest last."""


class Iterations:
    """The position of a dataset, shared with the processes that are DataLoader's workers."""

    def __init__(self, position: Position | None = None) -> None:
        self._count = 0
        self._make(position or Position())

    def _make(self, position: Position) -> None:
        self._keep(os.memfd_create("streaming-epochs"), os.getpid())
        self._write(position)

    def _keep(self, file: int, pid: int) -> None:
        self._file, self._pid = file, pid
        self._closing = weakref.finalize(self, os.close, file)
        self._closing.atexit = False

    def worker(self) -> Worker | None:
        """Return the worker that this process is and count its iteration, None outside of a DataLoader's worker."""
        worker = Worker.here(self._count)
        self._count += worker is not None
        return worker

    def position(self) -> Position:
        """Return where the dataset is."""
        with self._lock():
            return self._read()

    def choose(self, epoch: int) -> None:
        """Have the next iteration start an epoch, or go on with it where its state was loaded."""
        self._change(lambda now: _at(now, epoch, now.state if (now.epoch, now.has_started) == (epoch, False) else None))

    def load(self, epoch: int, state: State | None) -> None:
        """Have the next iteration go on with an epoch from a loader's state."""
        self._change(lambda now: _at(now, epoch, state))

    def begin(self, worker: Worker | None) -> Iteration:
        """Return the iteration that a worker, or this process, begins or joins."""

        def change(now: Position) -> Position:
            if worker is not None and _of(now, worker) is not None:
                return now
            epoch, state = (now.epoch + 1, None) if now.has_started else (now.epoch, now.state)
            started = Iteration(epoch, state, worker)
            known = now.known if worker is None else (*now.known, started)[-_KNOWN:]
            return Position(epoch, True, None, started, known)

        now = self._change(change)
        found = now.last if worker is None else _of(now, worker)
        assert found is not None, "an iteration that has started is known"
        return found

    def end(self, iteration: Iteration, worker: Worker | None) -> None:
        """Note that this process, or a worker, has come to the end of an iteration's epoch."""

        def change(now: Position) -> Position:
            ended = iteration
            if worker is not None:
                known = _of(now, worker)
                if known is None:
                    return now
                ended = replace(known, ended=known.ended | {worker.id})
                now = replace(now, known=tuple(ended if one is known else one for one in now.known))
                now = replace(now, last=ended if now.last == known else now.last)
            whole = worker is None or len(ended.ended) == worker.of
            if whole and now.has_started and now.last == ended:
                now = replace(now, epoch=now.epoch + 1, has_started=False)
            return now

        self._change(change)

    def _change(self, change: Callable[[Position], Position]) -> Position:
        with self._lock():
            now = self._read()
            changed = change(now)
            if changed is not now:
                self._write(changed)
            return changed

    @contextmanager
    def _lock(self) -> Iterator[None]:
        if self._pid != os.getpid() and get_worker_info() is None:
            # A process of another rank: it goes on by itself.
            position = self._read()
            self._closing()
            self._make(position)
        # A lock of the process, which the kernel releases when the process dies.
        fcntl.lockf(self._file, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.lockf(self._file, fcntl.LOCK_UN)

    def _read(self) -> Position:
        position: Position = pickle.loads(os.pread(self._file, os.fstat(self._file).st_size, 0))  # noqa: S301 - our own
        return position

    def _write(self, position: Position) -> None:
        # The rest of a longer one behind it is not read.
        os.pwrite(self._file, pickle.dumps(position), 0)

    def __reduce__(self) -> tuple[object, ...]:
        if get_spawning_popen() is not None:
            return _attach, (DupFd(self._file), self._pid)
        return Iterations, (self.position(),)


def _attach(file: Any, pid: int) -> Iterations:
    """Return, in a process that is started, what shares the memory of its parent's."""
    iterations = Iterations.__new__(Iterations)
    iterations._count = 0
    iterations._keep(file.detach(), pid)
    return iterations


def _at(now: Position, epoch: int, state: State | None) -> Position:
    return Position(epoch, False, state, None, now.known)


def _of(now: Position, worker: Worker) -> Iteration | None:
    """Return the iteration that a worker is of."""
    return next((one for one in reversed(now.known) if one.worker is not None and worker.beside(one.worker)), None)
