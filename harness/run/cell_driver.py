"""Drives one cell from its plan entry to its whole folder: link, mount, daemon, probes, epochs, what they left."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.parquet as pq

from energymon import save_readings
from harness.cell.events import read_events, read_timestamps, save_events
from harness.cell.resources import ResourceSampler
from harness.cell.skipped import skipped_by_epoch
from harness.config.regime import Regime
from harness.config.specs import Experiment
from harness.errors import CellError
from harness.results.checks import ONE_CLOCK, link_bounds
from harness.results.epochs import epoch_edges, link_joules
from harness.results.folder import Results, write_json
from harness.results.manifest import MANIFEST, write_manifest
from harness.run.cell_process import CellProcess
from harness.run.data_access import DataOnNodes, Reached, reach
from harness.run.energy_agent import EnergyAgent
from harness.run.plan import Cell
from harness.testbed import Testbed
from harness.testbed.link import LinkCounters
from harness.testbed.link.watch import LinkWatch, Ping, ping_bytes
from harness.testbed.memory import limited_memory
from harness.testbed.state import RunNames, living_runs, state_root

__all__ = ["CellContext", "Watcher", "run_cell"]

_LOADER_EVENTS = "loader-events.jsonl"


class Watcher(Protocol):
    """Is told how far a cell is."""

    def phase(self, text: str) -> None:
        """Take note of what is being done."""
        ...

    def samples(self, epoch: int, done: int) -> None:
        """Take note of how many samples of an epoch have been trained on."""
        ...


@dataclass(frozen=True, slots=True)
class CellContext:
    """What all cells of a run share."""

    experiment: Experiment
    results: Results
    testbed: Testbed
    agent: EnergyAgent
    data: Mapping[str, DataOnNodes]
    """By workload."""
    datasets: Mapping[str, Mapping[str, Any]]
    """What is told of the dataset of each workload."""
    session: str
    """File of the provenance of what is measured now."""


@dataclass(slots=True)
class _Outcome:
    """What is learned while a cell runs."""

    reached: Reached | None = None
    other_runs: set[str] = field(default_factory=set)
    """Runs that were there at the same time."""
    caches: str = ""
    before: dict[str, Any] | None = None
    after: dict[str, Any] | None = None
    drops: dict[int, int | None] = field(default_factory=dict)
    pauses_s: dict[int, float | None] = field(default_factory=dict)
    """The relay's longest pause, by epoch; None without a relay."""
    pings: Sequence[Ping] | None = None
    """Of the link; None where it was not watched."""
    done: dict[str, Any] = field(default_factory=dict)
    sampler: dict[str, float] = field(default_factory=dict)
    """What looking at the cell's resources has cost."""
    memory: dict[str, Any] | None = None
    """The limit on the memory of its processes, and their peak; None without one."""


def run_cell(context: CellContext, cell: Cell, watcher: Watcher) -> None:
    """Run one cell; its folder is whole when this returns. Raises HarnessError or the testbed's own errors."""
    partial = context.results.partial(cell.cell_id)
    partial.mkdir()
    loader = context.experiment.loaders[cell.loader]
    regime = context.experiment.regimes[cell.regime]
    data, outcome = context.data[cell.workload], _Outcome()
    testbed, limit_mb = context.testbed, context.experiment.testbed.memory_mb
    with ExitStack() as stack:
        names = RunNames(testbed.run_id, state_root())
        memory = None if limit_mb is None else stack.enter_context(limited_memory(names, limit_mb, cell.cell_id))
        compute = testbed.compute if memory is None else memory.node(testbed.compute)
        stall_s = 60 * context.experiment.cell_stall_min
        process = stack.enter_context(CellProcess(compute, partial / "log.txt", stall_s))
        deadline = time.monotonic() + context.experiment.cell_timeout_s
        workload = context.experiment.workloads[cell.workload]
        process.say({"import": ["torch", _module(loader.target), _module(workload.target)]})
        testbed.set_regime(regime)
        watcher.phase("reaching its data")
        reached = outcome.reached = reach(data, testbed, loader, regime, stack, partial.resolve(), memory)
        watcher.phase("importing its modules")
        _hear(process, "imported", deadline)
        watcher.phase("probing the link")
        outcome.before = _probe(context, regime)
        watcher.phase("warming up")
        spec = _spec(context, cell, reached)
        process.say(spec)
        sampler = ResourceSampler(process.pid, spec["interface"], partial / "resources.parquet")
        namespace = None if regime.is_local else testbed.compute.namespace
        watch = None if namespace is None else LinkWatch(namespace, partial / "link.parquet")
        try:
            with sampler, watch or nullcontext():
                _epochs(context, process, reached.source, outcome, watcher, deadline, sampler, watch)
            outcome.sampler = sampler.cost
            outcome.pings = None if watch is None else watch.pings
            outcome.memory = None if memory is None else memory.describe()
        except CellError as error:
            if gone := [failure for daemon in reached.daemons if (failure := daemon.failure())]:
                raise CellError("; ".join([*gone, str(error)])) from error
            raise
        watcher.phase("probing the link")
        outcome.after = _probe(context, regime)
    _save(context, cell, regime, outcome, partial)
    write_manifest(partial)
    context.results.set_aside(cell.cell_id, "invalid")
    partial.rename(context.results.cell(cell.cell_id))


def _spec(context: CellContext, cell: Cell, reached: Reached) -> dict[str, Any]:
    experiment = context.experiment
    out = context.results.partial(cell.cell_id).resolve()
    loader, workload = experiment.loaders[cell.loader], experiment.workloads[cell.workload]
    link = context.testbed.link
    local = experiment.regimes[cell.regime].is_local
    return {
        "cell_id": cell.cell_id,
        "out": str(out),
        "loader": {"target": loader.target, "params": dict(loader.params), "reads": loader.reads},
        "workload": {"target": workload.target, "params": dict(workload.params)},
        "accelerator": experiment.accelerator.model_dump(),
        "samples": str(reached.samples_file),
        "data_root": str(reached.root) if reached.root else None,
        "endpoints": [daemon.endpoint for daemon in reached.daemons],
        "keys": str(context.data[cell.workload].keys[loader.daemon["module"]].client) if loader.secure else None,
        "stream_events": str(out / _LOADER_EVENTS) if loader.reads == "stream" else None,
        "seed": cell.seed,
        "epochs": experiment.epochs,
        "warmup_samples": min(experiment.warmup_samples, context.datasets[cell.workload]["samples"]),
        "energy_store": str(context.results.energy.resolve()),
        "interface": None if local or link is None else link.interface,
        "link_pid": None if local or link is None else link.pid,
        "run_pid": os.getpid(),
    }


def _epochs(
    context: CellContext,
    process: CellProcess,
    source: Path,
    outcome: _Outcome,
    watcher: Watcher,
    deadline: float,
    sampler: ResourceSampler,
    watch: LinkWatch | None,
) -> None:
    epoch, before, doing = 0, None, "making its loader and warming up"
    while True:
        state = process.hear(deadline, doing)
        context.agent.require()
        outcome.other_runs |= living_runs() - {context.testbed.run_id}
        match state["state"]:
            case "ready":
                epoch = state["epoch"]
                if epoch == 1 or context.experiment.testbed.cold == "epoch":
                    outcome.caches = context.testbed.drop_caches(source)
                sampler.start(state.get("gpu"))
                if watch is not None:
                    watch.start()
                before = _link_counters(context)
                watcher.samples(epoch, 0)
                doing = f"waiting for the first batches of epoch {epoch}"
                process.say({"go": True})
            case "progress" if epoch == 0:
                doing = f"warming up, after {state['samples']} samples"
            case "progress":
                doing = f"waiting for the next batch of epoch {epoch}, after {state['samples']} samples"
                watcher.samples(epoch, state["samples"])
            case "epoch_done":
                doing = f"ending epoch {epoch}"
                after = _link_counters(context)
                outcome.drops[epoch] = after.drops - before.drops if after and before else None
                outcome.pauses_s[epoch] = after.pause_s if after else None
                watcher.samples(epoch, state["samples"])
            case "done":
                outcome.done = state
                return
            case other:
                raise CellError(f"the cell's process said {other!r}, expected ready, progress or done")


def _link_counters(context: CellContext) -> LinkCounters | None:
    return context.testbed.link.counters() if context.testbed.link is not None else None


def _probe(context: CellContext, regime: Regime) -> dict[str, Any] | None:
    found = context.testbed.probe(regime)
    if found is None:
        return None
    first = asdict(found)
    if all(bound.kept for bound in link_bounds(regime, first, context.experiment.checks)):
        return first
    # A neighbour on the host can spoil one probe; a link that is wrong is wrong twice. Both are kept.
    again = context.testbed.probe(regime)
    return {**asdict(again), "first": first} if again is not None else first


def _hear(process: CellProcess, state: str, deadline: float) -> None:
    heard = process.hear(deadline, "importing its modules")
    if heard["state"] != state:
        raise CellError(f"the cell's process said {heard['state']!r}, expected {state!r}")


def _save(context: CellContext, cell: Cell, regime: Regime, outcome: _Outcome, partial: Path) -> None:
    assert outcome.reached is not None
    events = read_events(partial / "events.jsonl")
    edges = epoch_edges(events)
    if len(edges) != context.experiment.epochs:
        raise CellError(f"{len(edges)} of {context.experiment.epochs} epochs were recorded")
    offset_ns = context.agent.offset_ns
    span_ns = events[0]["mono_ns"] + offset_ns, events[-1]["mono_ns"] + offset_ns
    readings = context.agent.readings(*span_ns)
    told = _stream_events(outcome.reached, partial)
    save_events(sorted([*events, *told], key=lambda event: event["utc_ns"]), partial / "events.parquet")
    parts = sorted(partial.glob("batches-*.parquet"))
    pq.write_table(pa.concat_tables([pq.read_table(p) for p in parts]), partial / "batches.parquet")
    save_readings(readings, partial / "energy.parquet")
    epochs = []
    energy = {
        "interval_ms": context.experiment.energy.interval_ms,
        "offset_ns": offset_ns,
        "series": context.agent.series,
        "unreadable": context.agent.unreadable,
        "events": [asdict(event) for event in context.agent.events(*span_ns)],
    }
    for epoch, (start, end) in edges.items():
        entry: dict[str, float | None] = {"epoch": epoch, "drops": outcome.drops.get(epoch)}
        entry["pause_s"] = outcome.pauses_s.get(epoch)
        for key in ("rx_bytes", "tx_bytes", "link_cpu_s"):
            entry[key] = None if end[key] is None or start[key] is None else end[key] - start[key]
        if outcome.pings is not None and context.testbed.link is not None:
            # What watches the link is none of the loader's bytes.
            received, sent = ping_bytes(outcome.pings, start["utc_ns"], end["utc_ns"], context.testbed.link.kind)
            for key, own in (("rx_bytes", received), ("tx_bytes", sent)):
                counted = entry[key]
                entry[key] = None if counted is None else counted - own
        entry["link_j"] = link_joules(readings, start, end, energy)
        epochs.append(entry)
    link = context.testbed.link
    write_json(
        partial / "link.json",
        {
            "kind": "none" if regime.is_local or link is None else link.kind,
            "before": outcome.before,
            "after": outcome.after,
            "epochs": epochs,
            "notes": context.testbed.describe().get("notes", []),
        },
    )
    write_json(
        partial / "cell.json",
        {
            **asdict(cell),
            "regime": regime.model_dump(),
            "status": "done",
            "manifest": MANIFEST,
            "provenance": context.session,
            "dataset": dict(context.datasets[cell.workload]),
            "placement": context.data[cell.workload].placed.describe(),
            "mount": outcome.reached.mount,
            "caches": outcome.caches,
            "memory": outcome.memory,
            "other_runs": sorted(outcome.other_runs),
            "notes": outcome.done["notes"],
            "stats": outcome.done["stats"],
            "on_error": context.experiment.loaders[cell.loader].params.get("on_error", "raise"),
            "skipped": [asdict(one) for one in skipped_by_epoch(events).values()],
            "accelerator": outcome.done["accelerator"],
            "sampler": outcome.sampler,
            "energy": energy,
            "clock": ONE_CLOCK,
        },
    )
    for path in [*parts, partial / "events.jsonl", partial / _LOADER_EVENTS, *outcome.reached.events]:
        path.unlink(missing_ok=True)


def _stream_events(reached: Reached, partial: Path) -> list[dict[str, Any]]:
    """Return the timestamps of the loader and of every daemon."""
    told = read_timestamps(partial / _LOADER_EVENTS, "loader")
    for daemon, path in zip(reached.daemons, reached.events, strict=True):
        told += [{"endpoint": daemon.endpoint, **event} for event in read_timestamps(path, "daemon")]
    return told


def _module(target: str) -> str:
    return target.rpartition(".")[0]
