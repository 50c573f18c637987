"""An agent as a child of this program: started, started again when it dies, and ended with the program."""

from __future__ import annotations

import atexit
import contextlib
import os
import platform
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, Self, cast
from weakref import WeakSet

from energymon.analysis.attribution import series_of
from energymon.analysis.restarts import bridged
from energymon.clock.monotonic import NS, boot_ns
from energymon.errors import AgentError, EnergyError, NoSensorError
from energymon.reading import WALL_MARGIN_S, EpochMark, Event, Reading, Session
from energymon.store import SqliteStore, add_epochs

if TYPE_CHECKING:
    from energymon.agent.window import Window
    from joulefeed.child import Child

_READY_S: Final = 120.0
_STOP_S: Final = 5.0
_SEND_S: Final = 20.0
"""What an agent that sends its readings to a server may take longer; it gives its sender 15 s."""
_QUICK_S: Final = 5.0
_MAX_QUICK: Final = 3
"""An agent that dies so often within `_QUICK_S` of its start is not started again."""
_COMMIT_S: Final = 3.0
"""How long, beside two intervals, a store may take to have all readings: an agent commits every two seconds unless
it is asked to."""
_POLL_S: Final = 0.02
_MAX_POLL_S: Final = 0.25


class Agent:
    """Runs `python -m energymon run` while the context, or this process, lasts.

    The agent ends at the end of its stdin, so it does not outlive a process that is killed. A process that forks leaves
    it to the parent.
    """

    def __init__(
        self,
        store: Path | None = None,
        *,
        node: str | None = None,
        interval_ms: float = 100.0,
        estimate: Literal["off", "missing"] = "off",
        sensors: Sequence[str] | str = (),
        idle_s: float = 0.0,
        wall: Sequence[str] | str = (),
        options: Sequence[str] = (),
        log: Path | None = None,
        environment: Mapping[str, str] | None = None,
        on_restart: Callable[[str], None] | None = None,
    ) -> None:
        """Take what to sample and where to; nothing starts yet.

        Args:
            store: File that the agent writes; default a temporary one, removed at the end.
            node: Name of this host in the readings; default the host name.
            interval_ms: Time between two ticks, 1 to 10,000 ms; default 100.
            estimate: "missing" to estimate, labelled so, the CPU energy that no sensor measures; default "off".
            sensors: Names of those that must be there; default all that are there.
            idle_s: How long the host's idle baseline is recorded at the start, s; default 0, which records none.
            wall: Meters of the whole machine, as `energymon run --wall` takes them; default none.
            options: More options of `energymon run`; default none.
            log: File to which the agent's stderr is appended; default a temporary one.
            environment: Environment of the agent; default this process's.
            on_restart: Called with one line after each death of the agent, which is started again at once; default: it
                is not. The hardware's counters have the joules that were used meanwhile.
        """
        self.temporary = store is None
        """Whether its store is removed when it ends."""
        self._store = store
        self.node = node or platform.node()
        self.owner = os.getpid()
        """Process id of the program whose agent this is: a fork has a copy of this object, but not the agent."""
        self.interval_ms, self._idle_s = float(interval_ms), float(idle_s)
        names = sensors if isinstance(sensors, str) else ",".join(sensors)
        # Joined by "=", so that a value may begin with a dash.
        self.options = [f"--node={self.node}", f"--interval-ms={self.interval_ms!r}", f"--estimate={estimate}"]
        meters = [wall] if isinstance(wall, str) else wall
        self.options += [f"--sensors={names or 'auto'}", *(f"--wall={meter}" for meter in meters), *options]
        self.sends = any(option.startswith("--influxdb-url") for option in self.options)
        """Whether it sends its readings to a server."""
        self._log, self._environment, self._on_restart = log, environment, on_restart
        self._windows: WeakSet[Window] = WeakSet()
        # The second is held while the process is started or ended.
        self._windows_lock, self._changing = threading.Lock(), threading.Lock()
        self._folder: Path | None = None
        self._child: Child | None = None
        self._watcher: threading.Thread | None = None
        self._restarts: list[Event] = []
        self.failure: EnergyError | None = None
        """Why the agent could not be started again after it had died."""
        self.description: Mapping[str, object] = {}
        """What the agent says of itself when it is ready: sensors, what cannot be read, clock; empty until then."""

    @property
    def store(self) -> Path:
        """The store that it writes; raises AgentError for an agent that was never started."""
        if self._store is None:
            raise AgentError("this agent was not started; use it in a `with` statement")
        return self._store

    @property
    def pid(self) -> int | None:
        """The agent's process id while it runs."""
        child = self._child
        return child.pid if child is not None and child.is_alive else None

    @property
    def is_gone(self) -> bool:
        """Whether it has ended for good; of another process's agent nothing is known."""
        if self.owner != os.getpid() or self.pid is not None:
            return False
        return self._watcher is None or self.failure is not None

    @property
    def stderr_text(self) -> str:
        """What the agent has written on stderr."""
        log = self._log or (self._folder / "agent.log" if self._folder is not None else None)
        return log.read_text(errors="replace").strip() if log is not None and log.exists() else ""

    @property
    def sensors(self) -> list[dict[str, object]]:
        """What each sensor says of itself; empty when the agent was never ready."""
        return cast(list[dict[str, object]], self.description.get("sensors", []))

    @property
    def series(self) -> list[dict[str, object]]:
        """Every series that is sampled, as `energymon.series_of` gives it."""
        return series_of(self.sensors)

    @property
    def unreadable(self) -> list[Mapping[str, str]]:
        """Device, domain and reason of each part of the host that was found and cannot be read."""
        return cast(list[Mapping[str, str]], self.description.get("unreadable", []))

    @property
    def offset_ns(self) -> int:
        """The clock of the readings, which nobody sets, minus the monotonic clock, ns."""
        return cast(int, self.description.get("boot_offset_ns", 0)) + boot_ns() - time.monotonic_ns()

    def start(self) -> None:
        """Start it and wait until its first tick is stored.

        Raises NoSensorError where there is nothing to sample, and AgentError where it does not start for another reason
        or was started already.
        """
        if self._child is not None or self._folder is not None:
            raise AgentError("this agent was started already; stop it first, or make another one")
        self.owner = os.getpid()
        self.failure = None
        if self.temporary or self._log is None:
            self._folder = Path(tempfile.mkdtemp(prefix="energymon-"))
        if self.temporary and self._folder is not None:
            self._store = self._folder / "energy.sqlite"
        _living.add(self)
        try:
            with self._changing:
                self._launch(self._idle_s)
        except EnergyError:
            self.remove()
            raise
        if self._on_restart is not None:
            args = (self._on_restart,)
            self._watcher = threading.Thread(target=self._watch, args=args, name="energy agent", daemon=True)
            self._watcher.start()

    def flush(self) -> None:
        """Have it commit now what it has sampled, which takes up to two seconds otherwise."""
        child = self._child
        if child is not None:
            # It may be gone, or be ended by another thread.
            with contextlib.suppress(OSError, ValueError):
                os.write(child.input_fd, b"\n")

    def readings(self, start_ns: int, end_ns: int) -> list[Reading]:
        """Return the readings around a span, ns of their clock, once the store has a reading past its end.

        It waits for that no longer than `wait_until_read` does. An agent that never was ready has none. The joules of
        an agent that was started again go on from those of the agent before it. Raises StoreError.
        """
        if not self.description:
            return []
        with self._changing:
            # An agent that is being started again has the readings after the gap.
            pass
        wall_s = WALL_MARGIN_S if any(one["domain"] == "wall" for one in self.series) else 0.0
        margin_ns = round(max(3 * self.interval_ms / 1e3, wall_s) * NS)
        with SqliteStore.open(self.store) as store:
            sessions = store.sessions()
            wait_until_read(store, sessions[-1], end_ns, boot_ns(), self)
            return bridged(store.readings(start_ns - margin_ns, end_ns + margin_ns), store.counters(), sessions)

    def mark_epochs(self, epochs: Iterable[EpochMark]) -> None:
        """Have epochs sent with the readings, if there are readings and they are sent; raises StoreError."""
        if self.description and self.sends:
            add_epochs(self.store, epochs)

    def events(self, start_ns: int, end_ns: int) -> list[Event]:
        """Return the events in [start, end), ns of the readings' clock, the agent's deaths among them, by time.

        Raises StoreError.
        """
        if not self.description:
            return []
        with SqliteStore.open(self.store) as store:
            stored = store.events(start_ns, end_ns)
        restarts = [event for event in self._restarts if start_ns <= event.t_ns < end_ns]
        return sorted(stored + restarts, key=lambda event: event.t_ns)

    def stop(self) -> None:
        """End it with its last tick stored, and remove its temporary store; may be called twice.

        Windows that have ended look up their figures first, and keep them.
        """
        try:
            if self.temporary and self._folder is not None:
                with self._windows_lock:
                    windows = list(self._windows)
                for window in windows:
                    window.settle()
        finally:
            self.remove()

    def remove(self) -> None:
        """End it and remove its temporary store, without a look at the windows whose figures are there alone."""
        _living.discard(self)
        with self._changing:
            child, self._child = self._child, None
            if child is not None:
                # A sender that it left behind is in its group.
                child.stop(eof_s=_STOP_S + _SEND_S if self.sends else _STOP_S, term_s=0)
        if self._watcher is not None:
            self._watcher.join()
            self._watcher = None
        folder, self._folder = self._folder, None
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)

    def restart_if_failed(self) -> bool:
        """Start the agent again where it died and could not be started; return whether that was so.

        Raises as `start` does.
        """
        if self.failure is None:
            return False
        self.stop()
        self.start()
        return True

    def await_restart(self) -> None:
        """Wait while an agent that has died is started again; returns where it has ended for good too."""
        while not self.is_gone:
            with self._changing:
                # Held until a new process is ready.
                if self.pid is not None:
                    return
            time.sleep(_POLL_S)

    def serve(self, window: Window) -> None:
        """Keep a window whose figures are in this agent's store, to be settled before the store is removed."""
        with self._windows_lock:
            self._windows.add(window)

    def forget(self) -> None:
        """Let go of a process that belongs to the parent of this one; called after a fork."""
        child, self._child, self._folder = self._child, None, None
        self._windows_lock, self._changing, self._watcher = threading.Lock(), threading.Lock(), None
        if child is not None:
            child.hang_up()
            _forgotten.append(child)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _launch(self, idle_s: float) -> None:
        """Start the process, and wait until it is ready; raises as `start` does, and ends the process then."""
        from joulefeed.child import Child, ChildError

        # -P: a module of the program's folder that has the name of one of Python's own is not for the agent.
        argv = [sys.executable, "-P", "-m", "energymon", "run", "--until-eof", f"--store={self._store}"]
        argv += [*self.options, f"--idle-s={idle_s!r}"]
        log = self._log
        if self._folder is not None:
            argv.append(f"--remove-at-eof={self._folder}")
            log = log or self._folder / "agent.log"
        environment = dict(os.environ if self._environment is None else self._environment)
        # In this environment the child finds this very energymon.
        paths = [*environment.get("PYTHONPATH", "").split(os.pathsep), str(Path(__file__).resolve().parents[2])]
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
        child = self._child = Child(argv, env=environment, stderr=log)
        try:
            ready = child.ready(_READY_S + idle_s)
        except ChildError as error:
            ready = {"message": f"it {error}"}
        if ready.get("ready") is True:
            self.description = ready
            return
        self._child = None
        child.stop(eof_s=_STOP_S, term_s=0)
        message = str(ready.get("message") or self.stderr_text.rpartition("\n")[2])
        if ready.get("error") == NoSensorError.code:
            raise NoSensorError(f'{message}\nin a program: `with energymon.Agent(estimate="missing") as agent`')
        raise AgentError(f"the agent did not start: {message or 'it wrote nothing'}")

    def _watch(self, on_restart: Callable[[str], None]) -> None:
        """Start the agent again whenever it has died, until it is ended."""
        quick = 0
        while (child := self._child) is not None:
            since_s = time.monotonic()
            child.process.wait()
            with self._changing:
                if self._child is not child:
                    return
                quick = quick + 1 if time.monotonic() - since_s < _QUICK_S else 0
                message = self._restart(child, quick)
            on_restart(message)

    def _restart(self, child: Child, quick: int) -> str:
        """Start the agent again unless it died too often; return what has happened."""
        died_ns = time.monotonic_ns() + self.offset_ns
        message = f"the energy agent, process {child.pid}, died (status {child.stop(eof_s=0, term_s=0)})"
        self._child = None
        try:
            if quick >= _MAX_QUICK:
                log = f" (log: {self._log})" if self._log is not None else ""
                raise AgentError(f"it died {quick} times within {_QUICK_S:g} s{log}")
            # The host is at work now: what it draws is no baseline.
            self._launch(0.0)
        except EnergyError as error:
            self.failure = error
            self._restarts.append(Event(died_ns, self.node, "agent-died", message))
            return f"{message}: {error}"
        message += "; it was started again"
        now_ns = time.monotonic_ns() + self.offset_ns
        back = f"the energy agent samples again, after {(now_ns - died_ns) / NS:.3f} s"
        self._restarts.append(Event(died_ns, self.node, "agent-died", message))
        self._restarts.append(Event(now_ns, self.node, "agent-back", back))
        return message


def shared_agent() -> Agent:
    """Return the agent of this process, which is started when it is first asked for and again when it has died.

    Raises as `Agent.start` does.
    """
    global _shared  # noqa: PLW0603 - one a process is the point
    with _sharing:
        if _shared is not None:
            _shared.await_restart()
        if _shared is None or _shared.is_gone:
            fresh = Agent(on_restart=lambda message: None)
            fresh.start()
            if _shared is not None:
                _shared.stop()
            # At exit nobody reads a window any more.
            atexit.register(fresh.remove)
            _shared = fresh
        return _shared


def wait_until_read(store: SqliteStore, session: Session, end_ns: int, since_ns: int, agent: Agent | None) -> None:
    """Wait until every series has a reading past the end of a window, `end_ns` of the readings' clock.

    It waits for two intervals, two periods of the slowest meter at the wall and three seconds at most, from `since_ns`
    of `boot_ns` on, and not for an agent that has ended. Raises StoreError.
    """
    interval_s = session.interval_ns / NS
    sensors = cast(Sequence[Mapping[str, float]], session.description.get("sensors", ()))
    period_s = max((sensor.get("period_s", 0.0) for sensor in sensors), default=0.0)
    longest_ns = round((2 * (interval_s + period_s) + _COMMIT_S) * NS)
    while True:
        if agent is not None:
            agent.flush()
        last: dict[tuple[str, str, str], int] = {}
        # The nearest ones of a counter that stood still for long show joules of before the end.
        for r in store.readings(end_ns, end_ns + longest_ns, session.node):
            if r.t_ns >= session.start_ns:
                key = (r.device, r.domain, r.source)
                # A value that is shown after the end may be from before it, and of a meter at the wall always is.
                last[key] = max(last.get(key, 0), r.t_ns - (0 if r.domain == "wall" else r.early_ns or 0))
        if last and min(last.values()) >= end_ns:
            return
        gone = session.end_ns is not None or (agent is not None and agent.is_gone)
        if gone or boot_ns() >= since_ns + longest_ns:
            return
        time.sleep(min(max(interval_s / 2, _POLL_S), _MAX_POLL_S))


_living: WeakSet[Agent] = WeakSet()
_forgotten: list[Child] = []
_shared: Agent | None = None
_sharing = threading.Lock()


def _after_fork() -> None:
    """In the child: agents are the parent's, and the thread that held a lock is not here."""
    global _shared, _sharing
    for agent in list(_living):
        agent.forget()
    _living.clear()
    if _shared is not None:
        atexit.unregister(_shared.remove)
    _shared, _sharing = None, threading.Lock()


os.register_at_fork(after_in_child=_after_fork)
