"""Whether the process that a text names still lives."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

__all__ = ["lives", "own_name"]

_START: Final = 19
"""Place of the start time in /proc/PID/stat, counted from behind the name (proc_pid_stat(5), field 22)."""


def own_name() -> str:
    """Return this process's name: its process namespace, id and start time, which no other process has had."""
    return _name(os.getpid())


def lives(name: str) -> bool | None:
    """Return whether a process lives; None for one in another namespace, of which that cannot be told from here."""
    namespace, pid, _ = name.split()
    if namespace != _namespace():
        return None
    try:
        return _name(int(pid)) == name
    except FileNotFoundError:
        return False


def _name(pid: int) -> str:
    state, *rest = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return f"{_namespace()} {pid} {'ended' if state == 'Z' else rest[_START - 1]}"


def _namespace() -> str:
    return str(Path("/proc/self/ns/pid").stat().st_ino)
