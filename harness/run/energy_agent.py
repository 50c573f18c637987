"""The energy agent of a run: energymon's, with the run's options, and its errors as the harness's own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from energymon import Agent, AgentError, EpochMark, NoSensorError, StoreError
from harness.config.specs import EnergySpec, StoreSpec
from harness.errors import CellError, TestbedError
from harness.system.disk import check_room
from harness.system.process import run_environment

__all__ = ["EnergyAgent"]

_STORE_BYTES = 1_000_000
"""Free space without which no store can be made."""


class EnergyAgent(Agent):
    """Samples this host during a run, which goes on without it where no sensor is and nothing is to be estimated."""

    def __init__(
        self,
        store: Path,
        spec: EnergySpec,
        *,
        node: str,
        run_id: str,
        run: str,
        log: Path,
        send: StoreSpec | None = None,
        on_restart: Callable[[str], None] = lambda message: None,
    ) -> None:
        """Take the store and what to sample into it; nothing starts yet.

        Args:
            store: the file that it writes.
            spec: the sensors, and how often they are read.
            node: name of the host in the readings.
            run_id: the run that its processes belong to.
            run: name of the run in the server, the results folder's.
            log: file to which its stderr is appended.
            send: the server that gets the readings; default none.
            on_restart: called with a line after a death of the agent, and when epochs cannot be marked.
        """
        self._run, self._note = run, on_restart
        self._sends = send is not None and send.kind == "influxdb"
        flags: dict[str, object] = {"cpu-idle-fraction": spec.cpu_idle_fraction, "cpu-tdp-w": spec.cpu_tdp_w}
        flags |= {"run": run}
        if send is not None and self._sends:
            # The agent reads the token from its file or the environment: it is no argument.
            flags |= {"influxdb-url": send.url, "influxdb-org": send.org, "influxdb-bucket": send.bucket}
            flags |= {"influxdb-token-file": send.token_file, "influxdb-ca": send.ca}
            flags |= {"spool-limit-mb": send.spool_limit_mb}
        super().__init__(
            store,
            node=node,
            interval_ms=spec.interval_ms,
            estimate="off" if spec.estimate == "off" else "missing",
            sensors=spec.sensors,
            options=[f"--{flag}={value}" for flag, value in flags.items() if value is not None],
            log=log,
            environment=run_environment(run_id),
            on_restart=on_restart,
        )

    def start(self) -> None:
        """Start it; raises DiskError where the disk is full, and TestbedError with what it says."""
        try:
            super().start()
        except NoSensorError:
            return  # no sensor, no joules: the run goes on without
        except AgentError as error:
            check_room("results_dir", self.store.parent, _STORE_BYTES)
            raise TestbedError(f"{error} (log: {self._log})") from error

    def mark(self, cell: str, loader: str, epochs: Mapping[int, tuple[int, int]]) -> None:
        """Have the server draw a cell's epochs: from when to when each was, ns of the readings' clock, by number."""
        if not self._sends:
            return
        try:
            self.mark_epochs(EpochMark(self.node, self._run, cell, loader, n, *span) for n, span in epochs.items())
        except StoreError as error:
            # A mark is no measurement: the cell is whole without.
            self._note(f"the epochs of {cell} are not marked in the server: {error}")

    def require(self) -> None:
        """Raise CellError when the agent has died and cannot be started again, DiskError where the disk is full."""
        if self.failure is not None:
            check_room("results_dir", self.store.parent, _STORE_BYTES)
            raise CellError(f"the energy agent died and could not be started again: {self.failure}")
