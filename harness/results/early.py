"""What a cell did before the clock of an epoch began, after its set-up or the epoch before; pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from harness.cell.events import CellEvent

_EDGES = ("loader_made", "epoch_start", "epoch_end")
_OF_RANK = "rank."


@dataclass(frozen=True, slots=True)
class Early:
    """The work before an epoch's start. None is unknown."""

    cpu_s: float | None
    """CPU seconds of all ranks with their workers."""
    rx_bytes: int | None
    """Bytes received on the data interface, of the rank whose node received most. None for local data, too."""
    epoch_cpu_s: float | None
    """CPU seconds of all ranks within the epoch."""


def measure_early(events: Iterable[CellEvent], epoch: int) -> Early | None:
    """Return the work before an epoch's start. None where a run from before it was counted stored no counters."""
    ranks = _list_spans(events, epoch)
    if not ranks or any("cell_cpu_s" not in event for edges in ranks for event in edges):
        return None
    cpu_s = [_subtract(before, start, "cell_cpu_s") for before, start, _ in ranks]
    epoch_cpu_s = [_subtract(start, end, "cell_cpu_s") for _, start, end in ranks]
    rx_bytes = [_subtract(before, start, "rx_bytes") for before, start, _ in ranks]
    return Early(
        cpu_s=sum(known) if (known := _all_known(cpu_s)) else None,
        rx_bytes=round(max(known)) if (known := _all_known(rx_bytes)) else None,
        epoch_cpu_s=sum(known) if (known := _all_known(epoch_cpu_s)) else None,
    )


def _list_spans(events: Iterable[CellEvent], epoch: int) -> list[tuple[CellEvent, CellEvent, CellEvent]]:
    """Return of each rank the end of its set-up or of the epoch before, the epoch's start and its end."""
    by_rank: dict[int, list[CellEvent]] = {}
    for event in events:
        kind = str(event["event"])
        if kind.removeprefix(_OF_RANK) in _EDGES:
            by_rank.setdefault(event["rank"] if kind.startswith(_OF_RANK) else 0, []).append(event)
    spans = []
    for of_rank in by_rank.values():
        start, end = (_find(of_rank, kind, epoch) for kind in ("epoch_start", "epoch_end"))
        others = (one for one in of_rank if not one["event"].endswith("epoch_start"))
        before = [one for one in others if one["utc_ns"] <= start.get("utc_ns", 0)]
        spans.append((max(before, key=lambda one: one["utc_ns"], default={}), start, end))
    return spans


def _find(events: Iterable[CellEvent], kind: str, epoch: int) -> CellEvent:
    of_kind = (one for one in events if one["event"].removeprefix(_OF_RANK) == kind and one["epoch"] == epoch)
    return next(of_kind, {})


def _subtract(before: Mapping[str, float | None], after: Mapping[str, float | None], counter: str) -> float | None:
    first, last = before.get(counter), after.get(counter)
    return None if first is None or last is None else last - first


def _all_known(values: list[float | None]) -> list[float]:
    known = [value for value in values if value is not None]
    return known if len(known) == len(values) else []
