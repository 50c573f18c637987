"""The kernel's table of mounts: look one up, wait for one, detach one."""

from __future__ import annotations

import ctypes
import os
import re
import select
import time
from pathlib import Path

MOUNT_TABLE = Path("/proc/self/mountinfo")
MNT_DETACH = 2  # umount2(2)
_OCTAL = re.compile(r"\\([0-7]{3})")


def mounts_below(folder: Path) -> list[Path]:
    """Return the mount points at or below a directory, in the order in which they were mounted."""
    points = (Path(_plain(line.split(" ")[4])) for line in MOUNT_TABLE.read_text().splitlines())
    return [point for point in points if point.is_relative_to(folder)]


def is_mounted(point: Path) -> bool:
    """Say whether something is mounted at exactly this path."""
    return point in mounts_below(point)


def wait_mounted(point: Path, server_pid: int, timeout_s: float) -> bool:
    """Wait until something is mounted at `point`; False when its server ended or the time is up.

    The server is a child of this process that was not waited for.
    """
    deadline = time.monotonic() + timeout_s
    ended = os.pidfd_open(server_pid)
    try:
        with MOUNT_TABLE.open() as table:
            waiting = select.poll()
            # The kernel marks the table with an exceptional condition whenever it changes: proc(5).
            waiting.register(table, select.POLLPRI | select.POLLERR)
            waiting.register(ended, select.POLLIN)
            while not is_mounted(point):
                left_ms = (deadline - time.monotonic()) * 1e3
                if left_ms <= 0 or ended in [descriptor for descriptor, _ in waiting.poll(left_ms)]:
                    return is_mounted(point)
        return True
    finally:
        os.close(ended)


def detach(point: Path) -> None:
    """Take a mount out of the file tree even when it is busy or its server is dead.

    Raises:
        OSError: the kernel refuses.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.umount2(os.fsencode(point), MNT_DETACH):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), str(point))


def _plain(escaped: str) -> str:
    """Undo the kernel's octal escapes of blanks and backslashes."""
    raw = _OCTAL.sub(lambda match: chr(int(match[1], 8)), escaped)
    return os.fsdecode(raw.encode("utf-8", "surrogateescape"))
