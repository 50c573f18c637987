"""From the cells of a results folder to its rows and checks: `python -m harness.collect FOLDER` judges it again."""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from omegaconf import DictConfig, OmegaConf

from energymon import Reading
from harness.cell.resources import Resources
from harness.config.specs import Tolerances
from harness.errors import INVALID_ROWS, CellError, HarnessError, ResultsError
from harness.report.reading import mapping, reading
from harness.results.checks import FAIL, PASS, WARN, Check, judge
from harness.results.epochs import CellData, EpochBatches, EpochRow, epoch_edges, epoch_rows
from harness.results.folder import Results, write_json, write_whole
from harness.results.manifest import MANIFEST, changed_file
from harness.results.metrics import EpochMetrics, epoch_metrics
from harness.results.provenance import changes
from harness.system.disk import disk_errors
from harness.system.signals import run_program
from harness.testbed.link.watch import Ping

__all__ = ["Collected", "DamagedCell", "collect", "invalid_cells", "load_cell", "main", "read_cells"]

_CELL_SECTIONS = ("regime", "dataset", "accelerator", "energy")
_EVENT_COUNTERS = ("cpu_busy_s", "cpu_total_s", "link_cpu_s")


class DamagedCell(ResultsError):
    """A file of a finished cell cannot be read, or is not as it was when the cell ended."""


@dataclass(frozen=True, slots=True)
class Collected:
    """What the finished cells of a results folder hold."""

    rows: Sequence[EpochRow]
    checks: Sequence[Check]
    damaged: Mapping[str, str]
    """Why a finished cell cannot be read, by id; it has no rows."""

    @property
    def invalid(self) -> list[EpochRow]:
        """The rows that a validity rule refuses."""
        return [row for row in self.rows if row.valid != "valid"]


def collect(results: Results) -> Collected:
    """Measure and judge every finished cell; write epochs and metrics (csv, parquet) and checks.json.

    A damaged cell has a check that says so, and keeps no other from being judged. Raises ResultsError when the folder's
    plan or config cannot be read.
    """
    cells, damaged = read_cells(results, [cell["cell_id"] for cell in results.read_plan()["cells"]])
    with reading(results.config, "start a new run"):
        tolerances = _tolerances(results.read_config())
    rows, checks = _judged(cells, tolerances)
    checks += _same_place(results, cells)
    expected = "every file of the cell is as it was when the cell ended"
    checks += [Check(cell_id, None, "whole_cell", expected, reason, FAIL) for cell_id, reason in damaged.items()]
    frame = pd.DataFrame([asdict(row) for row in rows], columns=EpochRow.columns())
    # A column that is unknown in every row is still a column of floats.
    for column in ("au", "cpu_util", "gpu_util", "cpu_j", "dram_j", "gpu_j", "total_j", "energy_error_j"):
        frame[column] = frame[column].astype("float64")
    metrics = [asdict(one) for cell in cells for one in epoch_metrics(cell)]
    _write_metrics(results, pd.DataFrame(metrics, columns=EpochMetrics.columns()))
    write_whole(results.epochs_csv, frame.to_csv(index=False).encode())
    write_whole(results.epochs_parquet, frame.to_parquet(index=False))
    write_json(results.checks, [asdict(check) for check in checks])
    return Collected(rows, checks, damaged)


def _same_place(results: Results, cells: Sequence[CellData]) -> list[Check]:
    """Warn of cells that were measured on another machine, install or environment than the run's first session."""
    expected = "measured with the machine, packages, code and environment of the first session"
    checks = []
    sessions = results.sessions(data.cell["cell_id"] for data in cells)
    first = min(sessions.values(), key=lambda name: (len(name), name), default="")
    for cell_id, name in sessions.items():
        try:
            found = [] if name == first else changes(results.read_session(first), results.read_session(name))
        except ResultsError as error:
            found = [str(error)]
        checks.append(
            Check(cell_id, None, "same_place", expected, "; ".join(found) or "it was", WARN if found else PASS)
        )
    return checks


def read_cells(results: Results, cell_ids: Iterable[str]) -> tuple[list[CellData], dict[str, str]]:
    """Return the finished ones among some cells, and why each damaged one cannot be read, by id."""
    cells, damaged = [], {}
    for cell_id in cell_ids:
        if results.is_done(cell_id):
            try:
                cells.append(load_cell(results.cell(cell_id)))
            except DamagedCell as error:
                damaged[cell_id] = str(error)
    return cells, damaged


def invalid_cells(cells: Sequence[CellData], config: DictConfig) -> set[str]:
    """Return the ids of the cells of which a validity rule refuses a row, by the limits of `config`."""
    rows, _ = _judged(cells, _tolerances(config))
    return {row.cell_id for row in rows if row.valid != "valid"}


def _tolerances(config: DictConfig) -> Tolerances:
    if "checks" not in config:
        raise ValueError("it has no checks")
    limits = OmegaConf.to_container(config["checks"], resolve=True)
    return Tolerances(**{str(name): float(limit) for name, limit in mapping(limits, "checks").items()})


def _judged(cells: Sequence[CellData], tolerances: Tolerances) -> tuple[list[EpochRow], list[Check]]:
    return judge(cells, [row for cell in cells for row in epoch_rows(cell)], tolerances)


def _write_metrics(results: Results, frame: pd.DataFrame) -> None:
    for column in frame.columns.drop(["cell_id", "epoch"]):
        # A count that may be unknown stays a whole number; what is unknown in every row still has its type.
        frame[column] = frame[column].astype("Int64" if column.endswith(("_bytes", "_samples")) else "float64")
    write_whole(results.metrics_csv, frame.to_csv(index=False).encode())
    write_whole(results.metrics_parquet, frame.to_parquet(index=False))


def load_cell(folder: Path) -> CellData:
    """Read what a finished cell stored; raises DamagedCell naming the file of it that cannot be read or has changed.

    Raises ResultsError for a file that it shares with others.
    """
    read = folder / MANIFEST
    try:
        if (changed := changed_file(folder)) is not None:
            read = changed
            raise ValueError("it is not as it was when the cell ended")
        cell = json.loads((read := folder / "cell.json").read_text())
        if cell["cell_id"] != folder.name or not all(isinstance(cell[key], dict) for key in _CELL_SECTIONS):
            raise ValueError(f"expected the cell {folder.name}")
        if cell.get("manifest") and not (read := folder / MANIFEST).exists():
            raise ValueError("it is missing")
        link = json.loads((read := folder / "link.json").read_text())
        if not isinstance(link, dict):
            raise ValueError("expected an object")
        events = _events(read := folder / "events.parquet")
        edges = epoch_edges(events)
        if not edges or not all(key in event for edge in edges.values() for event in edge for key in _EVENT_COUNTERS):
            raise ValueError("expected the edges of its epochs")
        batches = _batches(read := folder / "batches.parquet")
        if edges.keys() != batches.keys():
            raise ValueError(f"expected the epochs {', '.join(map(str, edges))}")
        return CellData(
            cell=cell,
            link=link,
            events=events,
            batches=batches,
            readings=_readings(read := folder / "energy.parquet"),
            resources=_resources(read := folder / "resources.parquet"),
            pings=_pings(read := folder / "link.parquet"),
            sizes=_sizes(_samples_file(folder.parent.parent, cell["dataset"]), cell["dataset"]),
        )
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DamagedCell(
            f"{read}: damaged ({_reason(error, read)}); resume the run, which measures its cell again"
        ) from error


def _samples_file(run: Path, dataset: Mapping[str, Any]) -> Path:
    """Return where a run's folder has the samples of a dataset, which is named where there are several."""
    alone = run / "samples.parquet"
    return alone if alone.exists() else run / f"samples-{dataset['name']}-{dataset.get('content_hash', '')[:8]}.parquet"


def _sizes(path: Path, dataset: Mapping[str, Any]) -> npt.NDArray[np.int64] | None:
    if not path.exists():
        return None
    try:
        sizes: npt.NDArray[np.int64] = pq.read_table(path, columns=["size"])["size"].to_numpy()
        if (len(sizes), int(sizes.sum())) != (dataset["samples"], dataset["bytes"]):
            raise ValueError(f"expected {dataset['samples']} samples of {dataset['bytes']} bytes")
    except (OSError, ValueError, KeyError) as error:
        raise ResultsError(
            f"{path}: damaged ({_reason(error, path)}); resume the run, which writes it again"
        ) from error
    return sizes


def _reason(error: Exception, path: Path) -> str:
    told = error.strerror if isinstance(error, OSError) else f"no {error}" if isinstance(error, KeyError) else None
    return " ".join((told or str(error)).replace(str(path), path.name).split())


def _events(path: Path) -> list[dict[str, Any]]:
    rows = pq.read_table(path).to_pylist()
    return [
        {"event": r["event"], "utc_ns": r["utc_ns"], "mono_ns": r["mono_ns"], **json.loads(r["values"])} for r in rows
    ]


def _batches(path: Path) -> dict[int, EpochBatches]:
    table = pq.read_table(path)
    epochs = table["epoch"].to_numpy()
    found = {}
    for epoch in np.unique(epochs):
        part = table.filter(epochs == epoch)
        found[int(epoch)] = EpochBatches(
            samples=part["samples"].to_numpy(),
            nbytes=part["bytes"].to_numpy(),
            wait_s=part["wait_s"].to_numpy(),
            step_s=part["step_s"].to_numpy(),
            ids=part["ids"].combine_chunks().flatten().to_numpy(),
            loss=_known(part, "loss"),
            work_s=_known(part, "work_s"),
        )
    return found


def _known(part: pa.Table, name: str) -> Any:
    """Return a column's values, flat; None where one is unknown, or where an older run has no such column."""
    if name not in part.column_names or part[name].null_count:
        return None
    column = part[name].combine_chunks()
    return (column.flatten() if pa.types.is_list(column.type) else column).to_numpy()


def _resources(path: Path) -> list[Resources]:
    # Runs from before it was looked at have no such file.
    return [Resources(**row) for row in pq.read_table(path).to_pylist()] if path.exists() else []


def _pings(path: Path) -> list[Ping] | None:
    # Runs from before the link was watched have no such file, nor have local regimes.
    return [Ping(**row) for row in pq.read_table(path).to_pylist()] if path.exists() else None


def _readings(path: Path) -> list[Reading]:
    return [Reading(**row) for row in pq.read_table(path).to_pylist()]


def main(argv: list[str] | None = None) -> int:
    """Judge a results folder again from what its cells stored; status 3: a cell is damaged, 6: a row is invalid."""
    parser = argparse.ArgumentParser(prog="python -m harness.collect", description=main.__doc__)
    parser.add_argument("folder", nargs="?", default="results/latest", help="a run's folder (%(default)s)")
    name = parser.parse_args(argv).folder
    try:
        results = Results.find(name, Path("results"))
        with disk_errors({"FOLDER": results.folder}):
            found = collect(results)
    except HarnessError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_status
    print(f"{len(found.rows)} rows, {len(found.rows) - len(found.invalid)} valid; {len(found.checks)} checks")
    print(f"redraw the report with: {shlex.join(['python', '-m', 'harness.report', str(results.folder)])}")
    for row in found.invalid:
        print(f"  {row.cell_id} epoch {row.epoch}: {row.valid}")
    for cell_id, reason in found.damaged.items():
        print(f"  {cell_id}: damaged: {reason}")
    return CellError.exit_status if found.damaged else INVALID_ROWS if found.invalid else 0


if __name__ == "__main__":
    run_program(main, "nothing was judged")
