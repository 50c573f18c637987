"""Folders that cannot be written and disks that are full, as errors that name the folder and the key to change."""

from __future__ import annotations

import errno
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from shutil import disk_usage
from tempfile import TemporaryDirectory

from harness.errors import ConfigError, DiskError

LEAST_BYTES = 10_000_000
"""Room without which no run is started: its energy store alone takes some megabytes while it is written."""

__all__ = ["check_room", "check_writable", "disk_errors", "folder_of", "spelled"]


def folder_of(key: str, value: object) -> Path:
    """Return a folder that the config names; raises ConfigError when it names none."""
    if not isinstance(value, str) or not value.strip():
        raise ConfigError(f"{key}={value!r}: expected a folder")
    return Path(value).expanduser()


def check_writable(key: str, folder: Path) -> None:
    """Raise DiskError naming `key` when `folder` cannot be made or written; it is not made yet."""
    there = folder.absolute()
    while not there.exists() and not there.is_symlink() and there != there.parent:
        there = there.parent
    if not there.is_dir():
        raise DiskError(f"{key}={folder}: {there} is no folder; choose a folder that can be written")
    try:
        with TemporaryDirectory(dir=there, prefix=".joulefeed-"):  # no permission tells of every file system
            pass
    except OSError as error:
        raise DiskError(
            f"{key}={folder}: {there} cannot be written ({error.strerror}); choose a folder that can be written"
        ) from error
    check_room(key, there, LEAST_BYTES)


def check_room(key: str, folder: Path, needed_bytes: int) -> None:
    """Raise DiskError naming `key` when the file system of `folder` has less room than is needed."""
    free = disk_usage(folder).free
    if free < needed_bytes:
        raise DiskError(
            f"{key}: {folder}: the disk is full: {spelled(free)} are free, and at least {spelled(needed_bytes)} are "
            "needed; make room, or choose a folder with more"
        )


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
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        if not full and not _inside(error.filename, folders.values()):
            raise
        what = "the disk is full; make room" if full else f"{error.strerror}; choose a folder that can be written"
        where = error.filename or " or ".join(map(str, folders.values()))
        raise DiskError(
            f"{where}: {what} ({' and '.join(folders)} {'say' if len(folders) > 1 else 'says'} where)"
        ) from error


def _inside(filename: object, folders: Iterable[Path]) -> bool:
    """Whether an error is of the folders that the user chose, and so the user's to mend."""
    if not isinstance(filename, str) or "/" not in filename:
        return False
    path = Path(filename).absolute()
    known = [folder.expanduser().absolute() for folder in folders]
    return any(path == folder or folder in path.parents or path in folder.parents for folder in known)
