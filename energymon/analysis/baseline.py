"""What a host draws when idle, and what a window used beyond that; pure functions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from types import MappingProxyType

from energymon.analysis.curve import SeriesKey
from energymon.analysis.integrate import Energy, joules
from energymon.clock.monotonic import NS
from energymon.errors import WindowError
from energymon.reading import Baseline, Reading


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
    found = []
    for e in joules(readings, start_ns, end_ns, interval_ns, lags=lags):
        error_w = None if e.error_j is None else e.error_j / span_s
        found.append(Baseline(e.node, e.device, e.domain, e.source, start_ns, end_ns, e.joules / span_s, error_w))
    return found


def baselines_at(baselines: Iterable[Baseline], start_ns: int) -> list[Baseline]:
    """Return the last baseline of each series before a window starts, UTC ns, or else the first one after."""
    chosen: dict[SeriesKey, Baseline] = {}
    for baseline in sorted(baselines, key=lambda b: b.end_ns):
        key = (baseline.node, baseline.device, baseline.domain, baseline.source)
        if key not in chosen or baseline.end_ns <= start_ns:
            chosen[key] = baseline
    return list(chosen.values())


def net(energies: Iterable[Energy], baselines: Iterable[Baseline], duration_s: float) -> list[Energy]:
    """Return energies with their idle and net joules, from one baseline a series and the window's length."""
    known = {(b.node, b.device, b.domain, b.source): b for b in baselines}
    found = list(energies)
    for place, e in enumerate(found):
        if idle := known.get((e.node, e.device, e.domain, e.source)):
            idle_j = idle.watts * duration_s
            error_j = None if e.error_j is None or idle.error_w is None else e.error_j + idle.error_w * duration_s
            found[place] = replace(e, idle_j=idle_j, net_j=e.joules - idle_j, net_error_j=error_j)
    return found
