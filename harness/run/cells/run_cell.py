"""Runs one cell from its plan entry to its finished folder: link, mount, daemon, probes, epochs."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext

from harness.cell.messages import CellSpec
from harness.cell.resources import ResourceSampler
from harness.config.specs import LoaderSpec, SettleSpec
from harness.errors import CellError
from harness.results.cell_folder import write_manifest
from harness.results.cells import Cell, MemoryRecord
from harness.results.files import parse_value
from harness.run.cells.context import CellContext, CellMeasurement
from harness.run.cells.data_access import open_access
from harness.run.cells.rank_files import LOADER_EVENTS, make_folders, rank_nodes, rank_spec, send_spec
from harness.run.cells.ranks import CellRanks
from harness.run.cells.save_cell import save_cell
from harness.run.cells.try_readers import with_readers
from harness.run.host_energy import HostEdge
from harness.run.progress import RunProgress
from harness.system.spin import measure_spin
from harness.testbed.link.measure.watch import LinkWatch
from harness.testbed.memory import MemoryGroup, limited_memory
from harness.testbed.state import RunNames, living_runs, state_root


def run_cell(context: CellContext, cell: Cell, watcher: RunProgress) -> None:
    """Run one cell; its folder is finished when this returns.

    Raises HarnessError (CellError, TestbedError, DiskError, …) when the cell has no result.
    """
    experiment, testbed = context.experiment, context.testbed
    partial = context.run.partial_folder(cell.cell_id)
    partial.mkdir()
    loader, workload = experiment.loaders[cell.loader], experiment.workloads[cell.workload]
    regime = experiment.regimes[cell.regime]
    context.spins.append({context.agent.node: measure_spin(), **context.hosts.measure_spins()})
    with ExitStack() as stack:
        memory, daemon_memory = _limit_memory(context, cell, stack)
        nodes = rank_nodes(testbed, experiment, experiment.count_ranks(cell.loader))
        folders = make_folders(partial.resolve(), len(nodes))
        started = nodes if memory is None else [memory.node(node) for node in nodes]
        stall_s = 60 * experiment.cell_stall_min
        process = stack.enter_context(CellRanks(started, folders, stall_s, context.templates, loader.environment))
        process.send({"import": ["torch", *(one.target.rpartition(".")[0] for one in (loader, workload))]})
        # Its search has a process of its own, which imports the same at the same time.
        loader = with_readers(context, cell, watcher)
        deadline = time.monotonic() + experiment.cell_timeout_s
        testbed.set_regime(regime)
        watcher.phase("reaching its data")
        data, limit = context.data[cell.workload], daemon_memory or memory
        reached = open_access(data, testbed, loader, regime, stack, folders[0], limit, nodes)
        outcome = CellMeasurement(reached, nodes, folders)
        watcher.phase("importing its modules")
        if (state := process.receive(deadline, "importing its modules").state) != "imported":
            raise CellError(f"the cell's process sent {state!r}, expected imported")
        watcher.phase("probing the link")
        outcome.before = context.probe_before(regime)
        clocks = context.hosts.clocks()
        watcher.phase("warming up")
        specs = [send_spec(node, _spec(context, cell, loader, outcome, rank)) for rank, node in enumerate(nodes)]
        (partial / "spec.json").write_bytes(specs[0].to_json())
        process.start(specs)
        sampler = ResourceSampler(process.pids, specs[0].interface, partial / "resources.parquet", process.templates)
        has_link = not regime.is_local and testbed.link is not None
        watch = LinkWatch(started[0], testbed.storage.address, partial / "link.parquet") if has_link else None
        with _daemons_last(outcome), sampler, watch or nullcontext():
            _run_epochs(context, process, outcome, watcher, deadline, sampler, watch)
        outcome.sampler = sampler.cost
        outcome.pings = None if watch is None else watch.pings
        outcome.memory, outcome.daemon_memory = _memory_record(memory), _memory_record(daemon_memory)
        watcher.phase("probing the link")
        outcome.after = context.probe_after(regime)
        outcome.clocks = clocks, context.hosts.clocks()
        process.fetch_files()
    context.spins.append({context.agent.node: measure_spin(), **context.hosts.measure_spins()})
    save_cell(context, cell, loader, outcome, partial)
    write_manifest(partial)
    context.run.set_aside(cell.cell_id, "invalid")
    partial.rename(context.run.cell_folder(cell.cell_id))


@contextmanager
def _daemons_last(outcome: CellMeasurement) -> Iterator[None]:
    """Raise CellError where a daemon has failed, though a loader that has all of its data by then raises nothing."""
    try:
        yield
    except CellError as error:
        if failures := outcome.daemon_failures():
            raise CellError("; ".join([*failures, str(error)])) from error
        raise
    if failures := outcome.daemon_failures():
        raise CellError("; ".join(failures))


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


def _spec(context: CellContext, cell: Cell, loader: LoaderSpec, outcome: CellMeasurement, rank: int) -> CellSpec:
    experiment, access = context.experiment, outcome.reached[outcome.nodes[rank]]
    out = outcome.folders[rank]
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
        warmup_samples=min(experiment.warmup_samples, len(context.data[cell.workload].opened.handle.samples)),
        energy_store=context.run.energy.resolve(),
        interface=None if link is None else outcome.nodes[rank].interface,
        link_pid=None if link is None else link.pid,
        run_pid=os.getpid(),
        pids=_pids(context, outcome),
        ranks=rank_spec(outcome.nodes, rank, experiment) if len(outcome.nodes) > 1 else None,
        settle=SettleSpec() if context.settled else experiment.energy.settle,
    )


def _pids(context: CellContext, outcome: CellMeasurement) -> dict[str, list[int]]:
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
    outcome: CellMeasurement,
    watcher: RunProgress,
    deadline: float,
    sampler: ResourceSampler,
    watch: LinkWatch | None,
) -> None:
    epoch, before, doing = 0, None, "making its loader and warming up"
    used: Mapping[str, HostEdge] = {}
    read: int | None = None
    while True:
        state = process.receive(deadline, doing, context.hosts.require)
        context.agent.require()
        context.hosts.require()
        outcome.other_runs |= living_runs() - {context.testbed.run_id}
        match state.state:
            case "ready":
                epoch = state.epoch
                context.note_settled(state.settled)
                if epoch == 1 or context.experiment.testbed.cold == "epoch":
                    outcome.caches = context.testbed.drop_caches(outcome.access.source, outcome.access.parts)
                sampler.start(state.gpus)
                if watch is not None:
                    watch.start()
                before, read = context.link_counters(), context.testbed.storage_disk_bytes()
                watcher.samples(epoch, 0)
                used = context.hosts.read_edges(context.agent)
                doing = f"waiting for the first batches of epoch {epoch}"
                process.send({"go": True})
            case "progress" if epoch == 0:
                doing = state.message or f"warming up, after {state.samples} samples"
                watcher.waits(doing)
            case "progress":
                doing = f"waiting for the next batch of epoch {epoch}, after {state.samples} samples"
                watcher.samples(epoch, state.samples, state.stall_s)
            case "epoch_done":
                doing = f"ending epoch {epoch}"
                outcome.add_edges(epoch, used, context.hosts.read_edges(context.agent))
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
