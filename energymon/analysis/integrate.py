"""Joules between two instants, from cumulative readings; pure functions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from math import lcm, sqrt
from types import MappingProxyType
from typing import Final, cast

from energymon.analysis.curve import Curve, CurvePlace, SeriesKey, curves
from energymon.clock.monotonic import NS, tick_at
from energymon.errors import WindowError
from energymon.reading import COUNTERS, DIRECTNESS, INTERPOLATED, LAG_S, Domain, Reading, Ticks

UNBOUNDED: Final = frozenset(DIRECTNESS).difference(COUNTERS)
"""Sources that count nothing: between two samples of power it may have been anything."""

_SIGMAS: Final = 6.0
"""Standard errors of a mean of samples that are taken to explain a difference: neighbours share a sample."""
_SAMPLES: Final = 10
"""Fewer samples of power say nothing of their scatter."""
_NO_LAGS: Mapping[SeriesKey, float] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Energy:
    """What one series used in a window."""

    node: str
    device: str
    domain: Domain
    source: str
    joules: float
    error_j: float | None
    """Bound of the error, J: that of the edges and that of the clock; None for the sources in UNBOUNDED, power that
    was sampled and estimates, whose error nothing bounds."""
    interpolated: bool
    """Whether an edge lies where a tick was missed, or a reading in the window was inferred."""
    interpolated_share: float = 0.0
    """Share of the window, 0 to 1, that lies between readings with missed ticks between them."""
    edge_error_j: float | None = None
    """Part of the bound: what the sensor had not shown yet at the edges, and when between two readings it was used."""
    clock_error_j: float | None = None
    """Part of the bound: what may have been used while the node's clock is not known to be at the edge or beyond."""
    accuracy_j: float | None = None
    """Bound of what the sensor itself does not see or shows wrongly, J, beside `error_j`; None when it is unknown."""
    accuracy_origin: str = ""
    """Where `accuracy_j` is from, or why it is unknown."""
    scatter_j: float | None = None
    """Of power that was sampled, which has no bound: what its lag and the scatter of its samples explain, J; None for
    fewer than ten samples."""
    idle_j: float | None = None
    """What it would have drawn idle; None without a baseline of this series."""
    net_j: float | None = None
    """The rest; negative when the window drew less than the baseline."""
    net_error_j: float | None = None
    """Bound of the error of `net_j`: the window's own and the baseline's over as long; None for an estimate."""


@dataclass(frozen=True, slots=True)
class _Edge:
    less_j: float
    """By how much less than interpolated may have been used by the instant."""
    more_j: float
    clock_j: float
    in_gap: bool


@dataclass(frozen=True, slots=True)
class _Sum:
    joules: float
    start: _Edge
    end: Callable[[], _Edge]
    """Computes the edge, which is needed of the last part alone."""
    gap_ns: int
    inferred: bool
    powers: tuple[int, float, float] = (0, 0.0, 0.0)
    """How many spans between updates there were, and the sums of their powers, W, and of the squares of these."""


class Integral:
    """Adds up the energy of consecutive parts of one window, so that a long one never lies in memory whole."""

    def __init__(
        self,
        start_ns: int,
        *,
        interval_ns: int | None = None,
        clock_error_ns: int | Mapping[str, int] = 0,
        lags: Mapping[SeriesKey, float] = _NO_LAGS,
    ) -> None:
        self._start_ns = self._end_ns = start_ns
        self._interval_ns = interval_ns
        self._clock_error_ns = clock_error_ns
        self._lags = lags
        self._sums: dict[SeriesKey, _Sum] | None = None

    def add(self, series: Mapping[SeriesKey, Curve], until_ns: int, hole: tuple[int, int] | None = None) -> None:
        """Add the energy since the last part, UTC ns; a series that does not cover it is dropped.

        In the `hole`, UTC ns, readings are left out because no tick was missed there.
        """
        added = {}
        for key, curve in series.items():
            before = self._sums.get(key) if self._sums is not None else None
            if (self._sums is None or before) and (found := self._part(key, curve, until_ns, hole, before)):
                added[key] = found
        self._sums, self._end_ns = added, until_ns

    @property
    def lost(self) -> bool:
        """Whether no series covers the parts so far, so that none can cover the window."""
        return self._sums is not None and not self._sums

    def energies(self) -> list[Energy]:
        """Return the energy of every series that covers the window so far, by series."""
        span_ns = self._end_ns - self._start_ns
        found = []
        for (node, device, domain, source), total in (self._sums or {}).items():
            bounded = source in LAG_S and source not in UNBOUNDED
            start, end = total.start, total.end()
            edge_j = max(end.more_j + start.less_j, end.less_j + start.more_j)
            clock_j = start.clock_j + end.clock_j
            interpolated = start.in_gap or end.in_gap or total.inferred
            samples, sum_w, squares = total.powers
            scatter_j = None
            if samples >= _SAMPLES and not bounded:
                spread_w = sqrt(max(squares / samples - (sum_w / samples) ** 2, 0.0) / samples)
                scatter_j = edge_j + _SIGMAS * spread_w * span_ns / NS
            found.append(
                Energy(
                    node,
                    device,
                    cast(Domain, domain),
                    source,
                    joules=total.joules,
                    error_j=edge_j + clock_j if bounded else None,
                    interpolated=interpolated,
                    interpolated_share=total.gap_ns / span_ns if span_ns else float(interpolated),
                    edge_error_j=edge_j if bounded else None,
                    clock_error_j=clock_j if bounded else None,
                    scatter_j=scatter_j,
                )
            )
        return found

    def _part(
        self, key: SeriesKey, curve: Curve, end_ns: int, hole: tuple[int, int] | None, before: _Sum | None
    ) -> _Sum | None:
        """Return the sum with another part; None where the series does not cover that."""
        start_ns = self._end_ns
        start, end = curve.place(start_ns), curve.place(end_ns)
        if start is None or end is None or start.segment != end.segment:
            return None
        interval_ns = self._interval_ns or curve.shortest_ns(start.segment)
        lag_ns = round(self._lags.get(key, LAG_S.get(key[3], 0.0)) * NS)
        clock_ns = self._clock_error_ns if isinstance(self._clock_error_ns, int) else self._clock_error_ns[key[0]]
        joules, gap_ns, inferred = end.joules - start.joules, 0, False
        samples, sum_w, squares = before.powers if before else (0, 0.0, 0.0)
        for i in range(start.before + 1, end.after + 1):
            one, two = curve.rows[i - 1], curve.rows[i]
            if curve.inferred(i, interval_ns) and not (hole and hole[0] <= one.tick_ns and two.tick_ns <= hole[1]):
                gap_ns += min(end_ns, two.t_ns) - max(start_ns, one.t_ns)
                inferred = inferred or (two.flags == INTERPOLATED and two.t_ns <= end_ns)
            if two.t_ns > one.t_ns:
                power_w = (two.joules - one.joules) * NS / (two.t_ns - one.t_ns)
                samples, sum_w, squares = samples + 1, sum_w + power_w, squares + power_w**2
        powers = samples, sum_w, squares
        edge = partial(_edge, interval_ns=interval_ns, lag_ns=lag_ns, clock_ns=clock_ns)
        at_end = partial(edge, curve, end, end_ns)
        if before is None:
            return _Sum(joules, edge(curve, start, start_ns), at_end, gap_ns, inferred, powers)
        gap_ns, inferred = before.gap_ns + gap_ns, before.inferred or inferred
        return _Sum(before.joules + joules, before.start, at_end, gap_ns, inferred, powers)


def joules(
    readings: Iterable[Reading],
    start_ns: int,
    end_ns: int,
    interval_ns: int | None = None,
    *,
    clock_error_ns: int | Mapping[str, int] = 0,
    lags: Mapping[SeriesKey, float] = _NO_LAGS,
) -> list[Energy]:
    """Return the energy of every series that covers [start, end], UTC ns; others yield nothing.

    The counter is interpolated at both edges, so windows that split an interval sum up to the whole. Readings
    may come in any order. `interval_ns` is the time between ticks; without it the shortest distance between
    readings is taken, which cannot show a gap when there are few. `clock_error_ns` is how far the node's clock may
    be from the one that the window is given in, for all nodes or by node. `lags` are how old the value that a sensor
    shows may be, in seconds by (node, device, domain, source), where that is known better than by LAG_S. Raises
    WindowError when the end is before the start.
    """
    require_order(start_ns, end_ns)
    integral = Integral(start_ns, interval_ns=interval_ns, clock_error_ns=clock_error_ns, lags=lags)
    integral.add(curves(readings), end_ns)
    return integral.energies()


def require_order(start_ns: int, end_ns: int) -> None:
    """Raise WindowError when the end is before the start."""
    if end_ns < start_ns:
        raise WindowError(f"the window ends at {end_ns}, before it starts at {start_ns} (UTC ns)")


def missed_share(ticks: Iterable[Ticks], start_ns: int, end_ns: int, interval_ns: int) -> float:
    """Return the share, 0 to 1, of the grid's ticks in [start, end) that lack a reading of some series.

    A tick that is not there at all is missed too, so an agent that came late or died early shows. `ticks` are
    those of one node; `interval_ns` is its session's.
    """
    due = due_ticks(start_ns, end_ns, interval_ns)
    if not due:
        return 0.0
    whole = 0
    for t in ticks:
        if not t.missed:
            # Of ticks that are closer together than the session's, those count that are on its grid.
            step_ns = lcm(t.interval_ns or interval_ns, interval_ns)
            first_ns = max(t.first_ns, start_ns)
            whole += len(range(first_ns + -first_ns % step_ns, min(t.last_ns + 1, end_ns), step_ns))
    return 1 - whole / len(due)


def missed_ticks(
    readings: Iterable[Reading],
    series: Iterable[tuple[str, str, str]],
    start_ns: int,
    end_ns: int,
    interval_ns: int,
) -> tuple[int, int]:
    """Return how many ticks the series with the most gaps lacks, and how many are due in [start, end), UTC ns.

    `series` are the device, domain and source of each that is expected; one without any reading lacks all.
    """
    due = due_ticks(start_ns, end_ns, interval_ns)
    seen: dict[tuple[str, str, str], set[int]] = {key: set() for key in series}
    for r in readings:
        if r.tick_ns in due and (ticks := seen.get((r.device, r.domain, r.source))) is not None:
            ticks.add(r.tick_ns)
    return max((len(due) - len(ticks) for ticks in seen.values()), default=0), len(due)


def due_ticks(start_ns: int, end_ns: int, interval_ns: int) -> range:
    """Return the ticks of the grid in [start, end), UTC ns."""
    return range(tick_at(start_ns + interval_ns - 1, interval_ns), end_ns, interval_ns)


def _edge(curve: Curve, place: CurvePlace, at_ns: int, interval_ns: int, lag_ns: int, clock_ns: int) -> _Edge:
    """Bound the errors of the counter at one instant: of what it shows, and of when the instant was.

    A cumulative counter only grows, so the joules at the instant lie between those that the last reading shows that
    had ended by then, and those of the first one whose value is no older. At either end of a series, where there is
    none, the unseen part is taken to be the highest power around the edge times the time that is missing.
    """
    before, after = curve.rows[place.before], curve.rows[place.after]
    power_w = curve.power_w(place, at_ns, max(lag_ns, clock_ns), lag_ns // 2)
    min_j, max_j = curve.min_j(place, at_ns), curve.max_j(place, at_ns, lag_ns)
    if min_j is None:
        min_j = place.joules - power_w * (before.t_ns + before.late_ns - at_ns) / NS
    if max_j is None:
        last = curve.last(place)
        early_ns = lag_ns if last.early_ns is None else last.early_ns
        max_j = last.joules + power_w * (at_ns - last.t_ns + early_ns) / NS
    return _Edge(
        max(0.0, place.joules - min_j),
        max(0.0, max_j - place.joules),
        power_w * clock_ns / NS,
        in_gap=place.before != place.after and after.tick_ns - before.tick_ns > interval_ns,
    )
