"""Which samples are slow, and which one has been away for too long: looked at when it is due, and when one is done."""

from __future__ import annotations

import time
from typing import Final

import numpy as np

from loaders.sample_aware.coordinator.epoch_state import EpochState
from loaders.sample_aware.coordinator.stats import Stats
from loaders.sample_aware.ipc.control_page import ControlPage
from loaders.sample_aware.policy.timeout import SlowTimeout
from loaders.shared.stall_monitor import WorkerStatus

NEVER: Final = float("inf")
_SHORTEST_S: Final = 0.02
"""Between two looks at what the workers hold."""
_PROFILED: Final = 32
"""Samples after which the workers get new estimates of the time after each stage; each of the first ones counts."""


class SlowSampleTracker:
    """Keeps the timeout, sends it to the workers, and marks samples as slow when they exceed it."""

    def __init__(
        self, timeout: SlowTimeout, sample_timeout_s: float | None, control: ControlPage, stats: Stats
    ) -> None:
        self._timeout, self._sample_timeout_s = timeout, sample_timeout_s
        self._control, self._stats = control, stats
        self.workers = 0
        """Workers that were started so far."""
        self.look_at = 0.0
        """When to look next, by the monotonic clock."""
        self._publish()

    def mark(self, run: EpochState, sample: int) -> None:
        """Note that a sample is slow, once."""
        if sample not in run.slow:
            run.slow.add(sample)
            self._stats.slow += 1

    def done(self, run: EpochState, sample: int, spent_s: float) -> None:
        """Note that a sample is done, and what it took."""
        if self._timeout.is_slow(spent_s):
            self.mark(run, sample)
        run.slow.discard(sample)
        self._stats.samples += 1
        samples = self._stats.samples
        if self._timeout.add(spent_s) or samples < _PROFILED or samples % _PROFILED == 0:
            self._publish()

    def look(self, run: EpochState) -> tuple[WorkerStatus, float] | None:
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
                if held.epoch != run.number or held.sample not in run.outstanding:
                    continue
                self.mark(run, held.sample)
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
        # With another timeout the next look may be due earlier.
        self.look_at = 0.0
