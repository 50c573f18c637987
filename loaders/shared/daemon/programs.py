"""What the server program of a daemon needs: the program itself, and a folder of its own to serve."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Final

import loaders
from joulefeed.child import Child

_MAKE_S: Final = 1800.0
_LOCK_S: Final = 30.0
"""Time for another process to make its folder."""
_LOOK_S: Final = 0.05


def ask_playbook(name: str) -> Path | None:
    """Return the path that playbooks/NAME.sh prints; None where it fails or takes more than half an hour.

    Its messages go to standard error.
    """
    root = Path(loaders.__file__).parents[1]
    # In an installed package the scripts are below harness.
    places = (root / "playbooks" / f"{name}.sh", root / "harness" / "playbooks" / f"{name}.sh")
    script = next(path for path in places if path.exists())
    with Child([str(script)], stdin=subprocess.DEVNULL, group_killed_with_parent=True) as child:
        found = child.finish(_MAKE_S)
        return None if found is None or child.process.returncode else Path(found.decode().strip())


@contextmanager
def served_folder(root: Path) -> Iterator[Path]:
    """Yield a new folder beside `root`, or where temporary files lie if that cannot be written.

    This process holds it, and it is removed at the end. Those beside `root` that no process holds, because it was
    killed, are removed now. Raises OSError where there is no room, or where another process keeps the lock.
    """
    beside = f".{root.name}-served-"
    with ExitStack() as held:
        with _locked(root, _LOCK_S):  # so that no other process takes a new folder for one that nobody holds
            for left in root.parent.glob(f"{beside}*"):
                with suppress(OSError), _locked(left):
                    shutil.rmtree(left, ignore_errors=True)
            try:
                folder = Path(tempfile.mkdtemp(prefix=beside, dir=root.parent))
            except OSError:  # a folder of somebody else
                folder = Path(tempfile.mkdtemp(prefix=f"joulefeed{beside}"))
            held.callback(shutil.rmtree, folder, ignore_errors=True)
            held.enter_context(_locked(folder, _LOCK_S))
        yield folder


def link_file(source: str, target: str) -> str:
    """Make a hard link, or a copy where the file system has none; returns `target`, as shutil.copytree asks."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)
    return target


@contextmanager
def _locked(folder: Path, wait_s: float = 0.0) -> Iterator[None]:
    """Hold the lock of a folder, which ends with the process; raises BlockingIOError where another one keeps it."""
    descriptor, deadline = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC), time.monotonic() + wait_s
    try:
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError as error:
                if time.monotonic() >= deadline:
                    raise BlockingIOError(error.errno, "another process keeps its lock", str(folder)) from None
            time.sleep(_LOOK_S)
        yield
    finally:
        os.close(descriptor)
