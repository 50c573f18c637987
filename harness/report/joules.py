"""What the joules of an epoch were for: net of idle, while stalled, by what the CPU worked for, in money and grams."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from harness.report.figures.definition import FigureTable
from harness.report.labels import UNKNOWN, joules, regime_labels, significant, spell
from harness.report.summary import Group, compute_median
from harness.results.attributed import PARTS
from harness.results.epoch_row import DOMAINS, EpochRow
from harness.results.reader import Results

_J_PER_KWH: Final = 3.6e6
_MEANINGS: Final[Mapping[str, str]] = {
    "net": "net: beyond what the hosts draw idle",
    "stalled": "stalled: of the accelerator, while the step waited for batches",
    "loader": "the others: CPU joules net of idle by CPU time; loader: with its step",
    "loader gross": "gross: CPU joules by CPU time, the idle ones too; loader: with its step",
}
_SOURCES: Final[Mapping[str, Sequence[str]]] = {"net": DOMAINS, "stalled": ("gpu",), "cost": DOMAINS, "g CO2": DOMAINS}
"""The domains that a column is made of; the others are of the CPU."""


def make_joule_table(results: Results, groups: Sequence[Group], workload: str) -> FigureTable | None:
    """Return a row a loader and regime, with the columns of which something is known; None when nothing is.

    The columns that matter most come first. The head of one that contains an estimate says so.
    """
    here = [group for group in groups if group.workload == workload and group.measured]
    labels, heads, cells = regime_labels(results), [], []
    for head, value in _measures(results).items():
        known = [compute_median(group.rows, value) for group in here]
        if any(one is not None for one in known):
            estimated = any(group.estimated.intersection(_SOURCES.get(head, ("cpu",))) for group in here)
            gross = head in PARTS and any(_is_gross(row) for group in here for row in group.rows)
            heads.append(head + " gross" * gross + " est." * estimated)
            write = _write_amount if head in ("cost", "g CO2") else _write_joules
            cells.append([write(one) for one in known])
    if not heads:
        return None
    names = [spell(group.loader) + (f", {labels[group.regime]}" if len(results.regimes) > 1 else "") for group in here]
    return FigureTable(("joules", *heads), tuple(zip(names, *cells, strict=True)))


def leave_last_column_out(table: FigureTable) -> FigureTable:
    """Return a table without its last column, the one that matters least."""
    return replace(table, columns=table.columns[:-1], rows=tuple(row[:-1] for row in table.rows))


def explain_joules(table: FigureTable) -> str:
    """Return what the columns of such a table are, in a sentence or two."""
    heads = [head.removesuffix(" est.") for head in table.columns]
    text = "; ".join(_MEANINGS[head] for head in heads if head in _MEANINGS)
    estimated = " est.: an estimate, which no sensor measured." if any("est." in head for head in table.columns) else ""
    return f"{text[:1].upper()}{text[1:]}.{estimated}" if text else estimated.strip()


def _measures(results: Results) -> dict[str, Callable[[EpochRow], float | None]]:
    energy = results.experiment.energy
    amounts = {"cost": energy.price_per_kwh, "g CO2": energy.gco2_per_kwh}
    return {
        "net": lambda row: row.net_j,
        "stalled": lambda row: row.stalled_j,
        **{head: _make_amount(per_kwh) for head, per_kwh in amounts.items() if per_kwh is not None},
        **{name: _make_part(name) for name in PARTS if name not in ("monitor", "other")},
        **{name: _make_part(name) for name in ("other", "monitor")},
    }


def _is_gross(row: EpochRow) -> bool:
    # Rows of older runs have parts of net joules alone, and no cpu_net_j.
    return row.other_j is not None and row.cpu_net_j is None and row.net_j is None


def _make_amount(per_kwh: float) -> Callable[[EpochRow], float | None]:
    return lambda row: None if row.total_j is None else row.total_j * per_kwh / _J_PER_KWH


def _make_part(name: str) -> Callable[[EpochRow], float | None]:
    def read(row: EpochRow) -> float | None:
        found: float | None = getattr(row, f"{name}_j")
        return found

    return read


def _write_joules(value: float | None) -> str:
    # Net joules of a process that did little are noise of the baseline.
    return joules(None if value is None else round(value, 2) + 0.0)


def _write_amount(value: float | None) -> str:
    return UNKNOWN if value is None else significant(value)
