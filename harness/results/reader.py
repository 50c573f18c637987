"""A results folder, finished or not, as typed values. The report reads nothing else."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path

from harness.config.specs import Experiment
from harness.errors import ResultsError
from harness.results.cells import Cell, CellRecord, CellResult, FailedCell, LinkRecord
from harness.results.checks import Check
from harness.results.epoch_row import EpochRow, read_rows
from harness.results.files import CELL, COLLECT, RUN, read_json, refuse_damage
from harness.results.folder import Ledger, LedgerEntry, RunFolder
from harness.results.preparation import Preparation, read_preparations
from harness.results.provenance import Provenance

_STATES = {"started": "running", "done": "done", "failed": "failed", "interrupted": "interrupted"}
"""State of a cell by its last event in the ledger."""


@dataclass(frozen=True)
class Results:
    """Everything that a results folder holds."""

    folder: Path
    experiment: Experiment
    run_id: str
    cells: Sequence[CellResult]
    rows: Sequence[EpochRow]
    checks: Sequence[Check]
    preparations: Sequence[Preparation]
    """What converting the run's datasets to shards cost, as far as it is known."""
    sessions: Mapping[str, Provenance]
    """Provenance of each session of the run, by file, the first session first."""
    started_utc: str
    """The first instant of the ledger. Empty when nothing started."""

    @property
    def name(self) -> str:
        """The experiment's name."""
        return self.experiment.name

    @property
    def description(self) -> str:
        """The experiment in one sentence. May be empty."""
        return self.experiment.description

    @property
    def loaders(self) -> tuple[str, ...]:
        """Keys of the loaders, in the order of the config."""
        return tuple(self.experiment.loaders)

    @property
    def workloads(self) -> tuple[str, ...]:
        """Keys of the workloads, in the order of the config."""
        return tuple(self.experiment.workloads)

    @cached_property
    def regimes(self) -> tuple[str, ...]:
        """Keys of the regimes in which a loader runs, nearest first."""
        regimes, loaders = self.experiment.regimes, self.experiment.loaders.values()
        used = [key for key in regimes if any(not one.regimes or key in one.regimes for one in loaders)]
        return tuple(sorted(used, key=lambda key: regimes[key].rtt_ms))

    @cached_property
    def streaming(self) -> str | None:
        """Key of the loader that reads a stream, with which the others are compared. None without one."""
        streamed = [key for key, loader in self.experiment.loaders.items() if loader.reads == "stream"]
        return "streaming" if "streaming" in self.loaders else next(iter(streamed), None)

    @cached_property
    def bounds(self) -> tuple[str, ...]:
        """Keys of the loaders that read nothing in an epoch: the upper bound of all others, and compared with none."""
        return tuple(key for key, loader in self.experiment.loaders.items() if loader.reads == "once")

    @property
    def readers(self) -> tuple[str, ...]:
        """Keys of the loaders that read, in the order of the config."""
        return tuple(key for key in self.loaders if key not in self.bounds)

    def regimes_of(self, loader: str) -> tuple[str, ...]:
        """Return the regimes in which a loader that reads runs, nearest first."""
        own = self.experiment.loaders[loader].regimes
        return tuple(regime for regime in self.regimes if not own or regime in own)

    @property
    def streams(self) -> int | None:
        """Streams of the loader that reads a stream. None where the config does not say."""
        return None if self.streaming is None else self.experiment.loaders[self.streaming].params.get("streams")

    @property
    def emulated(self) -> bool:
        """Whether the accelerator was emulated in any cell."""
        return any("emulated" in cell.accelerator for cell in self.cells)

    @property
    def model_checks(self) -> tuple[str, ...]:
        """What the workloads replay, and where their times are published. Empty where all of them are measured."""
        return tuple(
            dict.fromkeys(cell.record.model_check for cell in self.cells if cell.record and cell.record.model_check)
        )

    @property
    def unfinished(self) -> tuple[CellResult, ...]:
        """Cells without a result."""
        return tuple(cell for cell in self.cells if cell.state != "done")


def read_results(folder: Path) -> Results:
    """Read a results folder, whole or interrupted.

    Raises ResultsError when the folder does not exist, is not a results folder, or contains a damaged file.
    """
    paths = RunFolder(folder)
    if not folder.is_dir():
        raise ResultsError(
            f"{folder}: no such results folder; expected the folder of a run, results/latest for the newest one"
        )
    if not paths.plan.exists():
        raise ResultsError(
            f"{folder}: has no plan.json; expected the folder of one run, results/latest for the newest one"
        )
    if paths.epochs_csv.exists() and not paths.epochs_parquet.exists():
        raise ResultsError(f"{paths.epochs_parquet}: is missing; {COLLECT}")
    experiment = paths.read_experiment()
    plan = paths.read_plan()
    ledger = Ledger(paths.ledger).read_entries()
    rows = read_rows(paths.epochs_parquet, EpochRow)
    checks = read_json(paths.checks, tuple[Check, ...], COLLECT) if paths.checks.exists() else ()
    _check_names(paths, experiment, plan.cells, rows)
    return Results(
        folder=folder,
        experiment=experiment,
        run_id=plan.run_id,
        cells=tuple(_make_cells(paths, plan.cells, ledger, rows, checks)),
        rows=rows,
        checks=checks,
        preparations=read_preparations(folder),
        sessions=paths.read_sessions(),
        started_utc=min((entry.t_utc for entry in ledger if entry.t_utc), default=""),
    )


def _check_names(paths: RunFolder, experiment: Experiment, cells: Sequence[Cell], rows: Sequence[EpochRow]) -> None:
    """Refuse cells and rows of a loader, workload or regime that the config does not have."""
    for path, named in ((paths.plan, cells), (paths.epochs_parquet, rows)):
        with refuse_damage(path, RUN):
            for one in named:
                for kind in ("loader", "workload", "regime"):
                    if getattr(one, kind) not in getattr(experiment, f"{kind}s"):
                        raise ValueError(f"{kind} {getattr(one, kind)} is not in {paths.config.name}")


def _make_cells(
    paths: RunFolder,
    planned: Sequence[Cell],
    ledger: Sequence[LedgerEntry],
    rows: Sequence[EpochRow],
    checks: Sequence[Check],
) -> Iterator[CellResult]:
    last = {entry.cell_id: entry for entry in ledger}
    with_rows = {row.cell_id for row in rows}
    damaged = {check.cell_id: check.actual for check in checks if check.rule == "whole_cell"}
    for cell in planned:
        home, entry = paths.cell_folder(cell.cell_id), last.get(cell.cell_id)
        known = {**asdict(cell), "measured_again": len(list(paths.cells.glob(f"{cell.cell_id}.invalid-*")))}
        if cell.cell_id in damaged and home.exists():
            yield CellResult(**known, state="damaged", reason=damaged[cell.cell_id])
            continue
        whole, partial = home / "cell.json", paths.partial_folder(cell.cell_id) / "cell.json"
        record = read_json(whole, CellRecord, CELL) if whole.exists() else None
        state, reason, link = _STATES.get(entry.event if entry else "", "not run"), "", home / "link.json"
        # A cell is in its own folder when it is whole. A run may die before it writes that into the ledger.
        if record is not None or cell.cell_id in with_rows:
            state = "done"
        elif partial.exists():
            reason = read_json(partial, FailedCell, CELL).failure
        if state in {"failed", "interrupted"} and entry is not None:
            reason = reason or entry.message
        stored = read_json(link, LinkRecord, CELL) if link.exists() else LinkRecord()
        yield CellResult(**known, state=state, reason=reason, record=record, link=stored)
