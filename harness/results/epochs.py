"""From what a cell stored to one row an epoch; pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from energymon import Channels, Domain, Energy, EnergyComponent, NodeEnergy, Reading, add_up, channels_of, energy_of
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
from harness.results.cells import CellRecord, EnergyRecord, HostRecord, LinkRecord, SensorRecord
from harness.results.epoch_row import DOMAINS, EpochRow
from harness.testbed.link.measure.watch import Ping

_NOTHING_GIVEN: Final[Mapping[Domain, Sequence[Energy]]] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class EpochBatches:
    """The batches of one epoch, in order."""

    samples: npt.NDArray[np.int64]
    nbytes: npt.NDArray[np.int64]
    """As the loader counts them."""
    wait_s: npt.NDArray[np.float64]
    step_s: npt.NDArray[np.float64]
    ids: npt.NDArray[np.int64]
    """All sample ids of the epoch, flat."""
    loss: npt.NDArray[np.float64] | None = None
    """Of every step; None where nothing is trained."""
    work_s: npt.NDArray[np.float64] | None = None
    """Seconds of preprocessing of the samples in `ids`; None where the engine does not report them."""
    rank: npt.NDArray[np.int64] | None = None
    """Of every batch; the ranks stand one after the other. None for a cell of one process."""
    sync_s: npt.NDArray[np.float64] | None = None
    """Time of every step from the rank's own last gradient until those of all ranks were there; NaN is unknown."""
    nominal_s: npt.NDArray[np.float64] | None = None
    """Seconds that each emulated step stands for. None for real steps, and in older folders."""
    labels: npt.NDArray[np.int64] | None = None
    """Labels of the samples in `ids`; of fewer where a batch had others than a whole number a sample. None where the
    workload's labels are not classes, and in older folders."""

    @property
    def utilisation(self) -> float | None:
        """Accelerator utilisation; waiting for other ranks is not computing."""
        waits_s = self.wait_s + self.step_s - self.compute_s
        return compute_utilisation(waits_s, self.compute_s)

    @property
    def compute_s(self) -> npt.NDArray[np.float64]:
        """Time in which the accelerator computes in every step, without the synchronisation with other ranks.

        That of an emulated step is nominal. Its sleep ends later where the loader's threads take the CPUs, and the
        accelerator does not compute meanwhile.
        """
        if self.nominal_s is not None:
            return self.nominal_s
        return self.step_s if self.sync_s is None else self.step_s - np.nan_to_num(self.sync_s)

    def of_ranks(self) -> list[EpochBatches]:
        """Return the batches of each rank by itself."""
        if self.rank is None:
            return [self]
        ends = np.cumsum(self.samples)
        return [self._part(np.flatnonzero(self.rank == rank), ends) for rank in np.unique(self.rank)]

    def _part(self, places: npt.NDArray[np.intp], ends: npt.NDArray[np.int64]) -> EpochBatches:
        samples = slice(int(ends[places[0]] - self.samples[places[0]]), int(ends[places[-1]]))
        return EpochBatches(
            samples=self.samples[places],
            nbytes=self.nbytes[places],
            wait_s=self.wait_s[places],
            step_s=self.step_s[places],
            ids=self.ids[samples],
            loss=None if self.loss is None else self.loss[places],
            work_s=None if self.work_s is None else self.work_s[samples],
            sync_s=None if self.sync_s is None else self.sync_s[places],
            nominal_s=None if self.nominal_s is None else self.nominal_s[places],
        )


@dataclass(frozen=True, slots=True)
class CellData:
    """Everything a finished cell stored."""

    cell: CellRecord
    link: LinkRecord
    events: Sequence[CellEvent]
    batches: Mapping[int, EpochBatches]
    """By epoch."""
    readings: Sequence[Reading]
    resources: Sequence[Resources] = ()
    pings: Sequence[Ping] | None = None
    """Of the link while the cell used it; None where there is no link, or where an older run did not watch it."""
    sizes: npt.NDArray[np.int64] | None = None
    """Encoded bytes of each of the dataset's samples, by id; None where the run's folder does not have them."""
    labels: npt.NDArray[np.int64] | None = None
    """Class of each, likewise."""

    def readings_of(self, host: HostRecord | None) -> list[Reading]:
        """Return the readings of another host, or those of the host that trains and drives the run."""
        others = {one.host for one in self.cell.hosts}
        return [r for r in self.readings if (r.node not in others if host is None else r.node == host.host)]

    def count_bytes(self, epoch: int) -> int:
        """Return the encoded bytes of the samples that came in an epoch, by the dataset's own sizes where known."""
        batches = self.batches[epoch]
        if self.sizes is None:
            return int(batches.nbytes.sum())
        return int(self.sizes[batches.ids[(batches.ids >= 0) & (batches.ids < len(self.sizes))]].sum())


def compute_utilisation(wait_s: npt.NDArray[np.float64], step_s: npt.NDArray[np.float64]) -> float | None:
    """Return compute time / epoch time without the first step (MLPerf Storage); None for fewer than two steps."""
    if len(step_s) < 2:
        return None
    compute = float(step_s[1:].sum())
    total = compute + float(wait_s[1:].sum())
    # A sleep may end some microseconds before its nominal time.
    return min(1.0, compute / total) if total > 0 else None


def make_epoch_rows(data: CellData, max_idle_util: float = 1.0) -> list[EpochRow]:
    """Return a row for every epoch that began and ended.

    A baseline is none where processors were busier than `max_idle_util` meanwhile, 0 to 1; default: any use will do.
    """
    net = has_baseline(data.cell)
    data = replace(data, cell=leave_busy_baselines_out(data.cell, max_idle_util))
    edges = find_epoch_edges(data.events)
    return [_make_row(data, start, end, data.batches[epoch], net) for epoch, (start, end) in edges.items()]


def find_epoch_edges(events: Iterable[CellEvent]) -> dict[int, tuple[CellEvent, CellEvent]]:
    """Return the events that begin and end each epoch, by epoch and in order; one that did not end is left out."""
    found: dict[str, dict[int, CellEvent]] = {"epoch_start": {}, "epoch_end": {}}
    for event in events:
        if event["event"] in found:
            found[event["event"]][event["epoch"]] = event
    starts, ends = found["epoch_start"], found["epoch_end"]
    return {epoch: (starts[epoch], ends[epoch]) for epoch in sorted(starts.keys() & ends.keys())}


def compute_setup_s(events: Iterable[CellEvent]) -> float | None:
    """Return how long the loader took to be made, of several ranks the longest; None where it is not known."""
    made = (event["duration_ns"] / 1e9 for event in events if event["event"] in ("loader_made", "rank.loader_made"))
    return max(made, default=None)


def to_readings_ns(event: CellEvent, energy: EnergyRecord) -> int:
    """Return when an event was by the clock of the cell's energy readings, ns.

    That clock is never set. Cells of older runs have readings by the wall clock.
    """
    return int(event["utc_ns"] if energy.offset_ns is None else event["mono_ns"] + energy.offset_ns)


def select_rows(resources: Iterable[Resources], start: CellEvent, end: CellEvent) -> list[Resources]:
    """Return the rows of a cell's resources between two events."""
    return [row for row in resources if start["utc_ns"] <= row.utc_ns <= end["utc_ns"]]


def compute_gpu_util(data: CellData, start: CellEvent, end: CellEvent) -> float | None:
    """Return the mean utilisation of the cell's boards between two events, 0 to 1; None when it was not seen."""
    known = [row.gpu_util for row in select_rows(data.resources, start, end) if row.gpu_util is not None]
    return sum(known) / len(known) if known else None


def _make_row(data: CellData, start: CellEvent, end: CellEvent, batches: EpochBatches, net: bool) -> EpochRow:
    """Return the row of an epoch; with `net` the parts of its CPU joules are net of idle, or else unknown."""
    cell = data.cell
    duration_s = end["duration_ns"] / 1e9
    samples, nbytes = int(batches.samples.sum()), data.count_bytes(start["epoch"])
    # A board of this machine idles while another is emulated.
    given: dict[Domain, Sequence[Energy]] = {}
    if cell.accelerator.emulated:
        given["gpu"] = _estimate_published_energy(cell.accelerator, batches, duration_s)
    own = data.readings_of(None)
    lead = compute_epoch_energy(own, start, end, cell.energy, given, cell.accelerator)
    others = {host.host: compute_host_energy(data.readings_of(host), start, end, host, cell) for host in cell.hosts}
    energy = _all_hosts(lead, list(others.values()))
    training = [lead, *(others[host.host] for host in cell.hosts if "compute" in host.roles)]
    storing = [others[host.host] for host in cell.hosts if "compute" not in host.roles]
    known = [c for c in energy if c.name != "total" and c.joules is not None]
    joules = {c.name: c.joules for c in energy}
    total = next((c for c in energy if c.name == "total"), None)
    cpu = next((c for c in energy if c.name == "cpu"), None)
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
        setup_s=compute_setup_s(data.events) if start["epoch"] == min(data.batches) else None,
        samples=samples,
        bytes=nbytes,
        samples_per_s=samples / duration_s,
        mb_per_s=nbytes / 1e6 / duration_s,
        stall_s=max(float(part.wait_s.sum()) for part in batches.of_ranks()),
        au=min(
            (au for part in batches.of_ranks() if (au := part.utilisation) is not None),
            default=None,
        ),
        cpu_util=_compute_cpu_util(start, end),
        gpu_util=compute_gpu_util(data, start, end),
        cpu_j=joules.get("cpu"),
        dram_j=joules.get("dram"),
        gpu_j=joules.get("gpu"),
        total_j=total.joules if total else None,
        compute_j=_sum_j(training) if cell.hosts else None,
        storage_j=_sum_j(storing) if cell.hosts else None,
        energy_error_j=total.error_j if total else None,
        net_j=total.net_j if total else None,
        j_per_gb=_divide(total, nbytes / 1e9),
        j_per_sample=_divide(total, samples),
        cpu_net_j=cpu.net_j if cpu else None,
        idle_j=cpu.idle_j if cpu else None,
        stalled_j=_stalled_joules(data, own, lead, start, batches),
        **by_part,
        energy_source=";".join(sorted(f"{c.name}={source}" for c in known for source in c.sources)),
    )


def _divide_by_host(
    cell: CellRecord, lead: NodeEnergy, others: Mapping[str, NodeEnergy], epoch: int, net: bool
) -> Parts:
    """Divide the CPU joules of each host by the CPU time there."""
    own = next((host for host in cell.host_cpu_s if host not in others), "")
    used = {host: cell.host_cpu_s.get(host, {}).get(epoch, {}) for host in (own, *others)}
    energies = {own: lead, **others}
    return add_parts([divide_cpu_joules(energies[host], of.get("busy", 0.0), of, net=net) for host, of in used.items()])


def compute_epoch_energy(
    readings: Sequence[Reading],
    start: CellEvent,
    end: CellEvent,
    energy: EnergyRecord,
    given: Mapping[Domain, Sequence[Energy]] = _NOTHING_GIVEN,
    accelerator: AcceleratorRecord | None = None,
) -> NodeEnergy:
    """Return what the host used between two events. `given` is that of `energy_of`, of the `accelerator`.

    Raises WindowError when the end is before the start.
    """
    baselines = [*energy.idle]
    if baselines and accelerator is not None:
        baselines += make_emulated_idle(accelerator, (one.device for of in given.values() for one in of))
    return energy_of(
        readings,
        list_channels(readings, energy),
        to_readings_ns(start, energy),
        to_readings_ns(end, energy),
        round(energy.interval_ms * 1e6),
        baselines=baselines or None,
        given=given,
    )


def compute_host_energy(
    readings: Sequence[Reading], start: CellEvent, end: CellEvent, host: HostRecord, cell: CellRecord
) -> NodeEnergy:
    """Return what another host used between two events of the lead; the error bound has that of its clock's offset.

    Raises WindowError when the end is before the start.
    """
    given: dict[Domain, Sequence[Energy]] = {"gpu": []} if cell.accelerator.emulated else {}
    return energy_of(
        readings,
        _channels(host.host, host.series, host.unreadable),
        start["utc_ns"] + host.offset_ns,
        end["utc_ns"] + host.offset_ns,
        round(host.interval_ms * 1e6),
        clock_error_ns=host.clock_error_ns,
        baselines=host.idle or None,
        given=given,
    )


def _all_hosts(lead: NodeEnergy, others: Sequence[NodeEnergy]) -> list[EnergyComponent]:
    """Return the joules of all hosts by domain, and in total; unknown where those of a host are."""
    if not others:
        return list(lead.components)
    nodes = [lead, *others]
    parts = {name: [c for node in nodes for c in node.components if c.name == name] for name in (*DOMAINS, "total")}
    # A host without any sensor leaves the total unknown.
    known = all(node.total is not None for node in nodes)
    summed = [replace(add_up(of), name=name) for name, of in parts.items() if of]  # type: ignore[arg-type]
    return [one for one in summed if known or one.name != "total"]


def _divide(total: EnergyComponent | None, by: float) -> float | None:
    return None if total is None or total.joules is None or not by else total.joules / by


def _sum_j(nodes: Sequence[NodeEnergy]) -> float | None:
    known = [node.total.joules for node in nodes if node.total is not None and node.total.joules is not None]
    return sum(known) if known and len(known) == len(nodes) else None


def list_channels(readings: Sequence[Reading], energy: EnergyRecord) -> Channels:
    """Return the series that the host's agent sampled."""
    return _channels(readings[0].node if readings else "", energy.series, energy.unreadable)


def _channels(node: str, series: Sequence[SensorRecord], unreadable: Sequence[SensorRecord]) -> Channels:
    listed, gaps = ([asdict(one) for one in part] for part in (series, unreadable))
    return channels_of({"sensors": [{"channels": listed}], "unreadable": gaps}, node)


def _estimate_published_energy(
    accelerator: AcceleratorRecord, batches: EpochBatches, duration_s: float
) -> list[Energy]:
    # An emulated board draws nothing here; what it would draw follows from its published power, as an estimate.
    if accelerator.busy_w is None or accelerator.idle_w is None:
        return []
    return [
        Energy(
            node=EMULATED,
            device=accelerator.label if batches.rank is None else f"{accelerator.label}, rank {rank}",
            domain="gpu",
            source="estimate",
            joules=_drawn(accelerator.busy_w, accelerator.idle_w, float(part.compute_s.sum()), duration_s),
            error_j=None,
            interpolated=False,
        )
        for rank, part in enumerate(batches.of_ranks())
    ]


def _stalled_joules(
    data: CellData, readings: Sequence[Reading], energy: NodeEnergy, start: CellEvent, batches: EpochBatches
) -> float | None:
    """Return the joules of the accelerator while steps waited for batches.

    None where there is none, and for real boards of several ranks: whose board is whose is not known.
    """
    accelerator = data.cell.accelerator
    if accelerator.emulated:
        idle_w = accelerator.idle_w
        return None if idle_w is None else idle_w * float(batches.wait_s.sum())
    if accelerator.kind != "cuda" or batches.rank is not None:
        return None
    start_ns = to_readings_ns(start, data.cell.energy)
    return measure_stalled_joules(energy, readings, start_ns, batches.wait_s, batches.step_s)


def _drawn(busy_w: float, idle_w: float, busy_s: float, duration_s: float) -> float:
    return busy_w * busy_s + idle_w * max(0.0, duration_s - busy_s)


def _compute_cpu_util(start: CellEvent, end: CellEvent) -> float | None:
    total = end["cpu_total_s"] - start["cpu_total_s"]
    if total <= 0:
        return None
    return float(max(0.0, min(1.0, (end["cpu_busy_s"] - start["cpu_busy_s"]) / total)))


def _format_utc(ns: int) -> str:
    return datetime.fromtimestamp(ns // 1000 / 1e6, UTC).isoformat(timespec="microseconds")
