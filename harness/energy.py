"""The energy agent of this host: a process of its own for the length of a run, and slices of what it stored."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pyarrow as pa
import pyarrow.parquet as pq

from energymon import Event, Reading, SqliteStore, boot_ns
from harness.errors import TestbedError
from harness.specs import EnergySpec, StoreSpec
from harness.talk import first_line
from harness.testbed.process import dying_with_parent, end_group, run_environment

__all__ = ["EnergyAgent", "save_readings"]

_READY_S = 30.0
_SEND_S = 25.0
_NO_SENSOR = "nothing on this host measures energy"


class EnergyAgent:
    """Runs `python -m energymon run` into a store; dies with the harness, and is started again if it died alone."""

    def __init__(
        self, store: Path, spec: EnergySpec, *, node: str, run_id: str, log: Path, send: StoreSpec | None = None
    ) -> None:
        self._store, self._spec, self._node, self._log = store, spec, node, log
        self._send = send if send is not None and send.kind == "influxdb" else None
        self._environment = run_environment(run_id)
        self._process: subprocess.Popen[bytes] | None = None
        self.sensors: list[dict[str, Any]] = []
        """What each sensor told of itself; empty where nothing measures or estimates."""
        self._boot_offset_ns = 0
        self.unreadable: list[dict[str, str]] = []
        """Device, domain and reason of each part of the host that was found and cannot be read."""

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def pid(self) -> int | None:
        """The agent's process id while it lives."""
        return self._process.pid if self._process and self._process.poll() is None else None

    @property
    def series(self) -> list[dict[str, Any]]:
        """What is sampled: device, domain and source of each series, how old its value may be, s, and whether a GPU's
        covers its module."""
        return [
            {
                "device": c["device"],
                "domain": c["domain"],
                "source": c.get("source", sensor.get("source", "")),
                "lag_s": c.get("lag_s"),
                "module_power": bool(c.get("module_power")),
            }
            for sensor in self.sensors
            for c in sensor["channels"]
        ]

    def start(self) -> None:
        """Start the agent and wait until its first tick is stored; raises TestbedError with what it said."""
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
        line = first_line(self._process, _READY_S)
        try:
            ready = json.loads(line)
            self.sensors, self.unreadable = ready["sensors"], ready["unreadable"]
            self._boot_offset_ns = ready["boot_offset_ns"]
        except (ValueError, KeyError) as error:
            self.stop()
            said = self._log.read_text(errors="replace").strip()
            if _NO_SENSOR in said and spec.estimate == "off":
                return  # no sensor, no joules: the run goes on without
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
        """Start the agent again when it is gone; returns whether it was."""
        if self.pid is not None or not self.sensors:
            return False
        self.stop()
        self.start()
        return True

    def stop(self) -> None:
        """End the agent; what it measured is stored."""
        if self._process is not None:
            if self._process.stdin is not None:
                self._process.stdin.close()
            if self._send is not None:
                # What is not sent by then stays in the store.
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self._process.wait(_SEND_S)
            end_group(self._process)
            self._process = None

    @property
    def offset_ns(self) -> int:
        """What the monotonic clock lacks to the clock of the readings, which nobody sets, ns."""
        return self._boot_offset_ns + boot_ns() - time.monotonic_ns()

    def readings(self, start_ns: int, end_ns: int) -> list[Reading]:
        """Return the readings around a span, ns of their clock, once the agent has stored a tick past its end."""
        if not self.sensors:
            return []
        margin_ns = int(3 * self._spec.interval_ms * 1e6)
        deadline = time.monotonic() + 2.0 + 3 * self._spec.interval_ms / 1e3
        with SqliteStore.open(self._store) as store:
            while True:
                found = store.readings(start_ns - margin_ns, end_ns + margin_ns)
                # What is shown after the end may be of before it.
                past = found and max(r.t_ns - (r.early_ns or 0) for r in found) >= end_ns
                if past or self.pid is None or time.monotonic() > deadline:
                    return found
                self._flush()
                time.sleep(self._spec.interval_ms / 2e3)

    def _flush(self) -> None:
        # A line has the agent commit what it has; one that died meanwhile has nothing.
        if self._process is not None and self._process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                self._process.stdin.write(b"\n")
                self._process.stdin.flush()

    def events(self, start_ns: int, end_ns: int) -> list[Event]:
        """Return what the agent told of itself in a span, ns of its readings' clock: clocks set, sensors lost."""
        if not self.sensors:
            return []
        with SqliteStore.open(self._store) as store:
            return store.events(start_ns, end_ns)


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
