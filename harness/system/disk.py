"""Folders that cannot be written and disks that are full, as errors that name the folder and the key to change."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from shutil import disk_usage
from tempfile import TemporaryDirectory

from harness.errors import ConfigError, DiskError

_MIN_BYTES = 10_000_000
"""Room without which no run is started: its energy store alone takes some megabytes while it is written."""


def folder_of(key: str, value: object) -> Path:
    """Return a folder that the config names; raises ConfigError when it names none."""
    if not isinstance(value, str) or not value.strip():
        raise ConfigError(f"{key}={value!r}: expected a folder")
    return Path(value).expanduser()


def check_writable(key: str, folder: Path) -> None:
    """Raise DiskError naming `key` when `folder` cannot be made or written; it is not made yet."""
    parent = _existing_parent(folder)
    if not parent.is_dir():
        raise DiskError(f"{key}={folder}: {parent} is no folder; choose a folder that can be written")
    try:
        # The permissions alone do not show whether a file system can be written.
        with TemporaryDirectory(dir=parent, prefix=".joulefeed-"):
            pass
    except OSError as error:
        raise DiskError(
            f"{key}={folder}: {parent} cannot be written ({error.strerror}); choose a folder that can be written"
        ) from error
    check_room(key, parent)


def is_on_disk(path: Path) -> bool:
    """Return whether a file or folder is there, on a block device: not in memory, on an overlay or on a network."""
    try:
        return os.major(path.stat().st_dev) != 0
    except OSError:
        return False


def check_room(key: str, folder: Path, min_bytes: int = _MIN_BYTES) -> None:
    """Raise DiskError naming `key` when the file system of `folder`, which need not exist yet, has less room."""
    free = free_bytes(folder)
    if free < min_bytes:
        raise DiskError(
            f"{key}: {folder}: the disk is full: {spelled(free)} are free, and at least {spelled(min_bytes)} are "
            "needed; make room, or choose a folder with more"
        )


def free_bytes(folder: Path) -> int:
    """Return the room on the file system of a folder, which need not exist yet."""
    return disk_usage(_existing_parent(folder)).free


def spelled(count: int) -> str:
    """Write a number of bytes with its unit."""
    for unit, size in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= 10 * size or (count >= size and size < 1e9):
            return f"{count / size:.0f} {unit}"
    return f"{count} B"


@contextmanager
def disk_errors(folders: Mapping[str, Path]) -> Iterator[None]:
    """Turn an OSError of a full disk, or in one of `folders` (by their config keys), into a DiskError."""
    try:
        yield
    except OSError as error:
        if not _is_full(error) and not _is_inside(error.filename, folders.values()):
            raise
        raise disk_error(error, folders) from error


def disk_error(error: OSError, folders: Mapping[str, Path], needed_bytes: int | None = None) -> DiskError:
    """Return the DiskError that says what happened in one of `folders` (by their config keys) and what to do.

    `needed_bytes` is the room that is needed in all, where it is known.
    """
    problem = f"{error.strerror or error}; choose a folder that can be written"
    if _is_full(error):
        needed = "" if needed_bytes is None else f" ({spelled(needed_bytes)} are needed in all)"
        problem = f"the disk is full{needed}; make room"
    place = error.filename or " or ".join(map(str, folders.values()))
    return DiskError(f"{place}: {problem} ({' and '.join(folders)} {'say' if len(folders) > 1 else 'says'} where)")


def _is_full(error: OSError) -> bool:
    return error.errno in (errno.ENOSPC, errno.EDQUOT)


def _existing_parent(folder: Path) -> Path:
    """Return the folder, or the nearest one above it that exists."""
    parent = folder.absolute()
    while not parent.exists() and not parent.is_symlink() and parent != parent.parent:
        parent = parent.parent
    return parent


def _is_inside(filename: object, folders: Iterable[Path]) -> bool:
    """Whether an error is about one of the folders that the user chose, which the user can change."""
    if not isinstance(filename, str) or "/" not in filename:
        return False
    path = Path(filename).absolute()
    known = [folder.expanduser().absolute() for folder in folders]
    return any(path == folder or folder in path.parents or path in folder.parents for folder in known)
