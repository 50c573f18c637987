"""A training step that only lasts as long as a published one, or as the user assumes."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Self

from harness.workloads.published import BOARDS, MODELS, STEPS, BoardPower
from harness.workloads.sleep import least_lateness_ns, sleep_until

if TYPE_CHECKING:
    from harness.workloads.base import Workload
    from loaders.base import Batch

__all__ = ["EmulatedStep"]


class EmulatedStep:
    """Waits, without using the CPU, as long as the accelerator would compute; computes nothing."""

    kind = "emulated"
    device = "cpu"
    emulated = True

    def __init__(
        self, seconds_per_sample: float, label: str, citation: str | None = None, power: BoardPower | None = None
    ) -> None:
        self.seconds_per_sample = seconds_per_sample
        """Duration of a step per sample of its batch, in seconds."""
        self.label = label
        self.citation = citation
        self.power = power
        self._lateness_ns = 0

    @classmethod
    def published(cls, workload: Workload, model: str, time_scale: float) -> Self:
        """Make the step that is published for a workload on an accelerator, `time_scale` times as long."""
        published = STEPS[workload.name, model]
        label = f"emulated: {MODELS[model]}"
        if workload.input_size != published.input_size:
            # Steps are published for one size of samples, and how they scale with it is not.
            label += f" at {published.input_size} {published.unit}"
        if time_scale != 1.0:
            label += f", {time_scale:g} times its published step"
        return cls(published.seconds_per_sample * time_scale, label, published.citation, BOARDS.get(model))

    @classmethod
    def assumed(cls, seconds_per_sample: float, time_scale: float) -> Self:
        """Make a step of the user's own assumption: of no board, so that nothing published is said of it."""
        seconds = seconds_per_sample * time_scale
        return cls(seconds, f"emulated: assumed {seconds:g} s a sample")

    def __call__(self, batch: Batch) -> None:
        """Last n times the seconds per sample, n being the batch's samples."""
        started = time.monotonic_ns()
        sleep_until(started + round(len(batch) * self.seconds_per_sample * 1e9), self._lateness_ns)

    def warm_up(self) -> None:
        """Learn how late this machine wakes a sleeper, so that steps can allow for it."""
        self._lateness_ns = least_lateness_ns()
