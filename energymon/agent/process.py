"""An agent as a child of this program: started, waited for, and ended with it however it ends."""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import json
import os
import platform
import select
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Final, Literal, Protocol, Self, cast
from weakref import WeakSet

from energymon.errors import NO_SENSOR, AgentError, SensorError

if TYPE_CHECKING:
    import subprocess

__all__ = ["AgentProcess", "shared_agent"]

_READY_S: Final = 30.0
_STOP_S: Final = 5.0
_MAX_IDLE_S: Final = 3600.0
_FOLDER: Final = "energymon-"
_LOCK: Final = "lock"
"""File in the folder, locked by whoever made it for as long as that process lives, in whatever container."""


class _ReadsFigures(Protocol):
    def settle(self) -> None:
        """Look up the figures while the store is there."""
        ...


class AgentProcess:
    """Runs `python -m energymon run` for as long as the context, or this process, lasts.

    The agent ends at the end of its stdin, so it does not outlive a process that is killed. A process that forks
    leaves it to the parent.
    """

    def __init__(
        self,
        store: Path | None = None,
        *,
        node: str | None = None,
        interval_ms: float = 100.0,
        estimate: Literal["off", "missing"] = "off",
        sensors: Sequence[str] | str = (),
        options: Sequence[str] = (),
    ) -> None:
        """Take where to (a temporary store, removed at the end), what and how often to sample.

        `sensors` are those that must be there (whichever are), `estimate` is "missing" to estimate, labelled so, what
        no sensor measures, and `options` are more of those of `energymon run`.
        """
        self._kept = store
        self._store: Path | None = None
        self.node = node or platform.node()
        self.owner = os.getpid()
        """Process id of the program whose agent this is: a fork has a copy of this object, but not the agent."""
        names = sensors if isinstance(sensors, str) else ",".join(sensors)
        # Joined by "=", so that a value may begin with a dash.
        self._options = [f"--node={self.node}", f"--interval-ms={float(interval_ms)!r}", f"--estimate={estimate}"]
        self._options += [f"--sensors={names or 'auto'}", *options]
        self._ready_s = _READY_S + _idle_s(options)
        self._windows: WeakSet[_ReadsFigures] = WeakSet()
        self._windows_lock = threading.Lock()
        self._folder: Path | None = None
        self._lock_fd: int | None = None
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def store(self) -> Path:
        """The store that it writes; raises AgentError when it was never started."""
        if self._store is None:
            raise AgentError("this agent was not started; use it in a `with` statement")
        return self._store

    @property
    def temporary(self) -> bool:
        """Whether its store is removed when it ends."""
        return self._kept is None

    @property
    def alive(self) -> bool:
        """Whether the process runs."""
        return self._process is not None and self._process.poll() is None

    @property
    def said(self) -> str:
        """What the agent has said on stderr."""
        if self._folder is None or not (log := self._folder / "agent.log").exists():
            return ""
        return log.read_text(errors="replace").strip()

    def start(self) -> None:
        """Start it and wait until its first tick is stored.

        Raises SensorError when there is nothing to sample, and AgentError when it does not start for another reason
        or was started already.
        """
        if self._folder is not None:
            raise AgentError("this agent was started already; stop it first, or make another one")
        import subprocess
        import tempfile

        _remove_what_the_dead_left(Path(tempfile.gettempdir()))
        self.owner = os.getpid()
        self._folder = Path(tempfile.mkdtemp(prefix=f"{_FOLDER}{self.owner}-"))
        self._lock_fd = _lock_folder(self._folder)
        self._store = self._kept or self._folder / "energy.sqlite"
        # -P: a module of the program's folder that has the name of one of Python's own is not for the agent.
        argv = [sys.executable, "-P", "-m", "energymon", "run", "--until-eof", f"--store={self._store}"]
        with (self._folder / "agent.log").open("wb") as log:
            self._process = subprocess.Popen(
                [*argv, *self._options],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=_environment(),
                # Ctrl-C is for the program, which may want its windows' joules afterwards.
                process_group=0,
            )
        _living.add(self)
        ready = self._first_line()
        if ready.get("ready") is not True:
            if "error" in ready:
                # It says why on stderr, and ends.
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self._process.wait(_STOP_S)
            late = f"not ready within {self._ready_s:g} s" if self.alive else ""
            said = self.said.removeprefix("energymon: ")
            self.remove()
            if ready.get("error") == NO_SENSOR:
                raise SensorError(f'{said}\nin a program: `with energymon.Agent(estimate="missing") as agent`')
            raise AgentError(f"the agent did not start: {': '.join(filter(None, (late, said))) or 'it said nothing'}")

    def flush(self) -> None:
        """Have it commit now what it has sampled, which takes up to two seconds otherwise."""
        process = self._process
        if process is not None and process.stdin is not None:
            # It may be gone, or be ended by another thread.
            with contextlib.suppress(OSError, ValueError):
                os.write(process.stdin.fileno(), b"\n")

    def stop(self) -> None:
        """End it in order, its last tick stored, and remove its temporary store; may be called twice.

        Windows that have ended by then have looked up their figures and keep them.
        """
        try:
            if self.temporary and self._folder is not None:
                with self._windows_lock:
                    windows = list(self._windows)
                for window in windows:
                    window.settle()
        finally:
            self.remove()

    def end(self) -> None:
        """End the process in order; what it stored stays."""
        process, self._process = self._process, None
        if process is not None:
            _end(process)

    def remove(self) -> None:
        """End it and remove its temporary store, without a look at the windows whose figures are there alone."""
        _living.discard(self)
        self.end()
        if self._folder is not None:
            import shutil

            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None
        self._unlock()

    def serve(self, window: _ReadsFigures) -> None:
        """Take note of a window whose figures are in this agent's store."""
        with self._windows_lock:
            self._windows.add(window)

    def forget(self) -> None:
        """Let go of a process that belongs to the parent of this one; called after a fork."""
        process, self._process, self._folder = self._process, None, None
        self._windows_lock = threading.Lock()
        # The parent has the lock still: it goes with the last descriptor of it.
        self._unlock()
        if process is not None and process.stdin is not None:
            process.stdin.close()
            _forgotten.append(process)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _unlock(self) -> None:
        lock_fd, self._lock_fd = self._lock_fd, None
        if lock_fd is not None:
            os.close(lock_fd)

    def _first_line(self) -> Mapping[str, object]:
        """Return what its first line says, empty if none comes in time; nothing reads what follows."""
        assert self._process is not None
        assert self._process.stdout is not None
        said = b""
        deadline = time.monotonic() + self._ready_s
        with self._process.stdout as stdout:
            while b"\n" not in said:
                left_s = max(0.0, deadline - time.monotonic())
                if not select.select([stdout], [], [], left_s)[0]:
                    return {}
                part = os.read(stdout.fileno(), 65_536)
                if not part:
                    self._process.wait(_STOP_S)
                    return {}
                said += part
        return cast(Mapping[str, object], json.loads(said.partition(b"\n")[0]))


_living: WeakSet[AgentProcess] = WeakSet()
_forgotten: list[subprocess.Popen[bytes]] = []
_lock = threading.Lock()
_shared: AgentProcess | None = None
_dead: list[AgentProcess] = []
"""Agents of this process that were found dead: their windows can still be read."""


def shared_agent() -> AgentProcess:
    """Return the agent of this process, which is started when it is first asked for and again when it has died.

    Raises SensorError and AgentError.
    """
    global _shared  # noqa: PLW0603 - one a process is the point
    with _lock:
        if _shared is None or not _shared.alive:
            fresh = AgentProcess()
            fresh.start()
            if _shared is None:
                atexit.register(_stop_shared)
            else:
                _shared.end()
                _dead.append(_shared)
            _shared = fresh
        return _shared


def _stop_shared() -> None:
    """At exit, after which nobody reads a window."""
    if _shared is not None:
        _shared.remove()
    while _dead:
        _dead.pop().remove()


def _after_fork() -> None:
    """In the child: agents are the parent's, and whoever held the lock is not here."""
    global _lock, _shared  # noqa: PLW0603
    _lock = threading.Lock()
    if _shared is not None:
        atexit.unregister(_stop_shared)
    _shared = None
    _dead.clear()
    for agent in list(_living):
        agent.forget()
    _living.clear()


os.register_at_fork(after_in_child=_after_fork)


def _end(process: subprocess.Popen[bytes]) -> None:
    from subprocess import TimeoutExpired

    if process.stdin is not None:
        process.stdin.close()
    try:
        process.wait(_STOP_S)
    except TimeoutExpired:
        process.kill()
        process.wait()


def _environment() -> dict[str, str]:
    """Return this environment, in which this very energymon is found."""
    here = str(Path(__file__).resolve().parents[2])
    there = [part for part in os.environ.get("PYTHONPATH", "").split(os.pathsep) if part]
    return {**os.environ, "PYTHONPATH": os.pathsep.join([*there, here])}


def _idle_s(options: Sequence[str]) -> float:
    """Return how long an agent with these options records its idle baseline before it is ready."""
    import argparse

    parser = argparse.ArgumentParser(add_help=False, exit_on_error=False)
    parser.add_argument("--idle-s", type=float, default=0.0)
    try:
        idle_s = float(parser.parse_known_args(list(options))[0].idle_s)
    except argparse.ArgumentError:
        # The agent refuses it, and says why.
        return 0.0
    return idle_s if 0 <= idle_s <= _MAX_IDLE_S else 0.0


def _lock_folder(folder: Path) -> int | None:
    """Lock a folder as one whose maker lives, until the descriptor is closed; None where files cannot be locked."""
    new = folder / f"{_LOCK}.new"
    lock_fd = os.open(new, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        fcntl.flock(lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # Renamed when it is locked: nobody finds it unlocked while its maker lives.
        new.rename(folder / _LOCK)
    except OSError:
        os.close(lock_fd)
        return None
    return lock_fd


def _remove_what_the_dead_left(folder: Path) -> None:
    """Remove the temporary stores of this user's processes that were killed."""
    import shutil

    for left in folder.glob(f"{_FOLDER}*-*"):
        with contextlib.suppress(OSError):
            if left.lstat().st_uid != os.getuid():
                continue
            lock_fd = os.open(left / _LOCK, os.O_RDWR | os.O_NOFOLLOW)
            try:
                # Held by its maker, who may be in another container and have any process id here.
                fcntl.flock(lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(left, ignore_errors=True)
            finally:
                os.close(lock_fd)
