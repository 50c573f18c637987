"""Diagnoses with known figures."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from harness.diagnose.diagnosis import Diagnosis, Machine, Stage, Subject, SweepPoint
from harness.workloads.overlap import simulate

SUBJECT = Subject(
    workload="resnet50",
    dataset="imagenet_small",
    loader="pytorch",
    workers_key="num_workers",
    runs_pipeline=True,
    notes=(),
    accelerator="emulated: A100",
    emulated=True,
    citation="MLPerf Storage",
    batch_size=32,
    samples=500,
    bytes=57_000_000,
)
MACHINE = Machine(cores=8, host_cores=8, free_bytes=20_000_000_000)


def stage(name, batch_ms, kind="augment"):
    return Stage(name, kind, batch_ms / 1e3, batch_ms / 32e3, batch_ms / 16e3)


STAGES = (
    stage("read", 2, "read"),
    stage("decode", 17, "decode"),
    stage("RandomResizedCrop", 6),
    stage("collate", 3, "collate"),
)


def points(utilisation: Mapping[int, float], *, busy_cores=1.0, disk_busy=0.0, load_ms=28.0, **more):
    """Return a point for every number of workers, the steps being of 10 ms."""
    return tuple(
        SweepPoint(
            workers=workers,
            steps=40,
            step_every_s=0.010 / value,
            step_s=0.010,
            utilisation=value,
            predicted=simulate(28, 10, workers=workers, steps=40).steady_utilisation,
            busy_cores=busy_cores,
            host_busy=more.get("host_busy", busy_cores / 8),
            disk_busy=disk_busy,
            load_s=load_ms / 1e3,
        )
        for workers, value in utilisation.items()
    )


BASE = Diagnosis(
    subject=SUBJECT,
    machine=MACHINE,
    load_s=0.028,
    load_cpu_s=0.025,
    compute_s=0.010,
    compute_cpu_s=0.0,
    stages=STAGES,
    points=points({1: 0.357, 2: 0.71, 3: 0.98, 4: 0.985, 6: 0.99, 8: 0.98}),
    skipped=(),
    command="python -m harness.diagnose",
    provenance={},
)


@pytest.fixture(name="points")
def points_factory():
    return points


@pytest.fixture(name="stage")
def stage_factory():
    return stage


@pytest.fixture
def diagnosis():
    """Return a maker of diagnoses: diagnosis(points=..., ...), by default of loads that three workers hide."""

    def make(**changes):
        return replace(BASE, **changes)

    return make
