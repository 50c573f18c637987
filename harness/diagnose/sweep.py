"""Loading without training, training with one number of workers after another, and the use of the machine meanwhile."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Final

import numpy as np
import pyarrow as pa

from harness.config.specs import LoaderSpec
from harness.config.targets import instantiate, takes
from harness.diagnose.diagnosis import SweepPoint
from harness.errors import ConfigError
from harness.system.procfs import cpu_s, family, host_cpu_s
from harness.workloads import Step, Workload
from harness.workloads.overlap import simulate
from loaders.base import Batch, Loader, Samples

Tick = Callable[[int, int], None]
"""Called with how many steps, or samples, are done, and of how many."""

WORKERS_KEYS: Final = ("num_workers", "num_threads", "concurrency")
"""Arguments by which loaders take their number of workers."""
_STEPS: Final = 40
_ROUNDS: Final = 5
"""Steps of a point: so many, or so many a worker, for workers that began together bring their batches together."""
_LEAST_STEPS: Final = 3
_QUEUED: Final = 4
"""Batches a worker that may be under way beyond those that are trained on."""
_COMPUTE_STEPS: Final = 25


@dataclass(frozen=True, slots=True)
class ComputeTime:
    """t_compute, in seconds of a step."""

    seconds: float
    cpu_s: float


@dataclass(frozen=True, slots=True)
class LoadTime:
    """t_load, in seconds of a batch."""

    seconds: float
    cpu_s: float
    """Processor time of loader and caller together."""
    reports_work: bool
    """Whether the engine reports the time of each sample, as those do that run the pipeline."""
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Usage:
    """Use of the machine since a meter was made."""

    busy_cores: float
    """Processors that our processes kept busy, on average."""
    host_busy: float
    """Share of all the host's processors that anything kept busy, 0 to 1."""
    disk_busy: float | None
    """Share of the time in which the disk had a request, 0 to 1; None where there is no disk."""


class UsageMeter:
    """Counts from when it is made: the processors, and the disk that holds the files under `root`."""

    def __init__(self, root: Path) -> None:
        """Read the counters for the first time."""
        self._root = root
        self._before = self._read()

    def measure(self) -> Usage:
        """Return the use since the meter was made."""
        pairs = zip(self._before, self._read(), strict=True)
        span, ours, busy, total, disk_s = (None if None in pair else pair[1] - pair[0] for pair in pairs)  # type: ignore[operator]
        assert span and ours is not None and busy is not None
        return Usage(
            busy_cores=ours / span,
            host_busy=min(1.0, max(0.0, busy / total)) if total else 0.0,
            disk_busy=None if disk_s is None else min(1.0, disk_s / span),
        )

    def _read(self) -> tuple[float | None, ...]:
        """Return seconds: now, of our processors, of all busy processors, of all processors, of the disk."""
        return time.monotonic(), cpu_s(family(os.getpid())), *host_cpu_s(), self._read_disk_s()

    def _read_disk_s(self) -> float | None:
        """Return the seconds in which the disk had a request; None of a remote mount, or a file system in memory."""
        device = self._root.stat().st_dev
        try:
            fields = Path(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}/stat").read_text().split()
            return int(fields[9]) / 1e3  # Documentation/block/stat.rst: io_ticks
        except (OSError, IndexError, ValueError):
            return None


@dataclass(frozen=True, slots=True)
class Rig:
    """The parts of a measurement; makes the loader under diagnosis with any number of workers."""

    loader: LoaderSpec
    key: str
    """The loader's argument that takes the number of workers."""
    samples: Samples
    workload: Workload
    step: Step
    seed: int
    cores: int
    """Processors that this process may use."""

    def make(self, workers: int, batches: int) -> Loader:
        """Return a loader of `workers` with an epoch of at least `batches`, for which samples are repeated."""
        loader: Loader = instantiate(
            self.loader.target,
            {
                **self.loader.params,
                self.key: workers,
                "samples": repeat(self.samples, batches * self.workload.batch_size),
                "transform": self.workload.transform,
                "batch_size": self.workload.batch_size,
                "seed": self.seed,
                "device": self.step.device,
            },
        )
        return loader


def find_workers_key(name: str, target: str) -> str:
    """Return the argument by which a loader takes its number of workers; raises ConfigError when it has none."""
    found = next((key for key in WORKERS_KEYS if takes(target, key)), None)
    if found is None:
        raise ConfigError(
            f"loader={name}: {target} takes none of {', '.join(WORKERS_KEYS)}, so no workers can be swept; "
            "choose another loader"
        )
    return found


def repeat(samples: Samples, count: int) -> Samples:
    """Return the samples, again and again until there are `count`, so that an epoch is as long as is wanted."""
    times = math.ceil(count / len(samples))
    if times <= 1:
        return samples
    columns = {name: pa.concat_arrays([column] * times) for name, column in samples.columns.items()}
    return Samples(
        samples.root, samples.paths * times, np.tile(samples.labels, times), np.tile(samples.sizes, times), columns
    )


def measure_compute(step: Step, batch: Batch, budget_s: float, tick: Tick) -> ComputeTime:
    """Train on one cached batch until there are enough steps; the batch is on the step's device already."""
    walls: list[float] = []
    deadline = time.monotonic() + budget_s
    began_cpu, began = time.process_time(), time.perf_counter()
    while len(walls) < _COMPUTE_STEPS and (len(walls) < _LEAST_STEPS or time.monotonic() < deadline):
        started = time.perf_counter()
        step(batch)
        walls.append(time.perf_counter() - started)
        tick(len(walls), _COMPUTE_STEPS)
    busy = (time.process_time() - began_cpu) / (time.perf_counter() - began)
    return ComputeTime(median(walls), busy * median(walls))


def measure_load(rig: Rig, budget_s: float, tick: Tick) -> LoadTime:
    """Load with one worker and train nothing, until there are enough batches; the first one is not counted."""
    wanted = _STEPS // 2
    with rig.make(1, wanted + _QUEUED) as loader:
        batches = loader.epoch(0)
        reported = next(batches).work_s is not None
        meter, began, count = UsageMeter(rig.samples.root), time.perf_counter(), 0
        while count < wanted and (count < _LEAST_STEPS or time.perf_counter() < began + budget_s):
            next(batches)
            count += 1
            tick(count, wanted)
        seconds = (time.perf_counter() - began) / count
        used = meter.measure()
        return LoadTime(seconds, used.busy_cores * seconds, reported, tuple(loader.notes))


def measure_point(
    rig: Rig, workers: int, load: LoadTime, compute: ComputeTime, *, budget_s: float, tick: Tick
) -> SweepPoint:
    """Train through a loader of `workers`, for `budget_s` unless enough steps are done before."""
    wanted = workers * max(_ROUNDS, math.ceil(_STEPS / workers))
    step_s: list[float] = []
    work_s: list[float] = []
    with rig.make(workers, wanted + 1 + _QUEUED * workers) as loader:
        batches = loader.epoch(workers)
        rig.step(next(batches))
        meter, began = UsageMeter(rig.samples.root), time.perf_counter()
        ended = began
        for batch in batches:
            got = time.perf_counter()
            rig.step(batch)
            ended = time.perf_counter()
            step_s.append(ended - got)
            if batch.work_s is not None:
                work_s.append(float(batch.work_s.sum()))
            tick(len(step_s), wanted)
            # Whole rounds of all workers: batches of one round come together, and part of one would count for too much.
            late = len(step_s) >= _LEAST_STEPS and ended - began > budget_s
            if len(step_s) % workers == 0 and (late or len(step_s) >= wanted):
                break
        used = meter.measure()
    every_s = (ended - began) / len(step_s)
    return SweepPoint(
        workers=workers,
        steps=len(step_s),
        step_every_s=every_s,
        step_s=float(np.mean(step_s)),
        utilisation=min(1.0, compute.seconds / every_s),
        predicted=simulate(load.seconds, compute.seconds, workers=workers, steps=len(step_s) + 1).steady_utilisation,
        **asdict(used),
        load_s=float(np.mean(work_s)) if work_s else None,
    )
