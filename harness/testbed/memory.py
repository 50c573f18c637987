"""A limit on the memory of a cell's processes or of its daemons: a control group of their own, the page cache counted.

Version 2 of the kernel's control groups where it has the memory controller, version 1 elsewhere (the kernel's
admin-guide/cgroup-v2.rst and admin-guide/cgroup-v1/memory.rst). A group lies below the harness's own, or below the
nearest one above it that hands the controller on, so limits that are in force stay in force.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Literal
from uuid import uuid4

from harness.errors import CellError, MemoryLimitError, TestbedError
from harness.system.control_groups import PROC, UNIFIED, below, find_mount, own_groups
from harness.system.process import KILL_TIMEOUT_S, kill_process
from harness.testbed.base import Node
from harness.testbed.state import RunNames

_RECORDS: Final = ("memory-group", "daemon-memory-group")
"""Files in a run's folder that name its groups, for the process that cleans up after it."""
_LOOK_AGAIN_S: Final = 0.02
_REMEDY: Final = {
    1: "run as root, with the memory controller mounted for writing (in a container: --privileged)",
    2: "run in a scope of your own, `systemd-run --user --scope -p Delegate=yes python -m harness ...`, or as root "
    "(in a container: --privileged --cgroupns=host)",
}


@dataclass(frozen=True, slots=True)
class MemoryGroup:
    """A control group with a limit, as long as `limited_memory` holds it."""

    path: Path
    version: Literal[1, 2]
    limit_bytes: int = 0
    """0 for one that has no limit, below which others can have one."""

    def node(self, node: Node) -> Node:
        """Return the node whose processes, and all that they start, are in the group."""
        return replace(node, memory_group=self.path)

    def kills(self) -> int:
        """Return how many of its processes the kernel has killed for want of memory."""
        file = self.path / ("memory.oom_control" if self.version == 1 else "memory.events")
        counts = dict(line.split() for line in file.read_text().splitlines())
        return int(counts.get("oom_kill", 0))

    def describe(self) -> dict[str, object]:
        """Return limit and peak in bytes and who counts them, for a cell's record."""
        peak = self.path / ("memory.max_usage_in_bytes" if self.version == 1 else "memory.peak")
        return {
            "limit_bytes": self.limit_bytes,
            # Kernels before 5.19 do not keep it in version 2.
            "peak_bytes": int(peak.read_text()) if peak.exists() else None,
            "source": f"cgroup v{self.version}",
            "cached_bytes": self._cached_bytes(),
        }

    def _cached_bytes(self) -> int | None:
        stat = dict(line.split() for line in (self.path / "memory.stat").read_text().splitlines())
        cached = stat.get("total_cache" if self.version == 1 else "file")
        return None if cached is None else int(cached)


@contextmanager
def limited_memory(
    names: RunNames, limit_mb: float, cell_id: str, *, daemons_of: str | None = None
) -> Iterator[MemoryGroup]:
    """Hold a group of `limit_mb` (10^6 bytes) for one cell; it is removed, its processes killed, when this is left.

    It is for all processes of the cell, or for the daemons of the loader `daemons_of` alone; a cell may have both.

    Raises TestbedError when the group cannot be made; the message says where, why and what to do. Raises
    MemoryLimitError when the kernel killed a process of the group, whatever became of the cell.
    """
    parent = memory_parent()
    record = names.folder / _RECORDS[daemons_of is not None]
    name = f"jf-{names.run_id}-{record.name.removesuffix('-group')}"
    group = MemoryGroup(parent.path / name, parent.version, round(limit_mb * 1e6))
    limit = f"testbed.memory_mb={limit_mb:g}; raise it, or have fewer workers, batches ahead or samples in a batch"
    if daemons_of is not None:
        limit = f"loaders.{daemons_of}.daemon.memory_mb={limit_mb:g}; raise it, or let the daemon buffer less"
    record.write_text(f"{group.path}\n")
    try:
        _make(group)
        try:
            yield group
        except CellError as error:
            _refuse_kills(group, cell_id, limit, error)
            raise
        _refuse_kills(group, cell_id, limit, None)
    finally:
        _remove(group.path)
        record.unlink()


def remove_memory_groups(folder: Path) -> list[str]:
    """Remove the groups that the records in a dead run's folder name; return their paths.

    Raises TestbedError when one cannot be removed.
    """
    removed = []
    for record in _RECORDS:
        with suppress(FileNotFoundError):
            path = Path((folder / record).read_text().strip())
            # A run that died while it wrote the record has made no group yet.
            if path != Path() and path.is_dir():
                _remove(path)
                removed.append(str(path))
    return removed


def memory_obstacles() -> list[str]:
    """Return why no cell's memory can be limited here, each with its remedy; empty when it can be."""
    try:
        parent = memory_parent()
        group = MemoryGroup(parent.path / f"jf-{uuid4().hex[:8]}-trial", parent.version, 64_000_000)
        try:
            _make(group)
        finally:
            _remove(group.path)
    except TestbedError as error:
        return [str(error)]
    return []


def memory_parent(proc: Path = PROC) -> MemoryGroup:
    """Return the group below which a group with a memory limit can be made; `proc` is this process's folder there.

    Raises TestbedError when there is none, or none that this process may write; the message names it and the remedy.
    """
    groups = own_groups(proc)
    if "memory" in groups:
        parent = MemoryGroup(below(*_mount(proc, "memory"), groups["memory"]), 1)
        _check_writable(parent, parent.path)
        return parent
    if UNIFIED not in groups:
        raise _impossible("this kernel has no control groups", 2)
    mount, root = _mount(proc, UNIFIED)
    return _handing_on(below(mount, root, groups[UNIFIED]), mount)


def _handing_on(own: Path, mount: Path) -> MemoryGroup:
    """Return the nearest group, `own` or above it, whose children have the memory controller.

    A group with processes of its own cannot hand it on, so that is seldom the process's own.
    """
    group = own
    while True:
        handed_on = group / "cgroup.subtree_control"
        if handed_on.exists() and "memory" in handed_on.read_text().split():
            parent = MemoryGroup(group, 2)
            _check_writable(parent, group)
            # To move a process takes leave to write where both groups meet.
            _check_writable(parent, group / "cgroup.procs")
            return parent
        if group == mount:
            raise _impossible(f"{own}: neither it nor a group above it hands the memory controller on", 2)
        group = group.parent


def _mount(proc: Path, controller: str) -> tuple[Path, str]:
    """Return where the hierarchy that has the memory is mounted, and which of its groups is there as the root."""
    if (mounted := find_mount(proc, controller)) is None:
        version: Literal[1, 2] = 2 if controller == UNIFIED else 1
        raise _impossible(f"the hierarchy of version {version} is not mounted", version)
    return mounted


def _check_writable(parent: MemoryGroup, path: Path) -> None:
    if not path.exists():
        raise _impossible(f"{path}: is not there", parent.version)
    if not os.access(path, os.W_OK):
        raise _impossible(f"{path}: may not be written", parent.version)


def _impossible(why: str, version: Literal[1, 2]) -> TestbedError:
    return TestbedError(f"memory_mb: no control group can be made for a cell: {why}; {_REMEDY[version]}")


def _make(group: MemoryGroup) -> None:
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
        raise _impossible(f"{group.path}: {error.strerror}", group.version) from error


def _refuse_kills(group: MemoryGroup, cell_id: str, limit: str, error: CellError | None) -> None:
    if killed := group.kills():
        many = "a process" if killed == 1 else f"{killed} processes"
        raise MemoryLimitError(
            f"cell {cell_id}: the kernel killed {many} of it, which need more than {limit}"
        ) from error


def _remove(path: Path) -> None:
    """Kill the processes of a group and remove it, if it exists. Raises TestbedError when it stays."""
    deadline = time.monotonic() + KILL_TIMEOUT_S
    while path.is_dir():
        for pid in _members(path):
            kill_process(pid, lambda pid: pid in _members(path), deadline)
        try:
            path.rmdir()
        except OSError as error:
            # A process that has just ended may still be counted.
            if time.monotonic() >= deadline:
                members = _members(path)
                raise TestbedError(f"control group {path}: {error.strerror}; processes in it: {members}") from error
            time.sleep(_LOOK_AGAIN_S)


def _members(path: Path) -> list[int]:
    with suppress(FileNotFoundError):
        return [int(pid) for pid in (path / "cgroup.procs").read_text().split()]
    return []
