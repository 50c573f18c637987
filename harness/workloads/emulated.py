"""A training step that only lasts as long as a published one."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

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

    def __init__(self, workload: Workload, model: str, time_scale: float) -> None:
        published = STEPS[workload.name, model]
        self.seconds_per_sample = published.seconds_per_sample * time_scale
        """Duration of a step per sample of its batch, in seconds."""
        self.label = f"emulated: {MODELS[model]}"
        if workload.input_size != published.input_size:
            # Steps are published for one size of samples, and how they scale with it is not.
            self.label += f" at {published.input_size} pixels"
        if time_scale != 1.0:
            self.label += f", {time_scale:g} times its published step"
        self.citation: str | None = published.citation
        self._lateness_ns = 0
        self.power: BoardPower | None = BOARDS[model]

    def __call__(self, batch: Batch) -> None:
        """Last n times the published seconds per sample, n being the batch's samples."""
        started = time.monotonic_ns()
        sleep_until(started + round(len(batch) * self.seconds_per_sample * 1e9), self._lateness_ns)

    def warm_up(self) -> None:
        """Learn how late this machine wakes a sleeper, so that steps can allow for it."""
        self._lateness_ns = least_lateness_ns()
