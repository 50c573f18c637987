"""What an epoch cost beside seconds: set-up, CPU, memory and disk reads, and what its joules were for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from operator import attrgetter
from typing import Final

import pandas as pd

from energymon import amount_of
from harness.report.intervals import Ratio
from harness.report.labels import (
    UNKNOWN,
    factor,
    joules,
    megabytes,
    percent,
    regime_labels,
    seconds,
    significant,
    spell,
)
from harness.report.measurements import epochs
from harness.report.summary import LoaderGroup, compute_median, compute_ratio
from harness.results.attributed import PARTS
from harness.results.epoch_row import DOMAINS, EpochRow
from harness.results.reader import Results
from joulefeed.table import Table, TableColumn

_AT_WALL: Final = "GB/J at the wall"
_MEASURED: Final[Mapping[str, tuple[str, Callable[[float], str], str]]] = {
    "CPU user, ms a sample": ("cpu_user_s", lambda value: significant(1e3 * value), "samples"),
    "CPU system, ms a sample": ("cpu_system_s", lambda value: significant(1e3 * value), "samples"),
    "memory": ("pss_peak_bytes", megabytes, ""),
    "GPU memory": ("gpu_mem_peak_bytes", megabytes, ""),
    "disk reads": ("read_amplification", factor, ""),
}
"""By head: a column of metrics.csv, how its median is written, and what it is divided by."""
_NOTES: Final[Mapping[str, str]] = {
    "set-up": "set-up: making the loader, before the first epoch",
    "set-up CPU": "set-up CPU: CPU seconds before the first epoch, of those in it",
    "first epoch": "first epoch: of each cell, not in the medians",
    "of bound": "of bound: throughput over that of one batch that is made before the epochs",
    "CPU user, ms a sample": "CPU: of loader and step",
    "memory": "memory: of the cell's processes, shared pages once, the most that was seen",
    "disk reads": "disk reads: where the samples are stored, over the samples' bytes",
    "wall": "wall: of whole machines at their supplies, no part of the total",
    _AT_WALL: f"{_AT_WALL}: 10⁹ bytes of samples for each joule at the wall",
    "net": "net: beyond what the hosts draw idle",
    "stalled": "stalled: of the accelerator, while the step waited for batches",
    "board": "board: of the emulated accelerator, its published power over the epoch's time",
    "loader": "the others: CPU joules net of idle by CPU time; loader: with its step",
    "loader gross": "gross: CPU joules by CPU time, the idle ones too; loader: with its step",
}
_SOURCES: Final[Mapping[str, Sequence[str]]] = {
    **dict.fromkeys(("net", "cost", "g CO2"), DOMAINS),
    **dict.fromkeys(("stalled", "board"), ("gpu",)),
    **dict.fromkeys(("wall", _AT_WALL), ("wall",)),
}
"""The domains that a column is made of; the others are of the CPU."""


def make_cost_table(results: Results, groups: Sequence[LoaderGroup], workload: str) -> Table | None:
    """Return a row a loader and regime, with the columns of which something is known; None when nothing is."""
    here, frame = _list_measured(groups, workload), epochs(results).set_index(["cell_id", "epoch"])
    # The bound reads nothing, so that it is the same at every distance, and is measured at one.
    bound = next((one for one in groups if one.workload == workload and one.loader in results.bounds), None)
    every = [_write_costs(group, compute_ratio(bound, group), frame) for group in here]
    known = [head for head in (every[0] if every else {}) if any(cells[head] != UNKNOWN for cells in every)]
    columns = [TableColumn(head, note=_NOTES.get(head, "")) for head in known]
    return _make_table(results, "loader", here, columns, [[cells[head] for head in known] for cells in every])


def make_joule_table(results: Results, groups: Sequence[LoaderGroup], workload: str) -> Table | None:
    """Return a row a loader and regime, with the columns of which something is known; None when nothing is.

    The columns that matter most come first. The head of one that contains an estimate says so.
    """
    here, cells = _list_measured(groups, workload), []
    columns: list[TableColumn] = []
    for head, value in _list_joules(results).items():
        known = [compute_median(group.rows, value) for group in here]
        if all(one is None for one in known):
            continue
        rows = [row for group in here for row in group.rows]
        is_estimated = any(row.estimated.intersection(_SOURCES.get(head, ("cpu",))) for row in rows)
        # Where the idle power is not known, parts are of gross joules.
        no_idle = (row.other_j is not None and row.cpu_net_j is None and row.net_j is None for row in rows)
        is_gross = head in PARTS and any(no_idle)
        name = head + (" gross" if is_gross else "")
        title = name + (" est." if is_estimated else "")
        columns.append(TableColumn(title, optional=len(columns), note=_NOTES.get(name, "")))
        write = _write_amount if head in ("cost", "g CO2", _AT_WALL) else _write_joules
        cells.append([write(one) for one in known])
    notes = ["est.: an estimate, which no sensor measured"] * any(one.name.endswith(" est.") for one in columns)
    return _make_table(results, "joules", here, columns, [list(row) for row in zip(*cells, strict=True)], notes)


def _list_measured(groups: Sequence[LoaderGroup], workload: str) -> list[LoaderGroup]:
    return [group for group in groups if group.workload == workload and group.measured]


def _make_table(
    results: Results,
    corner: str,
    groups: Sequence[LoaderGroup],
    columns: Sequence[TableColumn],
    cells: Sequence[Sequence[str]],
    notes: Sequence[str] = (),
) -> Table | None:
    labels = regime_labels(results)
    names = [spell(one.loader) + (f", {labels[one.regime]}" if len(results.regimes) > 1 else "") for one in groups]
    rows = [(name, *row) for name, row in zip(names, cells, strict=False)]
    return Table((corner, *columns), rows, notes=tuple(notes)) if columns else None


def _write_costs(group: LoaderGroup, of_bound: Ratio | None, frame: pd.DataFrame) -> dict[str, str]:
    every = frame.loc[sorted({row.cell_id for row in group.rows})]
    cells = {
        "set-up": seconds(group.setup_s.median if group.setup_s else None),
        "set-up CPU": percent(_find_median(every["setup_cpu_s"] / every["cell_cpu_s"])),
        "first epoch": seconds(group.first_s.median if group.first_s else None),
        "of bound": percent(None if of_bound is None else of_bound.value),
    }
    rows = frame.loc[[(row.cell_id, row.epoch) for row in group.rows]]
    for head, (column, write, divisor) in _MEASURED.items():
        median = _find_median(rows[column] / rows[divisor] if divisor else rows[column])
        cells[head] = UNKNOWN if median is None else write(median)
    return cells


def _find_median(values: pd.Series[float]) -> float | None:
    known = values.dropna()
    return float(known.median()) if len(known) else None


def _list_joules(results: Results) -> dict[str, Callable[[EpochRow], float | None]]:
    energy = results.experiment.energy
    amounts = {"cost": energy.price_per_kwh, "g CO2": energy.gco2_per_kwh}
    parts = [name for name in PARTS if name not in ("monitor", "other")]
    return {
        "wall": attrgetter("wall_j"),
        _AT_WALL: lambda row: row.bytes / 1e9 / row.wall_j if row.wall_j else None,
        "net": attrgetter("net_j"),
        "stalled": attrgetter("stalled_j"),
        "board": lambda row: row.gpu_j if "gpu" in row.estimated else None,
        **{head: partial(_read_amount, per_kwh) for head, per_kwh in amounts.items() if per_kwh is not None},
        **{name: attrgetter(f"{name}_j") for name in (*parts, "other", "monitor")},
    }


def _read_amount(per_kwh: float, row: EpochRow) -> float | None:
    return amount_of(row.drawn_j, per_kwh)


def _write_joules(value: float | None) -> str:
    # Net joules of a process that did little are noise of the baseline.
    return joules(None if value is None else round(value, 2) + 0.0)


def _write_amount(value: float | None) -> str:
    return UNKNOWN if value is None else significant(value)
