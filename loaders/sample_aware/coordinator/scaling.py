"""The scheduler at work: it looks at the queue and the processors every so often, and has workers come and go."""

from __future__ import annotations

import logging
import os
import time
from typing import Final

from loaders.sample_aware.coordinator.epoch_state import EpochState
from loaders.sample_aware.coordinator.slow_samples import NEVER
from loaders.sample_aware.coordinator.stats import Stats
from loaders.sample_aware.options import Settings
from loaders.sample_aware.workers.pool import Pool

__all__ = ["WorkerScaler"]

_IDLE: Final = (3, 4)
"""Fields of /proc/stat's first line that count waiting: idle and iowait (proc_stat(5))."""
_LOG: Final = logging.getLogger("loaders.sample_aware.scaling")


class WorkerScaler:
    """Decides while an epoch is under way, where there is a scheduler."""

    def __init__(self, settings: Settings, pool: Pool, stats: Stats) -> None:
        self._scheduler, self._interval_s = settings.scheduler, settings.scheduler_interval_s
        self._queue_size = settings.max_batches_ahead
        self._pool, self._stats = pool, stats
        self._processors = _Processors()
        self.wanted = 0
        """Workers that the consumer's thread is to start."""
        self.due = NEVER
        """When it decides next, by the monotonic clock."""

    def begin(self) -> None:
        """Note that an epoch begins."""
        if self._scheduler is not None:
            self.due = time.monotonic() + self._interval_s

    def decide(self, run: EpochState) -> None:
        """Ask for more workers, or some to stop, when it is time."""
        now = time.monotonic()
        if self._scheduler is None or now < self.due:
            return
        self.due = now + self._interval_s
        decision = self._scheduler.decide(
            len(self._pool) + self.wanted,
            queued=len(run.output),
            queue_size=self._queue_size,
            cpu=self._processors.busy(),
        )
        self._stats.decisions.append(decision)
        _LOG.info("%s", decision)
        if decision.workers < decision.before:
            # Those that were asked for and not started come off first.
            fewer = decision.before - decision.workers
            spared = min(self.wanted, fewer)
            self.wanted -= spared
            for _ in range(fewer - spared):
                self._pool.shrink()
        self.wanted += max(0, decision.workers - decision.before)
        if self.wanted:
            run.output.wake()

    def close(self) -> None:
        """Close what it looks at the processors with."""
        self._processors.close()


class _Processors:
    """The utilisation of the machine's processors since it was last asked for; psutil takes twice the time for it."""

    def __init__(self) -> None:
        self._file = os.open("/proc/stat", os.O_RDONLY | os.O_CLOEXEC)
        self._total, self._idle = self._read()

    def busy(self) -> float:
        """Return the share of the processors' time that was used, 0 to 1; 0 where no time has passed."""
        total, idle = self._read()
        passed, rested = total - self._total, idle - self._idle
        self._total, self._idle = total, idle
        return min(1.0, max(0.0, 1 - rested / passed)) if passed > 0 else 0.0

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)

    def _read(self) -> tuple[int, int]:
        fields = [int(each) for each in os.pread(self._file, 512, 0).split(b"\n", 1)[0].split()[1:9]]
        return sum(fields), sum(fields[at] for at in _IDLE)
