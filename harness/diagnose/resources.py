"""What a span of time used of this machine: processors, ours and all, and the disk that holds the files."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psutil

from harness.diagnose.diagnosis import Machine
from harness.system.procfs import cpu_s, family, host_cpu_s

__all__ = ["Reading", "Usage", "machine_of", "read_counters", "usage"]

_SECTOR_BYTES: Final = 512
"""Of the kernel's block statistics, whatever the disk's own (Documentation/block/stat.rst)."""


@dataclass(frozen=True, slots=True)
class Reading:
    """Cumulative counters at one instant."""

    at_s: float
    cpu_s: float
    """Processor time of this process and of its descendants."""
    host_busy_s: float
    host_total_s: float
    disk_busy_s: float | None
    disk_bytes: int | None


@dataclass(frozen=True, slots=True)
class Usage:
    """What was used between two readings."""

    busy_cores: float
    """Processors that our processes kept busy, on average."""
    host_busy: float
    """Share of all the host's processors that anything kept busy, 0 to 1."""
    disk_busy: float | None
    """Share of the time in which the disk had a request; None where there is no disk."""
    disk_bytes_per_s: float | None


def read_counters(root: Path) -> Reading:
    """Read the counters; `root` holds the files whose disk is meant."""
    busy_s, total_s = host_cpu_s()
    disk_busy_s, nbytes = _disk(root)
    return Reading(time.monotonic(), cpu_s(family(os.getpid())), busy_s, total_s, disk_busy_s, nbytes)


def usage(before: Reading, after: Reading) -> Usage:
    """Return what was used between two readings."""
    span = after.at_s - before.at_s
    host = after.host_total_s - before.host_total_s
    disk_busy = disk_rate = None
    if before.disk_busy_s is not None and after.disk_busy_s is not None:
        disk_busy = min(1.0, (after.disk_busy_s - before.disk_busy_s) / span)
    if before.disk_bytes is not None and after.disk_bytes is not None:
        disk_rate = (after.disk_bytes - before.disk_bytes) / span
    host_busy = (after.host_busy_s - before.host_busy_s) / host if host > 0 else 0.0
    return Usage((after.cpu_s - before.cpu_s) / span, min(1.0, max(0.0, host_busy)), disk_busy, disk_rate)


def machine_of(root: Path) -> Machine:
    """Return what a loader of the files under `root` has to work with."""
    return Machine(
        len(os.sched_getaffinity(0)), psutil.cpu_count() or 1, psutil.virtual_memory().available, _filesystem(root)
    )


def _disk(root: Path) -> tuple[float | None, int | None]:
    """Return the seconds in which the disk of `root` had a request, and the bytes that were read from it."""
    device = root.stat().st_dev
    try:
        fields = Path(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}/stat").read_text().split()
        return int(fields[9]) / 1e3, int(fields[2]) * _SECTOR_BYTES
    except (OSError, IndexError, ValueError):
        return None, None  # a mount from afar, or a file system in memory


def _filesystem(root: Path) -> str:
    path = root.resolve()
    mounts = {part.mountpoint: part.fstype for part in psutil.disk_partitions(all=True)}
    return next((mounts[str(folder)] for folder in (path, *path.parents) if str(folder) in mounts), "")
