"""One series as a function of time: cumulative joules between readings, and the power around an instant."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from itertools import pairwise
from operator import attrgetter
from typing import Final, NamedTuple

from energymon.clock.monotonic import NS
from energymon.reading import INTERPOLATED, START, Reading

SeriesKey = tuple[str, str, str, str]
"""Node, device, domain and source."""
SERIES: Final = attrgetter("node", "device", "domain", "source")
"""Returns the key of a reading, or of a figure of one series."""


class CurvePlace(NamedTuple):
    """An instant on a curve."""

    joules: float
    """Cumulative, interpolated between the readings around it, or between the updates where it is read more often."""
    before: int
    """Index of the last reading at or before the instant."""
    after: int
    """Index of the first reading at or after it."""
    segment: int
    """Which segment of the series it lies in; joules of two segments have no difference."""


class Curve:
    """The readings of one series in time's order, cut where the agent or the counter started again."""

    __slots__ = ("_bounds", "rows", "times")

    def __init__(self, rows: Iterable[Reading]) -> None:
        self.rows = sorted(rows, key=lambda row: (row.t_ns, row.tick_ns))
        self.times = [row.t_ns for row in self.rows]
        # Cumulative joules never fall; where they do, the reading that started again is not among these.
        begins = [i + 1 for i, (a, b) in enumerate(pairwise(self.rows)) if b.flags == START or b.joules < a.joules]
        self._bounds = [0, *begins, len(self.rows)]

    def place(self, at_ns: int) -> CurvePlace | None:
        """Return the instant's place; None before the first reading, after the last, and between two segments."""
        i = bisect_right(self.times, at_ns) - 1
        if i < 0:
            return None
        segment = bisect_right(self._bounds, i) - 1
        before = self.rows[i]
        if before.t_ns == at_ns:
            return CurvePlace(before.joules, i, i, segment)
        if i + 1 == self._bounds[segment + 1]:
            return None
        after = self.rows[i + 1]
        if after.joules == before.joules or (i > self._bounds[segment] and self.rows[i - 1].joules == before.joules):
            return CurvePlace(self._between_updates_j(at_ns, i, segment), i, i + 1, segment)
        share = (at_ns - before.t_ns) / (after.t_ns - before.t_ns)
        return CurvePlace(before.joules + (after.joules - before.joules) * share, i, i + 1, segment)

    def _between_updates_j(self, at_ns: int, i: int, segment: int) -> float:
        """Interpolate between updates of a counter: a value that is read again is as early as its last reading says."""
        rows, first, stop = self.rows, self._bounds[segment], self._bounds[segment + 1]
        joules = rows[i].joules
        then = next((k for k in range(i + 1, stop) if rows[k].joules > joules), stop)
        since = next((k + 1 for k in range(i - 1, first - 1, -1) if rows[k].joules < joules), first)
        last = rows[then - 1]
        start_ns = max(rows[since].t_ns, last.t_ns - (last.early_ns or 0))
        if then == stop or at_ns <= start_ns:
            return joules
        return joules + (rows[then].joules - joules) * (at_ns - start_ns) / (rows[then].t_ns - start_ns)

    def shortest_ns(self, segment: int) -> int:
        """Return the shortest distance between two ticks of a segment, ns; 0 where there is one reading."""
        rows = self.rows[self._bounds[segment] : self._bounds[segment + 1]]
        return min((b.tick_ns - a.tick_ns for a, b in pairwise(rows)), default=0)

    def inferred(self, after: int, interval_ns: int) -> bool:
        """Return whether ticks were missed between reading `after` and the one before it."""
        row = self.rows[after]
        return row.flags == INTERPOLATED or row.tick_ns - self.rows[after - 1].tick_ns > interval_ns

    def bounds_j(self, place: CurvePlace, at_ns: int, lag_ns: int, power_w: float) -> tuple[float, float]:
        """Return between which joules the true ones at `at_ns` surely were.

        The last reading whose call had ended by then shows the least, the first one of a later value the most. Where
        the segment has no such reading, `power_w` is taken for the missing time. `lag_ns` is how old the value of a
        reading may be that does not say.
        """
        rows, first, stop = self.rows, self._bounds[place.segment], self._bounds[place.segment + 1]

        def since_ns(row: Reading) -> int:
            return row.t_ns - (lag_ns if row.early_ns is None else row.early_ns)

        before, last = rows[place.before], rows[stop - 1]
        min_j = place.joules - power_w * (before.t_ns + before.late_ns - at_ns) / NS
        max_j = last.joules + power_w * (at_ns - since_ns(last)) / NS
        ended = range(min(place.after, bisect_right(self.times, at_ns) - 1), first - 1, -1)
        later = range(max(place.before, bisect_left(self.times, at_ns)), stop)
        return (
            next((rows[i].joules for i in ended if rows[i].t_ns + rows[i].late_ns <= at_ns), min_j),
            next((rows[i].joules for i in later if since_ns(rows[i]) >= at_ns), max_j),
        )

    def power_w(self, place: CurvePlace, at_ns: int, reach_ns: int, min_ns: int) -> float:
        """Return the highest mean power, W, of any span of readings within `reach_ns` of `at_ns` and two more around.

        Spans are as short as possible, but not below `min_ns`: a counter that is updated less often than it is read
        shows no power between its updates and too much across one.
        """
        first = max(self._bounds[place.segment], bisect_right(self.times, at_ns - reach_ns) - 2)
        stop = min(self._bounds[place.segment + 1], bisect_right(self.times, at_ns + reach_ns) + 2)
        return max(self._powers_w(first, stop, min_ns), default=0.0)

    def _powers_w(self, first: int, stop: int, min_ns: int) -> Iterator[float]:
        begin = first
        found = False
        for end in range(first + 1, stop):
            while begin + 1 < end and self.times[end] - self.times[begin + 1] >= min_ns:
                begin += 1
            elapsed_ns = self.times[end] - self.times[begin]
            if elapsed_ns >= max(min_ns, 1):
                found = True
                yield (self.rows[end].joules - self.rows[begin].joules) * NS / elapsed_ns
        if not found and stop - first > 1 and self.times[stop - 1] > self.times[first]:
            elapsed_ns = self.times[stop - 1] - self.times[first]
            yield (self.rows[stop - 1].joules - self.rows[first].joules) * NS / elapsed_ns


def curves(readings: Iterable[Reading]) -> dict[SeriesKey, Curve]:
    """Return the curve of every series among the readings, which may come in any order; sorted by series."""
    rows: dict[SeriesKey, list[Reading]] = {}
    for reading in readings:
        rows.setdefault(SERIES(reading), []).append(reading)
    return {key: Curve(rows[key]) for key in sorted(rows)}
