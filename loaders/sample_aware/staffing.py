"""The scheduler at work: it looks at the queue and the processors every so often, and has workers come and go."""

from __future__ import annotations

import logging
import time
from typing import Final

from loaders.sample_aware.figures import Figures
from loaders.sample_aware.lateness import NEVER
from loaders.sample_aware.pool import Pool
from loaders.sample_aware.processors import Processors
from loaders.sample_aware.run import Run
from loaders.sample_aware.scheduler import Scheduler

__all__ = ["Staffing"]

_LOG: Final = logging.getLogger(__name__)


class Staffing:
    """Decides while an epoch is under way, where there is a scheduler."""

    def __init__(
        self, scheduler: Scheduler | None, interval_s: float, queue_size: int, pool: Pool, figures: Figures
    ) -> None:
        self._scheduler, self._interval_s, self._queue_size = scheduler, interval_s, queue_size
        self._pool, self._figures = pool, figures
        self._processors = Processors()
        self.wanted = 0
        """Workers that the consumer's thread is to start."""
        self.due = NEVER
        """When it decides next, by the monotonic clock."""

    def begin(self) -> None:
        """Note that an epoch begins."""
        if self._scheduler is not None:
            self.due = time.monotonic() + self._interval_s

    def decide(self, run: Run) -> None:
        """Ask for more workers, or some to stop, when it is time."""
        now = time.monotonic()
        if self._scheduler is None or now < self.due:
            return
        self.due = now + self._interval_s
        decision = self._scheduler.decide(
            len(self._pool) + self.wanted,
            queued=len(run.delivery),
            queue_size=self._queue_size,
            cpu=self._processors.busy(),
        )
        self._figures.decisions.append(decision)
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
            run.delivery.nudge()

    def close(self) -> None:
        """Close what it looks at the processors with."""
        self._processors.close()
