"""The kernel's control groups: where a process's own are, how a CPU quota stops it, and how long it waits for memory.

Version 1 and 2 (the kernel's admin-guide/cgroup-v1 and admin-guide/cgroup-v2.rst). Waiting is pressure stall
information (the kernel's accounting/psi.rst).
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Final, Literal

PROC: Final = Path("/proc/self")
UNIFIED: Final = ""
"""Name of version 2's hierarchy in /proc/PID/cgroup."""


def own_groups(proc: Path = PROC) -> dict[str, str]:
    """Return the path of a process's group by controller; `UNIFIED` is version 2's. Raises OSError."""
    found: dict[str, str] = {}
    for line in (proc / "cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        found |= dict.fromkeys(controllers.split(","), path)
    return found


def find_mount(proc: Path, controller: str) -> tuple[Path, str] | None:
    """Return where a controller's hierarchy is mounted, and which of its groups is there as the root.

    None where it is not mounted. `UNIFIED` is version 2. Raises OSError.
    """
    for line in (proc / "mountinfo").read_text().splitlines():
        # ID parent device root point options [tags] - type source super-options (proc(5)).
        before, _, after = line.partition(" - ")
        _, _, _, root, point, *_ = before.split()
        kind, _, options = after.split(" ", 2)
        is_unified = controller == UNIFIED
        if kind == ("cgroup2" if is_unified else "cgroup") and (is_unified or controller in options.split(",")):
            return Path(point), root
    return None


def below(mount: Path, root: str, group: str) -> Path:
    """Return the folder of a group; in a container the mount may begin at the group itself."""
    relative = os.path.relpath(group, root)
    return mount if relative == "." or relative.startswith("..") else mount / relative


_find_own_mount: Final = lru_cache(find_mount)


def throttling(pids: Iterable[int]) -> tuple[int, float] | None:
    """Return how often, and for how many seconds, CPU quotas have stopped the groups of some processes.

    The groups above theirs count as well, each once. Seconds are of all processors together. None where no group counts
    it: none of them can have a quota.
    """
    folders: set[Path] = set()
    for pid in pids:
        with suppress(OSError):
            folders |= set(_list_cpu_groups(Path(f"/proc/{pid}")))
    counts = [count for folder in sorted(folders) if (count := read_throttling(folder)) is not None]
    return (sum(times for times, _ in counts), sum(seconds for _, seconds in counts)) if counts else None


def _list_cpu_groups(proc: Path) -> Iterator[Path]:
    """Yield the folder of a process's group that has the CPU controller, and those above it."""
    groups = own_groups(proc)
    controller = "cpu" if "cpu" in groups else UNIFIED
    mounted = _find_own_mount(PROC, controller)
    if controller not in groups or mounted is None:
        return
    folder = below(*mounted, groups[controller])
    while True:
        yield folder
        if folder == mounted[0]:
            return
        folder = folder.parent


def read_throttling(folder: Path) -> tuple[int, float] | None:
    """Return how often, and for how many seconds, a group's own CPU quota has stopped it. None where it counts none."""
    try:
        stat = dict(line.split() for line in (folder / "cpu.stat").read_text().splitlines())
    except OSError:
        return None
    if "nr_throttled" not in stat:
        return None
    seconds = int(stat["throttled_usec"]) / 1e6 if "throttled_usec" in stat else int(stat["throttled_time"]) / 1e9
    return int(stat["nr_throttled"]), seconds


def pressure_s(kind: Literal["memory", "io"]) -> float | None:
    """Return for how many seconds some task of this process's group has waited for memory or for disks.

    Of the whole host where the group does not count it. None where the kernel does not.
    """
    files = [Path("/proc/pressure") / kind]
    with suppress(OSError):
        groups, mounted = own_groups(), _find_own_mount(PROC, UNIFIED)
        if mounted is not None and UNIFIED in groups:
            files.insert(0, below(*mounted, groups[UNIFIED]) / f"{kind}.pressure")
    for file in files:
        # Reading fails where the kernel was started without it.
        with suppress(OSError, ValueError):
            return read_pressure_s(file.read_text())
    return None


def read_pressure_s(text: str) -> float:
    """Return the seconds of the line "some" of a pressure file. Raises ValueError where it has none."""
    for line in text.splitlines():
        if line.startswith("some "):
            return int(line.rpartition("total=")[2]) / 1e6
    raise ValueError("expected a line that begins with 'some'")
