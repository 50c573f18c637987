"""The validity rules: each returns what it expected, what it found and a verdict; pure.

The same rules judge a run as it ends and a finished folder (`python -m harness.validate FOLDER`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace

from harness.config.specs import Tolerances
from harness.results.cell_folder import CellData
from harness.results.checks.energy import check_energy
from harness.results.checks.hosts import check_hosts
from harness.results.checks.judged import (
    FAIL,
    NOT_APPLICABLE,
    PASS,
    RULES,
    UNKNOWN,
    WARN,
    Check,
    JudgedEpoch,
    make_check,
)
from harness.results.checks.link import check_link
from harness.results.checks.samples import check_samples
from harness.results.checks.work import check_work
from harness.results.epoch_row import EpochRow, compute_spread, select_settled

__all__ = ["FAIL", "NOT_APPLICABLE", "PASS", "RULES", "RULES_EDITION", "UNKNOWN", "WARN", "Check", "judge"]

RULES_EDITION = 4
"""Rises when a rule is added, left out or judges otherwise, or when a default tolerance changes."""


def judge(
    cells: Sequence[CellData], rows: Sequence[EpochRow], tolerances: Tolerances
) -> tuple[list[EpochRow], list[Check]]:
    """Return the rows with their verdicts, and every check."""
    data = {c.cell.cell_id: c for c in cells}
    checks = [check for row in rows for check in _check_row(JudgedEpoch.of(data[row.cell_id], row, tolerances))]
    checks += _check_spread(rows, tolerances)
    failed: dict[tuple[str, int | None], list[str]] = defaultdict(list)
    for check in checks:
        if check.refuses:
            failed[check.cell_id, check.epoch].append(f"{check.rule} ({check.actual}, expected {check.expected})")
    judged = []
    for row in rows:
        reasons = failed[row.cell_id, row.epoch]
        judged.append(replace(row, valid="invalid: " + "; ".join(reasons) if reasons else "valid"))
    return judged, checks


def _check_row(epoch: JudgedEpoch) -> Iterable[Check]:
    for check in (check_link, check_samples, check_work, check_energy, check_hosts):
        yield from check(epoch)


def _check_spread(rows: Sequence[EpochRow], tolerances: Tolerances) -> Iterable[Check]:
    """Warn of rows that lie apart; the first epoch of a cell, which starts workers, is compared with first epochs."""
    groups: dict[tuple[str, str, str, bool], list[EpochRow]] = defaultdict(list)
    settled = set(select_settled(rows))
    for row in rows:
        groups[row.loader, row.workload, row.regime, row in settled].append(row)
    for group in groups.values():
        times = [row.duration_s for row in group]
        expected = f"(max - min) / median < {tolerances.spread_pct:g} % over the repeats"
        for row in group:
            if len(times) < 2:
                yield make_check(row, "spread", expected, "a single epoch of its kind", NOT_APPLICABLE)
                continue
            percent = 100 * (compute_spread(times) or 0.0)
            verdict = PASS if percent < tolerances.spread_pct else WARN
            yield make_check(row, "spread", expected, f"{percent:.1f} % over {len(times)}", verdict)
