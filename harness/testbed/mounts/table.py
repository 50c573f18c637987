"""The kernel's table of mounts: look one up, wait for one, detach one.

`python -m harness.testbed.mounts.table POINT SECONDS COMMAND...` makes the directory POINT and runs what mounts
something there. It writes `{"pid": PID}` of the command when it is mounted, and detaches it at the end of standard
input.
"""

from __future__ import annotations

import ctypes
import json
import os
import re
import select
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from harness.errors import MountError
from joulefeed.child import Child, ChildError

if TYPE_CHECKING:
    from harness.testbed.base import Node

MOUNT_TABLE = Path("/proc/self/mountinfo")
MNT_DETACH = 2  # umount2(2)
_START_S: Final = 60.0
"""A slow host takes a while to start Python."""
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

    Raises OSError when the kernel refuses.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.umount2(os.fsencode(point), MNT_DETACH):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), str(point))


@contextmanager
def mounted(node: Node, argv: Sequence[str], point: Path, timeout_s: float) -> Iterator[int]:
    """Have a node run what mounts something at `point`, which is made there, for as long as the context lasts.

    Yields the id of the process that mounts it; it may have ended. Raises MountError when it is not mounted in time.
    """
    # By its file it starts sooner: it imports nothing else of the testbed.
    itself = ["-m", "harness.testbed.mounts.table"] if node.is_remote else [__file__]
    given = [sys.executable, *itself, str(point), str(timeout_s), *argv]
    with node.start(given, stdin=subprocess.PIPE, stdout=subprocess.PIPE, keep_stderr=True) as child:
        try:
            ready = child.ready(_START_S + timeout_s)
        except ChildError as error:
            raise MountError(f"{point} on host {node.host}: {child.stderr_lines(1) or error}") from error
        yield int(str(ready["pid"]))


def wait_for_line(server: Child, words: bytes, timeout_s: float, what: str) -> None:
    """Wait until a server prints a line with some words. Raises MountError, with its lines, when it does not."""
    lines: list[str] = []
    try:
        while (line := server.read_line(timeout_s)) is not None and words not in line:
            lines.append(line.decode(errors="replace").strip())
    except ChildError as error:
        raise MountError(f"{what} did not start: {'; '.join(lines) or error}") from error
    if line is None:
        raise MountError(f"{what} did not start: {'; '.join([*lines, f'not up in {timeout_s:g} s'])}")


def main(point: Path, timeout_s: float, argv: Sequence[str]) -> int:
    """Keep something mounted until standard input ends; return the exit status."""
    point.mkdir(mode=0o700)
    with Child(argv, stdin=subprocess.DEVNULL, stdout=2, keep_stderr=True, killed_with_parent=True) as client:
        try:
            if not wait_mounted(point, client.pid, timeout_s):
                print(client.stderr_lines(1) or f"{argv[0]}: not up in {timeout_s:g} s", file=sys.stderr)
                return MountError.exit_status
            print(json.dumps({"pid": client.pid}), flush=True)
            sys.stdin.read()
        finally:
            if is_mounted(point):
                detach(point)
            with suppress(OSError):
                point.rmdir()
    return 0


def _plain(escaped: str) -> str:
    """Undo the kernel's octal escapes of blanks and backslashes."""
    raw = _OCTAL.sub(lambda match: chr(int(match[1], 8)), escaped)
    return os.fsdecode(raw.encode("utf-8", "surrogateescape"))


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), float(sys.argv[2]), sys.argv[3:]))
