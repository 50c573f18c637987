"""The agent: a process that samples this host into a store until it is stopped."""

from __future__ import annotations

import contextlib
import gc
import json
import os
import platform
import resource
import selectors
import shutil
import signal
import sys
import threading
import time
import traceback
from asyncio import AbstractEventLoop, SelectorEventLoop
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, cast

import psutil

from energymon.agent.prometheus import metrics, serve
from energymon.agent.sender_process import SenderProcess
from energymon.agent.service import group_of
from energymon.analysis.accuracy import describe, load_calibrations
from energymon.analysis.attribution import channels_of, series_of
from energymon.analysis.integrate import UNBOUNDED, baseline_of
from energymon.clock.monotonic import NS, Clock, boot_id
from energymon.clock.offsets import WALL
from energymon.errors import EnergyError, OptionError, StoreError
from energymon.influx.settings import InfluxSettings
from energymon.reading import ESTIMATE, WALL_MARGIN_S, Baseline, ClockOffset, Event, Session
from energymon.sampling.edges import EdgeListener, follow_ups_ns, socket_path
from energymon.sampling.monitor import Monitor
from energymon.sampling.writer import StoreWriter
from energymon.sensors.base import Discovery, samples_power_alone
from energymon.sensors.discover import SensorConfig, discover
from energymon.store import SqliteStore

_MIN_INTERVAL_MS: Final = 1
_MAX_INTERVAL_MS: Final = 10_000
_CLOCK_S: Final = 60.0
"""Between two measurements of the clock's offset."""
_AHEAD_S: Final = 60.0
"""An agent waits for a store's latest tick to pass, but not for longer."""
_LONG_LAG_S: Final = 1.0
"""An average over a second is not waited for."""
_STORED_NS: Final = 10 * NS
"""For how long a store that takes no records may delay an agent that is to have an idle baseline."""
_COMMIT_S: Final = 0.5
"""For how long a scrape waits until the latest ticks are stored."""
_LEAST_KEPT_S: Final = 60.0
"""How long readings are kept at least, beside the idle baseline."""
_FAILED: Final = 70


@dataclass(frozen=True, slots=True)
class AgentConfig:
    """What an agent samples, how often, and where to."""

    store: Path
    node: str
    interval_ms: float = 100.0
    until_eof: bool = False
    """Whether the end of stdin, as of a dead parent, stops it, and a line commits."""
    remove_at_eof: Path | None = None
    """A folder that is removed when stdin has ended."""
    sensors: SensorConfig = field(default_factory=SensorConfig)
    idle_s: float = 0.0
    """How long the host is idle at the start, recorded as its baseline; 0 records none."""
    controller: str | None = None
    """HOST:PORT of the clock that windows are given in."""
    influxdb: Mapping[str, str] | None = None
    """The sender's environment, INFLUXDB_V2_*; None keeps the readings in the store alone."""
    spool_limit_mb: float | None = None
    """What the store may take while its readings are sent; None for no limit."""
    group: str | None = None
    """Name of the group that may read the store and ask for readings, as the owner may; None for the owner alone."""
    keep_ns: int | None = None
    """Age at which readings are deleted, ns; None keeps them."""
    prometheus: str | None = None
    """PORT or ADDRESS:PORT of the endpoint for Prometheus; None for none."""
    run: str | None = None
    """Tag of its energy tuples; None for the name of its session."""

    def __post_init__(self) -> None:
        least_s = self.idle_s + _LEAST_KEPT_S
        if not _MIN_INTERVAL_MS <= self.interval_ms <= _MAX_INTERVAL_MS:
            raise OptionError(f"--interval-ms {self.interval_ms}: expected {_MIN_INTERVAL_MS} to {_MAX_INTERVAL_MS} ms")
        if not 0 <= self.idle_s <= 3600:
            raise OptionError(f"--idle-s {self.idle_s}: expected 0 to 3600 s")
        if self.keep_ns is not None and self.keep_ns < least_s * NS:
            raise OptionError(f"--keep: expected {least_s:g}s or more: --idle-s, and a minute for the windows' edges")
        if self.spool_limit_mb is not None and not self.spool_limit_mb >= 1:
            raise OptionError(f"--spool-limit-mb {self.spool_limit_mb}: expected 1 or more MB")
        for option, name in (("--node", self.node), ("--run", self.run)):
            if name is not None and (not name or not name.isprintable()):
                raise OptionError(f"{option} {name!r}: expected a name of printable characters")

    @property
    def interval_ns(self) -> int:
        """The interval in ns."""
        return round(self.interval_ms * 1e6)


def run(config: AgentConfig) -> int:
    """Sample until SIGTERM, SIGINT or, if asked for, the end of stdin; return the exit status.

    Prints one line of JSON, `"ready": true`, when the first tick, and the idle baseline if asked for, is stored.

    Raises OptionError for a setting that cannot be used, SensorError for a named sensor that is missing, NoSensorError
    where there is none at all, and StoreError where the store cannot be written.
    """
    if config.influxdb is not None:
        settings = InfluxSettings.from_environment({**os.environ, **config.influxdb})
        if warning := settings.warning():
            _print_stderr(warning)
    _hold_standard_streams()
    # Unlike epoll, poll takes a stdin of any kind.
    loop = SelectorEventLoop(selectors.PollSelector())
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, loop.stop)
    group = None if config.group is None else group_of(config.group, config.store)
    found = discover(config.sensors, config.interval_ns)
    try:
        found.require()
        with SqliteStore.create(config.store, group) as store:
            agent = _SamplingRun(config, found, store, loop, group)
            status = agent.run()
        if agent.is_over and config.remove_at_eof is not None:
            shutil.rmtree(config.remove_at_eof, ignore_errors=True)
        return status
    finally:
        found.close()
        loop.close()


def print_failure(error: EnergyError) -> None:
    """Print the line of JSON, `"ready": false`, by which a parent knows why there is no agent: code and message."""
    _print({"ready": False, "error": error.code, "message": str(error)})


class _SamplingRun:
    """Samplers, writer and sender at work, and the chores between ticks."""

    def __init__(
        self, config: AgentConfig, found: Discovery, store: SqliteStore, loop: AbstractEventLoop, group: int | None
    ) -> None:
        self._config, self._found, self._store, self._loop = config, found, store, loop
        self._unknown = found.unknown(config.interval_ns)
        self._failure: BaseException | None = None
        self._is_stored = False
        # The clock of the node's last agent since the boot goes on: no time comes twice, and a window has one clock.
        earlier = [one.description for one in store.sessions() if one.node == config.node]
        before_ns = next((one["boot_offset_ns"] for one in reversed(earlier) if one.get("boot_id") == boot_id()), None)
        self._clock = Clock(cast(int | None, before_ns))
        self._writer = StoreWriter(
            store,
            config.node,
            found.sensors,
            config.interval_ns,
            on_stored=self._on_stored,
            on_failure=self._on_failure,
            on_event=self._on_event,
            clock=self._clock,
            limit_bytes=round(config.spool_limit_mb * 1e6) if config.spool_limit_mb and config.influxdb else None,
            keep_ns=config.keep_ns,
        )
        last_ns = store.last_tick_ns(config.node)
        ahead_s = (last_ns - self._clock.now_ns()) / NS
        if before_ns is None and ahead_s > _AHEAD_S:
            raise StoreError(
                f"{config.store}: holds ticks that are {ahead_s:.0f} s ahead of the clock, which was set back since; "
                "name another store"
            )
        self._edges: EdgeListener | None = None
        try:
            self._edges = EdgeListener(socket_path(config.store), group)
        except OSError as error:
            _print_stderr(f"{socket_path(config.store)}: {error.strerror}; windows go by the ticks alone")
        series = series_of(sensor.describe() for sensor in found.sensors)
        counting = [one for one in series if one["source"] not in UNBOUNDED and one["domain"] != "wall"]
        lags_s = [cast(float, one["lag_s"] or 0.0) for one in counting]
        self._linger_ns = round(max((lag_s for lag_s in lags_s if lag_s < _LONG_LAG_S), default=0.0) * NS)
        """How long a value of the host's last moments may take to be shown."""
        # A tick has one reading of each series: an agent that follows another at once waits for the next tick.
        self._monitor = Monitor(
            found.sensors,
            config.interval_ns,
            self._writer.put_all,
            self._on_failure,
            self._clock,
            after_ns=last_ns,
            linger_ns=self._linger_ns,
            edges=self._edges,
            follow_ups_ns=follow_ups_ns(lags_s),
            dither_ns=config.interval_ns if any(samples_power_alone(s.channels) for s in found.sensors) else 0,
            on_edge=self._writer.hasten,
        )
        self._writer.follow(self._monitor)
        self._sender: SenderProcess | None = None
        if config.influxdb:
            limit = [] if config.spool_limit_mb is None else ["--spool-limit-mb", f"{config.spool_limit_mb:g}"]
            self._sender = SenderProcess(["--store", str(config.store), *limit], config.influxdb, self._report, loop)
        self._committed = threading.Event()
        # An address that cannot be had leaves nothing in the store.
        self._endpoint = serve(config.prometheus, self._metrics) if config.prometheus else None
        # While no agent looked, the clock may have been set at any time.
        now_ns = self._clock.now_ns()
        stored_ns, within_ns = (last_ns + 1, 0) if before_ns is None else (now_ns, now_ns - last_ns)
        store.append([], news=[ClockOffset(stored_ns, config.node, WALL, self._clock.wall_ns, within_ns)])
        self._session = self._begin(last_ns)
        self.is_over = False
        """Whether stdin has ended."""
        self._baseline: list[Baseline] | None = None
        self._idle_cpu_util: float | None = None

    def run(self) -> int:
        """Sample until there is a reason to stop."""
        # What this host does not have is for `doctor` to say, where something is measured.
        if all(channel.source == ESTIMATE for sensor in self._found.sensors for channel in sensor.channels):
            for gap in self._found.missing:
                _print_stderr(f"missing: {gap}")
        for (device, domain), why in self._unknown.items():
            _print_stderr(f"unknown: {domain} and the total: {device} {domain} has no figure: {why}")
        # What start-up left behind is not looked at again, and sampling makes no cycles to speak of.
        gc.collect()
        gc.freeze()
        gc.set_threshold(50_000)
        self._writer.start()
        self._monitor.start()
        if self._sender is not None:
            self._sender.start()
        threading.Thread(target=self._measure_clocks, name="clock", daemon=True).start()
        self._loop.set_exception_handler(lambda _, context: self._on_failure(context["exception"]))
        if self._config.until_eof:
            self._loop.add_reader(0, self._on_stdin)
        try:
            self._loop.run_forever()
        finally:
            if self._endpoint is not None:
                self._endpoint.shutdown()
                self._endpoint.server_close()
            self._monitor.stop()
            if self._edges is not None:
                self._edges.close()
            self._writer.stop()
        if self._failure is not None:
            traceback.print_exception(self._failure)
            return _FAILED
        usage = resource.getrusage(resource.RUSAGE_SELF)
        monitor, jitter = self._monitor, self._writer.jitter.summary()
        more = {"priority": monitor.priority, "sampler": monitor.sampler, "jitter": jitter}
        self._store.end_session(self._session, self._clock.now_ns(), usage.ru_utime + usage.ru_stime, more)
        for message in self._sender.stop() if self._sender is not None else ():
            _print_stderr(message)
        return 0

    def _begin(self, last_ns: int) -> Session:
        """Record the session, which starts after the last tick of the one before it."""
        config, found, calibrations = self._config, self._found, load_calibrations(_print_stderr)
        sensors = (one.describe() for one in found.sensors)
        description = {
            **describe(sensors, self._unknown, found, calibrations, config.interval_ns),
            "missing": [str(gap) for gap in found.missing],
            **({"run": config.run} if config.run is not None else {}),
            "host": platform.node(),
            "kernel": platform.release(),
            "pid": os.getpid(),
            "boot_id": boot_id(),
            "boot_offset_ns": self._clock.boot_offset_ns,
            "asleep_ns": self._clock.asleep_ns,
        }
        start_ns = max(self._clock.now_ns(), last_ns + 1)
        return self._store.begin_session(config.node, start_ns, config.interval_ns, description)

    def _report(self, kind: str, message: str) -> None:
        """Have an event of now stored."""
        self._writer.put(Event(self._clock.now_ns(), self._config.node, kind, message))

    def _on_event(self, event: Event) -> None:
        _print_stderr(f"{event.t_ns / NS:.3f} {event.node} {event.kind}: {event.message}")
        if self._edges is not None and event.kind in ("store-failed", "store-back"):
            # The store cannot say it itself.
            self._edges.problem = event.message if event.kind == "store-failed" else ""

    def _on_stored(self, readings: int) -> None:
        """On the writer's thread: readings are stored."""
        self._committed.set()
        if readings and not self._is_stored:
            self._is_stored = True
            self._loop.call_soon_threadsafe(self._take_baseline)

    def _metrics(self) -> list[Any]:
        """On a thread of the endpoint's: return the metrics of all ticks until now."""
        if not self._is_stored:
            return []
        self._committed.clear()
        self._writer.flush()
        self._committed.wait(_COMMIT_S)
        with SqliteStore.open(self._store.path) as store:
            return metrics(store, self._session, self._clock.now_ns(), self._writer.jitter)

    def _on_failure(self, error: BaseException) -> None:
        """On any thread: end with an error."""
        self._failure = error
        self._loop.call_soon_threadsafe(self._loop.stop)

    def _take_baseline(self) -> None:
        if self._config.idle_s:
            start_ns = self._clock.now_ns()
            psutil.cpu_percent()  # the next call's is since this one
            self._loop.call_later(self._config.idle_s, self._rest, start_ns)
        else:
            self._say_ready()

    def _on_stdin(self) -> None:
        # A line asks for a commit of all readings.
        if os.read(0, 4096):
            self._writer.flush()
        else:
            self.is_over = True
            self._loop.stop()

    def _measure_clocks(self) -> None:
        """On a thread of its own: measure this clock every minute against the controller's and the NTP daemon's."""
        from energymon.clock.chrony import ntp_offset
        from energymon.clock.sync import measure

        node = self._config.node
        while True:
            if (own := ntp_offset(node, self._clock.now_ns())) is not None:
                self._writer.put(own)
            if self._config.controller is not None:
                try:
                    self._writer.put(measure(self._config.controller, node, clock=self._clock.now_ns))
                except EnergyError as error:
                    self._report("clock-unknown", str(error))
            time.sleep(_CLOCK_S)

    def _rest(self, start_ns: int) -> None:
        """Record what the host drew since `start_ns` as its idle baseline, once the store holds all of it."""
        end_ns = start_ns + round(self._config.idle_s * NS)
        wall_ns = round(WALL_MARGIN_S * NS) if self._config.sensors.wall else 0
        margin_ns = max(self._linger_ns + self._config.interval_ns, wall_ns)
        try:
            with SqliteStore.open(self._store.path) as store:
                is_read = store.last_tick_ns(self._config.node) >= end_ns + margin_ns
                if is_read and self._baseline is None:
                    self._idle_cpu_util = psutil.cpu_percent() / 100
                    self._baseline = self._measure_baseline(store, start_ns, end_ns, margin_ns)
                    self._writer.put_all(self._baseline)
                is_stored = self._baseline is not None and set(self._baseline) <= set(store.baselines())
                if not is_stored and self._clock.now_ns() < end_ns + margin_ns + _STORED_NS:
                    self._writer.flush()
                    self._loop.call_later(self._config.interval_ms / 1e3, self._rest, start_ns)
                    return
        except EnergyError as error:
            self._report("no-baseline", str(error))
        self._say_ready()

    def _measure_baseline(self, store: SqliteStore, start_ns: int, end_ns: int, margin_ns: int) -> list[Baseline]:
        # Counters are cumulative: the readings around the two edges suffice.
        edges = {
            reading: None
            for at_ns in (start_ns, end_ns)
            for reading in store.readings(at_ns - margin_ns, at_ns + margin_ns, self._config.node)
        }
        lags = channels_of(self._session.description, self._config.node).lags
        return baseline_of(edges, start_ns, end_ns, self._config.interval_ns, lags=lags)

    def _say_ready(self) -> None:
        ready = {
            "ready": True,
            "node": self._config.node,
            "session": self._session.name,
            "interval_ms": self._config.interval_ms,
            "priority": self._monitor.priority,
            "idle_cpu_util": self._idle_cpu_util,
            **({} if self._endpoint is None else {"prometheus_port": self._endpoint.server_port}),
            **self._session.description,
        }
        _print(ready)


def _print(message: Mapping[str, object]) -> None:
    try:
        print(json.dumps(message), flush=True)
    except OSError:
        # The parent is gone, and does not read the answer; stdin or a signal stops this process.
        sys.stdout = None


def _hold_standard_streams() -> None:
    """Give 0, 1 and 2 to nothing where they are closed, or the next file opened would be taken for one of them."""
    for fd in range(3):
        try:
            os.fstat(fd)
        except OSError:
            os.open(os.devnull, os.O_RDWR)


def _print_stderr(message: str) -> None:
    # Sampling goes on when nobody is left to read this; what matters is in the store as an event too. Without a
    # stderr, print would take stdout.
    if sys.stderr is None:
        return
    with contextlib.suppress(OSError):
        print(f"energymon: {message}", file=sys.stderr, flush=True)
