"""What a host draws when idle, and what a window used beyond that; pure functions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

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
    clock_error_ns: int | Mapping[str, int] = 0,
    lags: Mapping[SeriesKey, float] | None = None,
) -> list[Baseline]:
    """Return the mean power of every series that covers the idle span [start, end], UTC ns.

    The other arguments are those of `joules`. Raises WindowError for a span that is empty or ends before it starts.
    """
    if end_ns == start_ns:
        raise WindowError(f"the idle span at {start_ns} (UTC ns) has no length; expected some seconds")
    span_s = (end_ns - start_ns) / NS
    return [
        Baseline(
            e.node,
            e.device,
            e.domain,
            e.source,
            start_ns,
            end_ns,
            e.joules / span_s,
            None if e.error_j is None else e.error_j / span_s,
        )
        for e in joules(readings, start_ns, end_ns, interval_ns, clock_error_ns=clock_error_ns, lags=lags or {})
    ]


def baselines_at(baselines: Iterable[Baseline], start_ns: int) -> list[Baseline]:
    """Return the baseline of each series for a window that starts at `start_ns`, UTC ns.

    That is the last one recorded before it, or else the first one after.
    """
    chosen: dict[SeriesKey, Baseline] = {}
    for baseline in sorted(baselines, key=lambda b: b.end_ns):
        key = (baseline.node, baseline.device, baseline.domain, baseline.source)
        if key not in chosen or baseline.end_ns <= start_ns:
            chosen[key] = baseline
    return list(chosen.values())


def net(energies: Iterable[Energy], baselines: Iterable[Baseline], duration_s: float) -> list[Energy]:
    """Return energies with their idle and net joules, from one baseline a series and the window's length."""
    watts = {(b.node, b.device, b.domain, b.source): (b.watts, b.error_w) for b in baselines}

    def net_of(e: Energy) -> Energy:
        if (idle := watts.get((e.node, e.device, e.domain, e.source))) is None:
            return e
        idle_j, idle_error_w = idle[0] * duration_s, idle[1]
        error_j = None if e.error_j is None or idle_error_w is None else e.error_j + idle_error_w * duration_s
        return replace(e, idle_j=idle_j, net_j=e.joules - idle_j, net_error_j=error_j)

    return [net_of(energy) for energy in energies]
