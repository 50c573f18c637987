"""Making the page cache forget a directory tree, so that the next read comes from its source."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Literal

__all__ = ["DROP_CACHES", "can_drop_all", "drop_caches"]

DROP_CACHES = Path("/proc/sys/vm/drop_caches")
PAGES_AND_INODES = "3"  # Linux Documentation/admin-guide/sysctl/vm.rst


def drop_caches(root: Path) -> Literal["vm.drop_caches", "fadvise"]:
    """Forget the cached pages of every file under `root`, and of all others where the kernel permits that.

    Returns:
        How it was done: by `vm.drop_caches`, which also forgets directories and attributes, or by advising each
        file's pages away, which leaves those.

    Raises:
        OSError: a directory or file under `root` cannot be read.
    """
    # Only clean pages can be dropped.
    os.sync()
    try:
        DROP_CACHES.write_text(PAGES_AND_INODES)
    except OSError:
        # Inside a user namespace or a container even root may not.
        _advise_away(root)
        return "fadvise"
    return "vm.drop_caches"


def can_drop_all() -> bool:
    """Say whether this process may write `vm.drop_caches`."""
    return os.access(DROP_CACHES, os.W_OK)


def _advise_away(root: Path) -> None:
    for folder, _, names in os.walk(root, onerror=_raise):
        directory = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            for name in names:
                _forget(name, directory)
        finally:
            os.close(directory)


def _forget(name: str, directory: int) -> None:
    try:
        # Opening a pipe or a device must not wait for its other side.
        descriptor = os.open(name, os.O_RDONLY | os.O_NONBLOCK, dir_fd=directory)
    except FileNotFoundError:
        # A dangling link caches nothing.
        return
    try:
        if stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(descriptor)


def _raise(error: OSError) -> None:
    raise error
