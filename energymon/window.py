"""Joules between two instants, from cumulative readings; pure functions."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from energymon.clock import NS, tick_at
from energymon.errors import WindowError
from energymon.reading import INTERPOLATED, LAG_S, START, Domain, Reading, Tick

__all__ = ["Energy", "joules", "missed_share", "require_order"]


@dataclass(frozen=True, slots=True)
class Energy:
    """What one series used in a window."""

    node: str
    device: str
    domain: Domain
    source: str
    joules: float
    error_j: float | None
    """Bound of the error that the two edges make, J; None for an estimate, whose error nothing bounds."""
    interpolated: bool
    """Whether an edge lies where a tick was missed, or a reading in the window was inferred."""


@dataclass(frozen=True, slots=True)
class _Edge:
    joules: float
    error_j: float
    in_gap: bool


def joules(readings: Iterable[Reading], start_ns: int, end_ns: int, interval_ns: int | None = None) -> list[Energy]:
    """Return the energy of every series that covers [start, end], UTC ns; others yield nothing.

    The counter is interpolated at both edges, so windows that split an interval sum up to the whole. Readings
    may come in any order. `interval_ns` is the time between ticks; without it the shortest distance between
    readings is taken, which cannot tell a gap when there are few. Raises WindowError when the end is before
    the start.
    """
    require_order(start_ns, end_ns)
    series: dict[tuple[str, str, Domain, str], list[Reading]] = {}
    for reading in readings:
        series.setdefault((reading.node, reading.device, reading.domain, reading.source), []).append(reading)
    found: list[Energy] = []
    for key, rows in sorted(series.items()):
        rows.sort(key=lambda row: (row.t_ns, row.tick_ns))
        segment = _covering(rows, start_ns, end_ns)
        if segment is None:
            continue
        times = [row.t_ns for row in segment]
        apart_ns = interval_ns or min((b.tick_ns - a.tick_ns for a, b in pairwise(segment)), default=0)
        start = _edge(segment, times, start_ns, apart_ns)
        end = _edge(segment, times, end_ns, apart_ns)
        inside = segment[bisect_right(times, start_ns) : bisect_right(times, end_ns)]
        found.append(
            Energy(
                *key,
                joules=end.joules - start.joules,
                error_j=start.error_j + end.error_j if key[3] in LAG_S else None,
                interpolated=start.in_gap or end.in_gap or any(row.flags == INTERPOLATED for row in inside),
            )
        )
    return found


def require_order(start_ns: int, end_ns: int) -> None:
    """Raise WindowError when the end is before the start."""
    if end_ns < start_ns:
        raise WindowError(f"the window ends at {end_ns}, before it starts at {start_ns} (UTC ns)")


def missed_share(ticks: Iterable[Tick], start_ns: int, end_ns: int, interval_ns: int) -> float:
    """Return the share, 0 to 1, of the grid's ticks in [start, end) that lack a reading of some series.

    A tick that is not there at all is missed too, so an agent that came late or died early shows. `ticks` are
    those of one node; `interval_ns` is its session's.
    """
    first = tick_at(start_ns + interval_ns - 1, interval_ns)
    expected = len(range(first, end_ns, interval_ns))
    if not expected:
        return 0.0
    whole = {t.tick_ns for t in ticks if not t.missed and first <= t.tick_ns < end_ns}
    return 1 - len(whole) / expected


def _covering(rows: Sequence[Reading], start_ns: int, end_ns: int) -> Sequence[Reading] | None:
    """Return the readings between two restarts that reach over the whole window, if there are such."""
    cuts = [0, *(i for i, row in enumerate(rows) if i and row.flags == START), len(rows)]
    for begin, stop in pairwise(cuts):
        if rows[begin].t_ns <= start_ns and end_ns <= rows[stop - 1].t_ns:
            return rows[begin:stop]
    return None


def _edge(rows: Sequence[Reading], times: Sequence[int], at_ns: int, interval_ns: int) -> _Edge:
    """Interpolate the counter at one instant and bound the error.

    The counter only grows, so at the instant it had a value between its neighbours', give or take what the
    sensor had not shown yet: the power around the edge times the part of the sensor's lag that is not over by
    the later reading.
    """
    i = bisect_right(times, at_ns) - 1
    before = rows[i]
    lag_ns = round(LAG_S.get(before.source, 0.0) * NS)
    power_w = max((_power_w(a, b) for a, b in pairwise(rows[max(0, i - 1) : i + 3])), default=0.0)
    if before.t_ns == at_ns:
        return _Edge(before.joules, power_w * lag_ns / NS, in_gap=False)
    after = rows[i + 1]
    shown = after.joules - before.joules
    value = shown * ((at_ns - before.t_ns) / (after.t_ns - before.t_ns))
    unseen = power_w * max(0, lag_ns - (after.t_ns - at_ns)) / NS
    return _Edge(
        before.joules + value,
        max(value, shown + unseen - value),
        in_gap=after.tick_ns - before.tick_ns > interval_ns,
    )


def _power_w(before: Reading, after: Reading) -> float:
    elapsed_ns = after.t_ns - before.t_ns
    return (after.joules - before.joules) * NS / elapsed_ns if elapsed_ns > 0 else 0.0
