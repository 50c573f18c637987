"""The folder of a finished cell: read as one value, and refused when a file has changed since the cell ended."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from energymon import Reading
from harness.cell.events import CellEvent
from harness.cell.resources import Resources
from harness.errors import ResultsError
from harness.results.cells import CellRecord, DatasetRecord, LinkRecord
from harness.results.epochs import CellData, EpochBatches, find_epoch_edges
from harness.results.files import CELL, read_json, refuse_damage, write_json
from harness.testbed.link.measure.watch import Ping

Row = TypeVar("Row")

MANIFEST: Final = "manifest.json"
_CHECKED: Final = (".json", ".parquet")
"""Files from which rows are made. Only people read the logs."""
_EVENT_COUNTERS: Final = ("cpu_busy_s", "cpu_total_s", "link_cpu_s")


class DamagedCell(ResultsError):
    """A file of a finished cell cannot be read, or has changed since the cell ended."""


def write_manifest(folder: Path) -> None:
    """Write the SHA-256 checksums of a folder's files, by name."""
    names = sorted(path.name for path in folder.iterdir() if path.suffix in _CHECKED and path.name != MANIFEST)
    write_json(folder / MANIFEST, {name: _compute_checksum(folder / name) for name in names})


def load_cell(folder: Path) -> CellData:
    """Read the files of a finished cell.

    Raises DamagedCell, which names the file that cannot be read or has changed. Raises ResultsError for a damaged file
    of the run, which the cell shares with others. Each is made of a ValueError or another error of reading.
    """
    try:
        _check_manifest(folder)
        cell = read_json(folder / "cell.json", CellRecord, CELL)
        with refuse_damage(folder / "cell.json", CELL):
            if cell.cell_id != folder.name:
                raise ValueError(f"expected the cell {folder.name}, got {cell.cell_id}")
        if cell.manifest and not (folder / MANIFEST).exists():
            raise ResultsError(f"{folder / MANIFEST}: is missing; {CELL}")
        with refuse_damage(events_file := folder / "events.parquet", CELL):
            events = read_events(events_file)
            edges = find_epoch_edges(events)
            if not edges or not all(
                key in event for edge in edges.values() for event in edge for key in _EVENT_COUNTERS
            ):
                raise ValueError("expected the first and last event of its epochs, with their counters")
        with refuse_damage(batches_file := folder / "batches.parquet", CELL):
            batches = read_batches(batches_file, cell.accelerator.seconds_per_sample)
            if edges.keys() != batches.keys():
                raise ValueError(f"expected the epochs {', '.join(map(str, edges))}")
        link = read_json(folder / "link.json", LinkRecord, CELL)
        readings = _read_rows(folder / "energy.parquet", Reading)
        # Folders of older runs have neither of these two files. A local regime has no link.parquet.
        resources = _read_rows(path, Resources) if (path := folder / "resources.parquet").exists() else []
        pings = _read_rows(path, Ping) if (path := folder / "link.parquet").exists() else None
    except ResultsError as error:
        raise DamagedCell(str(error)) from error
    return CellData(
        cell=cell,
        link=link,
        events=events,
        batches=batches,
        readings=readings,
        resources=resources,
        pings=pings,
        **_read_samples(folder.parent.parent, cell.dataset),
    )


def _check_manifest(folder: Path) -> None:
    manifest = folder / MANIFEST
    if not manifest.exists():  # a cell of an older run
        return
    for name, checksum in read_json(manifest, dict[str, str], CELL).items():
        with refuse_damage(folder / name, CELL):
            if not (folder / name).is_file() or _compute_checksum(folder / name) != checksum:
                raise ValueError("it has changed since the cell ended")


def _compute_checksum(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _read_samples(run: Path, dataset: DatasetRecord) -> dict[str, npt.NDArray[np.int64]]:
    """Return `sizes` and `labels` of the dataset's samples. Nothing where the run's folder does not have them."""
    path = run / "samples.parquet"
    if not path.exists():  # the name says of which dataset, where the run has several
        path = run / f"samples-{dataset.name}-{dataset.content_hash[:8]}.parquet"
    if not path.exists():
        return {}
    with refuse_damage(path, "resume the run, which writes it again"):
        table = pq.read_table(path, columns=["label", "size"])
        sizes = table["size"].to_numpy()
        if (len(sizes), int(sizes.sum())) != (dataset.samples, dataset.bytes):
            raise ValueError(f"expected {dataset.samples} samples of {dataset.bytes} bytes")
    return {"sizes": sizes, "labels": table["label"].to_numpy()}


def _read_rows(path: Path, row_type: type[Row]) -> Sequence[Row]:
    with refuse_damage(path, CELL):
        return [row_type(**row) for row in pq.read_table(path).to_pylist()]


def read_events(path: Path) -> list[CellEvent]:
    """Return the events of an events.parquet. Raises OSError and ValueError when it is damaged."""
    return [
        {"event": row["event"], "utc_ns": row["utc_ns"], "mono_ns": row["mono_ns"], **json.loads(row["values"])}
        for row in pq.read_table(path).to_pylist()
    ]


def read_batches(path: Path, seconds_per_sample: float | None = None) -> dict[int, EpochBatches]:
    """Return the batches of a batches.parquet by epoch, with the nominal duration of steps of `seconds_per_sample`.

    Raises OSError and ValueError when it is damaged.
    """
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
            loss=_read_known(part, "loss"),
            work_s=_read_known(part, "work_s"),
            rank=part["rank"].to_numpy() if "rank" in part.column_names else None,
            sync_s=part["sync_s"].to_numpy() if "rank" in part.column_names else None,
            nominal_s=None if seconds_per_sample is None else part["samples"].to_numpy() * seconds_per_sample,
            labels=_read_known(part, "labels"),
        )
    return found


def _read_known(part: pa.Table, name: str) -> npt.NDArray[Any] | None:
    """Return a column's values, flat. None where one is unknown, or where an older run has no such column."""
    if name not in part.column_names or part[name].null_count:
        return None
    column = part[name].combine_chunks()
    values: npt.NDArray[Any] = (column.flatten() if pa.types.is_list(column.type) else column).to_numpy()
    return values
