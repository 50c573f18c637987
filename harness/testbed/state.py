"""Which runs have a testbed on this machine, and whether their owners live.

A run's state is one file that its owner keeps locked. Every name that the run gives to a namespace, a mount or a
file derives from its id, so the file, written first and removed last, is the record of all of them.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import stat
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from harness.errors import TestbedError

NAMESPACES = Path("/run/netns")
"""Where `ip netns` keeps the namespaces that have a name."""
RUN_ID = re.compile(r"[A-Za-z0-9]{1,32}")
SUFFIX = ".run"


@dataclass(frozen=True, slots=True)
class RunNames:
    """The names that a run gives."""

    run_id: str
    root: Path
    """Directory of all runs' states."""

    @property
    def state_file(self) -> Path:
        """The file that the owner keeps locked."""
        return self.root / f"{self.run_id}{SUFFIX}"

    @property
    def folder(self) -> Path:
        """Directory of the run's keys, sockets and mount points; only its user may look into it."""
        return self.root / self.run_id

    def namespace(self, role: str) -> str:
        """Return the network namespace of a node, as `ip netns` names it."""
        return f"jf-{self.run_id}-{role}"

    @property
    def namespace_paths(self) -> tuple[Path, ...]:
        """The files of the run's network namespaces, whether they exist or not."""
        return tuple(NAMESPACES / self.namespace(role) for role in ("storage", "compute"))


class RunState:
    """A run's state, locked by this process until it is released or the process dies."""

    def __init__(self, names: RunNames, descriptor: int) -> None:
        self.names = names
        self._descriptor: int | None = descriptor

    @classmethod
    def create(cls, run_id: str) -> RunState:
        """Register a run whose owner is this process.

        Raises TestbedError when the id is not 1 to 32 letters and digits, is in use, or the state cannot be written.
        """
        if not RUN_ID.fullmatch(run_id):
            raise TestbedError(f"run id {run_id!r}: expected 1 to 32 letters and digits")
        names = RunNames(run_id, state_root())
        taken = TestbedError(
            f"run id {run_id} is in use ({names.state_file}); `python -m harness.testbed clean` removes dead runs"
        )
        while True:
            try:
                descriptor = os.open(names.state_file, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            except FileExistsError:
                raise taken from None
            except OSError as error:
                raise TestbedError(f"{names.state_file}: {error.strerror}; the run's state must be written") from error
            state = cls(names, descriptor)
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            # A clean-up between creating and locking takes the file for a dead run's.
            if state._is_current():
                break
            state.release()
        started = datetime.now(UTC).isoformat(timespec="milliseconds")
        os.write(descriptor, json.dumps({"run_id": run_id, "pid": os.getpid(), "started_utc": started}).encode())
        names.folder.mkdir(mode=0o700)
        return state

    @classmethod
    def take_over(cls, names: RunNames, *, wait: bool) -> RunState | None:
        """Lock the state of a run whose owner is gone; None when it lives (unless `wait`) or is removed already."""
        try:
            descriptor = os.open(names.state_file, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        state = cls(names, descriptor)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            state.release()
            return None
        if not state._is_current():
            state.release()
            return None
        return state

    def forget(self) -> None:
        """Remove the record, once everything that it stands for is gone; then release it."""
        self.names.state_file.unlink(missing_ok=True)
        self.release()

    def release(self) -> None:
        """Unlock, so that a clean-up takes the run for dead; releasing twice is harmless."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _is_current(self) -> bool:
        assert self._descriptor is not None
        own = os.fstat(self._descriptor)
        try:
            named = self.names.state_file.stat()
        except FileNotFoundError:
            return False
        return (own.st_dev, own.st_ino) == (named.st_dev, named.st_ino)


def abandoned_runs() -> Iterator[RunState]:
    """Yield the state of each run whose owner is dead, locked; the receiver forgets or releases it."""
    root = state_root()
    for state_file in sorted(root.glob(f"*{SUFFIX}")):
        names = RunNames(state_file.stem, root)
        if RUN_ID.fullmatch(names.run_id) and (state := RunState.take_over(names, wait=False)):
            yield state


def living_runs() -> set[str]:
    """Return the ids of this user's runs whose owners live."""
    found = set()
    for state_file in state_root().glob(f"*{SUFFIX}"):
        try:
            descriptor = os.open(state_file, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            continue
        try:
            # Shared, so that it is in nobody's way: only a living owner's lock excludes it.
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            found.add(state_file.stem)
        finally:
            os.close(descriptor)
    return found


def state_root() -> Path:
    """Return the directory of all states, made if need be: private to this user, and gone after a reboot.

    Raises TestbedError when it cannot be made, or belongs to someone else.
    """
    if os.geteuid() == 0:
        root = Path("/run/joulefeed")
    elif runtime := os.environ.get("XDG_RUNTIME_DIR"):
        root = Path(runtime) / "joulefeed"
    else:
        root = Path(tempfile.gettempdir()) / f"joulefeed-{os.geteuid()}"
    try:
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise TestbedError(f"{root}: {error.strerror}; the states of runs are kept there") from error
    status = root.lstat()
    # In a shared temporary directory someone else could have made it first.
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o022:
        raise TestbedError(f"{root}: expected a directory that belongs to this user alone; remove it")
    return root
