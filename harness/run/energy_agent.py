"""The energy agent of a run: energymon's, with the run's options, and its errors as the harness's own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from energymon import Agent, AgentError, EpochMark, NoSensorError, StoreError
from harness.config.specs import EnergySpec, StoreSpec
from harness.errors import CellError, TestbedError
from harness.system.disk import check_room
from harness.system.process import run_environment


class EnergyAgent(Agent):
    """Samples this host during a run, which goes on without it where no sensor is and nothing is to be estimated."""

    def __init__(
        self, store: Path, spec: EnergySpec, send: StoreSpec, node: str, run_id: str, on_restart: Callable[[str], None]
    ) -> None:
        """Take the store in the run's folder, and what to sample; `on_restart` gets a line when the agent has died."""
        self._run, self._note = store.parent.name, on_restart
        given = {**spec.options, **send.options, "run": self._run}
        super().__init__(
            store,
            node=node,
            interval_ms=spec.interval_ms,
            estimate=spec.estimate,
            sensors=spec.sensors,
            options=[f"--{flag}={value}" for flag, value in given.items() if value is not None],
            log=store.with_suffix(".log"),
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
            check_room("results_dir", self.store.parent)
            raise TestbedError(f"{error} (log: {self._log})") from error

    def mark(self, cell: str, loader: str, epochs: Mapping[int, tuple[int, int]]) -> None:
        """Have the server draw a cell's epochs: from when to when each was, ns of the readings' clock, by number."""
        try:
            self.mark_epochs(EpochMark(self.node, self._run, cell, loader, n, *span) for n, span in epochs.items())
        except StoreError as error:
            # A mark is no measurement: the cell is whole without.
            self._note(f"the epochs of {cell} are not marked in the server: {error}")

    def require(self) -> None:
        """Raise CellError when the agent has died and cannot be started again, DiskError where the disk is full."""
        if self.failure is not None:
            check_room("results_dir", self.store.parent)
            raise CellError(f"the energy agent died and could not be started again: {self.failure}")
