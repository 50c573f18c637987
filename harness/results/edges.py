"""What the events of a cell say of an epoch: when it began and ended, the work before it, and the CPU of others; pure.

The cell's own events are from rank 0. The kinds of events from other ranks begin with `rank.`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from harness.cell.events import SET_UP, CellEvent
from harness.system.heat import DeviceState

_OF_RANK: Final = "rank."
_EPOCH_EDGES: Final = ("epoch_start", "epoch_end")
_WORK_ENDS: Final = ("loader_made", "epoch_end")
"""After these events a loader has nothing to do until its next epoch begins."""
_BRIEF: Final = "hw_slowdown"
"""A board may report it during a change of its performance state or clocks too (nvml.h)."""


def find_epoch_edges(events: Iterable[CellEvent]) -> dict[int, tuple[CellEvent, CellEvent]]:
    """Return the events that begin and end each epoch, by epoch and in order; an epoch that did not end is left out."""
    found: dict[str, dict[int, CellEvent]] = {kind: {} for kind in _EPOCH_EDGES}
    for event in events:
        if event["event"] in found:
            found[event["event"]][event["epoch"]] = event
    starts, ends = found.values()
    return {epoch: (starts[epoch], ends[epoch]) for epoch in sorted(starts.keys() & ends.keys())}


def find_rank_edges(events: Iterable[CellEvent]) -> Mapping[int, Mapping[int, tuple[CellEvent, CellEvent]]]:
    """Return the events that begin and end each epoch, by rank and epoch."""
    return {rank: find_epoch_edges(of_rank) for rank, of_rank in _sort_by_rank(events).items()}


def measure_growth(start: Mapping[str, Any], end: Mapping[str, Any], counter: str) -> Any:
    """Return by how much a counter grew between two events or states; None where it was not read, or began again."""
    before, after = start.get(counter), end.get(counter)
    return None if before is None or after is None or after < before else after - before


@dataclass(frozen=True, slots=True)
class HostEdges:
    """What the kernel and the devices of one host said at an epoch's start and at its end: values of a HostState."""

    host: str
    """Empty for the lead."""
    start: Mapping[str, Any]
    end: Mapping[str, Any]

    def list_devices(self, boards: Collection[str]) -> list[tuple[DeviceState, DeviceState]]:
        """Return the devices at the start and at the end; of the boards only `boards` (UUIDs), where some are here."""
        known = [
            {one["device"]: DeviceState(**one) for one in edge.get("devices", ())} for edge in (self.start, self.end)
        ]
        pairs = [(known[0][device], state) for device, state in known[1].items() if device in known[0]]
        ours = {end.uuid for _, end in pairs} & set(boards)
        return [pair for pair in pairs if not ours or pair[1].uuid in ours or not pair[1].uuid]


def describe_held(
    start: DeviceState, end: DeviceState, reasons: Collection[str], span_s: float
) -> dict[str, float | None]:
    """Return what of some reasons held a device's clocks back in an epoch of `span_s`: its share of it, by a text.

    Where the device counts no seconds of it, a reason at both edges has the whole epoch, and the share of one at one
    edge, or counted in times, is unknown: None. `hw_slowdown` at one edge has none of it: 0.
    """
    found: dict[str, float | None] = {}
    for reason in sorted(reasons):
        held_s = measure_growth(start.held_s, end.held_s, reason) or 0.0
        times = measure_growth(start.held_times, end.held_times, reason)
        edges = [name for name, state in (("start", start), ("end", end)) if reason in state.reasons]
        # The counters are read a little outside of the epoch.
        share = min(1.0, held_s / span_s)
        parts = [f"for {100 * share:.1f} % of the epoch"] * bool(held_s) + [f"{times} times"] * bool(times)
        parts += [f"at its {' and '.join(edges)}"] * bool(edges)
        unseen = 1.0 if len(edges) == 2 else 0.0 if reason == _BRIEF else None
        if parts:
            found[f"{end.device} {reason} {', '.join(parts)}"] = share if held_s else unseen
    return found


def sum_over_ranks(events: Iterable[CellEvent], epoch: int, counter: str) -> float | None:
    """Return by how much a counter grew in an epoch over all ranks; None where a rank did not read it."""
    every = [edges.get(epoch, ({}, {})) for edges in find_rank_edges(events).values()]
    return add_known(measure_growth(start, end, counter) for start, end in every)


def add_known(values: Iterable[float | None]) -> float | None:
    """Return the sum of values; None where one is unknown, or where there is none."""
    every = list(values)
    known = [value for value in every if value is not None]
    return float(sum(known)) if known and len(known) == len(every) else None


@dataclass(frozen=True, slots=True)
class Early:
    """The work before an epoch's start. None is unknown."""

    cpu_s: float | None
    """CPU seconds of all ranks with their workers."""
    rx_bytes: int | None
    """Bytes received on the data interface, of the rank whose node received most. None for local data, too."""
    epoch_cpu_s: float | None
    """CPU seconds of all ranks within the epoch."""


def measure_early(events: Iterable[CellEvent], epoch: int) -> Early:
    """Return the work after a cell's set-up, or after the epoch before, until an epoch's start."""
    return _measure_work([_find_span(of_rank, epoch) for of_rank in _sort_by_rank(events).values()])


def _measure_work(spans: Sequence[tuple[CellEvent, CellEvent, CellEvent]]) -> Early:
    """Return the work of all ranks before an epoch, each from an event to the epoch's start; its end comes last."""
    received = [measure_growth(before, start, "rx_bytes") for before, start, _ in spans]
    return Early(
        cpu_s=add_known(measure_growth(before, start, "cell_cpu_s") for before, start, _ in spans),
        rx_bytes=None if None in received else max(received),
        epoch_cpu_s=add_known(measure_growth(start, end, "cell_cpu_s") for _, start, end in spans),
    )


def measure_set_up(events: Iterable[CellEvent], epoch: int) -> Early:
    """Return the work from before a cell's loader was made until an epoch's start; unknown for all but the first."""
    spans = []
    for of_rank in _sort_by_rank(events).values():
        edges = find_epoch_edges(of_rank)
        start, end = edges.get(epoch, ({}, {}))
        set_up = next((one for one in of_rank if one["event"] == SET_UP), {})
        spans.append((set_up if epoch == min(edges, default=None) else {}, start, end))
    return _measure_work(spans)


@dataclass(frozen=True, slots=True)
class Others:
    """What an epoch's processors did for others, in seconds of all of them together."""

    cpus: int
    span_s: float
    """Length of the epoch, as the counters saw it."""
    cpu_s: float
    """CPU time of processes that are not of the run. Interrupts and the kernel's threads count for nobody."""
    steal_s: float
    """Time that the host of this virtual machine gave to its other guests."""
    wait_s: float | None
    """For how long threads of the run waited for a CPU, for each other or for others; None where it is not counted."""
    busiest: Sequence[tuple[str, int, float]] = ()
    """Processes that are not of the run and have not ended: name, process id, CPU seconds."""


def measure_others(start: CellEvent, end: CellEvent) -> Others | None:
    """Return what others took between two events; None where the kernel does not count what the processors do."""
    if start.get("cpu_at_s") is None or end.get("cpu_at_s") is None or end["cpu_idle_s"] <= 0:
        return None
    span_s = end["cpu_at_s"] - start["cpu_at_s"]
    cpus, steal_s = end["cpus"], end["cpu_steal_s"] - start["cpu_steal_s"]
    ours = sum(end[key] - start[key] for key in ("cpu_idle_s", "cpu_irq_s", "run_cpu_s", "kernel_cpu_s"))
    waits = start["run_wait_s"], end["run_wait_s"]
    return Others(
        cpus=cpus,
        span_s=span_s,
        cpu_s=max(0.0, cpus * span_s - steal_s - ours),
        steal_s=steal_s,
        # A thread that ends within the epoch takes its share along.
        wait_s=None if None in waits else max(0.0, waits[1] - waits[0]),
        busiest=[(str(name), int(pid), float(used_s)) for name, pid, used_s in end.get("strangers", ())],
    )


def _sort_by_rank(events: Iterable[CellEvent]) -> dict[int, list[CellEvent]]:
    """Return the events of set-ups and epochs by rank, with the kind that rank 0 gives them."""
    by_rank: dict[int, list[CellEvent]] = {0: []}
    for event in events:
        kind = str(event["event"])
        own = kind.removeprefix(_OF_RANK)
        if own in (SET_UP, *_EPOCH_EDGES, *_WORK_ENDS):
            by_rank.setdefault(0 if own == kind else event["rank"], []).append({**event, "event": own})
    return by_rank


def _find_span(of_rank: Iterable[CellEvent], epoch: int) -> tuple[CellEvent, CellEvent, CellEvent]:
    """Return the end of a rank's set-up or of its epoch before, and the start and the end of an epoch."""
    start, end = find_epoch_edges(of_rank).get(epoch, ({}, {}))
    before = [one for one in of_rank if one["event"] in _WORK_ENDS and one["utc_ns"] <= start.get("utc_ns", 0)]
    return max(before, key=lambda one: one["utc_ns"], default={}), start, end
