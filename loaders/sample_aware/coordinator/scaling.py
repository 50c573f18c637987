"""The scheduler at work: it looks at the queue and the processors every so often, and has workers come and go."""

from __future__ import annotations

import logging
import time
from typing import Final

import psutil

from loaders.sample_aware.coordinator.epoch_state import EpochState
from loaders.sample_aware.coordinator.slow_tracker import NEVER
from loaders.sample_aware.coordinator.stats import Stats
from loaders.sample_aware.options import EngineSettings
from loaders.sample_aware.workers.pool import Pool

_INTERVAL_S: Final = 0.5
"""Between two decisions."""
_LOG: Final = logging.getLogger("loaders.sample_aware.scaling")


class WorkerScaler:
    """Decides while an epoch is under way, where there is a scheduler."""

    def __init__(self, settings: EngineSettings, pool: Pool, stats: Stats) -> None:
        self._scheduler = settings.scheduler
        self._queue_size = settings.max_batches_ahead
        self._pool, self._stats = pool, stats
        self.wanted = 0
        """Workers that the consumer's thread is to start."""
        self.due = NEVER
        """When it decides next, by the monotonic clock."""

    def begin(self) -> None:
        """Note that an epoch begins."""
        if self._scheduler is not None:
            self.due = time.monotonic() + _INTERVAL_S
            psutil.cpu_percent()  # which counts from here on

    def decide(self, run: EpochState) -> None:
        """Ask for more workers, or some to stop, when it is time."""
        now = time.monotonic()
        if self._scheduler is None or now < self.due:
            return
        self.due = now + _INTERVAL_S
        decision = self._scheduler.decide(
            len(self._pool) + self.wanted,
            queued=len(run.output),
            queue_size=self._queue_size,
            cpu=psutil.cpu_percent() / 100,
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
