"""A window's energy as a table that a person reads."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from energymon.analysis.attribution import EnergyComponent, add_up
from energymon.analysis.integrate import Energy
from energymon.clock.monotonic import NS
from energymon.reading import ESTIMATE, Event

if TYPE_CHECKING:
    from energymon.analysis.query import WindowEnergy


_UNKNOWN: Final = "unknown"
_MOST_PARTS: Final = 5
_MOST_EVENTS: Final = 5


def render(windows: Sequence[WindowEnergy]) -> str:
    """Return each node's components, then its series, then its agent's events; joules and their error bounds.

    An estimate is named so in every line that contains one.
    """
    if not windows:
        return "no agent had started before the end of this window"
    parts = [_window(window) for window in windows]
    if len(windows) > 1:
        parts.append(_together(windows))
    return "\n\n".join(parts)


def _window(window: WindowEnergy) -> str:
    lines = [
        f"{window.node}: {_utc(window.start_ns)} to {_utc(window.end_ns)}, "
        f"{(window.end_ns - window.start_ns) / NS:.6f} s, {_clock(window)}; "
        f"{window.missed_share:.2%} of ticks missed"
    ]
    if not window.energies:
        lines.append("  no series covers this window")
    lines += _covered(window)
    lines += _components(window.components, net=bool(window.net))
    if window.energies:
        lines.append("")
        lines += _series(window)
    lines += _no_baseline(window)
    if window.events:
        lines.append("")
        lines += _events(window.events)
    return "\n".join(lines)


def _covered(window: WindowEnergy) -> Iterator[str]:
    """Yield what of a window without a figure has readings, in instants that can be asked for."""
    ambiguous = any(event.kind == "clock-ambiguous" for event in window.events)
    if ambiguous or (window.components and window.components[-1].joules is not None):
        return
    if not window.covered:
        yield "  there are no readings in it"
        return
    if window.covered == ((window.start_ns, window.end_ns),):
        # A device is missing from all of it, as its line and the events say.
        return
    for begin_ns, end_ns in window.covered[:_MOST_PARTS]:
        yield f"  readings go from {_utc(begin_ns + 999)} to {_utc(end_ns)}: ask for that part"
    if len(window.covered) > _MOST_PARTS:
        yield f"  and {len(window.covered) - _MOST_PARTS} later parts"


def _events(events: Sequence[Event]) -> Iterator[str]:
    """Yield a line an event; of a kind that there are many of, the first and the last ones."""
    counts = Counter(event.kind for event in events)
    seen: Counter[str] = Counter()
    for event in events:
        seen[event.kind] += 1
        left = counts[event.kind] - seen[event.kind]
        if seen[event.kind] <= _MOST_EVENTS or not left:
            yield f"  {_utc(event.t_ns)} {event.kind}: {event.message}"
        elif left == 1:
            yield f"  ... {counts[event.kind] - _MOST_EVENTS - 1} more {event.kind}"


def _no_baseline(window: WindowEnergy) -> Iterator[str]:
    """Yield which figures are gross though net ones were asked for."""
    lacking = [f"{n.device} {n.domain}" for n in window.net if n.idle_j is None]
    if lacking:
        yield (
            f"  no idle baseline of {', '.join(lacking)} before this window, so these joules are gross: "
            "`run --idle-s 10` records one at its start, and `query --baseline START END` takes a span with readings"
        )


def _together(windows: Sequence[WindowEnergy]) -> str:
    totals = [component for window in windows for component in window.components if component.name == "total"]
    head = f"all {len(windows)} nodes:"
    if len(totals) < len(windows):
        return f"{head} {_UNKNOWN}: a node has no figure"
    return "\n".join([head, *_components([add_up(totals)], net=any(window.net for window in windows))])


def _clock(window: WindowEnergy) -> str:
    match window.clock:
        case "own":
            return "its own clock"
        case "controller":
            error_ms = (window.clock_error_ns or 0) / 1e6
            return f"the controller's clock ({window.offset_ns / 1e6:+.3f} ms, ±{error_ms:.3f} ms)"
        case "unknown":
            return "clock offset unknown, taken as 0"


def _components(components: Sequence[EnergyComponent], *, net: bool) -> list[str]:
    head = ["", "J", "± J", "edge", "clock", "interpolated", *(["idle J", "net J", "± J"] if net else []), "source"]
    rows = []
    for c in components:
        source = "+".join(c.sources) or "none"
        if c.estimated and c.sources != (ESTIMATE,):
            source += f" (contains an {ESTIMATE})"
        if c.lost:
            source += f"; no figure of {', '.join(c.lost)}"
        cells = [c.name, *_figures(c)]
        if net:
            cells += [_j(c.idle_j), _j(c.net_j), _bound(c.net_error_j, c.net_j)]
        rows.append([*cells, source])
    return _table([head, *rows]) if rows else []


def _series(window: WindowEnergy) -> list[str]:
    nets = {(n.device, n.domain, n.source): n for n in window.net}
    head = ["", "device", "J", "± J", "edge", "clock", "interpolated", *(["net J"] if nets else []), "source"]
    rows = []
    for e in window.energies:
        cells = [e.domain, e.device, *_figures(e)]
        if nets:
            found = nets.get((e.device, e.domain, e.source))
            cells.append(_j(found.net_j) if found else "")
        rows.append([*cells, _taken(e, window)])
    return _table([head, *rows])


def _figures(of: EnergyComponent | Energy) -> list[str]:
    return [
        _j(of.joules),
        _bound(of.error_j, of.joules),
        _bound(of.edge_error_j, of.joules),
        _bound(of.clock_error_j, of.joules),
        f"{of.interpolated_share:.2%}",
    ]


def _taken(energy: Energy, window: WindowEnergy) -> str:
    return energy.source if energy in window.best else f"{energy.source} (not summed)"


def _table(rows: Sequence[Sequence[str]]) -> list[str]:
    """Align columns: the first and the last to the left, figures to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  " + "  ".join(_cells(row, widths)).rstrip() for row in rows]


def _cells(row: Sequence[str], widths: Sequence[int]) -> Iterable[str]:
    for i, (cell, width) in enumerate(zip(row, widths, strict=True)):
        yield cell.ljust(width) if i in (0, len(row) - 1) else cell.rjust(width)


def _j(value: float | None) -> str:
    return _UNKNOWN if value is None else f"{value:.3f}"


def _bound(error_j: float | None, joules: float | None) -> str:
    """Return an error bound; an estimate has a figure and no bound."""
    return "none" if error_j is None and joules is not None else _j(error_j)


def _utc(ns: int) -> str:
    return datetime.fromtimestamp(ns // 1000 / 1e6, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
