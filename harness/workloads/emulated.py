"""Training steps that compute nothing: one that lasts as long as a published or an assumed step, and none at all."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final, Self

import torch

from harness.workloads.published import BOARDS, MODELS, STEPS, BoardPower
from joulefeed.scheduling import exact_timers

if TYPE_CHECKING:
    from harness.workloads.base import Workload
    from harness.workloads.gradients import EmulatedGradients
    from loaders.base import Batch


_TRIALS: Final = 10
_TRIAL_NS: Final = 20_000_000
"""About a step: the longer a core sleeps, the deeper, and the longer it takes to wake."""
_MAX_LATENESS_NS: Final = 150_000
"""More than this is a busy machine, not the time that waking up takes."""
_FORWARD: Final = 1 / 3
"""Share of a step before its first gradients: the backward pass has twice the operations of the forward pass."""


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
        self._gradients: EmulatedGradients | None = None
        self.gradient_bytes: int | None = None
        self.sync_ns: int | None = None

    def synchronise(self, gradients: EmulatedGradients) -> None:
        """All-reduce tensors of the gradients' size in every step from now on, as ranks that train together do."""
        self._gradients, self.gradient_bytes = gradients, gradients.nbytes

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
        """Make a step of the user's own assumption: of no board, so it has no published values."""
        seconds = seconds_per_sample * time_scale
        return cls(seconds, f"emulated: assumed {seconds:g} s a sample")

    @classmethod
    def idling(cls, model: str | None) -> Self:
        """Make the step of an accelerator that takes batches and trains on none of them; None for an assumed one."""
        if model is None:
            return cls(0.0, "emulated: idle")
        return cls(0.0, f"emulated: idle {MODELS[model]}", power=BOARDS.get(model))

    def __call__(self, batch: Batch) -> None:
        """Last n times the seconds per sample, n being the batch's samples."""
        self._step(round(len(batch) * self.seconds_per_sample * 1e9))

    def idle(self) -> None:
        """Take part in a step of the other ranks without samples."""
        self._step(0)

    def _step(self, duration_ns: int) -> None:
        started = time.monotonic_ns()
        if self._gradients is None:
            _sleep_until(started + duration_ns, self._lateness_ns)
            return
        # DDP reduces gradients while the backward pass goes on.
        _sleep_until(started + round(_FORWARD * duration_ns), self._lateness_ns)
        self._gradients.start()
        _sleep_until(started + duration_ns, self._lateness_ns)
        computed_ns = time.monotonic_ns()
        self._gradients.wait()
        self.sync_ns = time.monotonic_ns() - computed_ns

    def warm_up(self) -> None:
        """Learn how late this machine wakes a sleeper, so that steps can allow for it."""
        self._lateness_ns = _min_lateness_ns()


class NoStep:
    """Takes a batch and returns, once it is on the device; measures a loader alone (SPDL, section 6.1)."""

    kind = "none"
    label = "none: no downstream load"
    emulated = False
    citation: str | None = None
    power: BoardPower | None = None
    gradient_bytes: int | None = None
    sync_ns: int | None = None

    def __init__(self) -> None:
        self.device = "cuda" if torch.cuda.is_available() else "cpu"

    def __call__(self, batch: Batch) -> None:
        """Wait until the batch has arrived: its transfer is the loader's part."""
        if self.device == "cuda":
            torch.cuda.synchronize()

    def idle(self) -> None:
        """Do nothing: there are no gradients, so ranks do not wait for each other."""

    def warm_up(self) -> None:
        """Make the device's context."""
        if self.device == "cuda":
            torch.cuda.synchronize()


def _sleep_until(monotonic_ns: int, lateness_ns: int = 0) -> None:
    """Sleep until time.monotonic_ns() reaches the value; `lateness_ns` is the time that waking up is known to take."""
    with exact_timers():
        _sleep(monotonic_ns - lateness_ns)


def _min_lateness_ns() -> int:
    """Measure the smallest delay with which this machine wakes a sleeper, in ns; takes some 0.2 s."""
    found = _MAX_LATENESS_NS
    with exact_timers():
        for _ in range(_TRIALS):
            instant = time.monotonic_ns() + _TRIAL_NS
            _sleep(instant)
            found = min(found, time.monotonic_ns() - instant)
    return max(0, found)


def _sleep(monotonic_ns: int) -> None:
    left = monotonic_ns - time.monotonic_ns()
    if left > 0:
        time.sleep(left / 1e9)
