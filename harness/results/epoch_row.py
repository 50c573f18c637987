"""The schemas of a row: of one epoch in epochs.parquet and epochs.csv, of one epoch and rank in ranks.parquet.

`write_rows` and `read_rows` store the rows of any such class: a frozen dataclass whose fields are text, whole numbers
or floats, each of them known or None.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from types import NoneType
from typing import Final, Protocol, TypeVar, get_args, get_type_hints

import pyarrow as pa
import pyarrow.parquet as pq

from harness.results.files import COLLECT, refuse_damage, write_whole

Row = TypeVar("Row")

DOMAINS: Final = ("cpu", "dram", "gpu")
SPREAD_LIMIT: Final = 0.10
"""A spread from which a median counts as unsteady (pyperf warns there too). `checks.spread_pct` has it as default."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochRow:
    """One epoch of one cell. None is unknown, and an empty field in epochs.csv. It is never 0."""

    cell_id: str
    workload: str
    dataset: str
    loader: str
    regime: str
    rtt_ms: float
    jitter_ms: float = 0.0
    loss_pct: float = 0.0
    repeat: int
    epoch: int
    start_utc: str
    end_utc: str
    duration_s: float
    samples: int
    bytes: int
    samples_per_s: float
    mb_per_s: float
    stall_s: float
    """How long the accelerator waited for batches."""
    step_s: float | None = None
    """Median over the epoch's steps, without the synchronisation of ranks."""
    nominal_step_s: float | None = None
    """Median of how long emulated steps should take. None for real ones."""
    au: float | None
    """Accelerator utilisation, 0 to 1."""
    cpu_util: float | None
    """Utilisation of all processors of the host, 0 to 1."""
    gpu_util: float | None
    """Mean utilisation of the cell's boards, 0 to 1."""
    cpu_j: float | None
    dram_j: float | None
    gpu_j: float | None
    total_j: float | None
    compute_j: float | None = None
    """The part of `total_j` of hosts that train. None on one machine, where a host has both roles."""
    storage_j: float | None = None
    """The part of `total_j` of hosts that store and do not train. None on one machine."""
    energy_error_j: float | None
    """Bound of the error of `drawn_j`. None where it is not known, as for an estimate of processors."""
    energy_accuracy_j: float | None = None
    """Bound, beside it, of what the sensors themselves do not see or show wrongly. None where it is unknown of one."""
    energy_gain_j: float | None = None
    """The part of it that is a share of the joules of the only device: it cancels in a ratio of two rows of the device
    and source. 0 with several devices, whose errors differ. None where `energy_accuracy_j` is."""
    net_j: float | None = None
    """`total_j` without the idle joules of the hosts; may be negative. None without a baseline of each part."""
    j_per_gb: float | None = None
    """`total_j` per 10^9 bytes of the samples. None where joules are unknown."""
    j_per_sample: float | None = None
    stalled_j: float | None = None
    """Joules of the accelerator while the step waited for batches. None where no board is measured or emulated."""
    cpu_net_j: float | None = None
    """`cpu_j` without the idle joules of the CPUs; may be negative. None without a baseline, as is `idle_j`."""
    idle_j: float | None = None
    """Idle joules of the CPUs: `cpu_j` is the sum of `cpu_net_j` and `idle_j`."""
    loader_j: float | None = None
    """CPU joules of the cell and its workers, by CPU time. This and the following five add up to `cpu_net_j`, and to
    `cpu_j` where no baseline was taken. All six are None where the host was not idle during its baseline. One is None
    where the part has no process of its own."""
    daemon_j: float | None = None
    mount_j: float | None = None
    link_j: float | None = None
    """Of the delay line."""
    monitor_j: float | None = None
    """Of the energy agent."""
    other_j: float | None = None
    """Of the harness, the kernel and all other programs."""
    wall_j: float | None = None
    """Joules at the supplies of all hosts, no part of `total_j`. None where a host has no meter there."""
    wall_error_j: float | None = None
    """Bound of its error. None where the meter shows power alone."""
    disagreements: str = ""
    """Sources of the same joules that contradict each other."""
    energy_source: str
    """Source by domain: cpu=rapl-powercap;gpu=nvml-counter. `estimate` is a source too."""
    setup_s: float | None = None
    """How long the loader took to be made, before the cell's first epoch. None in rows of its other epochs."""
    accelerator: str = ""
    """What did the steps: `cuda: NVIDIA H200`, `emulated A100`; with `model check` where samples only sleep, too."""
    valid: str = ""
    """valid, or "invalid:" and the rules that refuse the row."""

    @property
    def is_valid(self) -> bool:
        """Whether the row passed every validity rule."""
        return self.valid == "valid"

    @property
    def joules(self) -> dict[str, float]:
        """Joules by domain. A domain that nothing measured or estimated is absent."""
        known = {"cpu": self.cpu_j, "dram": self.dram_j, "gpu": self.gpu_j}
        return {domain: joules for domain, joules in known.items() if joules is not None}

    @property
    def drawn_j(self) -> float | None:
        """`total_j` without the joules of an emulated board: these are its published power over the epoch's time."""
        if self.total_j is None or "gpu" not in self.estimated:
            return self.total_j
        hosts = [joules for domain, joules in self.joules.items() if domain != "gpu"]
        return sum(hosts) if hosts else None

    def find_joule_error(self, joules: float, *, cancels: bool) -> float:
        """Return by which share joules of the row may be off: by resolution, and by accuracy as far as it is known.

        `cancels` is whether they are compared with joules of the same device and source.
        """
        gain_j = self.energy_gain_j if cancels else 0.0
        error_j = (self.energy_error_j or 0.0) + (self.energy_accuracy_j or 0.0) - (gain_j or 0.0)
        return error_j / joules if joules else 0.0

    @property
    def sources(self) -> dict[str, str]:
        """Source by domain: rapl-powercap, nvml-counter, estimate, …"""
        pairs = (part.partition("=") for part in self.energy_source.split(";") if part.strip())
        return {domain.strip(): source.strip() for domain, _, source in pairs}

    @property
    def estimated(self) -> frozenset[str]:
        """Domains whose joules are an estimate."""
        return frozenset(domain for domain, source in self.sources.items() if "estimate" in source)


@dataclass(frozen=True, slots=True)
class RankRow:
    """One row of ranks.csv: what one rank did in the epoch of epochs.csv with the same cell_id and epoch."""

    cell_id: str
    epoch: int
    rank: int
    host: str
    address: str
    """Of its node on the data network."""
    duration_s: float
    """From the epoch's start to the end of the rank's own last step. The epoch lasts as long as its slowest rank."""
    samples: int
    bytes: int
    steps: int
    stall_s: float
    """Time the rank waited for batches."""
    compute_s: float
    """Time of its steps without the synchronisation."""
    sync_s: float | None
    """Time after its own gradients until those of all ranks were there; None where no gradients are synchronised."""
    ranks_wait_s: float | None
    """The part of `sync_s` beyond the synchronisation time of each step's last rank: the wait for slower ranks."""
    au: float | None
    rx_bytes: int | None
    """On the data interface of its node, of all ranks there; None for local data."""


class _OfCell(Protocol):
    @property
    def cell_id(self) -> str: ...
    @property
    def epoch(self) -> int: ...


_OfCellT = TypeVar("_OfCellT", bound=_OfCell)


def select_settled(rows: Iterable[_OfCellT]) -> tuple[_OfCellT, ...]:
    """Return the rows of epochs before which their cell had another one, which started workers and filled queues.

    A cell with one epoch has no settled one.
    """
    every = tuple(rows)
    first = {row.cell_id: row.epoch for row in sorted(every, key=lambda row: row.epoch, reverse=True)}
    return tuple(row for row in every if row.epoch > first[row.cell_id])


def compute_spread(values: Collection[float]) -> float | None:
    """Return (max - min) / median of repeated values. None for a single value, and for values around 0."""
    if len(values) < 2 or not (middle := abs(median(values))):
        return None
    return (max(values) - min(values)) / middle


def write_rows(rows: Sequence[object], row_type: type, parquet: Path, csv: Path) -> None:
    """Write rows as Parquet, which is read again, and as CSV, which people read."""
    schema = make_schema(row_type)
    columns = [pa.array([getattr(row, one.name) for row in rows], one.type, from_pandas=True) for one in schema]
    table = pa.table(columns, schema=schema)
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink)
    write_whole(parquet, sink.getvalue().to_pybytes())
    write_whole(csv, table.to_pandas(integer_object_nulls=True).to_csv(index=False).encode())


def read_rows(path: Path, row_type: type[Row]) -> tuple[Row, ...]:
    """Read the rows of a Parquet file. No file is no row.

    Raises ResultsError (made of a ValueError), which names the file, for a damaged one and for one without a column.
    """
    if not path.exists():
        return ()
    schema = make_schema(row_type)
    with refuse_damage(path, COLLECT):
        table = pq.read_table(path)
        if missing := [name for name in schema.names if name not in table.column_names]:
            raise ValueError(f"it has no column {missing[0]}")
        return tuple(row_type(**record) for record in table.select(schema.names).cast(schema).to_pylist())


def make_schema(row_type: type) -> pa.Schema:
    """Return the Parquet schema of a class of rows."""
    kinds = {float: pa.float64(), int: pa.int64(), str: pa.string()}
    hints = {name: get_args(hint) or (hint,) for name, hint in get_type_hints(row_type).items()}
    return pa.schema([pa.field(name, kinds[hint[0]], NoneType in hint) for name, hint in hints.items()])
