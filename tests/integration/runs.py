"""Small runs of `python -m harness`, what they store, and two network namespaces for a link between them."""

from __future__ import annotations

import csv
import os
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pyarrow.parquet as pq

from harness.cell.template import FLAG
from harness.system.control_groups import PROC, UNIFIED, find_mount, own_groups

SAMPLES = 48
# Few images, one repeat, steps of no length; with caches=all every process would be read from disk again.
SMALL = [f"dataset.samples={SAMPLES}", "repeats=1", "warmup_samples=8", "workloads.resnet50.batch_size=8", "figures=[]"]
SMALL += ["testbed.caches=tree", "retries=0", "energy.settle.max_s=0"]
BUSY = ["checks.others_cpu_pct=100", "checks.others_cpus=1000", "checks.steal_pct=100"]
BUSY += ["checks.link_epoch_ms=1000", "checks.pressure_pct=100", "checks.step_pct=1000", "checks.slowed_pct=100"]
"""What else runs on this machine is not what these tests are about; the rules have tests of their own."""


def places(folder: Path) -> list[str]:
    """Return the overrides by which a run stores its results and datasets below a folder."""
    return [f"results_dir={folder / 'results'}", f"cache_dir={folder / 'cache'}"]


def command(*overrides: str) -> list[str]:
    """Return the command of a run."""
    return [sys.executable, "-m", "harness", *overrides]


def run(argv: list[str], *, timeout_s: float = 280, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run a command to its end."""
    return subprocess.run(argv, capture_output=True, text=True, timeout=timeout_s, check=False, **options)


def rows_of(results: Path, table: str = "epochs.csv") -> list[dict[str, str]]:
    """Return the rows of a run's table, as they are in the CSV."""
    with (results / table).open() as file:
        return list(csv.DictReader(file))


def ids_of(cell: Path) -> list[int]:
    """Return the ids of all samples that a cell has trained on, sorted."""
    return sorted(pq.read_table(cell / "batches.parquet")["ids"].combine_chunks().flatten().to_pylist())


def wait_until(condition: Callable[[], Any], limit_s: float = 20.0) -> Any:
    """Return what a condition returns once that is true, or after so many seconds."""
    deadline, pause_s = time.monotonic() + limit_s, 0.01
    while not (found := condition()) and time.monotonic() < deadline:
        time.sleep(pause_s)
        pause_s = min(0.2, 1.2 * pause_s)
    return found


def cells_of(harness_pid: int) -> list[psutil.Process]:
    """Return the processes of a run's cells that train now, without the one that they are forked from."""

    def is_forked(process: psutil.Process) -> bool:
        return FLAG in process.cmdline()

    below = psutil.Process(harness_pid).children(recursive=True)
    leading = [one for one in below if "harness.cell" in one.cmdline() and os.getpgid(one.pid) == one.pid]
    return [one for one in leading if not is_forked(one) or is_forked(psutil.Process(one.ppid()))]


def has_ended(pid: int) -> bool:
    """Return whether a process is gone, or a zombie that nobody reaps."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


_QUOTA_US, _PERIOD_US = 5_000, 20_000


class CpuGroup:
    """A control group with a CPU quota, a quarter of a processor; processes stay in it when the quota is lifted."""

    def __init__(self) -> None:
        groups = own_groups()
        self._unified = "cpu" not in groups
        mount, _ = find_mount(PROC, UNIFIED if self._unified else "cpu")
        self._path = mount / f"jft-{os.getpid()}-quota"

    def limit(self, pids: list[int]) -> None:
        """Move processes into the group, and set its quota."""
        self._path.mkdir(exist_ok=True)
        for pid in pids:
            (self._path / "cgroup.procs").write_text(str(pid))
        self._set(str(_QUOTA_US))

    def lift(self) -> None:
        """Take the quota away."""
        if self._path.exists():
            self._set("max" if self._unified else "-1")

    def _set(self, quota: str) -> None:
        if self._unified:
            (self._path / "cpu.max").write_text(f"{quota} {_PERIOD_US}")
            return
        (self._path / "cpu.cfs_period_us").write_text(str(_PERIOD_US))
        (self._path / "cpu.cfs_quota_us").write_text(quota)

    def remove(self) -> None:
        """Remove the group once its processes have ended."""
        if self._path.exists():
            wait_until(lambda: not (self._path / "cgroup.procs").read_text())
            self._path.rmdir()


@contextmanager
def two_namespaces() -> Iterator[tuple[str, str]]:
    """Make two network namespaces, and remove them; their paths are those of a storage and of a compute node."""
    run_id = uuid.uuid4().hex[:8]
    names = [f"jft-{run_id}-{role}" for role in ("storage", "compute")]
    for name in names:
        subprocess.run(["ip", "netns", "add", name], check=True)
    try:
        yield f"/run/netns/{names[0]}", f"/run/netns/{names[1]}"
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "del", name], check=True)
