"""Costs of an epoch beside seconds and joules: set-up, first epoch, CPU, memory, disk reads, share of the bound."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

import pandas as pd

from harness.report.figures.definition import FigureTable
from harness.report.labels import UNKNOWN, factor, megabytes, percent, regime_labels, seconds, significant, spell
from harness.report.measurements import epochs
from harness.report.summary import Group, compute_ratio
from harness.results.reader import Results


def _milliseconds(value: float) -> str:
    return significant(1e3 * value)


_MEASURED: Final[Mapping[str, tuple[str, Callable[[float], str], str]]] = {
    "CPU user, ms a sample": ("cpu_user_s", _milliseconds, "samples"),
    "CPU system, ms a sample": ("cpu_system_s", _milliseconds, "samples"),
    "memory": ("pss_peak_bytes", megabytes, ""),
    "GPU memory": ("gpu_mem_peak_bytes", megabytes, ""),
    "disk reads": ("read_amplification", factor, ""),
}
"""By head: a column of metrics.csv, how its median is written, and what it is divided by."""
_MEANINGS: Final[Mapping[str, str]] = {
    "set-up": "set-up: making the loader, before the first epoch",
    "first epoch": "first epoch: of each cell, not in the medians",
    "of bound": "of bound: throughput over that of one batch that is made before the epochs",
    "CPU user, ms a sample": "CPU: of loader and step",
    "memory": "memory: of the cell's processes, shared pages once, the most that was seen",
    "disk reads": "disk reads: where the samples are stored, over the samples' bytes",
}


def make_cost_table(results: Results, groups: Sequence[Group], workload: str) -> FigureTable | None:
    """Return a row a loader and regime, with the columns of which something is known; None when nothing is."""
    here = [group for group in groups if group.workload == workload and group.measured]
    labels, frame = regime_labels(results), epochs(results).set_index(["cell_id", "epoch"])
    every = [_cells(results, groups, group, frame) for group in here]
    heads = [head for head in dict.fromkeys(head for cells in every for head in cells) if _is_known(head, every)]
    if not heads:
        return None
    names = [spell(group.loader) + (f", {labels[group.regime]}" if len(results.regimes) > 1 else "") for group in here]
    rows = [(name, *(cells[head] for head in heads)) for name, cells in zip(names, every, strict=True)]
    return FigureTable(("loader", *heads), tuple(rows))


def explain_costs(table: FigureTable) -> str:
    """Return what the columns of such a table are, in a sentence."""
    meanings = "; ".join(_MEANINGS[head] for head in table.columns if head in _MEANINGS)
    return f"{meanings[:1].upper()}{meanings[1:]}." if meanings else ""


def _is_known(head: str, every: Sequence[Mapping[str, str]]) -> bool:
    return any(cells[head] != UNKNOWN for cells in every)


def _cells(results: Results, groups: Sequence[Group], group: Group, frame: pd.DataFrame) -> dict[str, str]:
    # The bound reads nothing, so that it is the same at every distance, and is measured at one.
    bound = next((one for one in groups if one.workload == group.workload and one.loader in results.bounds), None)
    of_bound = compute_ratio(bound, group)
    cells = {
        "set-up": seconds(group.setup_s.median if group.setup_s else None),
        "first epoch": seconds(group.first_s.median if group.first_s else None),
        "of bound": percent(None if of_bound is None else of_bound.value),
    }
    rows = frame.loc[[(row.cell_id, row.epoch) for row in group.rows]]
    for head, (column, write, divisor) in _MEASURED.items():
        values = (rows[column] / rows[divisor] if divisor else rows[column]).dropna()
        cells[head] = write(float(values.median())) if len(values) else UNKNOWN
    return cells
