"""Folders of the cache: built once, by one process at a time, whole or not at all."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

from harness.datasets import Progress
from harness.system.disk import disk_error


@contextmanager
def only_builder(target: Path, progress: Progress) -> Iterator[None]:
    """Hold the sole right to build `target`, waiting for another process that does.

    What builders that died have left beside it is removed. Raises DiskError when the folder cannot be used.
    """
    with storage_errors(target.parent):
        target.parent.mkdir(parents=True, exist_ok=True)
        lock = _lock(target)
    try:
        with storage_errors(target.parent):
            if not _try(lock):
                what = f"waiting for another run that makes {target.name}"
                progress(what, 0, 1)
                fcntl.flock(lock, fcntl.LOCK_EX)
                progress(what, 1, 1)
        _remove_leftovers(target)
        yield
    finally:
        os.close(lock)


@contextmanager
def building(target: Path) -> Iterator[Path]:
    """Yield an empty folder that becomes `target` if the block ends well, and is removed if it does not.

    The caller holds only_builder(target). A folder that is there already is replaced.
    """
    with storage_errors(target.parent):
        partial = target.with_name(f".{target.name}.{uuid4().hex[:8]}.partial")
        partial.mkdir()
    try:
        yield partial
        with storage_errors(target.parent):
            if target.exists():
                target.rename(target.with_name(f".{target.name}.{uuid4().hex[:8]}.partial"))
            partial.rename(target)
    finally:
        _remove_leftovers(target)


def short_hash(parts: Iterable[str]) -> str:
    """Return 16 hex digits of the SHA-256 of a text that comes in parts."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part.encode(errors="surrogateescape"))
    return digest.hexdigest()[:16]


@contextmanager
def storage_errors(folder: Path, needed_bytes: int | None = None) -> Iterator[None]:
    """Turn an OSError of the block into a DiskError that names the folder and cache_dir."""
    try:
        yield
    except OSError as error:
        raise disk_error(error, {"cache_dir": folder}, needed_bytes) from error


def _lock(target: Path) -> int:
    return os.open(target.with_name(f".{target.name}.lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)


def _try(lock: int) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _remove_leftovers(target: Path) -> None:
    """Remove the partial folders of `target`, which this process has locked, and of all targets that nobody builds."""
    for partial in target.parent.glob(".*.partial"):
        name = partial.name[1:].rsplit(".", 2)[0]
        if name == target.name:
            shutil.rmtree(partial, ignore_errors=True)
            continue
        lock = _lock(target.with_name(name))
        try:
            if _try(lock):
                shutil.rmtree(partial, ignore_errors=True)
        finally:
            os.close(lock)
