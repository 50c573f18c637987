"""What a diagnosis measured: plain data, which diagnosis.json stores."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

import psutil

from harness.results.files import write_json

KINDS: Final = ("read", "decode", "augment", "collate", "transfer", "hand-over")
"""The textbook's five stages (its section 1), and what a loader's processes and queues add to them."""


@dataclass(frozen=True, slots=True)
class Subject:
    """The workload, dataset, loader and accelerator of a diagnosis."""

    workload: str
    dataset: str
    loader: str
    workers_key: str
    """The loader's argument that was swept, such as num_workers."""
    runs_pipeline: bool
    """Whether the loader runs the pipeline whose stages are timed. Another engine has operators of its own."""
    notes: tuple[str, ...]
    """Where the loader treats a sample differently from other loaders."""
    accelerator: str
    emulated: bool
    citation: str | None
    """Source of an emulated step's duration."""
    batch_size: int
    samples: int
    bytes: int
    """Stored bytes of the dataset."""


@dataclass(frozen=True, slots=True)
class Machine:
    """The machine that the loader ran on."""

    cores: int
    """Processors that this process may use."""
    host_cores: int
    """Processors of the host."""
    free_bytes: int
    """Memory that was available, in which files can be cached."""

    @classmethod
    def find(cls) -> Machine:
        """Return this machine."""
        return cls(len(os.sched_getaffinity(0)), psutil.cpu_count() or 1, psutil.virtual_memory().available)

    def caches(self, nbytes: int) -> bool:
        """Whether files of so many bytes stay in memory after the first read, with half of the memory left free."""
        return nbytes <= self.free_bytes / 2


@dataclass(frozen=True, slots=True)
class Stage:
    """One stage of preparing a batch, in one process and alone."""

    name: str
    """read, decode, a transform's name, collate, transfer or hand-over."""
    kind: str
    """One of KINDS."""
    batch_s: float
    """Mean time for a whole batch. The files are in the page cache, unless memory cannot hold all of them."""
    sample_p50_s: float | None
    """Median time of a sample; None for stages of whole batches."""
    sample_p99_s: float | None


@dataclass(frozen=True, slots=True)
class SweepPoint:
    """Training through the loader with one number of workers; the first step is in none of the figures."""

    workers: int
    steps: int
    step_every_s: float
    """Mean time from the end of one step to the end of the next."""
    step_s: float
    """Mean time of a step itself."""
    utilisation: float
    """t_compute over step_every_s, at most 1: the share of its own speed that the accelerator reaches."""
    predicted: float
    """What the textbook's model gives for this many workers that share nothing."""
    busy_cores: float
    """Processors that loader and step kept busy, on average."""
    host_busy: float
    """Share of all the host's processors that anything kept busy, 0 to 1."""
    disk_busy: float | None
    """Share of the time in which the disk that holds the files had a request, 0 to 1; None where there is no disk."""
    load_s: float | None
    """Mean time that a worker took for a batch's samples; None where the engine does not report it."""

    @property
    def waits(self) -> float:
        """Share of the time in which the step waited for a batch, 0 to 1; 1 - AU."""
        return max(0.0, 1 - self.step_s / self.step_every_s)


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """Everything that a diagnosis measured. Its conclusions are computed from this alone."""

    subject: Subject
    machine: Machine
    load_s: float
    """t_load: mean time between batches from one worker while nothing trains."""
    load_cpu_s: float
    """Processor time within t_load."""
    compute_s: float
    """t_compute: median time of a step on one cached batch."""
    compute_cpu_s: float
    """Processor time of this machine within t_compute."""
    stages: tuple[Stage, ...]
    points: tuple[SweepPoint, ...]
    skipped: tuple[int, ...]
    """Numbers of workers for which no time was left."""
    command: str
    provenance: Mapping[str, object]

    def write(self, folder: Path) -> None:
        """Write diagnosis.json, whole or not at all."""
        write_json(folder / "diagnosis.json", asdict(self))
