"""What a results folder stores beyond epochs.csv, as frames for figures: metrics an epoch, work a sample."""

from __future__ import annotations

from dataclasses import asdict
from functools import lru_cache
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from harness.report.intervals import Cells, Ratio, compare_cells
from harness.results.epoch_row import EpochRow, make_schema
from harness.results.files import CELL, COLLECT, refuse_damage
from harness.results.reader import Results


def epochs(results: Results) -> pd.DataFrame:
    """Return a row for every epoch that was measured, by order of loader and workload in the config.

    Columns: those of epochs.csv and metrics.csv, with `valid` true or false; `base` (the section that the loader comes
    from) and `setting` (the value of its sweep, NaN without one).
    """
    order = {key: place for place, key in enumerate(results.loaders)}
    rows = sorted(results.rows, key=lambda row: (order[row.loader], results.workloads.index(row.workload)))
    frame = pd.DataFrame([asdict(row) for row in rows], columns=make_schema(EpochRow).names)
    frame = frame.astype(dict.fromkeys(_NUMBERS, "float64")).assign(
        base=[find_base(results, row.loader) for row in rows],
        setting=pd.Series([_setting(results, row.loader) for row in rows], dtype="float64"),
        valid=[row.is_valid for row in rows],
    )
    stored = _metrics(results.folder / "metrics.parquet")
    joined: pd.DataFrame = frame.merge(stored, "left", ["cell_id", "epoch"])
    return joined


def trusted(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the valid rows of every loader, workload and regime; where one has none valid, all that it has."""
    some_valid = frame.groupby(["workload", "loader", "regime"])["valid"].transform("any")
    return frame[frame["valid"] | ~some_valid]


def mark_settled(frame: pd.DataFrame) -> pd.Series[bool]:
    """Return for every row of `epochs` whether it started no workers: it is not its cell's first, or the only one."""
    epoch = frame.groupby("cell_id")["epoch"]
    return (frame["epoch"] > epoch.transform("min")) | (epoch.transform("min") == epoch.transform("max"))


def compare_frames(above: pd.DataFrame, below: pd.DataFrame, column: str = "duration_s") -> Ratio | None:
    """Return the ratio of a column of two frames, by cell; None where either frame has no value."""
    first, second = (_by_cell(frame.dropna(subset=[column]), column) for frame in (above, below))
    return compare_cells(first, second)


def _by_cell(frame: pd.DataFrame, column: str) -> Cells:
    """Return values by cell: by repeat where the frame has repeats, and its cells are repeats of each other."""
    cells = [list(values) for _, values in frame.groupby("cell_id")[column]]
    if "repeat" not in frame or frame.groupby("repeat")["cell_id"].nunique().gt(1).any():
        return cells
    return {int(str(repeat)): list(values) for repeat, values in frame.groupby("repeat")[column]}


def work(results: Results) -> pd.DataFrame:
    """Return a row for every sample of every epoch whose loader reports how long its preprocessing took.

    Columns: `workload`, `base`, `cell_id`, `epoch`, `sample` (id), `work_s`.
    """
    parts = [
        _work(results.folder / "cells" / cell.cell_id / "batches.parquet").assign(
            workload=cell.workload, base=find_base(results, cell.loader), cell_id=cell.cell_id
        )
        for cell in results.cells
        if cell.state == "done"
    ]
    return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame(columns=[*_WORK_COLUMNS, "workload", "base"])


def read_stored(path: Path) -> pd.DataFrame | None:
    """Return one Parquet file of a cell; None where it is not there. Raises ResultsError for one that is broken."""
    if not path.exists():
        return None
    with refuse_damage(path, CELL):
        frame: pd.DataFrame = pq.read_table(path).to_pandas()
    return frame


def first_rank(batches: pd.DataFrame) -> pd.DataFrame:
    """Return the batches of rank 0, which follow each other in time; those of one process are all of them."""
    return batches[batches["rank"] == 0] if "rank" in batches else batches


def find_base(results: Results, loader: str) -> str:
    """Return the section that a loader comes from: pytorch of pytorch_num_workers_4."""
    return results.experiment.loaders[loader].base


_NUMBERS = [*(one.name for one in make_schema(EpochRow) if pa.types.is_floating(one.type)), *("samples", "bytes")]
EPOCH_COLUMNS = [*make_schema(EpochRow).names, "base", "setting"]
_WORK_COLUMNS = ["epoch", "sample", "work_s"]


def _setting(results: Results, loader: str) -> float:
    values = list(results.experiment.loaders[loader].setting.values())
    return float(values[0]) if len(values) == 1 and isinstance(values[0], int | float) else float("nan")


def _metrics(path: Path) -> pd.DataFrame:
    from harness.results.metrics import EpochMetrics

    names = make_schema(EpochMetrics).names
    if not path.exists():
        return pd.DataFrame(columns=names)
    with refuse_damage(path, COLLECT):
        frame: pd.DataFrame = pq.read_table(path).to_pandas()
        known: pd.DataFrame = frame[names].set_index(["cell_id", "epoch"]).astype("float64")
        return known.reset_index()


@lru_cache(maxsize=64)
def _work(path: Path) -> pd.DataFrame:
    if not path.exists():
        return pd.DataFrame(columns=_WORK_COLUMNS)
    with refuse_damage(path, CELL):
        return _work_of(pq.read_table(path))


def _work_of(table: pa.Table) -> pd.DataFrame:
    if "work_s" not in table.column_names or table["work_s"].null_count:
        return pd.DataFrame(columns=_WORK_COLUMNS)
    frame: pd.DataFrame = (
        table.select(["epoch", "ids", "work_s"]).to_pandas().explode(["ids", "work_s"], ignore_index=True)
    )
    return frame.rename(columns={"ids": "sample"}).astype({"sample": "int64", "work_s": "float64"})
