"""The sample and the stage that each worker is at, and since when, for the process that waits for it."""

from __future__ import annotations

import ctypes
import time
from multiprocessing.sharedctypes import RawArray
from typing import Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from loaders.errors import SampleTimeoutError
from loaders.pipeline import Pipeline, StageTimes, stage_name

_SAMPLE, _STAGE, _SINCE, _EPOCH, _CELLS = range(5)
MONITOR_BYTES: Final = 8 * _CELLS
"""Memory of one worker."""
_IDLE: Final = 0

Memory: TypeAlias = "memoryview | ctypes.Array[ctypes.c_int64]"


class WorkerStatus(NamedTuple):
    """The sample that a worker is at."""

    worker: int
    sample: int
    stage: int
    since_ns: int
    """Of the monotonic clock, less the time that the sample took before; 0 where the worker is at none."""
    epoch: int


class WorkerTable:
    """Four numbers of 64 bits a worker, which it writes without a lock and others read."""

    def __init__(self, memory: Memory) -> None:
        """Use memory of MONITOR_BYTES for each worker."""
        self._cells = memoryview(memory).cast("B").cast("q")
        self._table: npt.NDArray[np.int64] = np.frombuffer(self._cells, np.int64).reshape(-1, _CELLS)

    def begin(self, worker: int, epoch: int, sample: int, stage: int, since_ns: int) -> None:
        """Note that a worker takes up a sample."""
        first = _CELLS * worker
        cells = self._cells
        cells[first + _SAMPLE], cells[first + _STAGE], cells[first + _EPOCH] = sample, stage, epoch
        # Last, because it makes the others count.
        cells[first + _SINCE] = since_ns

    def at_stage(self, worker: int, stage: int) -> None:
        """Note that a worker goes on with the next stage."""
        self._cells[_CELLS * worker + _STAGE] = stage

    def end(self, worker: int) -> None:
        """Note that a worker is done with its sample."""
        self._cells[_CELLS * worker + _SINCE] = _IDLE

    def ages_ns(self, now_ns: int, workers: int | None = None) -> npt.NDArray[np.int64]:
        """Return for how long each of the first workers has been at its sample, shape (workers,); -1 where at none."""
        # A copy: a worker may end its sample between the two uses.
        since = self._table[:workers, _SINCE].copy()
        ages: npt.NDArray[np.int64] = np.where(since == _IDLE, -1, now_ns - since)
        return ages

    def held_by(self, worker: int) -> WorkerStatus:
        """Return what a worker is at."""
        sample, stage, since, epoch = (int(number) for number in self._table[worker])
        return WorkerStatus(worker, sample, stage, since, epoch)


def timeout_error(sample: str, stage: str, seconds: float, worker: str) -> SampleTimeoutError:
    """Return the error that names a sample that takes longer than `sample_timeout_s`, and the worker that is at it."""
    return SampleTimeoutError(
        f"{sample} is in {stage} for {seconds:.1f} s in {worker}: longer than sample_timeout_s; the file's storage "
        "hangs, or the limit is too low for it"
    )


class Stalled(NamedTuple):
    """A sample that takes too long."""

    worker: int
    sample_id: int
    stage: str
    seconds: float


class StallMonitor:
    """Knows which worker is at which stage of which sample, for workers that run a pipeline."""

    def __init__(self, pipeline: Pipeline, workers: int, *, processes: bool) -> None:
        """Watch so many workers, threads of this process or processes that will be started by it."""
        stages = ("read", "decode", *map(stage_name, pipeline.transforms), "collate")
        size = _CELLS * max(1, workers)
        self.__setstate__((stages, RawArray(ctypes.c_int64, size) if processes else (ctypes.c_int64 * size)()))

    def __getstate__(self) -> tuple[tuple[str, ...], Memory]:
        return self._stages, self._memory

    def __setstate__(self, state: tuple[tuple[str, ...], Memory]) -> None:
        self._stages, self._memory = state
        self._table = WorkerTable(self._memory)

    def begin(self, worker: int, sample_id: int, *, stage: str = "read", took_ns: int = 0) -> StageTimes:
        """Note that a worker takes up a sample, or a batch that begins with it; return times that note its stages.

        `took_ns` is what the sample's stages before this one took.
        """
        at = self._stages.index(stage)
        self._table.begin(worker, 0, sample_id, at, time.monotonic_ns() - took_ns)
        return _NotedTimes(self._table, worker, at)

    def end(self, worker: int) -> None:
        """Note that a worker is done with its sample or batch."""
        self._table.end(worker)

    def overdue(self, timeout_s: float) -> Stalled | None:
        """Return the sample that a worker has been at for longest, if that is longer than the timeout."""
        now = time.monotonic_ns()
        worker = int(np.argmax(self._table.ages_ns(now)))
        _, sample_id, stage, since, _ = self._table.held_by(worker)
        seconds = (now - since) * 1e-9
        if since == _IDLE or seconds <= timeout_s:
            return None
        return Stalled(worker, sample_id, self._stages[min(stage, len(self._stages) - 1)], seconds)


class _NotedTimes(StageTimes):
    __slots__ = ("_stage", "_table", "_worker")

    def __init__(self, table: WorkerTable, worker: int, stage: int) -> None:
        super().__init__()
        self._table, self._worker, self._stage = table, worker, stage

    def add(self, stage: str, began_ns: int) -> int:
        self._stage += 1
        self._table.at_stage(self._worker, self._stage)
        return super().add(stage, began_ns)
