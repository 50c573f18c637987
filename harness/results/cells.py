"""A cell: as the plan has it, as its cell.json and link.json store it, and as the report sees it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Final

from pydantic import PlainSerializer

from energymon import Accuracy, Baseline, Event
from harness.cell.messages import AcceleratorRecord
from harness.cell.skipped import Skipped
from harness.config.regime import Regime
from harness.system.spin import Spin
from harness.testbed.base import ProbeResult
from harness.testbed.link.delay_calibration import Calibration
from harness.testbed.link.userspace.paths import PathCounters

_BY_NAME: Final = PlainSerializer(lambda one: one._asdict())  # pydantic writes a named tuple without its names


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One loader x workload x regime x repeat: the unit that runs, fails and resumes."""

    cell_id: str
    loader: str
    workload: str
    regime: str
    repeat: int
    """From 1."""
    seed: int = 0
    """Of sample order and augmentation. Every loader of a repeat has the same."""


@dataclass(frozen=True, slots=True)
class DatasetRecord:
    """The dataset of a cell."""

    name: str
    samples: int
    bytes: int
    skipped: int = 0
    """Broken files that were left out."""
    content_hash: str = ""


@dataclass(frozen=True, slots=True)
class PlacementRecord:
    """Where the samples of a cell lie."""

    kind: str
    """remote, half, local or sharded."""
    remote_samples: int = 0
    """Samples on storage nodes."""
    remote_bytes: int = 0
    storages: int = 1
    """Storage nodes that have them."""


@dataclass(frozen=True, slots=True)
class MemoryRecord:
    """The limit on the memory of a cell's processes, or of its daemons."""

    limit_bytes: float
    peak_bytes: float | None = None
    source: str = ""
    """What counts the peak: cgroup v1 or v2."""
    cached_bytes: float | None = None
    """The page cache at the end of the cell."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SensorRecord:
    """A series of energy readings, or a part of the host that no sensor reads."""

    device: str
    domain: str
    source: str = ""
    lag_s: float | None = None
    """How old a value may be when it is read."""
    accuracy: Accuracy | None = None
    """How true its joules are; None in a run that is older than this."""
    reason: str = ""
    """Why a part is not read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EnergyRecord:
    """How a host's energy was sampled during a cell."""

    interval_ms: float
    offset_ns: int = 0
    """The clock of the readings minus the monotonic clock; of another host minus the lead's UTC."""
    series: Sequence[SensorRecord] = ()
    unreadable: Sequence[SensorRecord] = ()
    events: Sequence[Annotated[Event, _BY_NAME]] = ()
    """What the energy agent reported during the cell."""
    idle: Sequence[Annotated[Baseline, _BY_NAME]] = ()
    """What each series drew before the first cell of the session. Empty where no baseline was taken."""
    idle_cpu_util: float | None = None
    """Utilisation of the host's processors while the baseline was taken, 0 to 1."""


@dataclass(frozen=True, slots=True)
class HostClock:
    """The clock of another host, as it was measured once."""

    source: str
    """chrony, kernel, an exchange over SSH, or one clock."""
    offset_ms: float
    """Its UTC minus the lead's UTC."""
    error_ms: float
    """Bound of the offset's error."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpinRecord:
    """What a fixed piece of work took a host around a cell."""

    first: Spin
    """Before the first cell of the session."""
    before: Spin
    """Before the cell, and below after it."""
    after: Spin


@dataclass(frozen=True, slots=True, kw_only=True)
class HostRecord(EnergyRecord):
    """Another host of a cell: how its energy was sampled, and its clock before and after the cell."""

    host: str
    """Its name in the inventory, and `node` of its readings."""
    roles: Sequence[str]
    offset_ns: int
    clock_before: HostClock
    clock_after: HostClock
    spin: SpinRecord | None = None

    @property
    def clock_error_ns(self) -> int:
        """Bound of the error of `offset_ns`, from both measurements and from how far the clock moved between them."""
        moved_ms = abs(self.clock_after.offset_ms - self.clock_before.offset_ms) / 2
        return round(1e6 * (max(self.clock_before.error_ms, self.clock_after.error_ms) + moved_ms))


@dataclass(frozen=True, slots=True)
class RankEpoch:
    """What the link had to bring a rank in one epoch, at least."""

    epoch: int
    remote_bytes: int
    """Of its samples that lie on another node."""
    gradient_bytes: int
    """Of the gradients of ranks on other nodes: what any all-reduce has to bring."""


@dataclass(frozen=True, slots=True)
class RankRecord:
    """One rank of a cell."""

    rank: int
    host: str
    address: str
    """Of its node on the data network."""
    epochs: Sequence[RankEpoch] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CellRecord:
    """cell.json of a finished cell."""

    cell_id: str
    loader: str
    workload: str
    regime: Regime
    repeat: int
    seed: int = 0
    reads: str = "files"
    """How the loader reads: files, stream or once, as LoaderSpec has it."""
    readers: int | None = None
    """How many files the loader reads at once; None where its section names no such argument."""
    status: str = "done"
    provenance: str = "provenance.json"
    """Name of the file with the provenance of the session that measured the cell."""
    dataset: DatasetRecord
    placement: PlacementRecord = PlacementRecord("remote")
    mount: str = ""
    """How the compute node reached the files: nfs4, sshfs, local, or that they were streamed."""
    caches: str = ""
    """How cached pages were dropped."""
    cold: str = ""
    """Before which epochs they were: every `epoch`, or the first of the `cell`. Empty where it is not known."""
    on_disk: bool = False
    """Whether the files lie on a disk of the lead whose reads the kernel counts."""
    storage_reads: Mapping[int, int] = field(default_factory=dict)
    """Bytes read from the disks of other hosts that store, by epoch; empty on one machine, or uncounted."""
    memory: MemoryRecord | None = None
    """None without a limit."""
    daemon_memory: MemoryRecord | None = None
    """Of the daemons alone, where they have a limit of their own."""
    spin: SpinRecord | None = None
    """None in a folder of a version that did not measure it."""
    ranks: Sequence[RankRecord] = ()
    """Empty for a cell of one process."""
    other_runs: Sequence[str] = ()
    """Other runs on this machine at the same time."""
    notes: Sequence[str] = ()
    model_check: str = ""
    """What the workload replays, and where its times are published; empty for a measurement."""
    stats: Mapping[str, object] = field(default_factory=dict)
    on_error: str | None = None
    skipped: Sequence[Skipped] = ()
    accelerator: AcceleratorRecord
    energy: EnergyRecord
    sampler: Mapping[str, float] = field(default_factory=dict)
    """What the sampling of the cell's resources cost."""
    clock: str = ""
    """"one clock" where both nodes are one machine."""
    clock_offset_ms: float | None = None
    """Offset between the clocks of the nodes."""
    hosts: Sequence[HostRecord] = ()
    """The other hosts of the cell; empty on one machine."""
    host_cpu_s: Mapping[str, Mapping[int, Mapping[str, float]]] = field(default_factory=dict)
    """Of several hosts: CPU seconds by host and epoch: `busy` of all processors, and of each part of the run."""
    host_states: Mapping[str, Mapping[int, Sequence[Mapping[str, Any]]]] = field(default_factory=dict)
    """By other host and epoch: the values of a HostState at the epoch's start and at its end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedCell:
    """cell.json of a cell without a result."""

    cell_id: str
    loader: str
    workload: str
    regime: Regime
    repeat: int
    seed: int = 0
    status: str
    """failed or interrupted."""
    failure: str = ""
    """Why the cell has no result."""


@dataclass(frozen=True, slots=True)
class Probe(ProbeResult):
    """The last probe of the link before or after a cell, which is judged."""

    earlier: Sequence[ProbeResult] = ()
    """The probes before it, which were out of bounds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkEpoch:
    """What a link carried in one epoch, without the packets that watched it. None is unknown."""

    epoch: int
    drops: int | None = None
    """Packets dropped in the link's queue."""
    pause_s: float | None = None
    """The delay line's longest pause."""
    rx_bytes: int | None = None
    tx_bytes: int | None = None
    link_cpu_s: float | None = None
    """CPU time of the delay line."""
    paths: Sequence[PathCounters] = ()
    """Of each path of the regime, in its order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkRecord:
    """link.json."""

    kind: str = "none"
    """relay, netem or none."""
    floor_ms: float | None = None
    """Round trip of the link without delay. None where it was not measured."""
    calibrations: Sequence[Calibration] = ()
    """How the link was brought to the regime's round trip, each time since it came up."""
    before: Probe | None = None
    after: Probe | None = None
    epochs: Sequence[LinkEpoch] = ()
    notes: Sequence[str] = ()

    def get_epoch(self, epoch: int) -> LinkEpoch:
        """Return the entry of an epoch. Everything in it is unknown where there is no entry."""
        return next((entry for entry in self.epochs if entry.epoch == epoch), LinkEpoch(epoch=epoch))


@dataclass(frozen=True, slots=True, kw_only=True)
class CellResult(Cell):
    """A planned cell and its result."""

    state: str
    """done, failed, interrupted, damaged, running or not run."""
    reason: str = ""
    """Why the cell failed, was interrupted or cannot be read."""
    record: CellRecord | None = None
    """None where the cell has no result that can be read."""
    link: LinkRecord = field(default_factory=LinkRecord)
    measured_again: int = 0
    """How often the cell was measured again because its rows were invalid."""

    @property
    def accelerator(self) -> str:
        """The accelerator's label. Empty where it is unknown."""
        return self.record.accelerator.label if self.record else ""

    @property
    def mount(self) -> str:
        """How the compute node reached the files. Empty where it is unknown."""
        return self.record.mount if self.record else ""

    @property
    def notes(self) -> Sequence[str]:
        """Where the loader differs from others."""
        return self.record.notes if self.record else ()

    @property
    def skipped(self) -> dict[int, str]:
        """Why the loader left samples out under on_error=skip, by id, over all epochs."""
        epochs = self.record.skipped if self.record else ()
        return {sample_id: why for epoch in epochs for sample_id, why in epoch.samples.items()}
