"""Use of this machine in a span of time: our processors, all processors, and the disk that holds the files."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psutil

from harness.diagnose.diagnosis import Machine
from harness.system.procfs import cpu_s, family, host_cpu_s

_SECTOR_BYTES: Final = 512
"""Of the kernel's block statistics, whatever the disk's own (Documentation/block/stat.rst)."""


@dataclass(frozen=True, slots=True)
class Usage:
    """Use of the machine since a meter was made."""

    busy_cores: float
    """Processors that our processes kept busy, on average."""
    host_busy: float
    """Share of all the host's processors that anything kept busy, 0 to 1."""
    disk_busy: float | None
    """Share of the time in which the disk had a request; None where there is no disk."""
    disk_bytes_per_s: float | None


class Meter:
    """Counts from when it is made: the processors, and the disk that holds the files under `root`."""

    def __init__(self, root: Path) -> None:
        """Read the counters for the first time."""
        self._root = root
        self._before = self._read()

    def usage(self) -> Usage:
        """Return the use since the meter was made."""
        span, ours, busy, total, disk_s, disk_bytes = (
            None if before is None or after is None else after - before
            for before, after in zip(self._before, self._read(), strict=True)
        )
        assert span and ours is not None and busy is not None
        return Usage(
            busy_cores=ours / span,
            host_busy=min(1.0, max(0.0, busy / total)) if total else 0.0,
            disk_busy=None if disk_s is None else min(1.0, disk_s / span),
            disk_bytes_per_s=None if disk_bytes is None else disk_bytes / span,
        )

    def _read(self) -> tuple[float | None, ...]:
        """Return seconds: now, of our processors, of all busy processors, of all; then of the disk, and its bytes."""
        return time.monotonic(), cpu_s(family(os.getpid())), *host_cpu_s(), *_disk(self._root)


def describe_machine(root: Path) -> Machine:
    """Return what a loader of the files under `root` has to work with."""
    mounts = {part.mountpoint: part.fstype for part in psutil.disk_partitions(all=True)}
    path = root.resolve()
    filesystem = next((mounts[str(folder)] for folder in (path, *path.parents) if str(folder) in mounts), "")
    free_bytes = psutil.virtual_memory().available
    return Machine(len(os.sched_getaffinity(0)), psutil.cpu_count() or 1, free_bytes, filesystem)


def _disk(root: Path) -> tuple[float | None, float | None]:
    """Return the seconds in which the disk of `root` had a request, and the bytes that were read from it."""
    device = root.stat().st_dev
    try:
        fields = Path(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}/stat").read_text().split()
        return int(fields[9]) / 1e3, int(fields[2]) * _SECTOR_BYTES
    except (OSError, IndexError, ValueError):
        return None, None  # a remote mount, or a file system in memory
