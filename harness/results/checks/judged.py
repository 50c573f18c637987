"""One rule's result for one row, and the epoch that rules judge."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from energymon import Event
from harness.cell.events import CellEvent
from harness.config.specs import Tolerances
from harness.results.cell_folder import CellData
from harness.results.edges import HostEdges, find_epoch_edges
from harness.results.epoch_row import EpochRow
from harness.results.make_rows import to_readings_ns

# A warning is about a group of rows, or about joules alone. The rows stay valid.
PASS, WARN, FAIL, UNKNOWN, NOT_APPLICABLE = "pass", "warn", "fail", "unknown", "not applicable"
ONE_CLOCK = "one clock"
"""What a cell stores as its clock when both nodes are this machine."""
READS_ONCE = "one batch, made before the epoch: nothing is read"
NO_SENSOR = "no sensor"
_OF_HOST = ("missed_ticks", "clock_offset")
RULES = frozenset(
    {
        *("rtt_before", "rtt_after", "rate_before", "rate_after", "jitter_before", "jitter_after"),
        *("loss_to_compute_before", "loss_to_compute_after", "loss_to_storage_before", "loss_to_storage_after"),
        *("no_drops", "link_pause", "link_held", "pings_lost", "paths", "bytes_received", "local_bytes"),
        *("exactly_once", "loader_bytes", "labels", "shuffled", "early_work", "others_cpu", "steal", "alone", "spread"),
        *("content", "local_reads", "setup_work", "step_time"),
        *("cpu_parts", "sensors", "energy_agent", "meters", *_OF_HOST, *(f"{rule}_HOST" for rule in _OF_HOST)),
        *("link_in_epoch", "throttled", "pressure_memory", "pressure_io", "slowdown", "frequency"),
    }
)
"""Names of the rules; HOST stands for the name of another host."""
EARLY_BYTES = 2**16
"""Bytes that keep-alives and the end of the epoch before may take, however few an epoch's own are."""
OVERHEAD = 0.15
"""Share of the samples' bytes that protocols, padding and packets sent again may add on the data interface: 0.002 to
0.02 are usual, and 0.05 where an interface counts the headers of small packets."""
NOT_MEASURED = "not measured: by a version without this rule"


@dataclass(frozen=True, slots=True)
class Check:
    """One rule's result for one row."""

    cell_id: str
    epoch: int | None
    """None for a rule of the whole cell."""
    rule: str
    expected: str
    actual: str
    verdict: str
    """pass, warn, fail, unknown (something that it needs was not measured) or not applicable."""

    @property
    def refuses(self) -> bool:
        """Whether its row is invalid."""
        return self.verdict in (FAIL, UNKNOWN)


@dataclass(frozen=True, slots=True)
class JudgedEpoch:
    """An epoch that is judged: its row, and what the row is judged by."""

    row: EpochRow
    data: CellData
    limits: Tolerances
    start: CellEvent
    end: CellEvent
    hosts: Sequence[HostEdges]

    @classmethod
    def of(cls, data: CellData, row: EpochRow, limits: Tolerances) -> JudgedEpoch:
        """Return the epoch of a row."""
        edges = find_epoch_edges(data.events)[row.epoch]
        return cls(row, data, limits, *edges, data.list_host_edges(row.epoch))

    @property
    def ids(self) -> npt.NDArray[np.int64]:
        """The sample ids that came, in their order."""
        return self.data.batches[self.row.epoch].ids

    @property
    def span_s(self) -> float:
        """The epoch's length, s, as its counters saw it."""
        return float(self.end.get("cpu_at_s", 0.0) - self.start.get("cpu_at_s", 0.0)) or self.row.duration_s

    def check(self, rule: str, expected: str, actual: str, verdict: str | bool, host: str | None = None) -> Check:
        """Return a rule's result; a verdict of True is `pass`, and False is `fail`."""
        return make_check(self.row, rule, expected, actual, verdict, host)

    def warn(self, rule: str, expected: str, found: str, otherwise: str) -> Check:
        """Return a check that warns of a finding, where there is one."""
        return self.check(rule, expected, found or otherwise, WARN if found else PASS)

    def check_count(
        self, rule: str, expected: str, found: int | None, unit: str, allowed: tuple[float, float]
    ) -> Check:
        """Judge a count by the least and the most that is allowed."""
        if found is None:
            return self.check(rule, expected, "not measured", UNKNOWN)
        return self.check(rule, expected, f"{found} {unit}", allowed[0] <= found <= allowed[1])

    def list_energy_events(self) -> list[Event]:
        """Return the events that the energy agent reported within the epoch."""
        energy = self.data.cell.energy
        start_ns, end_ns = to_readings_ns(self.start, energy), to_readings_ns(self.end, energy)
        return [event for event in energy.events if start_ns <= event.t_ns <= end_ns]


def make_check(
    row: EpochRow, rule: str, expected: str, actual: str, verdict: str | bool, host: str | None = None
) -> Check:
    """Return a rule's result for a row, or for a host of it."""
    assert (rule if host is None else f"{rule}_HOST") in RULES
    if isinstance(verdict, bool):
        verdict = PASS if verdict else FAIL
    return Check(row.cell_id, row.epoch, rule if host is None else f"{rule}_{host}", expected, actual, verdict)
