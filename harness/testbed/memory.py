"""A limit on the memory of a cell's processes: a control group of their own, the page cache of what they read counted.

Version 2 of the kernel's control groups where it has the memory controller, version 1 elsewhere (the kernel's
admin-guide/cgroup-v2.rst and admin-guide/cgroup-v1/memory.rst). A group lies below the harness's own, or below the
nearest one above it that hands the controller on, so limits that are in force stay in force.
"""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Literal
from uuid import uuid4

from harness.errors import CellError, MemoryLimitError, TestbedError
from harness.system.process import KILL_PATIENCE_S
from harness.testbed.base import Node
from harness.testbed.cgroups import Parent, memory_parent
from harness.testbed.state import RunNames

__all__ = ["MemoryGroup", "limited_memory", "memory_obstacles", "remove_memory_group"]

_RECORD: Final = "memory-group"
"""File in a run's folder that names its group, for whoever cleans up after it."""
_LOOK_AGAIN_S: Final = 0.02


@dataclass(frozen=True, slots=True)
class MemoryGroup:
    """A control group with a limit, as long as `limited_memory` holds it."""

    path: Path
    version: Literal[1, 2]
    limit_bytes: int

    def node(self, node: Node) -> Node:
        """Return the node so that what is started on it is in the group, and all that those processes start."""
        return replace(node, memory_group=self.path)

    def kills(self) -> int:
        """Return how many of its processes the kernel has killed for want of memory."""
        file = self.path / ("memory.oom_control" if self.version == 1 else "memory.events")
        counts = dict(line.split() for line in file.read_text().splitlines())
        return int(counts.get("oom_kill", 0))

    def describe(self) -> dict[str, Any]:
        """Tell, for a cell's record, limit and peak in bytes and whose counting they are."""
        peak = self.path / ("memory.max_usage_in_bytes" if self.version == 1 else "memory.peak")
        return {
            "limit_bytes": self.limit_bytes,
            # Kernels before 5.19 do not keep it in version 2.
            "peak_bytes": int(peak.read_text()) if peak.exists() else None,
            "source": f"cgroup v{self.version}",
        }


@contextmanager
def limited_memory(names: RunNames, limit_mb: float, cell_id: str) -> Iterator[MemoryGroup]:
    """Hold a group of `limit_mb` (10^6 bytes) for one cell; it is removed, its processes killed, when this is left.

    Raises:
        TestbedError: the group cannot be made; the message says where, why and what to do.
        MemoryLimitError: the kernel killed a process of the group, whatever became of the cell.
    """
    parent = memory_parent()
    group = MemoryGroup(parent.path / f"jf-{names.run_id}-memory", parent.version, round(limit_mb * 1e6))
    record = names.folder / _RECORD
    record.write_text(f"{group.path}\n")
    try:
        _make(group, parent)
        try:
            yield group
        except CellError as error:
            _refuse_kills(group, cell_id, limit_mb, error)
            raise
        _refuse_kills(group, cell_id, limit_mb, None)
    finally:
        _remove(group.path)
        record.unlink()


def remove_memory_group(folder: Path) -> str | None:
    """Remove the group that the record in a dead run's folder names; return its path, None where there is none.

    Raises:
        TestbedError: it cannot be removed.
    """
    try:
        path = Path((folder / _RECORD).read_text().strip())
    except FileNotFoundError:
        return None
    # A run that died while it wrote the record has made no group yet.
    if path == Path() or not path.is_dir():
        return None
    _remove(path)
    return str(path)


def memory_obstacles() -> list[str]:
    """Return why no cell's memory can be limited here, each with its remedy; empty when it can be."""
    try:
        parent = memory_parent()
        group = MemoryGroup(parent.path / f"jf-{uuid4().hex[:8]}-trial", parent.version, 64_000_000)
        try:
            _make(group, parent)
        finally:
            _remove(group.path)
    except TestbedError as error:
        return [str(error)]
    return []


def _make(group: MemoryGroup, parent: Parent) -> None:
    limits = (
        # What would be swapped out counts as well, where the kernel counts it.
        {"memory.limit_in_bytes": group.limit_bytes, "memory.memsw.limit_in_bytes": group.limit_bytes}
        if group.version == 1
        else {"memory.max": group.limit_bytes, "memory.swap.max": 0}
    )
    try:
        group.path.mkdir()
        for number, (name, value) in enumerate(limits.items()):
            if number == 0 or (group.path / name).exists():
                (group.path / name).write_text(str(value))
    except OSError as error:
        raise parent.unusable(f"{group.path}: {error.strerror}") from error


def _refuse_kills(group: MemoryGroup, cell_id: str, limit_mb: float, error: CellError | None) -> None:
    if killed := group.kills():
        many = "a process" if killed == 1 else f"{killed} processes"
        raise MemoryLimitError(
            f"cell {cell_id}: the kernel killed {many} of it, which need more than testbed.memory_mb={limit_mb:g}; "
            "raise it, or have fewer workers, batches ahead or samples in a batch"
        ) from error


def _remove(path: Path) -> None:
    """Kill what is in a group and remove it; one that is not there is fine. Raises TestbedError when it stays."""
    deadline = time.monotonic() + KILL_PATIENCE_S
    while path.is_dir():
        for pid in _members(path):
            _kill(pid, path)
        try:
            path.rmdir()
        except OSError as error:
            # A process that has just ended may still be counted.
            if time.monotonic() >= deadline:
                held = _members(path)
                raise TestbedError(f"control group {path}: {error.strerror}; processes in it: {held}") from error
            time.sleep(_LOOK_AGAIN_S)


def _members(path: Path) -> list[int]:
    with suppress(FileNotFoundError):
        return [int(pid) for pid in (path / "cgroup.procs").read_text().split()]
    return []


def _kill(pid: int, path: Path) -> None:
    """Kill one member and wait for its end; the descriptor keeps its number from being reused meanwhile."""
    with suppress(ProcessLookupError):
        descriptor = os.pidfd_open(pid)
        try:
            if pid in _members(path):
                signal.pidfd_send_signal(descriptor, signal.SIGKILL)
                poller = select.poll()
                poller.register(descriptor, select.POLLIN)
                poller.poll(1e3 * KILL_PATIENCE_S)
        finally:
            os.close(descriptor)
