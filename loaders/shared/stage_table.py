"""Counts and times of the stages of a loader that runs in threads, as figures of its stats."""

from __future__ import annotations

import re
import threading
from collections import deque
from collections.abc import Mapping
from typing import Final

import numpy as np

_KEPT: Final = 10_000
"""Durations of a stage from which the percentile is taken, the last ones; counts and means are of all."""


class StageTable:
    """Durations by stage, and how full the queues between stages were."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: dict[str, int] = {}
        self._sums_s: dict[str, float] = {}
        self._last_s: dict[str, deque[float]] = {}
        self._queues: dict[str, tuple[float, float]] = {}

    def add(self, seconds: Mapping[str, float]) -> None:
        """Add what one sample or one batch took in every stage."""
        with self._lock:
            for stage, took in seconds.items():
                self._counts[stage] = self._counts.get(stage, 0) + 1
                self._sums_s[stage] = self._sums_s.get(stage, 0.0) + took
                self._last_s.setdefault(stage, deque(maxlen=_KEPT)).append(took)

    def add_queue(self, name: str, filled_s: float, open_s: float) -> None:
        """Add for how long a queue was open, and for how long of that something lay in it."""
        with self._lock:
            filled, opened = self._queues.get(name, (0.0, 0.0))
            self._queues[name] = (filled + filled_s, opened + open_s)

    def figures(self) -> dict[str, float]:
        """Return STAGE_count, STAGE_mean_s, STAGE_p99_s and QUEUE_queue_occupancy (0 to 1)."""
        found: dict[str, float] = {}
        with self._lock:
            for stage, count in self._counts.items():
                found |= stage_figures(stage, count, self._sums_s[stage])
                found[f"{to_key(stage)}_p99_s"] = float(np.percentile(self._last_s[stage], 99))
            for name, (filled, opened) in self._queues.items():
                found[f"{to_key(name)}_queue_occupancy"] = filled / opened if opened else 0.0
        return found


def stage_figures(stage: str, count: int, sum_s: float) -> dict[str, float]:
    """Return STAGE_count and STAGE_mean_s."""
    key = to_key(stage)
    return {f"{key}_count": float(count), f"{key}_mean_s": sum_s / count if count else 0.0}


def to_key(name: str) -> str:
    """Return RandomResizedCrop as random_resized_crop."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).replace(" ", "_").lower()
