"""Makes the page cache forget a directory tree, so that the next read comes from the disk or the link.

`python -m harness.testbed.caches all|tree FOLDER...` does so for those that are there, and prints how.
"""

from __future__ import annotations

import os
import stat
import sys
from pathlib import Path
from typing import Literal, cast

Caches = Literal["all", "tree"]
"""The pages that the kernel forgets before an epoch: all that it caches, or those of the files that the epoch reads."""

DROP_CACHES = Path("/proc/sys/vm/drop_caches")
PAGES_AND_INODES = "3"  # Linux Documentation/admin-guide/sysctl/vm.rst


def drop_caches(root: Path, caches: Caches = "all") -> Literal["vm.drop_caches", "fadvise"]:
    """Forget the cached pages of every file under `root`, and with "all" of all others where the kernel permits that.

    Returns:
        How it was done: by `vm.drop_caches`, which also forgets directories and attributes, or by advising each
        file's pages away, which leaves those.

    Raises:
        OSError: a directory or file under `root` cannot be read.
    """
    # Only clean pages can be dropped.
    os.sync()
    if caches == "all":
        try:
            DROP_CACHES.write_text(PAGES_AND_INODES)
        except OSError:
            pass  # inside a user namespace or a container even root may not
        else:
            return "vm.drop_caches"
    _advise_away(root)
    return "fadvise"


def how_dropped(caches: Caches = "all") -> Literal["vm.drop_caches", "fadvise"]:
    """Return the way that `drop_caches` goes: vm.drop_caches with "all" and where this process may write it."""
    return "vm.drop_caches" if caches == "all" and os.access(DROP_CACHES, os.W_OK) else "fadvise"


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


if __name__ == "__main__":
    for tree in map(Path, sys.argv[2:]):
        if tree.is_dir():
            print(drop_caches(tree, cast(Caches, sys.argv[1])))
