"""The energy agent of this host: a process of its own for the length of a run, and slices of what it stored."""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pyarrow as pa
import pyarrow.parquet as pq

from energymon import NO_SENSOR, Event, Reading, SqliteStore, boot_ns, bridged, series_of
from harness.config.specs import EnergySpec, StoreSpec
from harness.errors import CellError, DiskError, HarnessError, TestbedError
from harness.run.cell_process import first_line
from harness.system.disk import check_room
from harness.system.process import dying_with_parent, end_group, run_environment

__all__ = ["EnergyAgent", "save_readings"]

_READY_S = 30.0
_SEND_S = 25.0
_QUICK_S = 5.0
_STORE_BYTES = 1_000_000
"""Room without which a store cannot be begun."""
_MAX_QUICK = 3
"""An agent that dies so often within so long of its start is not started again."""


class EnergyAgent:
    """Runs `python -m energymon run` into a store; dies with the harness, and is started again if it died alone.

    That is noticed at once. What was used meanwhile is in the hardware's counters; the gap is an event of the cell.
    """

    def __init__(
        self,
        store: Path,
        spec: EnergySpec,
        *,
        node: str,
        run_id: str,
        log: Path,
        send: StoreSpec | None = None,
        on_restart: Callable[[str], None] = lambda message: None,
    ) -> None:
        """Take where to, what to sample, whose readings these are, and whom to tell of an agent that died."""
        self._store, self._spec, self._node, self._log = store, spec, node, log
        self._send = send if send is not None and send.kind == "influxdb" else None
        self._environment = run_environment(run_id)
        self._process: subprocess.Popen[bytes] | None = None
        self._pidfd: int | None = None
        self._on_restart = on_restart
        # Guards the process; held while it is started or ended.
        self._changing = threading.Lock()
        self._over = os.eventfd(0, os.EFD_CLOEXEC)
        self._watcher: threading.Thread | None = None
        self._deaths: list[Event] = []
        self.failure: HarnessError | None = None
        """Why the agent could not be started again after it had died."""
        self.sensors: list[dict[str, Any]] = []
        """What each sensor told of itself; empty where nothing measures or estimates."""
        self._boot_offset_ns = 0
        self.unreadable: list[dict[str, str]] = []
        """Device, domain and reason of each part of the host that was found and cannot be read."""

    def __enter__(self) -> Self:
        self.start()
        return self

    def start(self) -> None:
        """Start the agent and watch it; raises TestbedError with what it said."""
        self.failure = None
        with self._changing:
            self._start()
        if self.sensors:
            self._watcher = threading.Thread(target=self._watch, name="energy agent", daemon=True)
            self._watcher.start()

    def require(self) -> None:
        """Raise CellError when the agent has died and cannot be started again, DiskError where the disk is full."""
        if isinstance(self.failure, DiskError):
            raise self.failure
        if self.failure is not None:
            raise CellError(f"the energy agent died and could not be started again: {self.failure}")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def pid(self) -> int | None:
        """The agent's process id while it lives."""
        process = self._process
        return process.pid if process and process.poll() is None else None

    @property
    def series(self) -> list[dict[str, Any]]:
        """What is sampled: device, domain and source of each series, how old its value may be, s, and whether a GPU's
        covers its module."""
        return series_of(self.sensors)

    def _watch(self) -> None:
        """Start the agent again whenever it has died, until it is stopped."""
        quick = 0
        while True:
            pidfd, began = self._pidfd, time.monotonic()
            assert pidfd is not None
            poll = select.poll()
            for fd in (pidfd, self._over):
                poll.register(fd, select.POLLIN)
            over = self._over in [fd for fd, _ in poll.poll()]
            with self._changing:
                if over or self._process is None:
                    return
                t_ns = time.monotonic_ns() + self.offset_ns
                message = f"the energy agent, process {self._process.pid}, died (status {self._process.wait()})"
                quick = quick + 1 if time.monotonic() - began < _QUICK_S else 0
                self._forget()
                if quick >= _MAX_QUICK:
                    self.failure = TestbedError(f"it died {quick} times within {_QUICK_S:g} s (log: {self._log})")
                else:
                    try:
                        self._start()
                        if self._pidfd is None:
                            self.failure = TestbedError(f"nothing on this host measures any more (log: {self._log})")
                    except HarnessError as error:
                        self.failure = error
                message += "" if self.failure else "; it was started again"
                self._deaths.append(Event(t_ns, self._node, "agent-died", message))
                if self.failure is None:
                    now_ns = time.monotonic_ns() + self.offset_ns
                    back = f"the energy agent samples again, after {(now_ns - t_ns) / 1e9:.3f} s"
                    self._deaths.append(Event(now_ns, self._node, "agent-back", back))
            self._on_restart(message if self.failure is None else f"{message}: {self.failure}")
            if self.failure is not None:
                return

    def _start(self) -> None:
        """Start the agent and wait until its first tick is stored."""
        spec = self._spec
        argv = [sys.executable, "-m", "energymon", "run", "--until-eof"]
        argv += ["--store", str(self._store), "--node", self._node]
        argv += ["--interval-ms", repr(float(spec.interval_ms)), "--estimate", spec.estimate]
        sensors = spec.sensors if isinstance(spec.sensors, str) else ",".join(spec.sensors)
        argv += ["--sensors", sensors, "--cpu-idle-fraction", f"{spec.cpu_idle_fraction:g}"]
        if spec.cpu_tdp_w is not None:
            argv += ["--cpu-tdp-w", f"{spec.cpu_tdp_w:g}"]
        argv += self._sending()
        with self._log.open("a") as log:
            self._process = subprocess.Popen(
                dying_with_parent(argv),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=self._environment,
                process_group=0,
            )
        self._pidfd = os.pidfd_open(self._process.pid)
        line = first_line(self._process, _READY_S)
        try:
            ready = json.loads(line)
            if ready.get("error") == NO_SENSOR and spec.estimate == "off":
                self._end()
                return  # no sensor, no joules: the run goes on without
            self.sensors, self.unreadable = ready["sensors"], ready["unreadable"]
            self._boot_offset_ns = ready["boot_offset_ns"]
        except (ValueError, KeyError) as error:
            self._end()
            said = self._log.read_text(errors="replace").strip()
            check_room("results_dir", self._store.parent, _STORE_BYTES)
            reason = said.splitlines()[-1] if said else "it said nothing"
            raise TestbedError(f"the energy agent did not start: {reason} (log: {self._log})") from error

    def _sending(self) -> list[str]:
        # The token is read from its file or the environment by the agent, and is no argument.
        if self._send is None:
            return []
        flags = {
            "--influxdb-url": self._send.url,
            "--influxdb-org": self._send.org,
            "--influxdb-bucket": self._send.bucket,
            "--influxdb-token-file": self._send.token_file,
            "--influxdb-ca": self._send.ca,
            "--spool-limit-mb": f"{self._send.spool_limit_mb:g}",
        }
        return [part for flag, value in flags.items() if value is not None for part in (flag, value)]

    def restart_if_dead(self) -> bool:
        """Start the agent again where that has failed before; returns whether it was gone."""
        if self.failure is None:
            return False
        self.stop()
        self.start()
        return True

    def stop(self) -> None:
        """End the agent; what it measured is stored."""
        os.eventfd_write(self._over, 1)
        with self._changing:
            self._end()
        # The kernel kills an agent whose starting thread has ended, so that thread outlives it.
        if self._watcher is not None:
            self._watcher.join()
            self._watcher = None
        os.eventfd_read(self._over)

    def _end(self) -> None:
        if self._process is not None:
            if self._process.stdin is not None:
                self._process.stdin.close()
            if self._send is not None:
                # What is not sent by then stays in the store.
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self._process.wait(_SEND_S)
            end_group(self._process)
            self._forget()

    def _forget(self) -> None:
        self._process = None
        if self._pidfd is not None:
            os.close(self._pidfd)
            self._pidfd = None

    @property
    def offset_ns(self) -> int:
        """What the monotonic clock lacks to the clock of the readings, which nobody sets, ns."""
        return self._boot_offset_ns + boot_ns() - time.monotonic_ns()

    def readings(self, start_ns: int, end_ns: int) -> list[Reading]:
        """Return the readings around a span, ns of their clock, once the agent has stored a tick past its end."""
        if not self.sensors:
            return []
        with self._changing:
            # An agent that is being started again has the readings after the gap.
            pass
        margin_ns = int(3 * self._spec.interval_ms * 1e6)
        deadline = time.monotonic() + 2.0 + 3 * self._spec.interval_ms / 1e3
        with SqliteStore.open(self._store) as store:
            while True:
                found = store.readings(start_ns - margin_ns, end_ns + margin_ns)
                found = bridged(found, store.counters(), store.sessions())
                # What is shown after the end may be of before it.
                past = found and max(r.t_ns - (r.early_ns or 0) for r in found) >= end_ns
                if past or self.pid is None or time.monotonic() > deadline:
                    return found
                self._flush()
                time.sleep(self._spec.interval_ms / 2e3)

    def _flush(self) -> None:
        # A line has the agent commit what it has; one that died meanwhile has nothing.
        process = self._process
        if process is not None and process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                process.stdin.write(b"\n")
                process.stdin.flush()

    def events(self, start_ns: int, end_ns: int) -> list[Event]:
        """Return what the agent told of itself in a span, ns of its readings' clock: clocks set, sensors lost."""
        if not self.sensors:
            return []
        with SqliteStore.open(self._store) as store:
            told = store.events(start_ns, end_ns)
        told += [event for event in self._deaths if start_ns <= event.t_ns < end_ns]
        return sorted(told, key=lambda event: event.t_ns)


def save_readings(readings: list[Reading], path: Path) -> None:
    """Write readings as Parquet, a row each."""
    schema = pa.schema(
        [
            ("tick_ns", pa.int64()),
            ("t_ns", pa.int64()),
            ("node", pa.string()),
            ("device", pa.string()),
            ("domain", pa.string()),
            ("source", pa.string()),
            ("joules", pa.float64()),
            ("flags", pa.string()),
            ("early_ns", pa.int64()),
            ("late_ns", pa.int64()),
        ]
    )
    pq.write_table(pa.Table.from_pylist([asdict(r) for r in readings], schema=schema), path)
