"""From what a cell stored to one row an epoch; pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime
from typing import Any

import numpy as np
import numpy.typing as npt

from energymon import Energy, Reading, best_sources, joules
from harness.cell.resources import Resources
from harness.testbed.link.watch import Ping

__all__ = [
    "CellData",
    "EpochBatches",
    "EpochRow",
    "accelerator_utilisation",
    "epoch_edges",
    "epoch_rows",
    "gpu_util",
    "link_joules",
    "readings_ns",
    "rows_within",
]


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
    """Seconds of preprocessing of the samples in `ids`; None where the engine does not tell."""


@dataclass(frozen=True, slots=True)
class CellData:
    """Everything a finished cell stored."""

    cell: Mapping[str, Any]
    """cell.json."""
    link: Mapping[str, Any]
    """link.json."""
    events: Sequence[Mapping[str, Any]]
    batches: Mapping[int, EpochBatches]
    """By epoch."""
    readings: Sequence[Reading]
    resources: Sequence[Resources] = ()
    pings: Sequence[Ping] | None = None
    """Of the link while the cell used it; None where there is no link, or where an older run did not watch it."""
    sizes: npt.NDArray[np.int64] | None = None
    """Encoded bytes of each of the dataset's samples, by id; None where the run's folder does not have them."""

    def epoch_bytes(self, epoch: int) -> int:
        """Return the encoded bytes of the samples that came in an epoch, by the dataset's own sizes where known."""
        batches = self.batches[epoch]
        if self.sizes is None:
            return int(batches.nbytes.sum())
        return int(self.sizes[batches.ids[(batches.ids >= 0) & (batches.ids < len(self.sizes))]].sum())


@dataclass(frozen=True, slots=True)
class EpochRow:
    """One row of epochs.csv; None is unknown and shown as an empty cell, never as 0."""

    cell_id: str
    workload: str
    dataset: str
    loader: str
    regime: str
    rtt_ms: float
    jitter_ms: float
    loss_pct: float
    repeat: int
    epoch: int
    start_utc: str
    end_utc: str
    duration_s: float
    samples: int
    bytes: int
    samples_per_s: float
    mb_per_s: float
    stall_s: float
    au: float | None
    cpu_util: float | None
    gpu_util: float | None
    cpu_j: float | None
    dram_j: float | None
    gpu_j: float | None
    total_j: float | None
    energy_error_j: float | None
    energy_source: str
    valid: str = field(default="")

    @classmethod
    def columns(cls) -> list[str]:
        """Return the columns in order."""
        return [f.name for f in fields(cls)]


def accelerator_utilisation(wait_s: npt.NDArray[np.float64], step_s: npt.NDArray[np.float64]) -> float | None:
    """Return compute time / epoch time without the first step (MLPerf Storage); None for fewer than two steps."""
    if len(step_s) < 2:
        return None
    compute = float(step_s[1:].sum())
    total = compute + float(wait_s[1:].sum())
    return compute / total if total > 0 else None


def epoch_rows(data: CellData) -> list[EpochRow]:
    """Return a row for every epoch that began and ended."""
    edges = epoch_edges(data.events)
    return [_row(data, start, end, data.batches[epoch]) for epoch, (start, end) in edges.items()]


def epoch_edges(events: Iterable[Mapping[str, Any]]) -> dict[int, tuple[Mapping[str, Any], Mapping[str, Any]]]:
    """Return the events that begin and end each epoch, by epoch and in order; one that did not end is left out."""
    found: dict[str, dict[int, Mapping[str, Any]]] = {"epoch_start": {}, "epoch_end": {}}
    for event in events:
        if event["event"] in found:
            found[event["event"]][event["epoch"]] = event
    starts, ends = found["epoch_start"], found["epoch_end"]
    return {epoch: (starts[epoch], ends[epoch]) for epoch in sorted(starts.keys() & ends.keys())}


def readings_ns(event: Mapping[str, Any], energy: Mapping[str, Any]) -> int:
    """Return when an event was by the clock of the cell's energy readings, ns; `energy` is that of cell.json.

    That clock is never set. Cells of older runs have readings by the wall clock.
    """
    offset_ns = energy.get("offset_ns")
    return int(event["utc_ns"] if offset_ns is None else event["mono_ns"] + offset_ns)


def rows_within(resources: Iterable[Resources], start: Mapping[str, Any], end: Mapping[str, Any]) -> list[Resources]:
    """Return what was seen of a cell's resources between two events."""
    return [row for row in resources if start["utc_ns"] <= row.utc_ns <= end["utc_ns"]]


def gpu_util(data: CellData, start: Mapping[str, Any], end: Mapping[str, Any]) -> float | None:
    """Return the mean utilisation of the cell's board between two events, 0 to 1; None when it was not seen."""
    known = [row.gpu_util for row in rows_within(data.resources, start, end) if row.gpu_util is not None]
    return sum(known) / len(known) if known else None


def link_joules(
    readings: Sequence[Reading], start: Mapping[str, Any], end: Mapping[str, Any], energy: Mapping[str, Any]
) -> float | None:
    """Return the link's share, by CPU time, of the host's CPU joules between two events; None when unknown.

    `energy` is the cell's, of cell.json.
    """
    if start["link_cpu_s"] is None or end["link_cpu_s"] is None:
        return None
    busy_s = end["cpu_busy_s"] - start["cpu_busy_s"]
    energies, lost = _energies(readings, start, end, energy)
    cpu_j = None if "cpu" in lost else _sum(e.joules for e in energies if e.domain == "cpu")
    if cpu_j is None or busy_s <= 0:
        return None
    return cpu_j * float(min(1.0, (end["link_cpu_s"] - start["link_cpu_s"]) / busy_s))


def _row(data: CellData, start: Mapping[str, Any], end: Mapping[str, Any], batches: EpochBatches) -> EpochRow:
    cell = data.cell
    duration_s = end["duration_ns"] / 1e9
    samples, nbytes = int(batches.samples.sum()), data.epoch_bytes(start["epoch"])
    energies, lost = _energies(data.readings, start, end, cell["energy"])
    if cell["accelerator"]["emulated"]:
        # A board of this machine idles meanwhile and is not what is emulated.
        energies = [e for e in energies if e.domain != "gpu"]
        energies += _published_energy(cell["accelerator"], batches, duration_s)
        lost.discard("gpu")
    energies = [e for e in energies if e.domain not in lost]
    by_domain = {domain: _sum(e.joules for e in energies if e.domain == domain) for domain in ("cpu", "dram", "gpu")}
    # A module's GPU counter contains the CPU and its memory.
    module = any(s.get("module_power") for s in cell["energy"]["series"] if s["domain"] == "gpu")
    summed = ("gpu",) if module and by_domain["gpu"] is not None else tuple(by_domain)
    known = [] if lost else [j for domain in summed if (j := by_domain[domain]) is not None]
    errors = [None] if lost else [e.error_j for e in energies if e.domain in summed]
    return EpochRow(
        cell_id=cell["cell_id"],
        workload=cell["workload"],
        dataset=cell["dataset"]["name"],
        loader=cell["loader"],
        regime=cell["regime"]["name"],
        rtt_ms=cell["regime"]["rtt_ms"],
        jitter_ms=cell["regime"]["jitter_ms"],
        loss_pct=cell["regime"]["loss_pct"],
        repeat=cell["repeat"],
        epoch=start["epoch"],
        start_utc=_utc(start["utc_ns"]),
        end_utc=_utc(end["utc_ns"]),
        duration_s=duration_s,
        samples=samples,
        bytes=nbytes,
        samples_per_s=samples / duration_s,
        mb_per_s=nbytes / 1e6 / duration_s,
        stall_s=float(batches.wait_s.sum()),
        au=accelerator_utilisation(batches.wait_s, batches.step_s),
        cpu_util=_cpu_util(start, end),
        gpu_util=gpu_util(data, start, end),
        cpu_j=by_domain["cpu"],
        dram_j=by_domain["dram"],
        gpu_j=by_domain["gpu"],
        total_j=sum(known) if known else None,
        energy_error_j=sum(e for e in errors if e is not None) if errors and None not in errors else None,
        energy_source=";".join(sorted({f"{e.domain}={e.source}" for e in energies})),
    )


def _energies(
    readings: Sequence[Reading], start: Mapping[str, Any], end: Mapping[str, Any], energy: Mapping[str, Any]
) -> tuple[list[Energy], set[str]]:
    """Return the best series of each device between two events, and the domains whose sum is unknown.

    A domain of which one part is lost, or was never read, is unknown: what is left of it would pass for the whole.
    """
    interval_ns = int(energy["interval_ms"] * 1e6)
    lags = _lags(readings, energy["series"])
    span_ns = readings_ns(start, energy), readings_ns(end, energy)
    energies = best_sources(joules(readings, *span_ns, interval_ns, lags=lags))
    found = {(e.device, e.domain) for e in energies}
    parts = [*energy["series"], *energy.get("unreadable", [])]
    return energies, {part["domain"] for part in parts if (part["device"], part["domain"]) not in found}


def _lags(readings: Sequence[Reading], series: Iterable[Mapping[str, Any]]) -> dict[tuple[str, str, str, str], float]:
    """Return how old a sensor's value may be, s, by series, for those that told when they were opened."""
    told = {(s["device"], s["domain"], s["source"]): s.get("lag_s") for s in series}
    nodes = {reading.node for reading in readings}
    return {(node, *key): lag_s for key, lag_s in told.items() if lag_s is not None for node in nodes}


def _published_energy(accelerator: Mapping[str, Any], batches: EpochBatches, duration_s: float) -> list[Energy]:
    # An emulated board draws nothing here; what it would draw follows from its published power, as an estimate.
    if accelerator.get("busy_w") is None:
        return []
    busy_s = float(batches.step_s.sum())
    drawn = accelerator["busy_w"] * busy_s + accelerator["idle_w"] * max(0.0, duration_s - busy_s)
    return [
        Energy(
            node="compute",
            device=str(accelerator["label"]),
            domain="gpu",
            source="estimate",
            joules=drawn,
            error_j=None,
            interpolated=False,
        )
    ]


def _cpu_util(start: Mapping[str, Any], end: Mapping[str, Any]) -> float | None:
    total = end["cpu_total_s"] - start["cpu_total_s"]
    if total <= 0:
        return None
    return float(max(0.0, min(1.0, (end["cpu_busy_s"] - start["cpu_busy_s"]) / total)))


def _sum(values: Iterable[float]) -> float | None:
    known = list(values)
    return sum(known) if known else None


def _utc(ns: int) -> str:
    return datetime.fromtimestamp(ns // 1000 / 1e6, UTC).isoformat(timespec="microseconds")
