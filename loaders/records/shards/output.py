"""Work on folders of shards: by one process at a time, with errors that say what to do."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from loaders.errors import LoaderError

_FULL = (errno.ENOSPC, errno.EDQUOT)


class OutputError(LoaderError):
    """A folder of shards cannot be made or changed where it was asked for."""


@contextmanager
def output_errors(out: Path, remedy: str = "choose a folder that can be written") -> Iterator[None]:
    """Turn an OSError of the block into an OutputError that names the file and the remedy."""
    try:
        yield
    except OSError as error:
        where = error.filename or out
        if error.errno in _FULL:
            message = "the disk is full; make room, then run the same command again"
        else:
            message = f"{error.strerror or error}; {remedy}"
        raise OutputError(f"{where}: {message}") from error


@contextmanager
def exclusive_lock(path: Path, out: Path) -> Iterator[None]:
    """Hold the sole right to make `out` by the lock file `path`; raises OutputError when another process does."""
    while True:
        lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            holder = os.pread(lock, 32, 0).decode(errors="replace").strip()
            os.close(lock)
            raise OutputError(
                f"{out}: another process makes its shards (process {holder or 'unknown'}); "
                "wait for it, or choose another folder"
            ) from error
        if _is_at(lock, path):
            break
        os.close(lock)  # the one that held it before took the file away
    try:
        os.ftruncate(lock, 0)
        os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)
        yield
    finally:
        path.unlink(missing_ok=True)
        os.close(lock)


def _is_at(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False
