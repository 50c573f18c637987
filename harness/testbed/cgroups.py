"""Where a control group with a memory limit can be made: below which group of this process's hierarchy."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from harness.errors import TestbedError

__all__ = ["Parent", "memory_parent"]

_PROC: Final = Path("/proc/self")
_REMEDY: Final = {
    1: "run as root, with the memory controller mounted for writing (in a container: --privileged)",
    2: "run in a scope of your own, `systemd-run --user --scope -p Delegate=yes python -m harness ...`, or as root "
    "(in a container: --privileged --cgroupns=host)",
}


@dataclass(frozen=True, slots=True)
class Parent:
    """A group below which others can have a memory limit."""

    path: Path
    version: Literal[1, 2]

    def unusable(self, why: str) -> TestbedError:
        """Return the error that no group can be made below it."""
        return _impossible(why, self.version)


def memory_parent(proc: Path = _PROC) -> Parent:
    """Return the group below which a group with a memory limit can be made; `proc` is this process's folder there.

    Raises:
        TestbedError: there is none, or none that this process may write; the message names it and the remedy.
    """
    groups = dict(_own_groups(proc))
    if "memory" in groups:
        mount, root = _mount(proc, 1)
        parent = Parent(_below(mount, root, groups["memory"]), 1)
        _check_writable(parent, parent.path)
        return parent
    if "" not in groups:
        raise _impossible("this kernel has no control groups", 2)
    mount, root = _mount(proc, 2)
    return _handing_on(_below(mount, root, groups[""]), mount)


def _handing_on(own: Path, mount: Path) -> Parent:
    """Return the nearest group, `own` or above it, whose children have the memory controller.

    A group with processes of its own cannot hand it on, so that is seldom the process's own.
    """
    group = own
    while True:
        handed_on = group / "cgroup.subtree_control"
        if handed_on.exists() and "memory" in handed_on.read_text().split():
            parent = Parent(group, 2)
            _check_writable(parent, group)
            # To move a process takes leave to write where both groups meet.
            _check_writable(parent, group / "cgroup.procs")
            return parent
        if group == mount:
            raise _impossible(f"{own}: neither it nor a group above it hands the memory controller on", 2)
        group = group.parent


def _own_groups(proc: Path) -> list[tuple[str, str]]:
    """Return the path of this process's group by controller; "" is version 2's."""
    found = []
    for line in (proc / "cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        found += [(controller, path) for controller in controllers.split(",")]
    return found


def _mount(proc: Path, version: Literal[1, 2]) -> tuple[Path, str]:
    """Return where the hierarchy that has the memory is mounted, and which of its groups is there as the root."""
    for line in (proc / "mountinfo").read_text().splitlines():
        # ID parent device root point options [tags] - type source super-options (proc(5)).
        before, _, after = line.partition(" - ")
        _, _, _, root, point, *_ = before.split()
        kind, _, options = after.split(" ", 2)
        if kind == ("cgroup2" if version == 2 else "cgroup") and (version == 2 or "memory" in options.split(",")):
            return Path(point), root
    raise _impossible(f"the hierarchy of version {version} is not mounted", version)


def _below(mount: Path, root: str, group: str) -> Path:
    """Return the folder of a group; in a container the mount may begin at the group itself."""
    relative = os.path.relpath(group, root)
    return mount if relative == "." or relative.startswith("..") else mount / relative


def _check_writable(parent: Parent, path: Path) -> None:
    if not path.exists():
        raise parent.unusable(f"{path}: is not there")
    if not os.access(path, os.W_OK):
        raise parent.unusable(f"{path}: may not be written")


def _impossible(why: str, version: Literal[1, 2]) -> TestbedError:
    return TestbedError(f"testbed.memory_mb: no control group can be made for a cell: {why}; {_REMEDY[version]}")
