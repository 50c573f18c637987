"""The agent: a process that samples this host into a store until it is told to stop."""

from __future__ import annotations

import contextlib
import json
import os
import platform
import resource
import select
import signal
import sys
import threading
import traceback
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from energymon.clock import NS, Clock
from energymon.errors import ConfigError, SensorError
from energymon.monitor import Monitor
from energymon.priority import raise_priority
from energymon.reading import Event
from energymon.sensors.discover import Found, SensorConfig, discover
from energymon.stores.sqlite import SqliteStore
from energymon.writer import Writer

__all__ = ["AgentConfig", "run"]

_MIN_INTERVAL_MS: Final = 1
_MAX_INTERVAL_MS: Final = 10_000
_SWITCH_INTERVAL_S: Final = 0.0005
"""How long the writer may keep a sampler from the interpreter."""
_FAILED: Final = 70


@dataclass(frozen=True, slots=True)
class AgentConfig:
    """What an agent samples, how often, and where to."""

    store: Path
    node: str
    interval_ms: float = 100.0
    until_eof: bool = False
    """Whether the end of stdin, the death of whoever started the agent, stops it."""
    sensors: SensorConfig = field(default_factory=SensorConfig)

    def __post_init__(self) -> None:
        if not _MIN_INTERVAL_MS <= self.interval_ms <= _MAX_INTERVAL_MS:
            raise ConfigError(f"--interval-ms {self.interval_ms}: expected {_MIN_INTERVAL_MS} to {_MAX_INTERVAL_MS} ms")
        if not self.node or not self.node.isprintable():
            raise ConfigError(f"--node {self.node!r}: expected a name of printable characters")

    @property
    def interval_ns(self) -> int:
        """The interval in ns."""
        return round(self.interval_ms * 1e6)


class _Signals:
    """Turns SIGTERM, SIGINT and calls from other threads into something that `select` waits for."""

    def __init__(self) -> None:
        self.fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self.stop = False
        self.stored = threading.Event()
        self.failure: BaseException | None = None
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)

    def wake(self) -> None:
        os.eventfd_write(self.fd, 1)

    def on_stored(self) -> None:
        if not self.stored.is_set():
            self.stored.set()
            self.wake()

    def on_failure(self, error: BaseException) -> None:
        self.failure = error
        self.wake()

    def _on_signal(self, number: int, frame: object) -> None:
        self.stop = True
        self.wake()


def run(config: AgentConfig) -> int:
    """Sample until SIGTERM, SIGINT or, if asked for, the end of stdin; return the exit status.

    Prints one line of JSON when the first tick is stored. Raises ConfigError, SensorError and StoreError
    before that, and StoreError at the end when readings could not be stored.
    """
    signals = _Signals()
    found = discover(config.sensors, config.interval_ns)
    try:
        if not found.sensors:
            told = "".join(f"\n  {gap}" for gap in found.missing)
            raise SensorError(
                f"nothing on this host measures energy:{told}\n"
                "`--estimate missing` samples a labelled estimate of CPU energy instead"
            )
        with SqliteStore.create(config.store) as store:
            return _sample(config, found, store, signals)
    finally:
        found.close()


def _sample(config: AgentConfig, found: Found, store: SqliteStore, signals: _Signals) -> int:
    sys.setswitchinterval(_SWITCH_INTERVAL_S)
    clock = Clock()
    writer = Writer(
        store,
        config.node,
        on_stored=signals.on_stored,
        on_failure=signals.on_failure,
        tell=_tell,
    )
    monitor = Monitor(found.sensors, config.interval_ns, writer.put, signals.on_failure, clock)
    for gap in found.missing:
        _say(f"missing: {gap}")
    # The writer starts first: it waits for the disk, and has no use for the samplers' priority.
    writer.start()
    priority = raise_priority()
    description = {
        "sensors": [sensor.describe() for sensor in found.sensors],
        "missing": [str(gap) for gap in found.missing],
        "priority": priority,
        "host": platform.node(),
        "kernel": platform.release(),
        "pid": os.getpid(),
    }
    session = store.begin_session(config.node, clock.utc_ns(), config.interval_ns, description)
    monitor.start()
    ready = {"ready": True, "node": config.node, "interval_ms": config.interval_ms, **description}
    _wait(signals, json.dumps(ready), until_eof=config.until_eof)
    monitor.stop()
    writer.stop()
    if signals.failure is not None:
        traceback.print_exception(signals.failure)
        return _FAILED
    usage = resource.getrusage(resource.RUSAGE_SELF)
    store.end_session(session, clock.utc_ns(), usage.ru_utime + usage.ru_stime)
    return 0


def _wait(signals: _Signals, ready: str, *, until_eof: bool) -> None:
    """Wait for a reason to stop, and say once that the first tick is stored."""
    poll = select.poll()
    poll.register(signals.fd, select.POLLIN)
    if until_eof:
        poll.register(0, select.POLLIN)
    said = False
    while True:
        for fd, _ in poll.poll():
            if fd == signals.fd:
                os.eventfd_read(fd)
            elif not os.read(fd, 4096):
                return
        if signals.stop or signals.failure is not None:
            return
        if signals.stored.is_set() and not said:
            said = True
            try:
                print(ready, flush=True)
            except BrokenPipeError:
                # Whoever asked is gone, and does not read the answer; stdin or a signal tells when to stop.
                sys.stdout = None


def _tell(event: Event) -> None:
    _say(f"{event.t_ns / NS:.3f} {event.node} {event.kind}: {event.message}")


def _say(message: str) -> None:
    # Sampling goes on when nobody is left to read this; what matters is in the store as an event too.
    with contextlib.suppress(OSError):
        print(f"energymon: {message}", file=sys.stderr, flush=True)
