"""Writes the folder of a cell that has ended: its record, events, batches, energy readings and link."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from itertools import chain
from pathlib import Path
from typing import Any, cast

import pyarrow.parquet as pq

from energymon import Reading, save_readings
from harness.cell.events import CellEvent, read_events, read_timestamps, save_events
from harness.cell.skipped import skipped_by_epoch
from harness.config.specs import LoaderSpec
from harness.errors import CellError
from harness.results.cells import (
    Cell,
    CellRecord,
    EnergyRecord,
    LinkEpoch,
    LinkRecord,
    PlacementRecord,
    SensorRecord,
    SpinRecord,
)
from harness.results.checks.judged import ONE_CLOCK
from harness.results.edges import find_epoch_edges
from harness.results.files import parse_value, write_json
from harness.results.make_rows import to_readings_ns
from harness.run.cells.context import CellContext, CellMeasurement
from harness.run.cells.rank_files import LOADER_EVENTS, join_batches, rank_events, rank_records, temporary_files
from harness.run.cells.try_readers import readers_key
from harness.system.disk import is_on_disk
from harness.testbed.link.delay_calibration import Calibration
from harness.testbed.link.measure.watch import ping_bytes


def save_cell(context: CellContext, cell: Cell, loader: LoaderSpec, measured: CellMeasurement, partial: Path) -> None:
    """Write the files of a cell that has ended into its folder, and remove those that they are made of.

    `loader` has the arguments that the cell's loader was made with.

    Raises CellError where an epoch was not recorded, and HarnessError where readings cannot be had.
    """
    experiment = context.experiment
    own = read_events(partial / "events.jsonl")
    edges = find_epoch_edges(own)
    if len(edges) != experiment.epochs:
        raise CellError(f"{len(edges)} of {experiment.epochs} epochs were recorded")
    first, last = own[0], own[-1]
    energy, readings = _energy(context, first, last)
    spans = {n: (to_readings_ns(start, energy), to_readings_ns(end, energy)) for n, (start, end) in edges.items()}
    context.agent.mark(cell.cell_id, cell.loader, spans)
    events = _join_events(own, measured)
    save_events(events, partial / "events.parquet")
    batches = join_batches(measured.folders)
    pq.write_table(batches, partial / "batches.parquet")
    hosts, theirs = context.hosts.records(first["utc_ns"], last["utc_ns"], *measured.clocks)
    save_readings([*readings, *theirs], partial / "energy.parquet")
    accelerator, dataset = measured.done.accelerator, context.data[cell.workload].opened
    assert accelerator is not None
    has_link = not experiment.regimes[cell.regime].is_local
    record = CellRecord(
        **(asdict(cell) | {"regime": experiment.regimes[cell.regime]}),
        reads=loader.reads,
        readers=loader.params.get(loader.readers),
        provenance=context.session,
        dataset=dataset.describe(),
        placement=parse_value(PlacementRecord, dataset.placed.describe()),
        mount=measured.access.mount,
        caches=measured.caches,
        cold=experiment.testbed.cold,
        on_disk=is_on_disk(measured.access.source),
        storage_reads=measured.storage_reads,
        memory=measured.memory,
        daemon_memory=measured.daemon_memory,
        spin=_get_spins(context, context.agent.node),
        ranks=rank_records(
            measured.nodes, batches, dataset.placed, gradient_bytes=accelerator.gradient_bytes or 0, has_link=has_link
        ),
        other_runs=sorted(measured.other_runs),
        notes=[*measured.done.notes, *_note_readers(context, cell)],
        model_check=measured.done.model_check,
        stats=measured.done.stats,
        on_error=loader.params.get("on_error", "raise"),
        skipped=list(skipped_by_epoch(events).values()),
        accelerator=accelerator,
        sampler=measured.sampler,
        energy=energy,
        clock=ONE_CLOCK,
        hosts=[replace(host, spin=_get_spins(context, host.host)) for host in hosts],
        host_cpu_s=measured.host_cpu_s,
        host_states=measured.host_states,
    )
    write_json(partial / "link.json", _link(context, cell, measured, list(edges.values())))
    write_json(partial / "cell.json", record)
    for path in [*measured.daemons, *chain(*map(temporary_files, measured.folders))]:
        path.unlink(missing_ok=True)


def _get_spins(context: CellContext, host: str) -> SpinRecord:
    first, before, after = (context.spins[place][host] for place in (0, -2, -1))
    return SpinRecord(first=first, before=before, after=after)


def _note_readers(context: CellContext, cell: Cell) -> list[str]:
    found = context.readers.get(readers_key(cell))
    return [] if found is None else [found.describe(cell.regime)]


def _energy(context: CellContext, first: CellEvent, last: CellEvent) -> tuple[EnergyRecord, Sequence[Reading]]:
    """Return this host's energy between two events: the record, and the readings."""
    agent, offset_ns = context.agent, context.agent.offset_ns
    span_ns = first["mono_ns"] + offset_ns, last["mono_ns"] + offset_ns
    record = EnergyRecord(
        interval_ms=context.experiment.energy.interval_ms,
        offset_ns=offset_ns,
        series=parse_value(tuple[SensorRecord, ...], agent.series),
        unreadable=parse_value(tuple[SensorRecord, ...], agent.unreadable),
        events=agent.events(*span_ns),
        idle=agent.idle,
        idle_cpu_util=agent.idle_cpu_util,
    )
    return record, agent.readings(*span_ns)


def _join_events(own: Sequence[CellEvent], measured: CellMeasurement) -> list[CellEvent]:
    """Return the events of all ranks, of their loaders and of the daemons, in order."""
    found = list(own)
    for rank, folder in enumerate(measured.folders):
        found += rank_events(folder, rank) if rank else []
        found += read_timestamps(folder / LOADER_EVENTS, "loader")
    for path, daemon in measured.daemons.items():
        found += [{"endpoint": daemon.endpoint, **event} for event in read_timestamps(path, "daemon")]
    return sorted(found, key=lambda event: event["utc_ns"])


def _link(
    context: CellContext, cell: Cell, measured: CellMeasurement, edges: Sequence[tuple[CellEvent, CellEvent]]
) -> LinkRecord:
    regime, described = context.experiment.regimes[cell.regime], context.testbed.describe()
    link = None if regime.is_local else context.testbed.link
    calibrations = [] if link is None else cast(Any, described["link"])["calibrations"]
    return LinkRecord(
        kind="none" if link is None else link.kind,
        floor_ms=None if link is None else link.floor_ms,
        calibrations=parse_value(tuple[Calibration, ...], [c for c in calibrations if c["rtt_ms"] == regime.rtt_ms]),
        before=measured.before,
        after=measured.after,
        epochs=[_link_epoch(context, measured, start, end) for start, end in edges],
        notes=parse_value(tuple[str, ...], described.get("notes", [])),
    )


def _link_epoch(context: CellContext, measured: CellMeasurement, start: CellEvent, end: CellEvent) -> LinkEpoch:
    # The packets that watch the link are not the loader's.
    pings = (0, 0)
    if measured.pings is not None and context.testbed.link is not None:
        pings = ping_bytes(measured.pings, start["utc_ns"], end["utc_ns"], context.testbed.link.header_bytes)

    def growth(counter: str) -> Any:
        return None if end[counter] is None or start[counter] is None else end[counter] - start[counter]

    received, sent = growth("rx_bytes"), growth("tx_bytes")
    return LinkEpoch(
        epoch=start["epoch"],
        drops=measured.drops.get(start["epoch"]),
        pause_s=measured.pauses_s.get(start["epoch"]),
        rx_bytes=None if received is None else received - pings[0],
        tx_bytes=None if sent is None else sent - pings[1],
        link_cpu_s=growth("link_cpu_s"),
        paths=measured.paths.get(start["epoch"], []),
    )
