"""From the cells of a results folder to its rows and checks: `python -m harness.collect FOLDER` judges it anew."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from omegaconf import OmegaConf

from energymon import Reading
from harness.checks import Check, judge
from harness.errors import HarnessError, ResultsError
from harness.measure import CellData, EpochBatches, EpochRow, epoch_rows
from harness.metrics import EpochMetrics, epoch_metrics
from harness.resources import Resources
from harness.results import Results, write_json, write_whole
from harness.signals import run_program
from harness.specs import Tolerances
from harness.testbed.link.watch import Ping

__all__ = ["collect", "load_cell", "main"]


def collect(results: Results) -> tuple[list[EpochRow], list[Check]]:
    """Measure and judge every finished cell; write epochs and metrics (csv, parquet) and checks.json.

    Returns the rows and checks.
    """
    planned = [c["cell_id"] for c in json.loads(results.plan.read_text())["cells"]]
    cells = [load_cell(results.cell(cell_id)) for cell_id in planned if results.is_done(cell_id)]
    tolerances = Tolerances(**OmegaConf.to_container(OmegaConf.load(results.config), resolve=True)["checks"])  # type: ignore[index,call-overload,arg-type]
    rows, checks = judge(cells, [row for cell in cells for row in epoch_rows(cell)], tolerances)
    frame = pd.DataFrame([asdict(row) for row in rows], columns=EpochRow.columns())
    # A column that is unknown in every row is still a column of floats.
    for column in ("au", "cpu_util", "gpu_util", "cpu_j", "dram_j", "gpu_j", "total_j", "energy_error_j"):
        frame[column] = frame[column].astype("float64")
    metrics = [asdict(one) for cell in cells for one in epoch_metrics(cell)]
    _write_metrics(results, pd.DataFrame(metrics, columns=EpochMetrics.columns()))
    write_whole(results.epochs_csv, frame.to_csv(index=False).encode())
    write_whole(results.epochs_parquet, frame.to_parquet(index=False))
    write_json(results.checks, [asdict(check) for check in checks])
    return rows, checks


def _write_metrics(results: Results, frame: pd.DataFrame) -> None:
    for column in frame.columns.drop(["cell_id", "epoch"]):
        # A count that may be unknown stays a whole number; what is unknown in every row still has its type.
        frame[column] = frame[column].astype("Int64" if column.endswith(("_bytes", "_samples")) else "float64")
    write_whole(results.metrics_csv, frame.to_csv(index=False).encode())
    write_whole(results.metrics_parquet, frame.to_parquet(index=False))


def load_cell(folder: Path) -> CellData:
    """Read what a finished cell stored; raises ResultsError naming the file that cannot be read."""
    try:
        cell = json.loads((folder / "cell.json").read_text())
        return CellData(
            cell=cell,
            link=json.loads((folder / "link.json").read_text()),
            events=_events(folder / "events.parquet"),
            batches=_batches(folder / "batches.parquet"),
            readings=_readings(folder / "energy.parquet"),
            resources=_resources(folder / "resources.parquet"),
            pings=_pings(folder / "link.parquet"),
            sizes=_sizes(_samples_file(folder.parent.parent, cell["dataset"])),
        )
    except (OSError, ValueError, KeyError) as error:
        raise ResultsError(f"{folder}: not a whole cell ({error}); delete it and resume the run") from error


def _samples_file(run: Path, dataset: Mapping[str, Any]) -> Path:
    """Return where a run's folder has the samples of a dataset, which is named where there are several."""
    alone = run / "samples.parquet"
    return alone if alone.exists() else run / f"samples-{dataset['name']}-{dataset.get('content_hash', '')[:8]}.parquet"


def _sizes(path: Path) -> npt.NDArray[np.int64] | None:
    return pq.read_table(path, columns=["size"])["size"].to_numpy() if path.exists() else None


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
    """Judge a results folder anew from what its cells stored."""
    parser = argparse.ArgumentParser(prog="python -m harness.collect", description=main.__doc__)
    parser.add_argument("folder", nargs="?", default="results/latest", help="a run's folder (%(default)s)")
    name = parser.parse_args(argv).folder
    try:
        rows, checks = collect(Results.find(name, Path("results")))
    except HarnessError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_status
    bad = [row for row in rows if row.valid != "valid"]
    print(f"{len(rows)} rows, {len(rows) - len(bad)} valid; {len(checks)} checks")
    print(f"redraw the report with: python -m harness.report {name}")
    for row in bad:
        print(f"  {row.cell_id} epoch {row.epoch}: {row.valid}")
    return 0


if __name__ == "__main__":
    run_program(main, "nothing was judged")
