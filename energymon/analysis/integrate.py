"""Joules between two instants, from cumulative readings, and beyond what the host draws idle; pure functions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from math import lcm, sqrt
from types import MappingProxyType
from typing import Final, cast

from energymon.analysis.curve import SERIES, Curve, CurvePlace, SeriesKey, curves
from energymon.clock.monotonic import NS, tick_at
from energymon.errors import WindowError
from energymon.reading import COUNTERS, DIRECTNESS, INTERPOLATED, LAG_S, Baseline, Domain, Reading, Ticks

UNBOUNDED: Final = frozenset(DIRECTNESS).difference(COUNTERS)
"""Sources that count nothing: between two samples of power it may have been anything."""

_SIGMAS: Final = 6.0
"""Standard errors of a mean of samples that are taken to explain a difference: neighbours share a sample."""
_SAMPLES: Final = 10
"""Fewer samples of power say nothing of their scatter."""


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


@dataclass(slots=True)
class _Sum:
    start: _Edge
    end: Callable[[], _Edge]
    """Computes the edge, which is needed of the last part alone."""
    joules: float = 0.0
    gap_ns: int = 0
    inferred: bool = False
    samples: int = 0
    """How many spans between updates there were."""
    sum_w: float = 0.0
    """The sum of their powers, W."""
    squares: float = 0.0


class Integral:
    """Adds up the energy of consecutive parts of one window, so that a long one never lies in memory whole."""

    def __init__(
        self,
        start_ns: int,
        *,
        interval_ns: int | None = None,
        clock_error_ns: int = 0,
        lags: Mapping[SeriesKey, float] = MappingProxyType({}),
    ) -> None:
        self._start_ns = self._end_ns = start_ns
        self._interval_ns = interval_ns
        self._clock_error_ns = clock_error_ns
        self._lags = lags
        self._sums: dict[SeriesKey, _Sum] | None = None

    def add(self, series: Mapping[SeriesKey, Curve], until_ns: int, hole: tuple[int, int] | None = None) -> None:
        """Add the energy since the last part of the series that cover it; no tick was missed in the `hole`, UTC ns."""
        before: Mapping[SeriesKey, _Sum | None] = dict.fromkeys(series) if self._sums is None else self._sums
        parts = {key: self._part(key, series[key], until_ns, hole, before[key]) for key in series if key in before}
        self._sums, self._end_ns = {key: total for key, total in parts.items() if total}, until_ns

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
            scatter_j, samples = None, total.samples
            if samples >= _SAMPLES and not bounded:
                spread_w = sqrt(max(total.squares / samples - (total.sum_w / samples) ** 2, 0.0) / samples)
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
        edge = partial(_edge, curve, interval_ns=interval_ns, lag_ns=lag_ns, clock_ns=self._clock_error_ns)
        at_end = partial(edge, end, end_ns)
        total = before or _Sum(edge(start, start_ns), at_end)
        total.end = at_end
        total.joules += end.joules - start.joules
        for i in range(start.before + 1, end.after + 1):
            one, two = curve.rows[i - 1], curve.rows[i]
            if curve.inferred(i, interval_ns) and not (hole and hole[0] <= one.tick_ns and two.tick_ns <= hole[1]):
                total.gap_ns += min(end_ns, two.t_ns) - max(start_ns, one.t_ns)
                total.inferred = total.inferred or (two.flags == INTERPOLATED and two.t_ns <= end_ns)
            if two.t_ns > one.t_ns:
                power_w = (two.joules - one.joules) * NS / (two.t_ns - one.t_ns)
                total.samples += 1
                total.sum_w += power_w
                total.squares += power_w**2
        return total


def joules(
    readings: Iterable[Reading],
    start_ns: int,
    end_ns: int,
    interval_ns: int | None = None,
    *,
    clock_error_ns: int = 0,
    lags: Mapping[SeriesKey, float] = MappingProxyType({}),
) -> list[Energy]:
    """Return the energy of every series that covers [start, end], UTC ns, from readings in any order.

    The counter is interpolated at both edges, so windows that split an interval sum up to the whole. `interval_ns` is
    the time between ticks, by default the shortest distance between readings, which may hide a gap. `clock_error_ns` is
    how far the nodes' clocks may be from the window's. `lags` are how old a value may be, s, by series, by default
    LAG_S. Raises WindowError when the end is before the start.
    """
    require_order(start_ns, end_ns)
    integral = Integral(start_ns, interval_ns=interval_ns, clock_error_ns=clock_error_ns, lags=lags)
    integral.add(curves(readings), end_ns)
    return integral.energies()


def baseline_of(
    readings: Iterable[Reading],
    start_ns: int,
    end_ns: int,
    interval_ns: int | None = None,
    *,
    lags: Mapping[SeriesKey, float] = MappingProxyType({}),
) -> list[Baseline]:
    """Return the mean power of every series that covers the idle span [start, end], UTC ns.

    The other arguments are those of `joules`. Raises WindowError for a span that is empty or ends before it starts.
    """
    if end_ns == start_ns:
        raise WindowError(f"the idle span at {start_ns} (UTC ns) has no length; expected some seconds")
    span_s = (end_ns - start_ns) / NS
    return [
        Baseline(*SERIES(e), start_ns, end_ns, e.joules / span_s, None if e.error_j is None else e.error_j / span_s)
        for e in joules(readings, start_ns, end_ns, interval_ns, lags=lags)
    ]


def baselines_at(baselines: Iterable[Baseline], start_ns: int) -> list[Baseline]:
    """Return the last baseline of each series before a window starts, UTC ns, or else the first one after."""
    chosen: dict[SeriesKey, Baseline] = {}
    for baseline in sorted(baselines, key=lambda b: b.end_ns):
        if SERIES(baseline) not in chosen or baseline.end_ns <= start_ns:
            chosen[SERIES(baseline)] = baseline
    return list(chosen.values())


def net(energies: Iterable[Energy], baselines: Iterable[Baseline], duration_s: float) -> list[Energy]:
    """Return energies with their idle and net joules, from one baseline a series and the window's length."""
    known = {SERIES(one): one for one in baselines}
    found = list(energies)
    for place, e in enumerate(found):
        if idle := known.get(SERIES(e)):
            idle_j = idle.watts * duration_s
            error_j = None if e.error_j is None or idle.error_w is None else e.error_j + idle.error_w * duration_s
            found[place] = replace(e, idle_j=idle_j, net_j=e.joules - idle_j, net_error_j=error_j)
    return found


def require_order(start_ns: int, end_ns: int) -> None:
    """Raise WindowError when the end is before the start."""
    if end_ns < start_ns:
        raise WindowError(f"the window ends at {end_ns}, before it starts at {start_ns} (UTC ns)")


def missed_share(ticks: Iterable[Ticks], start_ns: int, end_ns: int, interval_ns: int) -> float:
    """Return the share, 0 to 1, of a session's ticks in [start, end) that its node lacks, or lacks a reading of."""
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
    readings: Iterable[Reading], series: Iterable[tuple[str, str, str]], start_ns: int, end_ns: int, interval_ns: int
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
    """Bound the errors of the counter at one instant: of what it shows, and of when the instant was."""
    before, after = curve.rows[place.before], curve.rows[place.after]
    # A cumulative counter only grows. Unseen joules are those of the highest power around the edge.
    power_w = curve.power_w(place, at_ns, max(lag_ns, clock_ns), lag_ns // 2)
    min_j, max_j = curve.bounds_j(place, at_ns, lag_ns, power_w)
    in_gap = place.before != place.after and after.tick_ns - before.tick_ns > interval_ns
    return _Edge(max(0.0, place.joules - min_j), max(0.0, max_j - place.joules), power_w * clock_ns / NS, in_gap)
