"""What the driver and the cell's process send each other, a JSON line each, as typed values.

The driver sends the modules to import, then a CellSpec, then `{"go": true}` before every epoch. The cell sends a
CellState for each step: imported, store (rank 0 of several), ready, progress, epoch_done, and at the end done or
failed. Of a process that tries numbers of readers: ready before each, and tried after it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from pydantic import TypeAdapter

from harness.config.specs import AcceleratorSpec, ComponentSpec, LoaderSpec, SettleSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class RankSpec:
    """The place of a cell's process among several, by torchrun's names."""

    rank: int
    world_size: int
    local_rank: int = 0
    """Place among the ranks of the same host."""
    local_world_size: int = 1
    host: str = ""
    backend: str = "auto"
    """auto, gloo or nccl."""
    address: str
    """Where rank 0 serves the c10d store (MASTER_ADDR)."""
    port: int = 0
    """Its port (MASTER_PORT). Rank 0 gets 0, takes a free one and reports it."""
    interface: str = "lo"
    """Network interface of the traffic between ranks."""
    timeout_s: float
    """For how long a rank waits for another one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CellSpec:
    """All that the process of a cell needs to know."""

    cell_id: str
    out: Path
    """Folder of the cell."""
    loader: LoaderSpec
    workload: ComponentSpec
    accelerator: AcceleratorSpec
    samples: Path
    """The samples.parquet of the dataset."""
    data_root: Path | None = None
    """Root of the files as the compute node sees them. None for a loader that reads a stream."""
    endpoints: Sequence[str] = ()
    """Endpoints of the daemons of a loader that reads a stream."""
    keys: Path | None = None
    """Folder of the client's keys. None for a stream that is not encrypted."""
    stream_events: Path | None = None
    """File for the timestamps of a loader that reads a stream."""
    seed: int
    epochs: int = 1
    warmup_samples: int
    energy_store: Path
    """Store of the energy agent, which reads its sensors at the start and the end of an epoch."""
    interface: str | None = None
    """The data interface of the compute node. None for local data."""
    link_pid: int | None = None
    """Process of the delay line. None where the kernel makes the link."""
    run_pid: int | None = None
    """The process that started all others of the run."""
    pids: Mapping[str, Sequence[int]] = field(default_factory=dict)
    """Processes that serve the cell: of its `daemon`, its `mount` and the `monitor` of energy."""
    ranks: RankSpec | None = None
    """None for a cell of one process."""
    settle: SettleSpec = field(default_factory=SettleSpec)
    """How to wait before the first epoch until temperatures are steady; by default not."""
    tries_readers: bool = False
    """Whether the process only measures how quickly the loader brings samples with numbers of readers."""

    def to_json(self) -> bytes:
        """Return the spec as one line of JSON."""
        return _SPEC.dump_json(self)

    @classmethod
    def from_json(cls, line: str | bytes) -> CellSpec:
        """Return the spec of a line of JSON. Raises ValueError, which names the key that is wrong."""
        return _SPEC.validate_json(line)


@dataclass(frozen=True, slots=True, kw_only=True)
class AcceleratorRecord:
    """What ran the steps of a cell."""

    label: str = ""
    kind: str = ""
    """cuda, cpu, emulated or none."""
    emulated: bool = False
    citation: str | None = None
    """Source of the duration of an emulated step."""
    seconds_per_sample: float | None = None
    """Nominal duration of an emulated step per sample of its batch. None for a real step."""
    busy_w: float | None = None
    """Published power of an emulated board while a step runs. None where it is not known."""
    idle_w: float | None = None
    power_citation: str | None = None
    boards: Sequence[str] = ()
    """UUIDs of the real boards that the cell's ranks used."""
    gradient_bytes: int | None = None
    """Bytes of gradients that ranks all-reduce in a step. None with one rank, and where nothing is trained."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CellState:
    """One message of the cell."""

    state: str
    """imported, store, ready, progress, epoch_done, tried, done or failed."""
    port: int = 0
    """Of `store`: where rank 0 serves the store by which ranks find each other."""
    epoch: int = 0
    samples: int = 0
    """Samples of the epoch, or of the warm-up, that the step has trained on."""
    stall_s: float = 0.0
    """Of `progress`: how long the step waited for them, of several ranks that of the one that sends it."""
    readers: int = 0
    """Of `tried`: how many files were read at once."""
    samples_per_s: float | None = None
    """Of `tried`: how quickly samples came; None where the epoch is too short for it."""
    gpus: Sequence[str] = ()
    """Of `ready`: UUIDs of the GPUs that the steps of the cell's ranks run on."""
    settled: str = ""
    """Of `ready`: how temperatures became steady before the first epoch; empty where nothing waited for it."""
    kind: str = ""
    """Of `failed`: class of the error."""
    message: str = ""
    """Of `failed`: what happened. Of `progress`: temperatures, while it waits until they are steady."""
    notes: Sequence[str] = ()
    """Of `done`: where the loader differs from others."""
    model_check: str = ""
    """Of `done`: what the workload replays, and where its times are published; empty for a measurement."""
    stats: Mapping[str, object] = field(default_factory=dict)
    accelerator: AcceleratorRecord | None = None

    @classmethod
    def from_json(cls, line: bytes) -> CellState:
        """Return the state of a line of JSON. Raises ValueError, which names the key that is wrong."""
        return _STATE.validate_json(line)


_SPEC: Final[TypeAdapter[CellSpec]] = TypeAdapter(CellSpec)
_STATE: Final[TypeAdapter[CellState]] = TypeAdapter(CellState)
