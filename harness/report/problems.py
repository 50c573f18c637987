"""What went wrong in a run: cells without a result, rows that a rule refused, checks that warn."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from harness.report.labels import regime_labels, spell
from harness.results.cells import CellResult
from harness.results.checks import Check
from harness.results.epoch_row import EpochRow
from harness.results.reader import Results

KINDS = ("failed", "damaged", "interrupted", "running", "not run", "invalid", "warning")
"""Kinds of problem, the gravest first."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that went wrong, and for how many cells of a loader and regime."""

    kind: str
    where: str
    """Loader, workload where the run has several, and regime."""
    count: int
    """How many cells, or epochs where a row or check is meant."""
    text: str
    """The reason: the error, or the rule with the expected and the found value. May be empty."""


def list_problems(results: Results) -> tuple[Problem, ...]:
    """Return the problems, the gravest kind first; equal ones are counted together."""
    merged: dict[tuple[str, str, str], int] = {}
    cells = ((cell.state, _where(results, cell), cell.reason) for cell in results.unfinished)
    for key in (*cells, *_rows(results), *_warnings(results)):
        merged[key] = merged.get(key, 0) + 1
    found = [Problem(kind, where, count, text) for (kind, where, text), count in merged.items()]
    return tuple(sorted(found, key=lambda problem: KINDS.index(problem.kind)))


def _rows(results: Results) -> Iterable[tuple[str, str, str]]:
    unfinished = {cell.cell_id for cell in results.unfinished}
    failing = [check for check in results.checks if check.verdict == "fail"]
    for row in results.rows:
        if row.is_valid or row.cell_id in unfinished:
            continue
        kind, _, rules = row.valid.partition(":")
        told = [_told(check) for check in failing if check.cell_id == row.cell_id and check.epoch in {None, row.epoch}]
        text = "; ".join(dict.fromkeys(told)) or rules.strip()
        yield kind if kind in KINDS else "invalid", _where(results, row), text


def _warnings(results: Results) -> Iterable[tuple[str, str, str]]:
    cells: dict[str, CellResult] = {cell.cell_id: cell for cell in results.cells}
    for check in results.checks:
        if check.verdict == "warn":
            cell = cells.get(check.cell_id)
            yield "warning", _where(results, cell) if cell else check.cell_id, _told(check)


def _told(check: Check) -> str:
    return f"{check.rule.replace('_', ' ')}: {check.actual or 'unknown'}, expected {check.expected}"


def _where(results: Results, of: CellResult | EpochRow) -> str:
    parts = [spell(of.loader), spell(of.workload)] if len(results.workloads) > 1 else [spell(of.loader)]
    return ", ".join([*parts, regime_labels(results).get(of.regime, of.regime)])
