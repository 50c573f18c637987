"""Computes the rows of a cell from what it stored: one an epoch, and one an epoch and rank; pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime
from typing import Any

import numpy as np
import numpy.typing as npt

from energymon import Domain, Energy, EnergyComponent, NodeEnergy, add_up, channels_of, energy_of
from harness.cell.events import CellEvent
from harness.cell.messages import AcceleratorRecord
from harness.cell.resources import Resources
from harness.results.attributed import (
    EMULATED,
    Parts,
    add_parts,
    count_cpu_s,
    divide_cpu_joules,
    has_baseline,
    leave_busy_baselines_out,
    make_emulated_idle,
    measure_stalled_joules,
)
from harness.results.cell_folder import CellData, EpochBatches
from harness.results.cells import CellRecord, EnergyRecord, HostRecord
from harness.results.edges import add_known, find_epoch_edges, find_rank_edges, measure_growth
from harness.results.epoch_row import DOMAINS, EpochRow, RankRow


def make_epoch_rows(data: CellData, max_idle_util: float = 1.0) -> list[EpochRow]:
    """Return a row for every epoch that began and ended.

    A baseline counts only where processors were not busier than `max_idle_util` (0 to 1) then; by default always.
    """
    net = has_baseline(data.cell)
    data = replace(data, cell=leave_busy_baselines_out(data.cell, max_idle_util))
    edges = find_epoch_edges(data.events)
    return [_make_row(data, start, end, data.batches[epoch], net) for epoch, (start, end) in edges.items()]


def _compute_setup_s(events: Iterable[CellEvent]) -> float | None:
    """Return how long the loader took to be made, of several ranks the longest; None where it is not known."""
    made = (event["duration_ns"] / 1e9 for event in events if event["event"] in ("loader_made", "rank.loader_made"))
    return max(made, default=None)


def to_readings_ns(event: CellEvent, energy: EnergyRecord) -> int:
    """Return when an event was by the clock of a host's energy readings, ns. That clock is never set."""
    return int(event["utc_ns" if isinstance(energy, HostRecord) else "mono_ns"] + energy.offset_ns)


def select_resources(resources: Iterable[Resources], start: CellEvent, end: CellEvent) -> list[Resources]:
    """Return the rows of a cell's resources between two events."""
    return [row for row in resources if start["utc_ns"] <= row.utc_ns <= end["utc_ns"]]


def _make_row(data: CellData, start: CellEvent, end: CellEvent, batches: EpochBatches, net: bool) -> EpochRow:
    """Return the row of an epoch; with `net` the parts of its CPU joules are net of idle, or else unknown."""
    cell = data.cell
    duration_s = end["duration_ns"] / 1e9
    samples, nbytes = int(batches.samples.sum()), data.count_bytes(start["epoch"])
    # A board of this machine idles while another is emulated.
    given: dict[Domain, Sequence[Energy]] = {}
    if cell.accelerator.emulated:
        given["gpu"] = _estimate_published_energy(cell.accelerator, batches, duration_s)
    lead = _measure_host(data, None, start, end, given)
    elsewhere: dict[Domain, Sequence[Energy]] = {"gpu": []} if cell.accelerator.emulated else {}
    others = {host.host: _measure_host(data, host, start, end, elsewhere) for host in cell.hosts}
    energy = _add_hosts(lead, list(others.values()))
    training = [lead, *(others[host.host] for host in cell.hosts if "compute" in host.roles)]
    storing = [others[host.host] for host in cell.hosts if "compute" not in host.roles]
    known = [c for c in energy if c.name != "total" and c.joules is not None]
    joules = {c.name: c.joules for c in energy}
    total, cpu, wall = (next((c for c in energy if c.name == name), None) for name in ("total", "cpu", "wall"))
    drawn = _leave_emulated_out(energy, total)
    unlike = [*lead.disagreements, *(f"host {host}: {text}" for host in others for text in others[host].disagreements)]
    parts = divide_cpu_joules(lead, *count_cpu_s(data.events, start, end), net=net)
    if cell.hosts:
        parts = _divide_by_host(cell, lead, others, start["epoch"], net)
    by_part: dict[str, Any] = {f"{name}_j": value for name, value in parts.items()}
    return EpochRow(
        cell_id=cell.cell_id,
        workload=cell.workload,
        dataset=cell.dataset.name,
        loader=cell.loader,
        regime=cell.regime.name,
        rtt_ms=cell.regime.rtt_ms,
        jitter_ms=cell.regime.jitter_ms,
        loss_pct=cell.regime.loss_pct,
        repeat=cell.repeat,
        epoch=start["epoch"],
        start_utc=_format_utc(start["utc_ns"]),
        end_utc=_format_utc(end["utc_ns"]),
        duration_s=duration_s,
        setup_s=_compute_setup_s(data.events) if start["epoch"] == min(data.batches) else None,
        samples=samples,
        bytes=nbytes,
        samples_per_s=samples / duration_s,
        mb_per_s=nbytes / 1e6 / duration_s,
        stall_s=max(float(part.wait_s.sum()) for part in batches.of_ranks()),
        step_s=float(np.median(batches.own_s)),
        nominal_step_s=None if batches.nominal_s is None else float(np.median(batches.nominal_s)),
        au=min((au for part in batches.of_ranks() if (au := part.utilisation) is not None), default=None),
        cpu_util=_compute_cpu_util(start, end),
        gpu_util=_compute_gpu_util(data, start, end),
        cpu_j=joules.get("cpu"),
        dram_j=joules.get("dram"),
        gpu_j=joules.get("gpu"),
        total_j=joules.get("total"),
        compute_j=_sum_j(training) if cell.hosts else None,
        storage_j=_sum_j(storing) if cell.hosts else None,
        energy_error_j=drawn.error_j if drawn else None,
        energy_accuracy_j=drawn.accuracy_j if drawn else None,
        energy_gain_j=_find_gain_j(cell, [lead, *others.values()], drawn),
        net_j=total.net_j if total else None,
        j_per_gb=_divide(total, nbytes / 1e9),
        j_per_sample=_divide(total, samples),
        cpu_net_j=cpu.net_j if cpu else None,
        idle_j=cpu.idle_j if cpu else None,
        stalled_j=_measure_stalled_j(data, lead, start, batches),
        **by_part,
        wall_j=joules.get("wall"),
        wall_error_j=wall.error_j if wall else None,
        disagreements="; ".join(unlike),
        energy_source=";".join(sorted(f"{c.name}={source}" for c in known for source in c.sources)),
        accelerator=f"{cell.accelerator.label}{', model check' if cell.model_check else ''}",
    )


def _divide_by_host(
    cell: CellRecord, lead: NodeEnergy, others: Mapping[str, NodeEnergy], epoch: int, net: bool
) -> Parts:
    """Divide the CPU joules of each host by the CPU time there."""
    own = next((host for host in cell.host_cpu_s if host not in others), "")
    used = {host: cell.host_cpu_s.get(host, {}).get(epoch, {}) for host in (own, *others)}
    energies = {own: lead, **others}
    return add_parts([divide_cpu_joules(energies[host], of.get("busy", 0.0), of, net=net) for host, of in used.items()])


def _measure_host(
    data: CellData, host: HostRecord | None, start: CellEvent, end: CellEvent, given: Mapping[Domain, Sequence[Energy]]
) -> NodeEnergy:
    """Return what a host, by default the lead, used between two events. `given` is as `energy_of` takes it."""
    energy, readings = host or data.cell.energy, data.readings_of(host)
    node = host.host if host else readings[0].node if readings else ""
    baselines = [*energy.idle]
    if baselines:
        baselines += make_emulated_idle(data.cell.accelerator, (one.device for of in given.values() for one in of))
    listed, gaps = ([asdict(one) for one in part] for part in (energy.series, energy.unreadable))
    return energy_of(
        readings,
        channels_of({"sensors": [{"channels": listed}], "unreadable": gaps}, node),
        to_readings_ns(start, energy),
        to_readings_ns(end, energy),
        round(energy.interval_ms * 1e6),
        clock_error_ns=host.clock_error_ns if host else 0,
        baselines=baselines or None,
        given=given,
    )


def _add_hosts(lead: NodeEnergy, others: Sequence[NodeEnergy]) -> list[EnergyComponent]:
    """Return the joules of all hosts by domain and in total; unknown where a host's joules are unknown."""
    if not others:
        return list(lead.components)
    nodes = [lead, *others]
    names = (*DOMAINS, "module", "wall", "total")
    parts = {name: [c for node in nodes for c in node.components if c.name == name] for name in names}
    if len(parts["wall"]) < len(nodes):
        # Joules at some of the supplies would pass for those of all hosts.
        del parts["wall"]
    # A host without any sensor leaves the total unknown.
    known = all(node.total is not None for node in nodes)
    summed = [replace(add_up(of), name=name) for name, of in parts.items() if of]  # type: ignore[arg-type]
    return [one for one in summed if known or one.name != "total"]


def _leave_emulated_out(energy: Sequence[EnergyComponent], total: EnergyComponent | None) -> EnergyComponent | None:
    """Return the joules that `EpochRow.drawn_j` is of: the total, or its rest where a board is emulated."""
    if total is None or not any(c.name == "gpu" and c.estimated for c in energy):
        return total
    rest = [c for c in energy if c.name in DOMAINS and c.name != "gpu"]
    return add_up(rest) if rest else None


def _find_gain_j(cell: CellRecord, nodes: Sequence[NodeEnergy], drawn: EnergyComponent | None) -> float | None:
    """Return the part of the joules' accuracy that is a share of those of the only device; 0 of several."""
    if drawn is None or drawn.accuracy_j is None:
        return None
    alone, *others = (energy for node in nodes for energy in node.best if energy.source in drawn.sources)
    names = (alone.device, alone.domain, alone.source)
    series = (one for record in (cell.energy, *cell.hosts) for one in record.series)
    known = next((one.accuracy for one in series if (one.device, one.domain, one.source) == names), None)
    return 0.0 if others or known is None else (known.share or 0.0) * alone.joules


def _divide(total: EnergyComponent | None, by: float) -> float | None:
    return None if total is None or total.joules is None or not by else total.joules / by


def _sum_j(nodes: Sequence[NodeEnergy]) -> float | None:
    return add_known(None if node.total is None else node.total.joules for node in nodes)


def _estimate_published_energy(
    accelerator: AcceleratorRecord, batches: EpochBatches, duration_s: float
) -> list[Energy]:
    # An emulated board draws nothing here. Its energy is an estimate from its published power.
    if accelerator.busy_w is None or accelerator.idle_w is None:
        return []
    return [
        Energy(
            node=EMULATED,
            device=accelerator.label if batches.rank is None else f"{accelerator.label}, rank {rank}",
            domain="gpu",
            source="estimate",
            joules=_compute_drawn_j(accelerator.busy_w, accelerator.idle_w, float(part.compute_s.sum()), duration_s),
            error_j=None,
            interpolated=False,
        )
        for rank, part in enumerate(batches.of_ranks())
    ]


def _measure_stalled_j(data: CellData, energy: NodeEnergy, start: CellEvent, batches: EpochBatches) -> float | None:
    """Return the joules of the accelerator while steps waited for batches.

    None without an accelerator, and for real boards of several ranks: no record says which rank uses which board.
    """
    accelerator = data.cell.accelerator
    if accelerator.emulated:
        idle_w = accelerator.idle_w
        return None if idle_w is None else idle_w * float(batches.wait_s.sum())
    if accelerator.kind != "cuda" or batches.rank is not None:
        return None
    start_ns = to_readings_ns(start, data.cell.energy)
    return measure_stalled_joules(energy, data.readings_of(None), start_ns, batches.wait_s, batches.step_s)


def _compute_drawn_j(busy_w: float, idle_w: float, busy_s: float, duration_s: float) -> float:
    return busy_w * busy_s + idle_w * max(0.0, duration_s - busy_s)


def _compute_gpu_util(data: CellData, start: CellEvent, end: CellEvent) -> float | None:
    """Return the mean utilisation of the cell's boards between two events; None when it was not seen."""
    known = [row.gpu_util for row in select_resources(data.resources, start, end) if row.gpu_util is not None]
    return sum(known) / len(known) if known else None


def _compute_cpu_util(start: CellEvent, end: CellEvent) -> float | None:
    total = end["cpu_total_s"] - start["cpu_total_s"]
    if total <= 0:
        return None
    return float(max(0.0, min(1.0, (end["cpu_busy_s"] - start["cpu_busy_s"]) / total)))


def _format_utc(ns: int) -> str:
    return datetime.fromtimestamp(ns // 1000 / 1e6, UTC).isoformat(timespec="microseconds")


def make_rank_rows(data: CellData) -> list[RankRow]:
    """Return a row for every epoch and rank; none for a cell of one process."""
    if not data.cell.ranks:
        return []
    edges, rows = find_rank_edges(data.events), []
    for epoch, batches in data.batches.items():
        parts = batches.of_ranks()
        for record, part, waited_s in zip(data.cell.ranks, parts, _measure_rank_waits(parts), strict=True):
            start, end = edges[record.rank][epoch]
            rows.append(
                RankRow(
                    cell_id=data.cell.cell_id,
                    epoch=epoch,
                    rank=record.rank,
                    host=record.host,
                    address=record.address,
                    duration_s=end["own_ns"] / 1e9,
                    samples=int(part.samples.sum()),
                    bytes=int(part.nbytes.sum()),
                    steps=len(part.wait_s),
                    stall_s=float(part.wait_s.sum()),
                    compute_s=float(part.compute_s.sum()),
                    sync_s=None if waited_s is None or part.sync_s is None else float(part.sync_s.sum()),
                    ranks_wait_s=waited_s,
                    au=part.utilisation,
                    rx_bytes=measure_growth(start, end, "rx_bytes"),
                )
            )
    return rows


def _measure_rank_waits(parts: list[EpochBatches]) -> list[float | None]:
    """Return for how long each rank waited for slower ones, over the steps that all of them made."""
    steps = min(len(part.wait_s) for part in parts)
    known = [part.sync_s[:steps] for part in parts if part.sync_s is not None and not np.isnan(part.sync_s).any()]
    if len(known) < len(parts) or not steps:
        return [None] * len(parts)
    table: npt.NDArray[np.float64] = np.stack(known)
    return [float(waited) for waited in (table - table.min(axis=0)).sum(axis=1)]
