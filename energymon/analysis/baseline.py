"""What a host draws when idle, and what a window used beyond that; pure functions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from energymon.analysis.curve import SeriesKey
from energymon.analysis.integrate import Energy, joules
from energymon.clock.monotonic import NS
from energymon.errors import WindowError
from energymon.reading import Baseline, Domain, Reading


@dataclass(frozen=True, slots=True)
class NetEnergy:
    """What one series used in a window beyond what it draws when idle."""

    node: str
    device: str
    domain: Domain
    source: str
    gross_j: float
    idle_j: float | None
    """What it would have drawn idle; None without a baseline of this series."""
    net_j: float | None
    """The rest; negative when the window drew less than the baseline."""
    error_j: float | None
    """Bound of the error of `net_j`: the window's own and the baseline's over as long; None for an estimate."""


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


def net(energies: Iterable[Energy], baselines: Sequence[Baseline], duration_s: float) -> list[NetEnergy]:
    """Return gross, idle and net joules of each energy, from one baseline a series and the window's length."""
    by_series = {(b.node, b.device, b.domain, b.source): b for b in baselines}
    return [_net(e, by_series.get((e.node, e.device, e.domain, e.source)), duration_s) for e in energies]


def _net(energy: Energy, baseline: Baseline | None, duration_s: float) -> NetEnergy:
    idle_j = net_j = error_j = None
    if baseline is not None:
        idle_j = baseline.watts * duration_s
        net_j = energy.joules - idle_j
        if energy.error_j is not None and baseline.error_w is not None:
            error_j = energy.error_j + baseline.error_w * duration_s
    return NetEnergy(energy.node, energy.device, energy.domain, energy.source, energy.joules, idle_j, net_j, error_j)
