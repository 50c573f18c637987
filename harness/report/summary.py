"""Epoch rows condensed to one group per workload, regime and loader: medians, spreads and ratios."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from harness.results.epoch_row import DOMAINS, EpochRow, compute_spread
from harness.results.reader import Results


@dataclass(frozen=True, slots=True)
class Stat:
    """The median of repeated values and how far they lie apart."""

    median: float
    low: float
    """The first quartile of four values or more, the smallest of fewer."""
    high: float
    """The third quartile of four values or more, the largest of fewer."""
    values: tuple[float, ...]

    @property
    def spread(self) -> float | None:
        """(max - min) / median. None for a single value, which has no spread."""
        return compute_spread(self.values)

    @classmethod
    def of(cls, values: Iterable[float | None]) -> Stat | None:
        """Condense the known values; None when there is none."""
        known = sorted(value for value in values if value is not None)
        if not known:
            return None
        low, high = known[0], known[-1]
        if len(known) >= 4:
            low, _, high = statistics.quantiles(known, n=4, method="inclusive")
        return cls(statistics.median(known), low, high, tuple(known))


@dataclass(frozen=True, slots=True)
class Group:
    """All epochs of one loader on one workload in one regime."""

    workload: str
    loader: str
    regime: str
    rtt_ms: float
    planned: int
    """Epochs that the plan asks for."""
    measured: int
    """Epochs that have a duration."""
    valid: int
    """Epochs that passed every validity rule."""
    failed: int
    """Cells that failed, were interrupted or never ran."""
    rows: tuple[EpochRow, ...]
    """The rows behind the figures: the valid ones, or where none is valid every measured one."""
    time_s: Stat | None
    total_j: Stat | None
    domain_j: dict[str, float]
    """Median joules by domain; a domain without a source is absent."""
    estimated: frozenset[str]
    """Domains whose joules are an estimate in any of the rows."""
    error_j: float | None
    """Median error bound of total_j."""
    au: float | None
    mb_per_s: float | None

    @property
    def trusted(self) -> bool:
        """Whether the figures come from valid rows."""
        return self.valid > 0


def summarise(results: Results) -> tuple[Group, ...]:
    """Return the groups in the order workload, regime from near to far, loader as configured."""
    used = {(row.workload, row.regime, row.loader) for row in results.rows}
    used |= {(cell.workload, cell.regime, cell.loader) for cell in results.cells}
    return tuple(
        _group(results, workload, regime, loader)
        for workload in results.workloads
        for regime in results.regimes
        for loader in results.loaders
        if (workload, regime, loader) in used
    )


def _group(results: Results, workload: str, regime: str, loader: str) -> Group:
    key = (workload, regime, loader)
    cells = [cell for cell in results.cells if (cell.workload, cell.regime, cell.loader) == key]
    rows = [row for row in results.rows if (row.workload, row.regime, row.loader) == key]
    measured = tuple(row for row in rows if row.duration_s is not None)
    valid = tuple(row for row in measured if row.is_valid)
    shown = valid or measured
    domains = {domain: Stat.of(row.joules.get(domain) for row in shown) for domain in DOMAINS}
    return Group(
        workload=workload,
        loader=loader,
        regime=regime,
        rtt_ms=results.experiment.regimes[regime].rtt_ms,
        planned=max(len(rows), len(cells) * results.experiment.epochs),
        measured=len(measured),
        valid=len(valid),
        failed=sum(cell.state != "done" for cell in cells),
        rows=shown,
        time_s=Stat.of(row.duration_s for row in shown),
        total_j=Stat.of(row.total_j for row in shown),
        domain_j={domain: stat.median for domain, stat in domains.items() if stat},
        estimated=frozenset().union(*(row.estimated for row in shown)),
        error_j=compute_median(shown, lambda row: row.energy_error_j),
        au=compute_median(shown, lambda row: row.au),
        mb_per_s=compute_median(shown, lambda row: row.mb_per_s),
    )


def compute_median(rows: Iterable[EpochRow], value: Callable[[EpochRow], float | None]) -> float | None:
    """Return the median of what `value` finds in the rows; None when it finds nothing."""
    stat = Stat.of(value(row) for row in rows)
    return None if stat is None else stat.median


def find(groups: Iterable[Group], workload: str, regime: str, loader: str | None) -> Group | None:
    """Return one group; None when there is none."""
    wanted = (workload, regime, loader)
    return next((group for group in groups if (group.workload, group.regime, group.loader) == wanted), None)


def compute_ratio(above: Stat | None, below: Stat | None) -> float | None:
    """Return the ratio of two medians; None when either is unknown or the lower one is 0."""
    return above.median / below.median if above and below and below.median else None
