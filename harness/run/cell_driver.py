"""Drives one cell from its plan entry to its finished folder: link, mount, daemon, probes, epochs, records."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import asdict, dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any, Final, Protocol, cast

import pyarrow as pa
import pyarrow.parquet as pq

from energymon import save_readings
from harness.cell.events import CellEvent, read_events, read_timestamps, save_events
from harness.cell.messages import CellSpec, CellState
from harness.cell.resources import ResourceSampler
from harness.cell.skipped import skipped_by_epoch
from harness.config.regime import Regime
from harness.config.specs import Experiment
from harness.errors import CellError
from harness.results.cell_folder import write_manifest
from harness.results.cells import (
    Cell,
    CellRecord,
    DatasetRecord,
    EnergyRecord,
    HostClock,
    LinkEpoch,
    LinkRecord,
    MemoryRecord,
    PlacementRecord,
    Probe,
    RankRecord,
    SensorRecord,
)
from harness.results.checks import ONE_CLOCK
from harness.results.edges import find_epoch_edges
from harness.results.files import parse_value, write_json
from harness.results.folder import RunFolder
from harness.results.make_rows import to_readings_ns
from harness.run.cell_ranks import CellRanks
from harness.run.daemon import Daemon
from harness.run.data_access import DataAccess, DataOnNodes, open_access
from harness.run.energy_agent import EnergyAgent
from harness.run.host_energy import HostAgents
from harness.run.rank_files import (
    LOADER_EVENTS,
    join_batches,
    make_folders,
    rank_events,
    rank_nodes,
    rank_records,
    rank_spec,
    send_spec,
    temporary_files,
)
from harness.testbed import Node, Testbed
from harness.testbed.base import ProbeResult
from harness.testbed.link import LinkCounters
from harness.testbed.link.bounds import list_link_bounds
from harness.testbed.link.delay_calibration import Calibration
from harness.testbed.link.paths import PathCounters
from harness.testbed.link.watch import LinkWatch, Ping, ping_bytes
from harness.testbed.memory import MemoryGroup, limited_memory
from harness.testbed.state import RunNames, living_runs, state_root

PROBES: Final = 3
"""How often the link is probed before its cell is refused: a neighbour on the host can spoil a probe."""


class Watcher(Protocol):
    """Shows how far a cell is."""

    def phase(self, text: str) -> None:
        """Show the phase of the cell."""
        ...

    def samples(self, epoch: int, done: int) -> None:
        """Show how many samples of an epoch the step has trained on."""
        ...


@dataclass(frozen=True, slots=True)
class CellContext:
    """What all cells of a run share."""

    experiment: Experiment
    run: RunFolder
    testbed: Testbed
    agent: EnergyAgent
    hosts: HostAgents
    """The energy agents of the other hosts; none on one machine."""
    data: Mapping[str, DataOnNodes]
    """By workload."""
    datasets: Mapping[str, DatasetRecord]
    """By workload."""
    session: str
    """Name of the provenance file of this session."""
    probed: dict[tuple[str, int], Probe] = field(default_factory=dict)
    """The probe after the last cell, by its regime and its link, which may be made again; empty where it had none."""

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
class _Outcome:
    """What the driver learns while a cell runs."""

    reached: Mapping[Node, DataAccess]
    """How each node reaches its data."""
    nodes: Sequence[Node]
    """Where the ranks are."""
    folders: Sequence[Path]
    """What each rank writes into; that of rank 0 is the cell's."""
    other_runs: set[str] = field(default_factory=set)
    caches: str = ""
    before: Probe | None = None
    after: Probe | None = None
    drops: dict[int, int | None] = field(default_factory=dict)
    storage_reads: dict[int, int] = field(default_factory=dict)
    """Bytes read from the disks of other hosts that store, by epoch."""
    pauses_s: dict[int, float | None] = field(default_factory=dict)
    paths: dict[int, list[PathCounters]] = field(default_factory=dict)
    """The delay line's longest pause, by epoch."""
    pings: Sequence[Ping] | None = None
    """Of the link. None where it was not watched."""
    done: CellState = field(default_factory=lambda: CellState(state=""))
    """The last message of the cell."""
    host_cpu_s: dict[str, dict[int, Mapping[str, float]]] = field(default_factory=dict)
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
    def daemons(self) -> Mapping[Path, Daemon]:
        """The daemons of all nodes, by the files of their timestamps."""
        each = self.reached.values()
        return {path: daemon for one in each for path, daemon in zip(one.events, one.daemons, strict=True)}


def run_cell(context: CellContext, cell: Cell, watcher: Watcher) -> None:
    """Run one cell; its folder is finished when this returns.

    Raises HarnessError (CellError, TestbedError, DiskError, …) when the cell has no result.
    """
    experiment, testbed = context.experiment, context.testbed
    partial = context.run.partial_folder(cell.cell_id)
    partial.mkdir()
    loader, workload = experiment.loaders[cell.loader], experiment.workloads[cell.workload]
    regime = experiment.regimes[cell.regime]
    with ExitStack() as stack:
        memory, daemon_memory = _limit_memory(context, cell, stack)
        nodes = rank_nodes(testbed, experiment)
        folders = make_folders(partial.resolve(), len(nodes))
        started = nodes if memory is None else [memory.node(node) for node in nodes]
        process = stack.enter_context(CellRanks(started, folders, 60 * experiment.cell_stall_min, loader.environment))
        deadline = time.monotonic() + experiment.cell_timeout_s
        process.send({"import": ["torch", *(one.target.rpartition(".")[0] for one in (loader, workload))]})
        testbed.set_regime(regime)
        watcher.phase("reaching its data")
        data, limit = context.data[cell.workload], daemon_memory or memory
        reached = open_access(data, testbed, loader, regime, stack, folders[0], limit, nodes)
        outcome = _Outcome(reached, nodes, folders)
        watcher.phase("importing its modules")
        if (state := process.receive(deadline, "importing its modules").state) != "imported":
            raise CellError(f"the cell's process sent {state!r}, expected imported")
        watcher.phase("probing the link")
        outcome.before = context.probe_before(regime)
        clocks = context.hosts.clocks()
        watcher.phase("warming up")
        specs = [send_spec(node, _spec(context, cell, outcome, rank)) for rank, node in enumerate(nodes)]
        (partial / "spec.json").write_bytes(specs[0].to_json())
        process.start(specs)
        sampler = ResourceSampler(process.pids, specs[0].interface, partial / "resources.parquet")
        has_link = not regime.is_local and testbed.link is not None
        watch = LinkWatch(started[0], testbed.storage.address, partial / "link.parquet") if has_link else None
        try:
            with sampler, watch or nullcontext():
                _run_epochs(context, process, outcome, watcher, deadline, sampler, watch)
        except CellError as error:
            if gone := [failure for daemon in outcome.daemons.values() if (failure := daemon.failure())]:
                raise CellError("; ".join([*gone, str(error)])) from error
            raise
        outcome.sampler = sampler.cost
        outcome.pings = None if watch is None else watch.pings
        outcome.memory, outcome.daemon_memory = _memory_record(memory), _memory_record(daemon_memory)
        watcher.phase("probing the link")
        outcome.after = context.probe_after(regime)
        outcome.clocks = clocks, context.hosts.clocks()
        process.fetch_files()
    _save(context, cell, outcome, partial)
    write_manifest(partial)
    context.run.set_aside(cell.cell_id, "invalid")
    partial.rename(context.run.cell_folder(cell.cell_id))


def _limit_memory(context: CellContext, cell: Cell, stack: ExitStack) -> tuple[MemoryGroup | None, MemoryGroup | None]:
    """Return the groups of the cell, with its daemons, and of its daemons alone, each None where it has no limit."""
    names, loader = RunNames(context.testbed.run_id, state_root()), context.experiment.loaders[cell.loader]
    memory = daemon_memory = None
    if (limit_mb := context.experiment.testbed.memory_mb) is not None:
        memory = stack.enter_context(limited_memory(names, limit_mb, cell.cell_id))
    if (limit_mb := loader.daemon.get("memory_mb")) is not None:
        limited = limited_memory(names, limit_mb, cell.cell_id, daemons_of=loader.base or loader.key)
        daemon_memory = stack.enter_context(limited)
    return memory, daemon_memory


def _memory_record(group: MemoryGroup | None) -> MemoryRecord | None:
    return None if group is None else parse_value(MemoryRecord, group.describe())


def _spec(context: CellContext, cell: Cell, outcome: _Outcome, rank: int) -> CellSpec:
    experiment, access = context.experiment, outcome.reached[outcome.nodes[rank]]
    out = outcome.folders[rank]
    loader = experiment.loaders[cell.loader]
    link = None if experiment.regimes[cell.regime].is_local else context.testbed.link
    return CellSpec(
        cell_id=cell.cell_id,
        out=out,
        loader=loader,
        workload=experiment.workloads[cell.workload],
        accelerator=experiment.accelerator,
        samples=access.samples_file,
        data_root=access.root,
        endpoints=[daemon.endpoint for daemon in access.daemons],
        keys=context.data[cell.workload].keys[loader.daemon["module"]].client if loader.secure else None,
        stream_events=out / LOADER_EVENTS if loader.reads == "stream" else None,
        seed=cell.seed,
        epochs=experiment.epochs,
        warmup_samples=min(experiment.warmup_samples, context.datasets[cell.workload].samples),
        energy_store=context.run.energy.resolve(),
        interface=None if link is None else outcome.nodes[rank].interface,
        link_pid=None if link is None else link.pid,
        run_pid=os.getpid(),
        pids=_pids(context, outcome),
        ranks=rank_spec(outcome.nodes, rank, experiment) if len(outcome.nodes) > 1 else None,
    )


def _pids(context: CellContext, outcome: _Outcome) -> dict[str, list[int]]:
    """Return the processes of this host that serve the cell, by what they do; of other hosts none can be counted."""
    if context.hosts.sensors:
        return {}
    found = {
        "daemon": [daemon.child.pid for daemon in outcome.daemons.values()],
        "mount": sorted({pid for access in outcome.reached.values() for pid in access.pids}),
        "monitor": [] if context.agent.pid is None else [context.agent.pid],
    }
    return {name: pids for name, pids in found.items() if pids}


def _run_epochs(
    context: CellContext,
    process: CellRanks,
    outcome: _Outcome,
    watcher: Watcher,
    deadline: float,
    sampler: ResourceSampler,
    watch: LinkWatch | None,
) -> None:
    epoch, before, doing = 0, None, "making its loader and warming up"
    used: Mapping[str, Mapping[str, float]] = {}
    read: int | None = None
    while True:
        state = process.receive(deadline, doing, context.hosts.require)
        context.agent.require()
        context.hosts.require()
        outcome.other_runs |= living_runs() - {context.testbed.run_id}
        match state.state:
            case "ready":
                epoch = state.epoch
                if epoch == 1 or context.experiment.testbed.cold == "epoch":
                    outcome.caches = context.testbed.drop_caches(outcome.access.source, outcome.access.parts)
                sampler.start(state.gpus)
                if watch is not None:
                    watch.start()
                before, read = context.link_counters(), context.testbed.storage_disk_bytes()
                watcher.samples(epoch, 0)
                used = context.hosts.count_cpu(context.agent)
                doing = f"waiting for the first batches of epoch {epoch}"
                process.send({"go": True})
            case "progress" if epoch == 0:
                doing = f"warming up, after {state.samples} samples"
            case "progress":
                doing = f"waiting for the next batch of epoch {epoch}, after {state.samples} samples"
                watcher.samples(epoch, state.samples)
            case "epoch_done":
                doing = f"ending epoch {epoch}"
                for host, now in context.hosts.count_cpu(context.agent).items():
                    grown = {part: now[part] - used[host][part] for part in now.keys() & used[host].keys()}
                    outcome.host_cpu_s.setdefault(host, {})[epoch] = grown
                after, now_read = context.link_counters(), context.testbed.storage_disk_bytes()
                if read is not None and now_read is not None:
                    outcome.storage_reads[epoch] = now_read - read
                outcome.drops[epoch] = after.drops - before.drops if after and before else None
                outcome.pauses_s[epoch] = after.pause_s if after else None
                if before and after:
                    pairs = zip(after.paths, before.paths, strict=True)
                    outcome.paths[epoch] = [path.since(earlier) for path, earlier in pairs]
                watcher.samples(epoch, state.samples)
            case "done":
                outcome.done = state
                return
            case other:
                raise CellError(f"the cell's process sent {other!r}, expected ready, progress or done")


def _save(context: CellContext, cell: Cell, outcome: _Outcome, partial: Path) -> None:
    experiment, access = context.experiment, outcome.access
    events = read_events(partial / "events.jsonl")
    edges = find_epoch_edges(events)
    if len(edges) != experiment.epochs:
        raise CellError(f"{len(edges)} of {experiment.epochs} epochs were recorded")
    offset_ns = context.agent.offset_ns
    span_ns = events[0]["mono_ns"] + offset_ns, events[-1]["mono_ns"] + offset_ns
    readings = context.agent.readings(*span_ns)
    energy = EnergyRecord(
        interval_ms=experiment.energy.interval_ms,
        offset_ns=offset_ns,
        series=parse_value(tuple[SensorRecord, ...], context.agent.series),
        unreadable=parse_value(tuple[SensorRecord, ...], context.agent.unreadable),
        events=context.agent.events(*span_ns),
        idle=context.agent.idle,
        idle_cpu_util=context.agent.idle_cpu_util,
    )
    spans = {n: (to_readings_ns(start, energy), to_readings_ns(end, energy)) for n, (start, end) in edges.items()}
    context.agent.mark(cell.cell_id, cell.loader, spans)
    theirs = [event for rank, folder in enumerate(outcome.folders) if rank for event in rank_events(folder, rank)]
    streamed = [_daemon_events(outcome), *map(_loader_events, outcome.folders)]
    every = sorted([*events, *theirs, *chain(*streamed)], key=lambda event: event["utc_ns"])
    save_events(every, partial / "events.parquet")
    batches = join_batches(outcome.folders)
    pq.write_table(batches, partial / "batches.parquet")
    hosts, more = context.hosts.records(events[0]["utc_ns"], events[-1]["utc_ns"], *outcome.clocks)
    save_readings([*readings, *more], partial / "energy.parquet")
    regime, described = experiment.regimes[cell.regime], context.testbed.describe()
    link = None if regime.is_local else context.testbed.link
    calibrations = [] if link is None else cast(Any, described["link"])["calibrations"]
    link_record = LinkRecord(
        kind="none" if link is None else link.kind,
        floor_ms=None if link is None else link.floor_ms,
        calibrations=parse_value(tuple[Calibration, ...], [c for c in calibrations if c["rtt_ms"] == regime.rtt_ms]),
        before=outcome.before,
        after=outcome.after,
        epochs=[_link_epoch(context, outcome, start, end) for start, end in edges.values()],
        notes=parse_value(tuple[str, ...], described.get("notes", [])),
    )
    assert outcome.done.accelerator is not None
    record = CellRecord(
        **(asdict(cell) | {"regime": regime}),
        reads=experiment.loaders[cell.loader].reads,
        provenance=context.session,
        dataset=context.datasets[cell.workload],
        placement=parse_value(PlacementRecord, context.data[cell.workload].placed.describe()),
        mount=access.mount,
        caches=outcome.caches,
        storage_reads=outcome.storage_reads,
        memory=outcome.memory,
        daemon_memory=outcome.daemon_memory,
        ranks=_rank_records(context, cell, outcome, batches),
        other_runs=sorted(outcome.other_runs),
        notes=outcome.done.notes,
        stats=outcome.done.stats,
        on_error=experiment.loaders[cell.loader].params.get("on_error", "raise"),
        skipped=list(skipped_by_epoch(every).values()),
        accelerator=outcome.done.accelerator,
        sampler=outcome.sampler,
        energy=energy,
        clock=ONE_CLOCK,
        hosts=hosts,
        host_cpu_s=outcome.host_cpu_s,
    )
    write_json(partial / "link.json", link_record)
    write_json(partial / "cell.json", record)
    for path in [*outcome.daemons, *chain(*(temporary_files(folder) for folder in outcome.folders))]:
        path.unlink(missing_ok=True)


def _rank_records(context: CellContext, cell: Cell, outcome: _Outcome, batches: pa.Table) -> list[RankRecord]:
    assert outcome.done.accelerator is not None
    data = context.data[cell.workload].placed
    return rank_records(
        outcome.nodes,
        batches,
        data,
        gradient_bytes=outcome.done.accelerator.gradient_bytes or 0,
        has_link=not context.experiment.regimes[cell.regime].is_local,
    )


def _link_epoch(context: CellContext, outcome: _Outcome, start: CellEvent, end: CellEvent) -> LinkEpoch:
    # The packets that watch the link are not the loader's.
    pings = (0, 0)
    if outcome.pings is not None and context.testbed.link is not None:
        pings = ping_bytes(outcome.pings, start["utc_ns"], end["utc_ns"], context.testbed.link.header_bytes)

    def growth(counter: str) -> Any:
        return None if end[counter] is None or start[counter] is None else end[counter] - start[counter]

    received, sent = growth("rx_bytes"), growth("tx_bytes")
    return LinkEpoch(
        epoch=start["epoch"],
        drops=outcome.drops.get(start["epoch"]),
        pause_s=outcome.pauses_s.get(start["epoch"]),
        rx_bytes=None if received is None else received - pings[0],
        tx_bytes=None if sent is None else sent - pings[1],
        link_cpu_s=growth("link_cpu_s"),
        paths=outcome.paths.get(start["epoch"], []),
    )


def _daemon_events(outcome: _Outcome) -> list[CellEvent]:
    return [
        {"endpoint": daemon.endpoint, **event}
        for path, daemon in outcome.daemons.items()
        for event in read_timestamps(path, "daemon")
    ]


def _loader_events(folder: Path) -> list[CellEvent]:
    return read_timestamps(folder / LOADER_EVENTS, "loader")
