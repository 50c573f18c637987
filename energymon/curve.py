"""One series as a function of time: cumulative joules between readings, and the power around an instant."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import NamedTuple

from energymon.clock import NS
from energymon.reading import INTERPOLATED, START, Reading

__all__ = ["Curve", "Place", "SeriesKey", "curves"]

SeriesKey = tuple[str, str, str, str]
"""Node, device, domain and source."""


class Place(NamedTuple):
    """An instant on a curve."""

    joules: float
    """Cumulative, interpolated between the readings around it."""
    before: int
    """Index of the last reading at or before the instant."""
    after: int
    """Index of the first reading at or after it."""
    segment: int
    """Which of the series' lives it lies in; joules of two lives have no difference."""


class Curve:
    """The readings of one series in time's order, cut where the agent or the counter began anew."""

    __slots__ = ("_bounds", "rows", "times")

    def __init__(self, rows: Iterable[Reading]) -> None:
        self.rows = sorted(rows, key=lambda row: (row.t_ns, row.tick_ns))
        self.times = [row.t_ns for row in self.rows]
        # Cumulative joules never fall; where they do, the reading that began anew is not among these.
        begins = [i + 1 for i, (a, b) in enumerate(pairwise(self.rows)) if b.flags == START or b.joules < a.joules]
        self._bounds = [0, *begins, len(self.rows)]

    def place(self, at_ns: int) -> Place | None:
        """Return the instant's place; None before the first reading, after the last, and between two lives."""
        i = bisect_right(self.times, at_ns) - 1
        if i < 0:
            return None
        segment = bisect_right(self._bounds, i) - 1
        before = self.rows[i]
        if before.t_ns == at_ns:
            return Place(before.joules, i, i, segment)
        if i + 1 == self._bounds[segment + 1]:
            return None
        after = self.rows[i + 1]
        share = (at_ns - before.t_ns) / (after.t_ns - before.t_ns)
        return Place(before.joules + (after.joules - before.joules) * share, i, i + 1, segment)

    def shortest_ns(self, segment: int) -> int:
        """Return the shortest distance between two ticks of a segment, ns; 0 where there is one reading."""
        rows = self.rows[self._bounds[segment] : self._bounds[segment + 1]]
        return min((b.tick_ns - a.tick_ns for a, b in pairwise(rows)), default=0)

    def inferred(self, after: int, interval_ns: int) -> bool:
        """Return whether what was used up to reading `after` since the one before it spans missed ticks."""
        row = self.rows[after]
        return row.flags == INTERPOLATED or row.tick_ns - self.rows[after - 1].tick_ns > interval_ns

    def shown_j(self, place: Place, from_ns: int) -> float | None:
        """Return cumulative joules of the first reading at or after `from_ns`; None when the place's life has none."""
        i = max(place.after, bisect_left(self.times, from_ns))
        return self.rows[i].joules if i < self._bounds[place.segment + 1] else None

    def power_w(self, place: Place, at_ns: int, reach_ns: int, least_ns: int) -> float:
        """Return the highest mean power, W, of any stretch of readings near `at_ns`.

        Near are the readings within `reach_ns` and two more on either side, in the same life. Stretches are as
        short as possible, but not below `least_ns`: a counter that is updated less often than it is read shows no
        power between its updates and too much across one.
        """
        first = max(self._bounds[place.segment], bisect_right(self.times, at_ns - reach_ns) - 2)
        stop = min(self._bounds[place.segment + 1], bisect_right(self.times, at_ns + reach_ns) + 2)
        return max(self._powers_w(first, stop, least_ns), default=0.0)

    def _powers_w(self, first: int, stop: int, least_ns: int) -> Iterator[float]:
        begin = first
        found = False
        for end in range(first + 1, stop):
            while begin + 1 < end and self.times[end] - self.times[begin + 1] >= least_ns:
                begin += 1
            elapsed_ns = self.times[end] - self.times[begin]
            if elapsed_ns >= max(least_ns, 1):
                found = True
                yield (self.rows[end].joules - self.rows[begin].joules) * NS / elapsed_ns
        if not found and stop - first > 1 and self.times[stop - 1] > self.times[first]:
            elapsed_ns = self.times[stop - 1] - self.times[first]
            yield (self.rows[stop - 1].joules - self.rows[first].joules) * NS / elapsed_ns


def curves(readings: Iterable[Reading]) -> dict[SeriesKey, Curve]:
    """Return the curve of every series among the readings, which may come in any order; sorted by series."""
    rows: dict[SeriesKey, list[Reading]] = {}
    for reading in readings:
        rows.setdefault((reading.node, reading.device, reading.domain, reading.source), []).append(reading)
    return {key: Curve(rows[key]) for key in sorted(rows)}
