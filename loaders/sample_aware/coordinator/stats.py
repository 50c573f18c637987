"""The counts of a sample-aware loader: seconds by stage, fill of the queues, workers; and their history."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Final

from loaders.sample_aware.options import EngineSettings
from loaders.sample_aware.policy.scheduler import Decision
from loaders.sample_aware.policy.timeout import TimeoutChange
from loaders.shared.stage_table import stage_figures

_RECENT: Final = 64
"""Samples over which the recent average is taken, the older ones counting less."""
_QUEUES: Final = ("running", "temp", "slow", "batch")


class Gauge:
    """The average of a number over time."""

    def __init__(self) -> None:
        self._began = self._since = time.monotonic()
        self._value = 0.0
        self._area = 0.0
        self.maximum = 0.0

    def set(self, value: float) -> None:
        """Note that the number is another one from now on."""
        if value != self._value:
            now = time.monotonic()
            self._area += self._value * (now - self._since)
            self._since, self._value = now, value
            self.maximum = max(self.maximum, value)

    def mean(self) -> float:
        """Return the average since the gauge was made."""
        now = time.monotonic()
        lasted = now - self._began
        return (self._area + self._value * (now - self._since)) / lasted if lasted else 0.0


class Stats:
    """Counts of one loader; written by its coordinator, read by any thread."""

    def __init__(self, stages: Sequence[str]) -> None:
        self._stages = tuple(stages)
        self._stage_ns = [0] * len(stages)
        self._stage_counts = [0] * len(stages)
        self.samples = self.slow = self.parked = 0
        self._recent_ns, self._recent_samples = 0.0, 0
        self.queues = {name: Gauge() for name in _QUEUES}
        self.decisions: list[Decision] = []
        """Everything that the scheduler has decided."""
        self.wait_s = 0.0
        """Time that the consumer has waited."""
        self.workers = 0

    def add_stages(self, first: int, stage_ns: Sequence[int], samples: int = 1) -> None:
        """Add what a sample, or several together, took in consecutive stages."""
        for stage, ns in enumerate(stage_ns, first):
            self._stage_ns[stage] += ns
            self._stage_counts[stage] += samples

    def add_total(self, spent_ns: int, samples: int = 1) -> None:
        """Add what a sample, or several together, took in all."""
        self._recent_samples = min(_RECENT, self._recent_samples + samples)
        share = min(1.0, samples / self._recent_samples)
        self._recent_ns += share * (spent_ns / samples - self._recent_ns)

    def remaining_ns(self) -> list[int]:
        """Return how long samples take on average from each stage on."""
        means = [ns // count if count else 0 for ns, count in zip(self._stage_ns, self._stage_counts, strict=True)]
        return [sum(means[stage:]) for stage in range(len(means))]

    @property
    def sample_ns(self) -> int:
        """What samples have taken lately on average, 0 before the first one."""
        return int(self._recent_ns)

    def details(self) -> dict[str, float]:
        """Return STAGE_count, STAGE_mean_s, QUEUE_queue_mean, QUEUE_queue_most, slow_share and the counts."""
        found = {
            "wait_s": self.wait_s,
            "slow_samples": float(self.slow),
            "parked_samples": float(self.parked),
            "slow_share": self.slow / self.samples if self.samples else 0.0,
            "workers": float(self.workers),
        }
        for stage, ns, count in zip(self._stages, self._stage_ns, self._stage_counts, strict=True):
            found |= stage_figures(stage, count, ns * 1e-9)
        for name, gauge in self.queues.items():
            found[f"{name}_queue_mean"], found[f"{name}_queue_most"] = gauge.mean(), gauge.maximum
        return found


class ShowsHistory:
    """What a sample-aware loader shows of its timeouts and of its scheduler."""

    _settings: EngineSettings
    _run_stats: Stats

    @property
    def timeout_history(self) -> Sequence[TimeoutChange]:
        """The timeouts above which samples were slow, from the end of the warm-up on."""
        return tuple(self._settings.slow_timeout.history)

    @property
    def decisions(self) -> Sequence[Decision]:
        """Everything that the scheduler has decided."""
        return tuple(self._run_stats.decisions)
