"""Training steps that compute nothing: one that lasts as long as a published or an assumed step, and none at all.

An emulated device has a timeline of its own. A step begins when the step before has ended and its batch is there, and
lasts for its nominal time. The host waits for the end of every step, as it does with a real device. It often wakes up
later than that: it waits for a processor, or for the interpreter's lock. This delays the host, not the device.
"""

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


_READY_NS: Final = 1_000_000
"""A batch for which the host is blocked for less was there when the host asked for it."""
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
        self.span_ns: tuple[int, int] | None = None
        self.gradient_bytes: int | None = None
        self.sync_ns: int | None = None
        self._gradients: EmulatedGradients | None = None
        self._host_cpu_ns = 0
        self._returned_ns = self._returned_cpu_ns = self._late_ns = 0

    def synchronise(self, gradients: EmulatedGradients) -> None:
        """All-reduce tensors of the gradients' size in every step from now on, as ranks that train together do."""
        self._gradients, self.gradient_bytes = gradients, gradients.nbytes

    def use_host(self, cpu_ms: float) -> None:
        """Have the host use so much CPU time in every step, as launching the kernels of an eager step does."""
        if cpu_ms:
            self._host_cpu_ns = round(cpu_ms * 1e6)
            self.label += f", {cpu_ms:g} ms of the host's CPU a step"

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
        came_ns, cpu_ns = time.monotonic_ns(), time.thread_time_ns()
        blocked_ns = came_ns - self._returned_ns - (cpu_ns - self._returned_cpu_ns)
        began_ns = came_ns
        if duration_ns and blocked_ns < _READY_NS:
            # The batch was there, and the host asked for it late.
            began_ns -= self._late_ns
        while time.thread_time_ns() < cpu_ns + self._host_cpu_ns:
            pass
        # No step ends before the host has its batch: a host that is later than a whole step makes the step longer.
        ended_ns = max(began_ns + duration_ns, time.monotonic_ns())
        if self._gradients is not None:
            # DDP reduces gradients while the backward pass goes on; the last ones are there when it ends.
            _sleep_until(began_ns + round(_FORWARD * duration_ns))
            self._gradients.start()
        _sleep_until(ended_ns)
        if self._gradients is not None:
            self._gradients.finish()
            self.sync_ns = time.monotonic_ns() - ended_ns
            ended_ns += self.sync_ns
        self.span_ns = began_ns, ended_ns
        self._returned_ns, self._returned_cpu_ns = time.monotonic_ns(), time.thread_time_ns()
        self._late_ns = self._returned_ns - ended_ns

    def warm_up(self) -> None:
        """Do nothing: the first step is like all others."""


class NoStep:
    """Takes a batch and returns, once it is on the device; measures a loader alone (SPDL, section 6.1)."""

    kind = "none"
    label = "none: no downstream load"
    emulated = False
    citation: str | None = None
    power: BoardPower | None = None
    gradient_bytes: int | None = None
    sync_ns: int | None = None
    span_ns: tuple[int, int] | None = None

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


def _sleep_until(monotonic_ns: int) -> None:
    """Sleep until time.monotonic_ns() has reached the value; does not hold the interpreter's lock meanwhile."""
    left_ns = monotonic_ns - time.monotonic_ns()
    if left_ns > 0:
        with exact_timers():
            time.sleep(left_ns / 1e9)  # until an instant of the monotonic clock, by clock_nanosleep(2)
