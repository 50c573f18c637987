"""Epoch rows condensed to one group per workload, regime and loader: medians, spreads and ratios."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Literal, TypeAlias, get_args

from harness.report.intervals import Ratio, compare_cells, find_typical, widen
from harness.results.epoch_row import DOMAINS, EpochRow, compute_spread, select_settled
from harness.results.reader import Results

Compared: TypeAlias = Literal["duration_s", "samples_per_s", "drawn_j"]
"""Columns of a row of which ratios are shown."""
_MAX_COMPARED: Final = 6


@dataclass(frozen=True, slots=True)
class Stat:
    """The median of repeated values and how far they lie apart."""

    median: float
    values: tuple[float, ...]

    @property
    def spread(self) -> float | None:
        """(max - min) / median. None for a single value, which has no spread."""
        return compute_spread(self.values)

    @classmethod
    def of(cls, values: Iterable[float | None]) -> Stat | None:
        """Condense the known values; None when there is none."""
        known = tuple(sorted(value for value in values if value is not None))
        return cls(statistics.median(known), known) if known else None


@dataclass(frozen=True, slots=True)
class LoaderGroup:
    """All epochs of one loader on one workload in one regime."""

    workload: str
    loader: str
    regime: str
    planned: int
    """Epochs that the plan asks for."""
    measured: int
    """Epochs that have a duration."""
    valid: int
    """Epochs that passed every validity rule."""
    failed: int
    """Cells that failed, were interrupted or never ran."""
    rows: tuple[EpochRow, ...]
    """The rows that the medians are made of. They are the valid settled epochs, or all settled ones where none is
    valid. Where each cell has one epoch, that epoch counts as settled."""
    time_s: Stat | None
    first_s: Stat | None
    """Duration of the cells' first epochs; None where these are the only ones."""
    setup_s: Stat | None
    """How long the loader took to be made."""
    drawn_j: Stat | None
    """Joules without those of an emulated board, which only repeat the epoch's time."""
    domain_j: dict[str, float]
    """Median joules by domain; a domain without a source is absent, and so is an emulated board."""
    estimated: frozenset[str]
    """Domains of `domain_j` whose joules are an estimate in any of the rows."""
    error_j: float | None
    """Median error bound of drawn_j, its resolution."""
    accuracy_j: float | None
    """Median bound of what the sensors themselves show wrongly; None where it is unknown in a row."""
    au: float | None
    mb_per_s: float | None
    typical: Mapping[str, float | None] = field(default_factory=dict)
    """How far cells usually lie apart in the run, by the column that is compared: see `find_typical`."""

    @property
    def whole_error_j(self) -> float:
        """Resolution and accuracy together, as far as they are known."""
        return (self.error_j or 0.0) + (self.accuracy_j or 0.0)

    @property
    def trusted(self) -> bool:
        """Whether the figures come from valid rows."""
        return any(row.is_valid for row in self.rows)

    @property
    def repeats(self) -> int:
        """Cells behind the figures."""
        return len({row.cell_id for row in self.rows})


def summarise(results: Results) -> tuple[LoaderGroup, ...]:
    """Return the groups in the order workload, regime from near to far, loader as configured."""
    used = {(row.workload, row.regime, row.loader) for row in results.rows}
    used |= {(cell.workload, cell.regime, cell.loader) for cell in results.cells}
    groups = [
        _group(results, workload, regime, loader)
        for workload in results.workloads
        for regime in results.regimes
        for loader in results.loaders
        if (workload, regime, loader) in used
    ]
    typical = {of: find_typical(by_repeat(group, of) for group in groups) for of in get_args(Compared)}
    return tuple(replace(group, typical=typical) for group in groups)


def _group(results: Results, workload: str, regime: str, loader: str) -> LoaderGroup:
    key = (workload, regime, loader)
    cells = [cell for cell in results.cells if (cell.workload, cell.regime, cell.loader) == key]
    rows = [row for row in results.rows if (row.workload, row.regime, row.loader) == key]
    settled = select_settled(rows)
    first = [row for row in rows if row not in settled] if settled else []
    shown = _trusted(settled or rows)
    is_emulated = any("gpu" in row.estimated for row in shown)
    drawn = [domain for domain in DOMAINS if domain != "gpu" or not is_emulated]
    accuracies = [row.energy_accuracy_j for row in shown]
    domains = {domain: Stat.of(row.joules.get(domain) for row in shown) for domain in drawn}
    return LoaderGroup(
        workload=workload,
        loader=loader,
        regime=regime,
        planned=max(len(rows), len(cells) * results.experiment.epochs),
        measured=len(rows),
        valid=sum(row.is_valid for row in rows),
        failed=sum(cell.state != "done" for cell in cells),
        rows=shown,
        time_s=Stat.of(row.duration_s for row in shown),
        first_s=Stat.of(row.duration_s for row in _trusted(first)),
        setup_s=Stat.of(row.setup_s for row in _trusted(rows)),
        drawn_j=Stat.of(row.drawn_j for row in shown),
        domain_j={domain: stat.median for domain, stat in domains.items() if stat},
        estimated=frozenset().union(*(row.estimated for row in shown)).intersection(domains),
        error_j=compute_median(shown, lambda row: row.energy_error_j),
        accuracy_j=None if None in accuracies else compute_median(shown, lambda row: row.energy_accuracy_j),
        au=compute_median(shown, lambda row: row.au),
        mb_per_s=compute_median(shown, lambda row: row.mb_per_s),
    )


def _trusted(rows: Iterable[EpochRow]) -> tuple[EpochRow, ...]:
    every = tuple(rows)
    return tuple(row for row in every if row.is_valid) or every


def describe_medians(groups: Iterable[LoaderGroup]) -> str:
    """Return what the medians of groups are of."""
    measured = [group for group in groups if group.measured]
    if any(group.first_s for group in measured):
        return "Medians per settled epoch: the first one of each cell is left out"
    return "Medians per epoch: each cell has one, in which the loader also starts" if measured else "Medians per epoch"


def compute_median(rows: Iterable[EpochRow], value: Callable[[EpochRow], float | None]) -> float | None:
    """Return the median of what `value` finds in the rows; None when it finds nothing."""
    stat = Stat.of(value(row) for row in rows)
    return None if stat is None else stat.median


def find(groups: Iterable[LoaderGroup], workload: str, regime: str, loader: str | None) -> LoaderGroup | None:
    """Return one group; None when there is none."""
    wanted = (workload, regime, loader)
    return next((group for group in groups if (group.workload, group.regime, group.loader) == wanted), None)


def compute_ratio(above: LoaderGroup | None, below: LoaderGroup | None, of: Compared = "duration_s") -> Ratio | None:
    """Return the ratio of a column of two groups' rows; None when either is unknown or the lower one is 0."""
    if above is None or below is None:
        return None
    found = compare_cells(by_repeat(above, of), by_repeat(below, of), above.typical.get(of))
    if found is None:
        return None
    interval, is_own = found.interval, above is below
    return Ratio(
        found.value,
        None if is_own else interval,
        is_single=interval is None and not is_own,
        trusted=above.trusted and below.trusted,
    )


def compute_joule_ratio(above: LoaderGroup | None, below: LoaderGroup | None) -> Ratio | None:
    """Return the ratio of joules, its interval widened by what repeats do not show: resolution and accuracy."""
    found = compute_ratio(above, below, "drawn_j")
    if above is None or below is None or found is None or found.interval is None:
        return found
    sides = [[(row, row.drawn_j) for row in of.rows if row.drawn_j is not None] for of in (above, below)]
    return replace(found, interval=widen(found.interval, *find_joule_errors(*sides)))


def find_joule_errors(*sides: Iterable[tuple[EpochRow, float]]) -> list[float]:
    """Return by which share the median joules of each side of a comparison may be off.

    Each side is of rows with the joules that are compared. What a device shows wrongly by a share of its joules cancels
    between two sides of the same device and source; what it does not see does not.
    """
    each = [list(side) for side in sides]
    cancels = len(each) > 1 and len({row.energy_source for side in each for row, _ in side}) == 1
    return [statistics.median(row.find_joule_error(joules, cancels=cancels) for row, joules in side) for side in each]


def by_repeat(group: LoaderGroup, of: Compared) -> dict[int, list[float]]:
    """Return a column of a group's rows by repeat; rows without a value are left out."""
    cells: dict[int, list[float]] = {}
    for row in group.rows:
        if (value := getattr(row, of)) is not None:
            cells.setdefault(row.repeat, []).append(value)
    return cells


def choose_base(results: Results) -> str | None:
    """Return the loader with which the others are compared: one that is streamed to, or of a few the first.

    None of one loader, and of many, such as those of a sweep.
    """
    readers = results.readers
    if len(readers) < 2 or (results.streaming is None and len(readers) > _MAX_COMPARED):
        return None
    return results.streaming or readers[0]


def explain_marks(groups: Sequence[LoaderGroup]) -> str:
    """Return what the marks of ratios mean: which is a difference, and which is noise; and what widens intervals."""
    repeats = [group.repeats for group in groups if group.measured]
    one = "* where a median is of one repeat: it has no interval"
    several = "≈ where its 95 % interval over repeats holds 1: no difference was found"
    marks = [several] * (max(repeats, default=0) > 1) + [one] * (min(repeats, default=0) < 2)
    accuracies = [one.accuracy_j for one in groups if one.error_j is not None or one.accuracy_j is not None]
    if accuracies:
        unknown = "resolution alone: the sensors' accuracy is unknown"
        marks.append(f"that of joules widened by {unknown if None in accuracies else 'resolution and accuracy'}")
    return ", ".join(marks)
