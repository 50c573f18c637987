"""From the cells of a results folder to its rows and checks. `python -m harness.validate FOLDER` does it again."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass

from harness.config.specs import Tolerances
from harness.errors import ResultsError
from harness.results.cell_folder import SET_ASIDE, CellData, DamagedCell, load_cell
from harness.results.checks import FAIL, NOT_APPLICABLE, PASS, RULES_EDITION, WARN, Check, judge
from harness.results.epoch_row import EpochRow, RankRow, write_rows
from harness.results.files import write_json
from harness.results.folder import RunFolder, RunManifest
from harness.results.make_rows import make_epoch_rows, make_rank_rows
from harness.results.metrics import EpochMetrics, make_epoch_metrics
from harness.results.provenance import list_changes


@dataclass(frozen=True, slots=True)
class Collected:
    """What the finished cells of a results folder contain."""

    rows: Sequence[EpochRow]
    checks: Sequence[Check]
    damaged: Mapping[str, str]
    """Why a finished cell cannot be read, by id. It has no rows."""

    @property
    def invalid(self) -> list[EpochRow]:
        """The rows that a validity rule refuses."""
        return [row for row in self.rows if not row.is_valid]


def collect(run: RunFolder) -> Collected:
    """Measure and judge every finished cell; write epochs, metrics, ranks (csv, parquet), checks and manifest (json).

    A damaged cell has a check that says so. The other cells are judged. Raises ResultsError when the plan or the config
    of the folder cannot be read.
    """
    cells, damaged = read_cells(run, [cell.cell_id for cell in run.read_plan().cells])
    tolerances = run.read_tolerances()
    rows, checks = judge_cells(cells, tolerances)
    checks += _same_place(run, cells)
    expected = "every file of the cell is as it was when the cell ended"
    checks += [
        Check(cell_id, None, "whole_cell", expected, run.without_path(reason), FAIL)
        for cell_id, reason in damaged.items()
    ]
    metrics = [one for cell in cells for one in make_epoch_metrics(cell)]
    write_rows(metrics, EpochMetrics, run.metrics_parquet, run.metrics_csv)
    if ranks := [one for cell in cells for one in make_rank_rows(cell)]:
        write_rows(ranks, RankRow, run.ranks_parquet, run.ranks_csv)
    write_rows(rows, EpochRow, run.epochs_parquet, run.epochs_csv)
    if refused := _read_refused(run, tolerances):
        write_rows(refused, EpochRow, run.refused_parquet, run.refused_csv)
    write_json(run.checks, [asdict(check) for check in checks])
    write_json(run.manifest, RunManifest(RULES_EDITION, run.compute_checksums()))
    return Collected(rows, checks, damaged)


def judge_cells(cells: Sequence[CellData], tolerances: Tolerances) -> tuple[list[EpochRow], list[Check]]:
    """Measure and judge cells; returns their rows and checks."""
    return judge(cells, _rows(cells, tolerances), tolerances)


def _rows(cells: Iterable[CellData], tolerances: Tolerances) -> list[EpochRow]:
    return [row for cell in cells for row in make_epoch_rows(cell, tolerances.idle_cpu_pct / 100)]


def _read_refused(run: RunFolder, tolerances: Tolerances) -> list[EpochRow]:
    """Return the rows of the tries that were measured again: what they measured, and why a rule refused them."""
    rows: list[EpochRow] = []
    for folder in sorted(run.cells.glob(f"*{SET_ASIDE}*")):
        # A cell's tries have the same id, so each is judged by itself.
        with suppress(DamagedCell):
            rows += judge_cells([load_cell(folder)], tolerances)[0]
    return rows


def _same_place(run: RunFolder, cells: Sequence[CellData]) -> list[Check]:
    """Warn of cells that were measured on another machine, install or environment than the run's first session."""
    expected = "measured with the machine, packages, code and environment of the first session"
    checks = []
    sessions = {data.cell.cell_id: data.cell.provenance for data in cells}
    first = min(sessions.values(), key=lambda name: (len(name), name), default="")
    for cell_id, name in sessions.items():
        try:
            found = [] if name == first else list_changes(run.read_session(first), run.read_session(name))
        except ResultsError as error:
            found = [run.without_path(error)]
        actual, verdict = ("; ".join(found), WARN) if found else ("it was", PASS)
        if not found and len(set(sessions.values())) == 1:
            actual, verdict = "one session", NOT_APPLICABLE
        checks.append(Check(cell_id, None, "same_place", expected, actual, verdict))
    return checks


def read_cells(run: RunFolder, cell_ids: Iterable[str]) -> tuple[list[CellData], dict[str, str]]:
    """Return the finished cells among `cell_ids`, and why each damaged one cannot be read, by id."""
    cells, damaged = [], {}
    for cell_id in cell_ids:
        if run.is_done(cell_id):
            try:
                cells.append(load_cell(run.cell_folder(cell_id)))
            except DamagedCell as error:
                damaged[cell_id] = str(error)
    return cells, damaged


def find_invalid_cells(cells: Sequence[CellData], tolerances: Tolerances) -> set[str]:
    """Return the ids of the cells with a row that a validity rule refuses."""
    rows, _ = judge_cells(cells, tolerances)
    return {row.cell_id for row in rows if not row.is_valid}
