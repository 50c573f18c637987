"""What processes have used, as the kernel counts it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from pathlib import Path

__all__ = ["cpu_s", "status_kb"]


def cpu_s(pids: Iterable[int]) -> float:
    """Return the CPU seconds that all living threads of the processes have used, system calls included."""
    total_ns = 0
    for pid in pids:
        for thread in Path(f"/proc/{pid}/task").iterdir():
            with contextlib.suppress(FileNotFoundError):
                total_ns += int((thread / "schedstat").read_text().split()[0])
    return total_ns * 1e-9


def status_kb(pid: int, key: str) -> int:
    """Return a number of a process's status, KiB."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{key}:"))
