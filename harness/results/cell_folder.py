"""What a finished cell stored: read as one value, and refused when a file has changed since the cell ended."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
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
from harness.results.cells import CellRecord, DatasetRecord, HostRecord, LinkRecord
from harness.results.edges import HostEdges, find_epoch_edges, find_rank_edges
from harness.results.files import CELL, read_json, refuse_damage, write_json
from harness.testbed.link.measure.watch import Ping

Stored = TypeVar("Stored")

MANIFEST: Final = "manifest.json"
SET_ASIDE: Final = ".invalid-"
"""In the name of the folder of a try that was measured again, between the cell's id and the number of the try."""
_CHECKED: Final = (".json", ".parquet")
"""Files from which rows are made. Only people read the logs."""
_EVENT_COUNTERS: Final = ("cpu_busy_s", "cpu_total_s", "link_cpu_s")


class DamagedCell(ResultsError):
    """A file of a finished cell cannot be read, or has changed since the cell ended."""


@dataclass(frozen=True, slots=True)
class EpochBatches:
    """The batches of one epoch, in order."""

    samples: npt.NDArray[np.int64]
    nbytes: npt.NDArray[np.int64]
    """As the loader counts them."""
    wait_s: npt.NDArray[np.float64]
    step_s: npt.NDArray[np.float64]
    ids: npt.NDArray[np.int64]
    """All sample ids of the epoch, flat."""
    loss: npt.NDArray[np.float64] | None = None
    """Of every step; None where nothing is trained."""
    work_s: npt.NDArray[np.float64] | None = None
    """Seconds of preprocessing of the samples in `ids`; None where the engine does not report them."""
    rank: npt.NDArray[np.int64] | None = None
    """Of every batch; the ranks stand one after the other. None for a cell of one process."""
    sync_s: npt.NDArray[np.float64] | None = None
    """Time of every step from the rank's own last gradient until those of all ranks were there; NaN is unknown."""
    nominal_s: npt.NDArray[np.float64] | None = None
    """Seconds that each emulated step stands for. None for real steps."""
    labels: npt.NDArray[np.int64] | None = None
    """Labels of the samples in `ids`; of fewer where a batch had others than a whole number a sample. None where the
    workload's labels are not classes."""

    @property
    def utilisation(self) -> float | None:
        """Accelerator utilisation; waiting for other ranks is not computing."""
        waits_s = self.wait_s + self.step_s - self.compute_s
        return compute_utilisation(waits_s, self.compute_s)

    @property
    def compute_s(self) -> npt.NDArray[np.float64]:
        """Time in which the accelerator computes in every step, without the synchronisation with other ranks.

        The time of an emulated step is nominal; the rule `step_time` judges how long it took.
        """
        return self.own_s if self.nominal_s is None else self.nominal_s

    @property
    def own_s(self) -> npt.NDArray[np.float64]:
        """Time of every step without the synchronisation with other ranks."""
        return self.step_s if self.sync_s is None else self.step_s - np.nan_to_num(self.sync_s)

    @property
    def stretch(self) -> tuple[float, float] | None:
        """How much longer than nominal the median emulated step is, of its time, and all together, of the epoch's.

        None for real steps, and for an accelerator that idles.
        """
        if self.nominal_s is None or not self.nominal_s.any():
            return None
        steps = self.nominal_s > 0
        own_s, nominal_s = self.own_s[steps], self.nominal_s[steps]
        epoch_s = float(self.wait_s.sum() + self.step_s.sum())
        return float(np.median(own_s / nominal_s)) - 1, float((own_s - nominal_s).sum()) / epoch_s

    def of_ranks(self) -> list[EpochBatches]:
        """Return the batches of each rank by itself, without the labels."""
        if self.rank is None:
            return [self]
        ends = np.cumsum(self.samples)
        return [self._select(np.flatnonzero(self.rank == rank), ends) for rank in np.unique(self.rank)]

    def _select(self, places: npt.NDArray[np.intp], ends: npt.NDArray[np.int64]) -> EpochBatches:
        """Return the batches at these places; `ends` are the positions in `ids` at which batches end."""
        samples = slice(int(ends[places[0]] - self.samples[places[0]]), int(ends[places[-1]]))
        names = ("samples", "nbytes", "wait_s", "step_s", "loss", "sync_s", "nominal_s")
        by_batch: dict[str, Any] = {name: None if (of := getattr(self, name)) is None else of[places] for name in names}
        work_s = None if self.work_s is None else self.work_s[samples]
        return replace(self, **by_batch, ids=self.ids[samples], work_s=work_s, rank=None, labels=None)


@dataclass(frozen=True, slots=True)
class CellData:
    """Everything a finished cell stored."""

    cell: CellRecord
    link: LinkRecord
    events: Sequence[CellEvent]
    batches: Mapping[int, EpochBatches]
    """By epoch."""
    readings: Sequence[Reading]
    sizes: npt.NDArray[np.int64]
    """Encoded bytes of each of the dataset's samples, by id."""
    labels: npt.NDArray[np.int64]
    """Class of each sample, by id."""
    resources: Sequence[Resources] = ()
    pings: Sequence[Ping] | None = None
    """Of the link while the cell used it; None where there is no link."""

    def readings_of(self, host: HostRecord | None) -> list[Reading]:
        """Return the readings of another host, or those of the host that trains and drives the run."""
        others = {one.host for one in self.cell.hosts}
        return [r for r in self.readings if (r.node not in others if host is None else r.node == host.host)]

    def list_host_edges(self, epoch: int) -> list[HostEdges]:
        """Return the edges of an epoch on the lead and on every other host, its devices as a rank there saw them."""
        edges = {rank: of[epoch] for rank, of in find_rank_edges(self.events).items() if epoch in of}
        found = [HostEdges("", *edges[0])]
        for host, epochs in self.cell.host_states.items():
            start, end = (dict(state) for state in epochs[epoch])
            own = [edges[place] for place, rank in enumerate(self.cell.ranks) if rank.host == host and place in edges]
            if own:
                start["devices"], end["devices"] = (edge.get("devices", ()) for edge in own[0])
            found.append(HostEdges(host, start, end))
        return found

    def count_bytes(self, epoch: int) -> int:
        """Return the encoded bytes of the samples that came in an epoch, by the dataset's own sizes."""
        ids = self.batches[epoch].ids
        return int(self.sizes[ids[(ids >= 0) & (ids < len(self.sizes))]].sum())


def compute_utilisation(wait_s: npt.NDArray[np.float64], step_s: npt.NDArray[np.float64]) -> float | None:
    """Return compute time / epoch time without the first step (MLPerf Storage); None for fewer than two steps."""
    if len(step_s) < 2:
        return None
    compute = float(step_s[1:].sum())
    total = compute + float(wait_s[1:].sum())
    # Nominal times are rounded to ns.
    return min(1.0, compute / total) if total > 0 else None


def write_manifest(folder: Path) -> None:
    """Write the SHA-256 checksums of a folder's files, by name."""
    names = sorted(path.name for path in folder.iterdir() if path.suffix in _CHECKED and path.name != MANIFEST)
    write_json(folder / MANIFEST, {name: compute_checksum(folder / name) for name in names})


def load_cell(folder: Path) -> CellData:
    """Read the files of a finished cell, or of a try of it that was measured again.

    Raises DamagedCell, which names the file that cannot be read or has changed. Raises ResultsError for a damaged file
    of the run, which the cell shares with others. Each is made of a ValueError or another error of reading.
    """
    try:
        _check_manifest(folder)
        cell = read_json(folder / "cell.json", CellRecord, CELL)
        with refuse_damage(folder / "cell.json", CELL):
            if cell.cell_id != folder.name.partition(SET_ASIDE)[0]:
                raise ValueError(f"expected the cell {folder.name}, got {cell.cell_id}")
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
        resources = _read_rows(folder / "resources.parquet", Resources)
        pings = None if cell.regime.is_local else _read_rows(folder / "link.parquet", Ping)
    except ResultsError as error:
        raise DamagedCell(str(error)) from error
    sizes, labels = _read_samples(folder.parent.parent, cell.dataset)
    return CellData(cell, link, events, batches, readings, sizes, labels, resources, pings)


def _check_manifest(folder: Path) -> None:
    for name, checksum in read_json(folder / MANIFEST, dict[str, str], CELL).items():
        with refuse_damage(folder / name, CELL):
            if not (folder / name).is_file() or compute_checksum(folder / name) != checksum:
                raise ValueError("it has changed since the cell ended")


def compute_checksum(path: Path) -> str:
    """Return the SHA-256 checksum of a file. Raises OSError."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _read_samples(run: Path, dataset: DatasetRecord) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return sizes and labels of the dataset's samples, from the run's folder."""
    path = run / "samples.parquet"
    if not path.exists():  # the name says of which dataset, where the run has several
        path = run / f"samples-{dataset.name}-{dataset.content_hash[:8]}.parquet"
    with refuse_damage(path, "resume the run, which writes it again"):
        table = pq.read_table(path, columns=["label", "size"])
        sizes = table["size"].to_numpy()
        if (len(sizes), int(sizes.sum())) != (dataset.samples, dataset.bytes):
            raise ValueError(f"expected {dataset.samples} samples of {dataset.bytes} bytes")
    return sizes, table["label"].to_numpy()


def _read_rows(path: Path, row_type: type[Stored]) -> Sequence[Stored]:
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
        samples = part["samples"].to_numpy()
        has_ranks = "rank" in part.column_names
        found[int(epoch)] = EpochBatches(
            samples=samples,
            nbytes=part["bytes"].to_numpy(),
            wait_s=part["wait_s"].to_numpy(),
            step_s=part["step_s"].to_numpy(),
            ids=part["ids"].combine_chunks().flatten().to_numpy(),
            loss=_read_known(part, "loss"),
            work_s=_read_known(part, "work_s"),
            rank=part["rank"].to_numpy() if has_ranks else None,
            sync_s=part["sync_s"].to_numpy() if has_ranks else None,
            nominal_s=None if seconds_per_sample is None else samples * seconds_per_sample,
            labels=_read_known(part, "labels"),
        )
    return found


def _read_known(part: pa.Table, name: str) -> npt.NDArray[Any] | None:
    """Return a column's values, flat. None where one is unknown."""
    if part[name].null_count:
        return None
    column = part[name].combine_chunks()
    values: npt.NDArray[Any] = (column.flatten() if pa.types.is_list(column.type) else column).to_numpy()
    return values
