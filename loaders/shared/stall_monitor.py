"""What every worker is at, for whoever waits for it: which sample, which stage, since when."""

from __future__ import annotations

import ctypes
import mmap
import time
from multiprocessing.sharedctypes import RawArray
from typing import Any, Final, NamedTuple

from loaders.pipeline import Pipeline, StageTimes, stage_name

__all__ = ["MONITOR_BYTES", "StallMonitor", "Stalled"]

_ID, _STAGE, _SINCE, _CELLS = range(4)
MONITOR_BYTES: Final = _CELLS * ctypes.sizeof(ctypes.c_int64)
"""Memory of one worker."""
_IDLE: Final = 0


class Stalled(NamedTuple):
    """A sample that takes too long."""

    worker: int
    sample_id: int
    stage: str
    seconds: float


class StallMonitor:
    """Three numbers a worker, which it writes without a lock and others read."""

    def __init__(self, pipeline: Pipeline, workers: int, *, processes: bool, memory: mmap.mmap | None = None) -> None:
        """Watch so many workers, threads of this process or processes that will be started by it.

        `memory`, MONITOR_BYTES for each worker, is for processes that share it in a way of their own.
        """
        self._stages = ("read", "decode", *map(stage_name, pipeline.transforms), "collate")
        size = _CELLS * max(1, workers)
        self._cells: Any
        if memory is not None:
            self._cells = (ctypes.c_int64 * size).from_buffer(memory)
        else:
            self._cells = RawArray(ctypes.c_int64, size) if processes else (ctypes.c_int64 * size)()

    def begin(self, worker: int, sample_id: int, *, stage: str = "read") -> StageTimes:
        """Note that a worker takes up a sample, or a batch that begins with it; return times that note its stages."""
        first = worker * _CELLS
        self._cells[first + _ID] = sample_id
        self._cells[first + _STAGE] = self._stages.index(stage)
        # Last, for it makes the other two count.
        self._cells[first + _SINCE] = time.monotonic_ns()
        return _NotedTimes(self._cells, first + _STAGE)

    def end(self, worker: int) -> None:
        """Note that a worker is done with what it was at."""
        self._cells[worker * _CELLS + _SINCE] = _IDLE

    def overdue(self, timeout_s: float) -> Stalled | None:
        """Return what a worker has been at for longest, if that is longer than the timeout."""
        now, oldest = time.monotonic_ns(), None
        for first in range(0, len(self._cells), _CELLS):
            since, sample_id, stage = (self._cells[first + cell] for cell in (_SINCE, _ID, _STAGE))
            seconds = (now - since) * 1e-9
            changed = self._cells[first + _SINCE] != since
            if since == _IDLE or changed or seconds <= timeout_s or (oldest and oldest.seconds >= seconds):
                continue
            oldest = Stalled(first // _CELLS, sample_id, self._stages[min(stage, len(self._stages) - 1)], seconds)
        return oldest


class _NotedTimes(StageTimes):
    __slots__ = ("_at", "_cells")

    def __init__(self, cells: Any, at: int) -> None:
        super().__init__()
        self._cells, self._at = cells, at

    def add(self, stage: str, began_ns: int) -> int:
        self._cells[self._at] += 1
        return super().add(stage, began_ns)
