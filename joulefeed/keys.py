"""The keys of a run: a folder with a half for the daemon and a half for its clients."""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

DAEMON: Final = "daemon"
CLIENT: Final = "client"
_PRIVATE: Final = 0o600
_MAX_BYTES: Final = 1 << 20


class KeysError(Exception):
    """Keys cannot be made or read; the message names the file, never its content."""


def make_halves(
    folder: Path, daemon: Mapping[str, bytes], client: Mapping[str, bytes], error: type[Exception] = KeysError
) -> tuple[Path, Path]:
    """Write new keys to `folder`/daemon and `folder`/client and return the two folders.

    A host needs one of them only. Folders can be entered, and files read, by their owner alone. Each half is there with
    all its files, or not at all.

    Args:
        folder: made where it is missing.
        daemon: content of each file of the daemon's half, by its name.
        client: the same of the client's half.
        error: class of the error that is raised where there are keys already, or the folder cannot be written.
    """
    halves = {folder / DAEMON: daemon, folder / CLIENT: client}
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for half in halves:
            if half.exists():
                raise error(f"{half} is there already: remove it, or name another folder")
        unfinished = Path(tempfile.mkdtemp(prefix=".keys-", dir=folder))
        try:
            for half, files in halves.items():
                (unfinished / half.name).mkdir(mode=0o700)
                for name, content in files.items():
                    write_private(unfinished / half.name / name, content)
            for half in halves:
                (unfinished / half.name).rename(half)
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)
    except OSError as failed:
        raise error(f"keys cannot be written to {failed.filename}: {failed.strerror}") from failed
    return folder / DAEMON, folder / CLIENT


def write_private(path: Path, content: bytes) -> None:
    """Write a new file that only its owner can read; raises OSError where it exists or cannot be made."""
    # The mode is set as the file is made: a later chmod would leave a moment in which others can read it.
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, _PRIVATE), "wb") as file:
        file.write(content)


def read_private(path: Path, expected: str, error: type[Exception] = KeysError, *, is_secret: bool = True) -> bytes:
    """Return a file of keys.

    Args:
        path: the file.
        expected: what should be there, for the error.
        error: class of the error that is raised where it cannot be read, or is secret and open to others.
        is_secret: whether only its owner may read it (default: True).
    """
    try:
        with path.open("rb") as file:
            mode, content = os.fstat(file.fileno()).st_mode, file.read(_MAX_BYTES)
    except OSError as failed:
        raise error(f"{path} cannot be read ({failed.strerror}): expected {expected}") from failed
    if is_secret and mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise error(f"{path} is open to others (mode {stat.S_IMODE(mode):o}): chmod 600 {path}")
    return content
