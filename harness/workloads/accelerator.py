"""Chooses the accelerator of a batch: a GPU, the CPU, an emulated board or none; their steps are in other modules."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, Protocol

from harness.errors import ConfigError
from harness.system.values import check_choice, check_number
from harness.workloads.published import MODELS, STEPS, BoardPower

if TYPE_CHECKING:
    from harness.workloads.base import Workload
    from loaders.base import Batch


KINDS: Final = ("auto", "cuda", "cpu", "emulated", "none")


class Step(Protocol):
    """A training step."""

    label: str
    """What runs it, as every output names it."""
    kind: str
    """cuda, cpu, emulated or none."""
    device: str
    """Where batches are wanted: cuda or cpu."""
    emulated: bool
    citation: str | None
    """Source of an emulated step's duration; None for one that is assumed."""
    power: BoardPower | None
    """Published power of an emulated board."""
    gradient_bytes: int | None
    """Bytes of gradients that ranks all-reduce in a step; None with one rank, and where nothing is trained."""
    sync_ns: int | None
    """Time from the end of the last step's own computation until the gradients of all ranks were there."""
    span_ns: tuple[int, int] | None
    """When an emulated device began and ended the last step, by time.monotonic_ns(). None for a real device, whose step
    is the call."""

    def __call__(self, batch: Batch) -> None:
        """Train on one batch; returns when the step is done, on the device too."""
        ...

    def idle(self) -> None:
        """Take part in a step of the other ranks when this one has no batch left."""
        ...

    def warm_up(self) -> None:
        """Do what only the first steps have to: allocate, choose kernels."""
        ...


def choose_kind(accelerator: Mapping[str, object], workload_name: str) -> str:
    """Return cuda, cpu, emulated or none: the accelerator that this machine has for the workload.

    `auto` takes a CUDA GPU where there is one and emulates one elsewhere. Raises ConfigError naming the key for
    an unknown kind or model, for CUDA without a GPU, and for an emulation without a published or assumed duration.
    """
    kind, model, _ = _settings(accelerator)
    assumed = _assumed(accelerator, workload_name)
    if kind == "auto":
        kind = "cuda" if _cuda_problem() is None else "emulated"
    if kind == "cuda" and (problem := _cuda_problem()) is not None:
        raise ConfigError(f"accelerator.kind=cuda: {problem}; use accelerator=cpu or accelerator=emulated")
    if kind == "emulated" and assumed is None and (workload_name, model) not in STEPS:
        known = ", ".join(f"{w} on {m}" for w, m in STEPS)
        raise ConfigError(
            f"accelerator.model={model}: no step of {workload_name} is published for it; known are {known}; "
            "assume one with accelerator.seconds_per_sample=SECONDS, or train with accelerator=cpu"
        )
    return kind


def choose_device(accelerator: Mapping[str, object], workload_name: str) -> str:
    """Return where batches are wanted: cuda or cpu. Raises as choose_kind does."""
    import torch

    kind = choose_kind(accelerator, workload_name)
    return "cuda" if kind == "cuda" or (kind == "none" and torch.cuda.is_available()) else "cpu"


def make_step(workload: Workload, accelerator: Mapping[str, object], seed: int, *, synchronised: bool = False) -> Step:
    """Make the training step of a workload.

    `accelerator` holds kind (auto, cuda, cpu, emulated or none) and, for an emulated one, model (a100 or h100),
    time_scale, by which its duration is multiplied, seconds_per_sample: a number, or numbers by workload, that the user
    assumes in place of a published one, and host_cpu_ms: CPU time of the host in each step. The weights are drawn with
    `seed`. `synchronised` is whether the process is a rank of several, in a process group. A workload whose `trains` is
    false has no step: a real accelerator takes its batches, and an emulated one idles. Raises ConfigError: as
    choose_kind does, and for inference without an assumed step.
    """
    kind, trains = choose_kind(accelerator, workload.name), getattr(workload, "trains", True)
    if kind == "emulated":
        from harness.workloads.emulated import EmulatedStep

        _, model, scale = _settings(accelerator)
        scale *= getattr(workload, "step_scale", 1.0)
        assumed = _assumed(accelerator, workload.name)
        if not trains:
            return EmulatedStep.idling(None if assumed is not None else model)
        if assumed is not None:
            step = EmulatedStep.assumed(assumed, scale)
        elif getattr(workload, "stage", "") == "infer":
            raise ConfigError(f"workloads.{workload.name}.stage=infer: unpublished; set accelerator.seconds_per_sample")
        else:
            step = EmulatedStep.published(workload, model, scale)
        step.use_host(check_number("accelerator.host_cpu_ms", accelerator.get("host_cpu_ms", 0.0)))
        if synchronised:
            from harness.workloads.gradients import EmulatedGradients

            step.synchronise(EmulatedGradients(workload))
        return step
    if kind == "none" or not trains:
        from harness.workloads.emulated import NoStep

        return NoStep()
    from harness.workloads.training import TrainingStep

    return TrainingStep(workload, kind, seed, synchronised=synchronised)


def _settings(accelerator: Mapping[str, object]) -> tuple[str, str, float]:
    kind, model = accelerator.get("kind", "auto"), accelerator.get("model", "a100")
    scale = accelerator.get("time_scale", 1.0)
    check_choice("accelerator.kind", kind, KINDS)
    check_choice("accelerator.model", model, tuple(MODELS))
    return str(kind), str(model), _positive("time_scale", scale)


def _assumed(accelerator: Mapping[str, object], workload_name: str) -> float | None:
    given = accelerator.get("seconds_per_sample")
    if isinstance(given, Mapping):
        each = {name: _positive(f"seconds_per_sample.{name}", value) for name, value in given.items()}
        return each.get(workload_name)
    return None if given is None else _positive("seconds_per_sample", given)


def _positive(key: str, value: object) -> float:
    return check_number(f"accelerator.{key}", value, above=0)


def _cuda_problem() -> str | None:
    import torch

    if torch.version.cuda is None:
        return "this build of torch has no CUDA"
    if not torch.cuda.is_available():
        return "no usable NVIDIA GPU was found (see nvidia-smi)"
    return None
