"""The energy agent of a run: energymon's, with the run's options, and its errors as the harness's own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import cast

from energymon import Agent, AgentError, Baseline, EpochMark, NoSensorError, SqliteStore, StoreError
from harness.config.specs import EnergySpec, StoreSpec
from harness.errors import CellError, TestbedError
from harness.system.disk import check_room
from harness.system.process import run_environment


class EnergyAgent(Agent):
    """Samples this host during a run, which goes on without it where no sensor is and nothing is to be estimated."""

    def __init__(
        self, store: Path, spec: EnergySpec, send: StoreSpec, node: str, run_id: str, on_restart: Callable[[str], None]
    ) -> None:
        """Set the store in the run's folder, and what to sample; `on_restart` gets a line when the agent has died."""
        self._run, self._note, self._takes_baseline = store.parent.name, on_restart, spec.idle_s > 0
        self.idle: list[Baseline] = []
        """What each series drew before the first cell; empty where no baseline was taken."""
        self.idle_cpu_util: float | None = None
        """Utilisation of the host's processors meanwhile, 0 to 1."""
        given = {**spec.options, **send.options, "run": self._run}
        super().__init__(
            store,
            node=node,
            interval_ms=spec.interval_ms,
            estimate=spec.estimate,
            sensors=spec.sensors,
            idle_s=spec.idle_s,
            wall=spec.wall or (),
            options=[f"--{flag}={value}" for flag, value in given.items() if value is not None],
            log=store.with_suffix(".log"),
            environment=run_environment(run_id),
            on_restart=on_restart,
        )

    def start(self) -> None:
        """Start it, and take the idle baseline of this session.

        Raises DiskError where the disk is full, and TestbedError with what it says.
        """
        try:
            super().start()
        except NoSensorError:
            return  # no sensor, no joules: the run goes on without
        except AgentError as error:
            check_room("results_dir", self.store.parent)
            raise TestbedError(f"{error} (log: {self._log})") from error
        if self._takes_baseline:
            self.idle_cpu_util = cast(float | None, self.description.get("idle_cpu_util"))
            with SqliteStore.open(self.store) as store:
                # A resumed run has baselines of its earlier sessions too.
                begin_ns = store.sessions()[-1].start_ns
                self.idle = [one for one in store.baselines(self.node) if one.start_ns >= begin_ns]

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
