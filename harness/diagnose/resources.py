"""Use of this machine in a span of time: our processors, all processors, and the disk that holds the files."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path

from harness.system.procfs import cpu_s, family, host_cpu_s


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
