"""Whether a process runs, and a temporary folder that does not outlive its process for long, however that ends."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from pathlib import Path
from typing import Final

_START: Final = 19
"""Place of the start time in /proc/PID/stat, counted from behind the name (proc_pid_stat(5), field 22)."""

_PREFIX: Final = "energymon-"
_LOCK: Final = "lock"
"""File in the folder that its maker locks while it runs, in whatever container that is."""


class TemporaryFolder:
    """A folder that `remove` removes, or else the next process that makes one."""

    def __init__(self) -> None:
        """Make the folder, and remove those of this user's processes that were killed."""
        remove_abandoned(Path(tempfile.gettempdir()))
        self.path = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-"))
        self._lock_fd = _lock(self.path)

    def remove(self) -> None:
        """Remove the folder with all that is in it."""
        shutil.rmtree(self.path, ignore_errors=True)
        self.forget()

    def forget(self) -> None:
        """Leave the folder to the parent process, which holds the lock until its last descriptor is closed."""
        lock_fd, self._lock_fd = self._lock_fd, None
        if lock_fd is not None:
            os.close(lock_fd)


def remove_abandoned(folder: Path) -> None:
    """Remove the folders below `folder` that this user's processes made and that no living process has locked."""
    for left in folder.glob(f"{_PREFIX}*-*"):
        with contextlib.suppress(OSError):
            if left.lstat().st_uid != os.getuid():
                continue
            lock_fd = os.open(left / _LOCK, os.O_RDWR | os.O_NOFOLLOW)
            try:
                # Its maker may be in another container and have any process id here.
                fcntl.flock(lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(left, ignore_errors=True)
            finally:
                os.close(lock_fd)


def _lock(folder: Path) -> int | None:
    """Lock a folder until the descriptor is closed; None where files cannot be locked."""
    new = folder / f"{_LOCK}.new"
    lock_fd = os.open(new, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        fcntl.flock(lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # Renamed when it is locked, so that nobody finds it unlocked while its maker runs.
        new.rename(folder / _LOCK)
    except OSError:
        os.close(lock_fd)
        return None
    return lock_fd


def own_name() -> str:
    """Return this process's name: its process namespace, id and start time, which no other process has had."""
    return _name(os.getpid())


def is_alive(name: str) -> bool | None:
    """Return whether a process runs; None for one in another namespace, which cannot be seen from here."""
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
