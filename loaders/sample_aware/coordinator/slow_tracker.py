"""Which samples are slow, and which one has been away for too long: looked at when it is due, and when one is done."""

from __future__ import annotations

import time
from array import array
from collections.abc import Sequence
from typing import Final

import numpy as np

from loaders.sample_aware.coordinator.epoch_state import EpochState
from loaders.sample_aware.coordinator.stats import Stats
from loaders.sample_aware.coordinator.tasks import TaskTable
from loaders.sample_aware.ipc.control_page import ControlPage
from loaders.sample_aware.options import EngineSettings
from loaders.shared.stall_monitor import WorkerStatus

NEVER: Final = float("inf")
_SHORTEST_S: Final = 0.02
"""Between two looks at what the workers hold."""
_PROFILED: Final = 32
"""Samples after which the workers get new estimates of the time after each stage; each of the first ones counts."""


class SlowSampleTracker:
    """Keeps the timeout, sends it to the workers, and marks samples as slow when they exceed it."""

    def __init__(self, settings: EngineSettings, control: ControlPage, stats: Stats) -> None:
        self._timeout, self._sample_timeout_s = settings.slow_timeout, settings.sample_timeout_s
        self._control, self._stats = control, stats
        self.workers = 0
        """Workers that were started so far."""
        self.look_at = 0.0
        """When to look next, by the monotonic clock."""
        self._publish()

    def mark(self, epoch: EpochState, sample: int) -> None:
        """Note that a sample is slow, once."""
        if sample not in epoch.slow:
            epoch.slow.add(sample)
            self._stats.slow += 1

    def done(self, epoch: EpochState, samples: Sequence[int], spent_ns: array[int]) -> None:
        """Note that samples are done, and what each of them took."""
        limit_s = self._timeout.timeout_s
        if limit_s is not None:
            limit_ns = limit_s * 1e9
            over = [sample for sample, ns in zip(samples, spent_ns, strict=True) if ns > limit_ns]
            self._stats.slow += len(over) - len(epoch.slow.intersection(over))
        epoch.slow.difference_update(samples)
        before, self._stats.samples = self._stats.samples, self._stats.samples + len(samples)
        self._stats.add_total(sum(spent_ns), len(samples))
        if self._timeout.add([ns * 1e-9 for ns in spent_ns]):
            # With another timeout the next look may be due earlier.
            self.look_at = 0.0
            self._publish()
        elif before < _PROFILED or before // _PROFILED != self._stats.samples // _PROFILED:
            self._publish()

    def look(self, epoch: EpochState, tasks: TaskTable) -> tuple[WorkerStatus, float] | None:
        """Mark the samples whose timeout has passed; return one that exceeds the limit, and since when, in seconds."""
        now = time.monotonic()
        if now < self.look_at:
            return None
        hang_s = self._sample_timeout_s
        limits_s = [limit for limit in (self._timeout.timeout_s, hang_s) if limit is not None]
        ages_s = self._control.workers.ages_ns(time.monotonic_ns(), self.workers) * 1e-9
        next_s = min(limits_s, default=NEVER)
        for limit_s in limits_s:
            for worker in np.flatnonzero(ages_s > limit_s):
                held = self._control.workers.held_by(int(worker))
                if held.epoch != epoch.number or tasks.key_of(epoch.number, held.sample) is None:
                    continue
                self.mark(epoch, held.sample)
                if limit_s == hang_s:
                    return held, float(ages_s[worker])
            sooner = ages_s[(ages_s >= 0) & (ages_s <= limit_s)]
            if len(sooner):
                next_s = min(next_s, limit_s - float(sooner.max()))
        self.look_at = now + max(_SHORTEST_S, next_s)
        return None

    def _publish(self) -> None:
        for stage, ns in enumerate(self._stats.remaining_ns()):
            self._control.set_remaining(stage, ns)
        limit_s = self._timeout.timeout_s
        self._control.set_timeout(0 if limit_s is None else int(limit_s * 1e9))
