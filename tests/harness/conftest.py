"""A stored cell to measure and judge, and what cells are forked from."""

from dataclasses import replace

import numpy as np
import pytest

from energymon.reading import Reading
from harness.results.cell_folder import CellData, EpochBatches
from harness.results.cells import CellRecord, LinkRecord
from harness.results.files import parse_value
from harness.run.cells.template import Templates
from tests.harness.records import START, S, compared


@pytest.fixture
def templates():
    """What cells are forked from."""
    with Templates() as made:
        yield made


def batches(waits=(1.0, 0.5, 0.5), steps=(0.5, 0.75, 0.75), size=2):
    n = len(waits)
    return EpochBatches(
        samples=np.full(n, size),
        nbytes=np.full(n, 1000),
        wait_s=np.array(waits),
        step_s=np.array(steps),
        ids=np.arange(n * size),
        labels=np.arange(n * size) % 4,
    )


def counters(**changed):
    known = {"rx_bytes": 0, "tx_bytes": 0, "cpu_busy_s": 0.0, "cpu_total_s": 0.0, "link_cpu_s": None}
    known |= {"cell_cpu_s": 0.0, "cpus": 2, "cpu_at_s": 0.0, "cpu_idle_s": 1.0, "cpu_irq_s": 0.0, "cpu_steal_s": 0.0}
    known |= {"throttled": 0, "throttled_s": 0.0, "memory_wait_s": 0.0, "disk_wait_s": 0.0, "swapped_in_bytes": 0}
    known |= {"disk_read_bytes": 0, "disk_written_bytes": 0, "run_disk_bytes": 0, "strangers": [], "devices": []}
    return known | {"run_cpu_s": 0.0, "kernel_cpu_s": 0.0, "run_wait_s": 0.0} | changed


def quiet(**changed):
    """Return the counters at the end of 4 s on 2 CPUs, of which others took 0.1 s."""
    known = {"cpu_at_s": 4.0, "cpu_idle_s": 5.0, "cpu_irq_s": 0.2, "cpu_steal_s": 0.1, "run_cpu_s": 3.5}
    return known | {"kernel_cpu_s": 0.1, "run_wait_s": 0.3} | changed


def readings(source="rapl-powercap", domain="cpu", watts=100.0, device="package-0"):
    return [
        Reading(START + k * S // 10, START + k * S // 10, "host", device, domain, source, watts * k / 10)
        for k in range(-5, 50)
    ]


def stored(**changes):
    cell = {
        "cell_id": "pytorch-resnet50-local-r1-0",
        "loader": "pytorch",
        "workload": "resnet50",
        "regime": {"name": "local", "rtt_ms": 0.0, "rate_gbit": None, "jitter_ms": 0.0, "loss_pct": 0.0},
        "repeat": 1,
        "dataset": {"name": "tiny", "samples": 6, "bytes": 3000},
        "accelerator": {"label": "cpu", "emulated": False, "busy_w": None, "idle_w": None},
        "energy": {
            "interval_ms": 100.0,
            "offset_ns": START,
            "series": [{"device": "package-0", "domain": "cpu", "source": "rapl-powercap"}],
        },
        "clock": "one clock",
        "spin": {name: {"best_s": 6e-4, "median_s": 6.02e-4} for name in ("first", "before", "after")},
    }
    made = {"event": "loader_made", "utc_ns": START - S, "mono_ns": -S, "duration_ns": S // 4}
    events = [
        {**made, "rx_bytes": 0, "cell_cpu_s": 0.0},
        {"event": "epoch_start", "epoch": 1, "utc_ns": START, "mono_ns": 0, **counters()},
        {
            "event": "epoch_end",
            "epoch": 1,
            "utc_ns": START + 4 * S,
            "mono_ns": 4 * S,
            "duration_ns": 4 * S,
            **counters(cpu_busy_s=4.0, cpu_total_s=8.0, **quiet()),
        },
        compared(1),
        {**made, "event": "set_up", "rx_bytes": 0, "cell_cpu_s": 0.0},
    ]
    whole = CellData(
        cell=parse_value(CellRecord, cell),
        link=LinkRecord(),
        events=events,
        batches={1: batches()},
        readings=readings(),
        sizes=np.full(6, 500),
        labels=np.arange(6) % 4,
    )
    return replace(whole, **changes)


@pytest.fixture(name="stored")
def stored_factory():
    return stored


@pytest.fixture(name="quiet")
def quiet_factory():
    return quiet


@pytest.fixture(name="readings")
def readings_factory():
    return readings
