"""What the cells of a run share, with the probes of its link, and what the driver learns of each cell."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Final

from harness.cell.messages import CellState
from harness.config.regime import Regime
from harness.config.specs import Experiment
from harness.results.cells import HostClock, MemoryRecord, Probe
from harness.results.files import write_json
from harness.results.folder import RunFolder
from harness.results.provenance import make_field
from harness.run.cells.data_access import DataAccess
from harness.run.cells.readers import FoundReaders
from harness.run.cells.template import Templates
from harness.run.daemon import RunningDaemon
from harness.run.datasets import StoredData
from harness.run.energy_agent import EnergyAgent
from harness.run.host_energy import HostAgents, HostEdge
from harness.system.spin import Spin
from harness.testbed import Node, Testbed
from harness.testbed.base import ProbeResult
from harness.testbed.link import LinkCounters
from harness.testbed.link.measure.bounds import list_link_bounds
from harness.testbed.link.measure.watch import Ping
from harness.testbed.link.userspace.paths import PathCounters

PROBES: Final = 3
"""How often the link is probed before its cell is refused: a neighbour on the host can spoil a probe."""


@dataclass(frozen=True, slots=True)
class CellContext:
    """What all cells of a run share."""

    experiment: Experiment
    run: RunFolder
    testbed: Testbed
    agent: EnergyAgent
    hosts: HostAgents
    """The energy agents of the other hosts; none on one machine."""
    data: Mapping[str, StoredData]
    """By workload."""
    templates: Templates
    """What cells are forked from."""
    session: str
    """Name of the provenance file of this session."""
    spins: list[Mapping[str, Spin]] = field(default_factory=list)
    """What a fixed piece of work took each host before and after each cell of this session."""
    settled: list[str] = field(default_factory=list)
    """How temperatures became steady before the first epoch of this session; no entry until it begins."""
    readers: dict[str, FoundReaders] = field(default_factory=dict)
    """The numbers that were found of loaders whose number of readers is `auto`, by loader, workload and regime."""
    probed: dict[tuple[str, int], Probe] = field(default_factory=dict)
    """The probe after the last cell, by its regime and its link, which may be made again; empty where it had none."""

    def note_settled(self, how: str) -> None:
        """Add to the session's provenance how temperatures became steady; empty where nothing waited for it."""
        if not self.settled:
            self.settled.append(how)
            path = self.run.folder / self.session
            settled = make_field(how or None, "temperatures of the devices")
            write_json(path, json.loads(path.read_text()) | {"heat": {"settled": settled}})

    def link_counters(self) -> LinkCounters | None:
        """Return the counters of the link. None without a link."""
        return None if self.testbed.link is None else self.testbed.link.counters()

    def probe_before(self, regime: Regime) -> Probe | None:
        """Return the probe after the last cell where its regime was the same and it kept its bounds, else a new one."""
        last = self.probed.get((regime.name, id(self.testbed.link)))
        self.probed.clear()
        if last is not None and self._is_kept(regime, last):
            return last
        return self._probe(regime, lambda: self.testbed.set_regime(regime, recalibrate=True))

    def probe_after(self, regime: Regime) -> Probe | None:
        """Probe the link as the cell had it, for this cell and for the next one of this regime."""
        found = self._probe(regime, lambda: None)
        if found is not None:
            self.probed[regime.name, id(self.testbed.link)] = found
        return found

    def _probe(self, regime: Regime, mend: Callable[[], None]) -> Probe | None:
        """Probe the link, up to `PROBES` times while a probe is out of bounds. None without a link."""
        earlier: list[ProbeResult] = []
        while (found := self.testbed.probe(regime)) is not None:
            if self._is_kept(regime, found) or len(earlier) + 1 == PROBES:
                return Probe(**asdict(found), earlier=earlier)
            earlier.append(found)
            mend()
        return None

    def _is_kept(self, regime: Regime, found: ProbeResult) -> bool:
        return all(bound.kept for bound in list_link_bounds(regime, found, self.experiment.checks))


@dataclass(slots=True)
class CellMeasurement:
    """What the driver learns of a cell while it runs."""

    reached: Mapping[Node, DataAccess]
    """How each node reaches its data."""
    nodes: Sequence[Node]
    """Where the ranks are."""
    folders: Sequence[Path]
    """The folder of each rank; rank 0 has the cell's."""
    other_runs: set[str] = field(default_factory=set)
    caches: str = ""
    before: Probe | None = None
    after: Probe | None = None
    drops: dict[int, int | None] = field(default_factory=dict)
    storage_reads: dict[int, int] = field(default_factory=dict)
    """Bytes read from the disks of other hosts that store, by epoch."""
    pauses_s: dict[int, float | None] = field(default_factory=dict)
    """The delay line's longest pause, by epoch."""
    paths: dict[int, list[PathCounters]] = field(default_factory=dict)
    pings: Sequence[Ping] | None = None
    """Of the link. None where it was not watched."""
    done: CellState = field(default_factory=lambda: CellState(state=""))
    """The last message of the cell."""
    host_cpu_s: dict[str, dict[int, Mapping[str, float]]] = field(default_factory=dict)
    host_states: dict[str, dict[int, Sequence[Mapping[str, object]]]] = field(default_factory=dict)
    sampler: Mapping[str, float] = field(default_factory=dict)
    memory: MemoryRecord | None = None
    daemon_memory: MemoryRecord | None = None
    """Of the daemons alone, where they have a limit of their own."""
    clocks: tuple[Mapping[str, HostClock], Mapping[str, HostClock]] = ({}, {})
    """Of the other hosts, before and after."""

    @property
    def access(self) -> DataAccess:
        """How rank 0 reaches its data."""
        return self.reached[self.nodes[0]]

    @property
    def daemons(self) -> Mapping[Path, RunningDaemon]:
        """The daemons of all nodes, by the files of their timestamps."""
        each = self.reached.values()
        return {path: daemon for one in each for path, daemon in zip(one.events, one.daemons, strict=True)}

    def add_edges(self, epoch: int, start: Mapping[str, HostEdge], end: Mapping[str, HostEdge]) -> None:
        """Add the readings of each host at an epoch's start and at its end."""
        for host, now in end.items():
            before_s, now_s = start[host].cpu_s, now.cpu_s
            grown = {part: now_s[part] - before_s[part] for part in now_s.keys() & before_s.keys()}
            self.host_cpu_s.setdefault(host, {})[epoch] = grown
            if now.state:
                self.host_states.setdefault(host, {})[epoch] = (start[host].state, now.state)

    def daemon_failures(self) -> list[str]:
        """Say of each daemon that has failed how."""
        return [failure for daemon in self.daemons.values() if (failure := daemon.failure())]
