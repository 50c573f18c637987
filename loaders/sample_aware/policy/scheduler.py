"""How many workers there should be: formulas 1 and 2 of the MinatoLoader paper, section 4.3 (pure)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

_CLIP: Final = 2
"""The most workers that one decision adds or takes."""
_SMOOTHING: Final = 0.3
"""Weight of the newest value in the moving average of the queue."""


@dataclass(frozen=True, slots=True)
class Decision:
    """What the scheduler decided once, and from what."""

    before: int
    """Workers that there were."""
    workers: int
    """Workers that there should be."""
    delta: float
    """Formula 2, before it is clipped and rounded."""
    queue: float
    """Moving average of the batch queue's share that is filled, 0 to 1."""
    cpu: float
    """Utilisation of the processors, 0 to 1."""
    reason: str


@dataclass(slots=True)
class Scheduler:
    """Grows the workers where the batch queue runs empty or the processors are busy, and shrinks them elsewhere."""

    min_workers: int
    """Workers, 1 or more."""
    max_workers: int
    alpha: float = 2.0
    """Workers that an empty queue is worth."""
    beta: float = 1.0
    """Workers that processors are worth which are wholly busy beyond `theta_c`."""
    theta_c: float = 0.7
    """Utilisation of the processors above which workers are added."""
    _queue: float | None = None

    def decide(self, workers: int, *, queued: int, queue_size: int, cpu: float) -> Decision:
        """Return how many workers there should be with `queued` of at most `queue_size` batches ready."""
        filled = min(1.0, queued / queue_size)
        old = filled if self._queue is None else self._queue
        self._queue = queue = old + _SMOOTHING * (filled - old)
        delta = self.alpha * (1 - queue) + self.beta * (cpu - self.theta_c)
        step = round(max(-_CLIP, min(_CLIP, delta)))
        wanted = max(self.min_workers, min(self.max_workers, max(1, workers + step)))
        return Decision(workers, wanted, delta, queue, cpu, self._reason(workers + step, wanted, queue, cpu))

    def _reason(self, asked: int, wanted: int, queue: float, cpu: float) -> str:
        if asked > wanted:
            return f"max_workers={self.max_workers} reached"
        if asked < wanted:
            return f"min_workers={self.min_workers} reached"
        return f"batch queue {queue:.0%} full, processors {cpu:.0%} busy"
