"""Makes the page cache forget a directory tree, so that the next read comes from the disk or the link.

`python -m harness.testbed.caches all|tree FOLDER...` does so for those that are there, and prints how.
"""

from __future__ import annotations

import ctypes
import os
import stat
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final, Literal, cast

Caches = Literal["all", "tree"]
"""The pages that the kernel forgets before an epoch: all that it caches, or those of the files that the epoch reads."""

DROP_CACHES = Path("/proc/sys/vm/drop_caches")
PAGES_AND_INODES = "3"  # Linux Documentation/admin-guide/sysctl/vm.rst
DROPPED: Final = "vm.drop_caches"
"""How caches were dropped where nothing of them stays."""
MAPPED_STAY: Final = "mapped pages stay"
"""Ends how caches were dropped where processes keep pages of the files."""
_PROCESS_MADVISE: Final = 440  # process_madvise(2), since Linux 5.10; the same number on every architecture
_PAGEOUT: Final = 21  # MADV_PAGEOUT of madvise(2)
_libc = ctypes.CDLL(None, use_errno=True)


class _IoVec(ctypes.Structure):
    """struct iovec."""

    _fields_ = (("base", ctypes.c_void_p), ("nbytes", ctypes.c_size_t))


def drop_caches(root: Path, caches: Caches = "all", mounted: Sequence[Path] = ()) -> str:
    """Forget the cached pages of every file under `root`, and with "all" of all others where the kernel permits that.

    The kernel keeps pages that a process maps, such as a daemon those of its shards, so these are paged out before:
    they would save one loader the reads that another has to repeat.

    Args:
        root: folder of the files.
        caches: which pages are forgotten; default: all.
        mounted: folders at which processes map the same files; default: none.

    Returns:
        How it was done: by `vm.drop_caches`, which also forgets directories and attributes, or `fadvise`, by advising
        each file's pages away, which leaves those. With `MAPPED_STAY` where mapped pages could not be paged out.

    Raises OSError when a directory or file under `root` cannot be read.
    """
    # Only clean pages can be dropped.
    os.sync()
    stay = "" if _page_out([root, *mounted]) else f", {MAPPED_STAY}"
    if caches == "all":
        try:
            DROP_CACHES.write_text(PAGES_AND_INODES)
        except OSError:
            pass  # inside a user namespace or a container even root may not
        else:
            return f"{DROPPED}{stay}"
    _advise_away(root)
    return f"fadvise{stay}"


def _page_out(roots: Iterable[Path]) -> bool:
    """Page out what processes map of files under `roots`; returns whether all of it could be."""
    prefixes = [f" {root.resolve()}/".encode() for root in roots]
    done = True
    for process in Path("/proc").glob("[0-9]*"):
        try:
            maps = (process / "maps").read_bytes()
        except OSError:
            continue  # it ended, or it is another user's, who may not read the files either
        if not any(prefix in maps for prefix in prefixes):
            continue
        spans = [
            tuple(int(edge, 16) for edge in line.split(b" ", 1)[0].split(b"-"))
            for line in maps.splitlines()
            if any(prefix in line for prefix in prefixes)
        ]
        done &= _advise_process(int(process.name), spans)
    return done


def _advise_process(pid: int, spans: Sequence[tuple[int, ...]]) -> bool:
    try:
        descriptor = os.pidfd_open(pid)
    except OSError:
        return True  # it ended
    try:
        for start, end in spans:
            span = _IoVec(start, end - start)
            # It advises 2 GiB at most at once.
            while span.nbytes:
                advised = _libc.syscall(
                    _PROCESS_MADVISE, descriptor, ctypes.byref(span), ctypes.c_size_t(1), _PAGEOUT, 0
                )
                if advised <= 0:
                    return False
                span.base, span.nbytes = span.base + advised, span.nbytes - advised
    finally:
        os.close(descriptor)
    return True


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
