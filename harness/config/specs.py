"""The parts of an experiment as frozen data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from harness.config.regime import Regime

__all__ = [
    "AcceleratorSpec",
    "Component",
    "EnergySpec",
    "Experiment",
    "LoaderSpec",
    "StoreSpec",
    "TestbedSpec",
    "Tolerances",
]


@dataclass(frozen=True, slots=True)
class Component:
    """A class found by its import path, and the arguments that the config gives it."""

    key: str
    target: str
    params: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class LoaderSpec(Component):
    """A loader and how it reaches the data."""

    reads: str
    """'files': the tree, over the mount when remote; 'stream': batches from the daemon on the storage node."""
    daemon: Mapping[str, Any]
    """Arguments of the daemon of a loader that is streamed to."""
    secure: bool = False
    """Whether the daemon and the loader know each other by keys that are made for the run."""


@dataclass(frozen=True, slots=True)
class AcceleratorSpec:
    """What runs the training step."""

    kind: str = "auto"
    model: str = "a100"
    time_scale: float = 1.0
    seconds_per_sample: float | Mapping[str, float] | None = None
    """The user's own assumption of an emulated step's duration; one for all workloads, or by a workload's name."""


@dataclass(frozen=True, slots=True)
class TestbedSpec:
    """Where the experiment runs."""

    __test__ = False

    kind: Literal["auto", "local", "netns"] = "auto"
    link: Literal["auto", "netem", "relay"] = "auto"
    congestion: str = "cubic"
    """TCP's congestion control on both sides of a link, of those that the kernel has."""
    caches: Literal["all", "tree"] = "all"
    """What the kernel forgets before an epoch: all its caches, or the pages of what the epoch reads alone."""
    cold: Literal["epoch", "cell"] = "epoch"
    """When it does: before every epoch, or before a cell's first one alone."""
    memory_mb: float | None = None
    """Most memory of a cell's processes and daemons together, in 10^6 bytes, the page cache of what they read counted;
    None for no limit."""


@dataclass(frozen=True, slots=True)
class EnergySpec:
    """How the energy agents sample."""

    interval_ms: float = 100.0
    sensors: Any = "auto"
    estimate: str = "missing"
    cpu_tdp_w: float | None = None
    cpu_idle_fraction: float = 0.12


@dataclass(frozen=True, slots=True)
class StoreSpec:
    """Where energy readings go beside the results folder."""

    kind: Literal["sqlite", "influxdb"] = "sqlite"
    url: str | None = None
    org: str | None = None
    bucket: str | None = None
    token_file: str | None = None
    ca: str | None = None
    spool_limit_mb: float = 1024.0


@dataclass(frozen=True, slots=True)
class Tolerances:
    """What the validity checks allow."""

    rtt_ms: float = 0.2
    rtt_pct: float = 5.0
    rate_pct: float = 10.0
    jitter_pct: float = 10.0
    missed_ticks_pct: float = 1.0
    clock_offset_ms: float = 1.0
    spread_pct: float = 10.0
    others_cpu_pct: float = 10.0
    others_cpus: float = 0.5
    steal_pct: float = 5.0
    link_pause_ms: float = 200.0
    link_held_ms: float = 10.0
    link_held_pct: float = 5.0


@dataclass(frozen=True, slots=True)
class Experiment:
    """One question: loaders x workloads x regimes x repeats."""

    name: str
    description: str
    workloads: Mapping[str, Component]
    loaders: Mapping[str, LoaderSpec]
    regimes: Mapping[str, Regime]
    datasets: Mapping[str, Component]
    """What each workload is trained on, by the workload's key; equal ones are one dataset."""
    placement: str
    """Where the samples of a regime with a link lie: 'remote', 'half' (half of them on the compute node) or 'local'."""
    accelerator: AcceleratorSpec
    testbed: TestbedSpec
    energy: EnergySpec
    store: StoreSpec
    checks: Tolerances
    repeats: int
    epochs: int
    warmup_samples: int
    seed: int
    cell_timeout_s: float
    cell_stall_min: float
    figures: tuple[str, ...]
    own_datasets: frozenset[str] = frozenset()
    """The workloads that name a dataset of their own."""

    def dataset_key(self, workload: str) -> str:
        """Return the config key of a workload's dataset."""
        return f"workloads.{workload}.dataset" if workload in self.own_datasets else "dataset"

    @property
    def streams(self) -> bool:
        """Whether any loader is fed by the daemon, so that shards are needed."""
        return any(spec.reads == "stream" for spec in self.loaders.values())
