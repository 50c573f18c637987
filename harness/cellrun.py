"""Drives one cell from its plan entry to its whole folder: link, mount, daemon, probes, epochs, what they left."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.parquet as pq

from harness.checks import link_bounds
from harness.config import Experiment, LoaderSpec
from harness.daemon import Daemon, serving
from harness.energy import EnergyAgent, save_readings
from harness.errors import CellError
from harness.events import read_events, save_events
from harness.measure import epoch_edges, link_joules
from harness.plan import Cell
from harness.regime import Regime
from harness.results import Results, write_json
from harness.talk import CellProcess
from harness.testbed import Testbed
from harness.testbed.link import LinkCounters

__all__ = ["CellContext", "Watcher", "run_cell"]


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
    samples_file: Path
    data_root: Path
    shards: Path | None
    dataset: Mapping[str, Any]


@dataclass(slots=True)
class _Outcome:
    """What is learned while a cell runs."""

    mount: str = "none"
    caches: str = ""
    before: dict[str, Any] | None = None
    after: dict[str, Any] | None = None
    drops: dict[int, int | None] = field(default_factory=dict)
    done: dict[str, Any] = field(default_factory=dict)


def run_cell(context: CellContext, cell: Cell, watcher: Watcher) -> None:
    """Run one cell; its folder is whole when this returns. Raises HarnessError or the testbed's own errors."""
    partial = context.results.partial(cell.cell_id)
    partial.mkdir()
    loader = context.experiment.loaders[cell.loader]
    regime = context.experiment.regimes[cell.regime]
    outcome = _Outcome()
    with ExitStack() as stack:
        process = stack.enter_context(CellProcess(context.testbed.compute, partial / "log.txt"))
        deadline = time.monotonic() + context.experiment.cell_timeout_s
        workload = context.experiment.workloads[cell.workload]
        process.say({"import": ["torch", _module(loader.target), _module(workload.target)]})
        watcher.phase("preparing")
        context.testbed.set_regime(regime)
        data_root, daemon = _reach_data(context, loader, regime, stack, partial, outcome)
        _hear(process, "imported", deadline)
        watcher.phase("probing the link")
        outcome.before = _probe(context, regime)
        watcher.phase("warming up")
        process.say(_spec(context, cell, data_root, daemon))
        try:
            source = context.data_root if daemon is None or context.shards is None else context.shards
            _epochs(context, process, source, outcome, watcher, deadline)
        except CellError as error:
            if daemon is not None and (gone := daemon.failure()):
                raise CellError(f"{gone}; {error}") from error
            raise
        watcher.phase("probing the link")
        outcome.after = _probe(context, regime)
    _save(context, cell, regime, outcome, partial)
    partial.rename(context.results.cell(cell.cell_id))


def _reach_data(
    context: CellContext,
    loader: LoaderSpec,
    regime: Regime,
    stack: ExitStack,
    partial: Path,
    outcome: _Outcome,
) -> tuple[Path | None, Daemon | None]:
    if loader.reads == "stream":
        assert context.shards is not None
        node = context.testbed.data_node(regime)
        host = "127.0.0.1" if regime.is_local else node.address
        outcome.mount = "none: streamed"
        serve = serving(node, host, context.shards, loader.daemon, partial / "daemon.log")
        return None, stack.enter_context(serve)
    mount = stack.enter_context(context.testbed.mount(context.data_root, regime))
    outcome.mount = mount.kind
    return mount.path, None


def _spec(context: CellContext, cell: Cell, data_root: Path | None, daemon: Daemon | None) -> dict[str, Any]:
    experiment = context.experiment
    loader, workload = experiment.loaders[cell.loader], experiment.workloads[cell.workload]
    link = context.testbed.link
    local = experiment.regimes[cell.regime].is_local
    return {
        "cell_id": cell.cell_id,
        "out": str(context.results.partial(cell.cell_id).resolve()),
        "loader": {"target": loader.target, "params": dict(loader.params), "reads": loader.reads},
        "workload": {"target": workload.target, "params": dict(workload.params)},
        "accelerator": asdict(experiment.accelerator),
        "samples": str(context.samples_file),
        "data_root": str(data_root) if data_root else None,
        "endpoint": daemon.endpoint if daemon else None,
        "seed": cell.seed,
        "epochs": experiment.epochs,
        "warmup_samples": min(experiment.warmup_samples, context.dataset["samples"]),
        "interface": None if local or link is None else link.interface,
        "link_pid": None if local or link is None else link.pid,
    }


def _epochs(
    context: CellContext,
    process: CellProcess,
    source: Path,
    outcome: _Outcome,
    watcher: Watcher,
    deadline: float,
) -> None:
    epoch, before = 0, None
    while True:
        state = process.hear(deadline)
        match state["state"]:
            case "ready":
                epoch = state["epoch"]
                outcome.caches = context.testbed.drop_caches(source)
                before = _link_counters(context)
                watcher.samples(epoch, 0)
                process.say({"go": True})
            case "progress":
                watcher.samples(epoch, state["samples"])
            case "epoch_done":
                after = _link_counters(context)
                outcome.drops[epoch] = after.drops - before.drops if after and before else None
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
    heard = process.hear(deadline)
    if heard["state"] != state:
        raise CellError(f"the cell's process said {heard['state']!r}, expected {state!r}")


def _save(context: CellContext, cell: Cell, regime: Regime, outcome: _Outcome, partial: Path) -> None:
    events = read_events(partial / "events.jsonl")
    edges = epoch_edges(events)
    if len(edges) != context.experiment.epochs:
        raise CellError(f"{len(edges)} of {context.experiment.epochs} epochs were recorded")
    span_ns = events[0]["utc_ns"], events[-1]["utc_ns"]
    readings = context.agent.readings(*span_ns)
    save_events(events, partial / "events.parquet")
    parts = sorted(partial.glob("batches-*.parquet"))
    pq.write_table(pa.concat_tables([pq.read_table(p) for p in parts]), partial / "batches.parquet")
    save_readings(readings, partial / "energy.parquet")
    epochs = []
    interval_ns = int(context.experiment.energy.interval_ms * 1e6)
    for epoch, (start, end) in edges.items():
        entry: dict[str, float | None] = {"epoch": epoch, "drops": outcome.drops.get(epoch)}
        for key in ("rx_bytes", "tx_bytes", "link_cpu_s"):
            entry[key] = None if end[key] is None or start[key] is None else end[key] - start[key]
        entry["link_j"] = link_joules(readings, start, end, interval_ns)
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
            "regime": asdict(regime),
            "status": "done",
            "dataset": dict(context.dataset),
            "mount": outcome.mount,
            "caches": outcome.caches,
            "notes": outcome.done["notes"],
            "stats": outcome.done["stats"],
            "accelerator": outcome.done["accelerator"],
            "energy": {
                "interval_ms": context.experiment.energy.interval_ms,
                "series": context.agent.series,
                "events": [asdict(event) for event in context.agent.events(*span_ns)],
            },
            # Both nodes are this machine: one clock.
            "clock_offset_ms": 0.0,
        },
    )
    for path in [*parts, partial / "events.jsonl"]:
        path.unlink()


def _module(target: str) -> str:
    return target.rpartition(".")[0]
