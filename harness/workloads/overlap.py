"""Loading that overlaps training, as a model: when batches are ready, when steps run, how busy the accelerator is.

The model is that of a textbook's Code 8.5.1 ("Sharded Training Data and the DataLoader Bottleneck", section 2): every
worker loads one batch after the other into a queue without bound, and a single accelerator takes them in order. Its
Exercise 8.5.2 adds a resource that only so many loads can hold at a time.
"""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Overlap:
    """One simulated epoch."""

    compute_s: float
    steps: int
    first_ready_s: float
    """When the first batch was ready."""
    wall_s: float

    @property
    def busy_s(self) -> float:
        """Time that the accelerator computed."""
        return self.steps * self.compute_s

    @property
    def utilisation(self) -> float:
        """Share of the epoch that the accelerator computed, 0 to 1, the wait for the first batch included."""
        return self.busy_s / self.wall_s

    @property
    def steady_utilisation(self) -> float:
        """Share that it computed from the end of the first step on, 0 to 1, as accelerator utilisation is measured."""
        if self.steps == 1:
            return 1.0
        return (self.busy_s - self.compute_s) / (self.wall_s - self.first_ready_s - self.compute_s)


def simulate(load_s: float, compute_s: float, *, workers: int, steps: int, cap: int | None = None) -> Overlap:
    """Run one epoch of the model.

    `load_s` is what one worker takes to prepare a batch and `compute_s` what a step takes, in any one unit; `cap` is
    how many loads may overlap whatever the number of workers, None for all of them. Raises ValueError for a count
    below 1 and for a time that is not above 0.
    """
    for name, count in (("workers", workers), ("steps", steps), ("cap", 1 if cap is None else cap)):
        if count < 1:
            raise ValueError(f"{name}={count}: expected 1 or more")
    for name, time in (("load_s", load_s), ("compute_s", compute_s)):
        if not (math.isfinite(time) and time > 0):
            raise ValueError(f"{name}={time}: expected a time above 0")
    # The earliest free worker takes the next batch; loads beyond the cap begin when a slot of it is free, which is the
    # same as having no more workers than slots.
    free_at = [0.0] * min(workers, workers if cap is None else cap)
    accelerator_free_at, first = 0.0, 0.0
    for step in range(steps):
        ready = heapq.heapreplace(free_at, free_at[0] + load_s) + load_s
        first = ready if step == 0 else first
        accelerator_free_at = max(accelerator_free_at, ready) + compute_s
    return Overlap(compute_s, steps, first, accelerator_free_at)


def workers_to_hide(load_s: float, compute_s: float) -> int:
    """Return how many workers hide loads that share nothing: t_load / t_compute, rounded up."""
    return max(1, math.ceil(load_s / compute_s))
