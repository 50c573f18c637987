"""Measures what a request asks for: loading and training by themselves, the stages, every number of workers."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial
from typing import Final

from harness.config.targets import instantiate
from harness.datasets import DatasetHandle
from harness.diagnose.diagnosis import Diagnosis, Machine, Stage, Subject, SweepPoint
from harness.diagnose.request import DiagnosisRequest
from harness.diagnose.stages import StageReport, time_stages
from harness.diagnose.sweep import (
    ComputeTime,
    LoadTime,
    Rig,
    Tick,
    find_workers_key,
    measure_compute,
    measure_load,
    measure_point,
)
from harness.diagnose.verdict import FED
from harness.errors import ConfigError
from harness.report.claims.bound import NEAR_BEST
from harness.results.provenance import describe_host, describe_source, list_packages
from harness.run.progress import RunProgress
from harness.workloads import Workload, choose_kind, make_step

_COMPUTE_SHARE: Final = 0.10
_STAGES_SHARE: Final = 0.25
_LOAD_SHARE: Final = 0.10
"""Of the budget; the numbers of workers share the rest."""


def diagnose(request: DiagnosisRequest, progress: RunProgress) -> Diagnosis:
    """Measure; nothing is written.

    Raises HarnessError (ConfigError for a replay of published times), and LoaderError naming a sample or worker.
    """
    key = find_workers_key(request.loader.key, request.loader.target)
    accelerator = request.accelerator.model_dump()
    workload: Workload = instantiate(request.workload.target, request.workload.params)
    if why := getattr(workload, "model_check", ""):
        raise ConfigError(
            f"workload={request.workload.key}: replays published times ({why}), and a diagnosis is of real work; "
            "expected another workload"
        )
    choose_kind(accelerator, workload.name)  # what cannot be run is refused before a dataset is made
    dataset = instantiate(request.dataset.target, request.dataset.params)
    handle: DatasetHandle = dataset.open(request.cache, progress.follow)
    _phase(progress, "warming up the step")
    step = make_step(workload, accelerator, request.seed)
    step.warm_up()
    machine = Machine.find()
    rig = Rig(request.loader, key, handle.samples, workload, step, request.seed, machine.cores)
    deadline = time.monotonic() + request.budget_s
    report = time_stages(
        workload.transform,
        handle.samples,
        batch_size=workload.batch_size,
        seed=request.seed,
        device=step.device,
        budget_s=_STAGES_SHARE * request.budget_s,
        cached=machine.caches(int(handle.samples.sizes.sum())),
        tick=_phase(progress, "timing the stages"),
    )
    tick = _phase(progress, "training on one cached batch")
    compute = measure_compute(step, report.batch, _COMPUTE_SHARE * request.budget_s, tick)
    load = measure_load(rig, _LOAD_SHARE * request.budget_s, _phase(progress, "loading without training"))
    points, skipped = _sweep(rig, request.workers, deadline, load, compute, progress)
    return Diagnosis(
        subject=Subject(
            workload=request.workload.key,
            dataset=handle.name,
            loader=request.loader.key,
            workers_key=key,
            runs_pipeline=load.reports_work,
            notes=load.notes,
            accelerator=step.label,
            emulated=step.emulated,
            citation=step.citation,
            batch_size=workload.batch_size,
            samples=len(handle.samples),
            bytes=int(handle.samples.sizes.sum()),
        ),
        machine=machine,
        load_s=load.seconds,
        load_cpu_s=load.cpu_s,
        compute_s=compute.seconds,
        compute_cpu_s=compute.cpu_s,
        stages=_add_hand_over(report, load),
        points=tuple(points),
        skipped=tuple(skipped),
        command=request.command,
        provenance={
            "host": describe_host(),
            "packages": list_packages(),
            "source": describe_source(),
            "dataset": dict(handle.describe),
        },
    )


def _phase(progress: RunProgress, text: str) -> Tick:
    """Show a measurement that begins; returns the function to call with its progress: steps done, and all steps."""
    progress.follow(text, 0)
    return partial(progress.follow, text)


def _sweep(
    rig: Rig, wanted: Sequence[int], deadline: float, load: LoadTime, compute: ComputeTime, progress: RunProgress
) -> tuple[list[SweepPoint], list[int]]:
    """Measure the requested numbers of workers, then more while they help; also return those that had no time left."""
    points: list[SweepPoint] = []
    todo = sorted(set(wanted))
    while todo:
        workers, left_s = todo[0], deadline - time.monotonic()
        # Two numbers of workers are the fewest that show a trend.
        if left_s <= 0 and len(points) >= min(2, len(wanted)):
            return points, todo
        points.append(
            measure_point(
                rig,
                workers,
                load,
                compute,
                budget_s=max(0.0, left_s) / len(todo),
                tick=_phase(progress, f"training with {workers} worker{'' if workers == 1 else 's'}"),
            )
        )
        todo = todo[1:] or _further(points, rig.cores)
    return points, []


def _further(points: Sequence[SweepPoint], cores: int) -> list[int]:
    """Return twice the workers where the last doubling still helped and there are cores for more, else nothing."""
    last = points[-1]
    before = max((point.utilisation for point in points[:-1]), default=0.0)
    if last.utilisation >= FED or before >= NEAR_BEST * last.utilisation or 2 * last.workers > 2 * cores:
        return []
    return [2 * last.workers]


def _add_hand_over(report: StageReport, load: LoadTime) -> tuple[Stage, ...]:
    """Add to the stages what the loader's processes and queues took on top, where it runs the same stages."""
    inside = sum(stage.batch_s for stage in report.stages if stage.kind != "transfer")
    if not load.reports_work or load.seconds <= inside:
        return report.stages
    return (*report.stages, Stage("hand-over", "hand-over", load.seconds - inside, None, None))
