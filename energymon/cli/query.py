"""The command `query`: the windows that it is asked for, and their energy as a table that a person reads."""

from __future__ import annotations

import argparse
import json
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from energymon.analysis.attribution import EnergyComponent
from energymon.analysis.integrate import Energy
from energymon.analysis.query import NO_AMOUNTS, WindowEnergy, amount_of, query, to_json, total
from energymon.analysis.sessions import stored_spans
from energymon.clock.monotonic import LAST_NS, NS, boot_ns, duration_ns, utc_text
from energymon.errors import OptionError
from energymon.reading import ESTIMATE, Event
from energymon.store import SqliteStore
from joulefeed.table import Table, TableColumn, to_text

_STATUS_UNKNOWN: Final = 3
_NOW: Final = "now"
_UNKNOWN: Final = "unknown"
_MOST_PARTS: Final = 5
_MOST_EVENTS: Final = 5
_OF_EACH: Final = (
    *("joules", "error_j", "edge_error_j", "clock_error_j", "accuracy_j", "interpolated_share"),
    *("idle_j", "net_j", "net_error_j"),
)
COLUMNS: Final = ("node", "start_ns", "end_ns", "domain", "device", "source", "part", *_OF_EACH, "co2_g", "cost")
"""Of `query --format csv` and parquet, in order."""
_FIGURES: Final = ("J", "± J", "edge", "clock", "accuracy ± J", "interpolated")


def run_query(options: argparse.Namespace) -> int:
    """Print the joules of the windows that options name; return 3 where none are known, else 0.

    Raises OptionError, WindowError and StoreError.
    """
    times = options.start, options.end
    if (None in times) != (times == (None, None)) or (options.last and options.start):
        raise OptionError("expected both --start and --end, or --last, or none of them for all that the store has")
    with SqliteStore.open(options.store) as store:
        if options.start:
            asked = [(parse_instant(options.start), parse_instant(options.end), options.node or None, options.clock)]
            if options.end == _NOW:
                _await_now(store)
        else:
            spans = stored_spans(store, options.node or None)
            last_ns = duration_ns("--last", options.last) if options.last else LAST_NS
            asked = [(max(begin, end - last_ns), end, name, "readings") for name, begin, end in spans]
        period_s = None if options.period_ms is None else options.period_ms / 1e3
        windows: list[WindowEnergy] = []
        for start_ns, end_ns, node, clock in asked:
            windows += query(store, start_ns, end_ns, node, net=options.net, clock=clock, period_s=period_s)
        began_ns = min((session.start_ns for session in store.sessions()), default=None)
    given = {"co2_g": options.co2_g_per_kwh, "cost": options.price_per_kwh}
    amounts = {name: per_kwh for name, per_kwh in given.items() if per_kwh is not None}
    form: Any = "json" if options.json else options.format or ("text" if options.out is None else None)
    if form in ("json", "text") and options.out is not None:
        raise OptionError(f"--out {options.out}: expected --format csv or parquet with it")
    if form == "json":
        print(json.dumps(to_json(windows, amounts)))
    elif form == "text":
        first = f"; the first one started at {utc_text(began_ns)}" if not windows and began_ns else ""
        print(render(windows, amounts) + first)
    else:
        from energymon.cli.export import write_rows

        write_rows(_rows(windows, amounts), dict.fromkeys(COLUMNS, ""), options.out or "-", form)
    known = any(component.joules is not None for window in windows for component in window.components)
    return 0 if known else _STATUS_UNKNOWN


def _await_now(store: SqliteStore) -> None:
    """Have an agent that samples into the store read its sensors now, and wait some seconds until that is stored."""
    from energymon.agent.process import wait_until_read
    from energymon.sampling.edges import Asker

    # Without an agent that can be asked, its next tick does.
    with suppress(OSError), closing(Asker(store.path)) as asker:
        asker.edge_ns()
    for session in store.sessions()[-1:]:
        offset_ns = session.description.get("boot_offset_ns")
        if session.end_ns is None and isinstance(offset_ns, int):
            wait_until_read(store, session, boot_ns() + offset_ns, boot_ns(), None)


def parse_instant(text: str) -> int:
    """Return UTC ns from an integer of ns, an ISO 8601 time, UTC without an offset, or now; raises OptionError."""
    if text == _NOW:
        return time.time_ns()
    try:
        instant_ns = int(text) if text.isdecimal() else _utc_ns(datetime.fromisoformat(text))
    except ValueError as error:
        raise OptionError(f"{text!r} is no instant: expected UTC ns or ISO 8601, 2025-01-31T12:00:00.5Z") from error
    if not 0 <= instant_ns <= LAST_NS:
        raise OptionError(f"{text!r} is out of range: expected an instant from 1970 to February 2116")
    return instant_ns


def _utc_ns(moment: datetime) -> int:
    since_1970 = (moment if moment.tzinfo else moment.replace(tzinfo=UTC)) - datetime(1970, 1, 1, tzinfo=UTC)
    return since_1970 // timedelta(microseconds=1) * 1000


def _rows(windows: Iterable[WindowEnergy], amounts: Mapping[str, float]) -> Iterator[list[object]]:
    """Yield a row of COLUMNS for each domain of a window, its total, and each series."""
    for window in windows:
        found: list[EnergyComponent | Energy] = [*window.components, *window.energies]
        for one in found:
            row = {name: getattr(one, name) for name in _OF_EACH}
            row |= {name: amount_of(one.joules, per_kwh) for name, per_kwh in amounts.items()}
            row |= {name: getattr(window, name) for name in ("node", "start_ns", "end_ns")}
            if isinstance(one, EnergyComponent):
                row |= {"domain": one.name, "device": "", "source": ";".join(one.sources), "part": "sum"}
            else:
                part = "summed" if one in window.best else "beside"
                row |= {"domain": one.domain, "device": one.device, "source": one.source, "part": part}
            yield [row.get(name) for name in COLUMNS]


def render(windows: Sequence[WindowEnergy], amounts: Mapping[str, float] = NO_AMOUNTS) -> str:
    """Return each node's components, then its series, then its agent's events; joules and their error bounds.

    An estimate is named so in every line that contains one. `amounts` are those of a kilowatt-hour, co2_g and cost.
    """
    if not windows:
        return "no agent had started before the end of this window"
    parts = [_window(window, amounts) for window in windows]
    if len(windows) > 1:
        head, together = f"all {len(windows)} nodes:", total(windows)
        if together is None:
            parts.append(f"{head} {_UNKNOWN}: a node has no figure")
        else:
            parts.append("\n".join([head, *_components([together], amounts, net=windows[0].is_net)]))
    return "\n\n".join(parts)


def figures(window: WindowEnergy) -> list[str]:
    """Return a window's joules by component, what contradicts them, where their accuracy is from, what happened."""
    disagreements = (f"  disagree: {text}" for text in window.disagreements)
    components = _components(window.components, {}, net=False)
    return [*components, *disagreements, *_accuracies(window), *_events(window.events)]


def _window(window: WindowEnergy, amounts: Mapping[str, float]) -> str:
    lines = [
        f"{window.node}: {utc_text(window.start_ns)} to {utc_text(window.end_ns)}, "
        f"{(window.end_ns - window.start_ns) / NS:.6f} s, {_clock(window)}; "
        f"{window.missed_share:.2%} of ticks missed"
    ]
    if not window.energies:
        lines.append("  no series covers this window")
    lines += _covered(window)
    lines += _components(window.components, amounts, net=window.is_net)
    lines += [f"  disagree: {text}" for text in window.disagreements]
    if window.energies:
        lines += ["", *_series(window), *_accuracies(window)]
    lines += _no_baseline(window)
    if window.events:
        lines += ["", *_events(window.events)]
    return "\n".join(lines)


def _covered(window: WindowEnergy) -> Iterator[str]:
    """Yield what of a window without a figure has readings, in instants that can be asked for."""
    ambiguous = any(event.kind == "clock-ambiguous" for event in window.events)
    if ambiguous or (window.total is not None and window.total.joules is not None):
        return
    if not window.covered:
        yield "  there are no readings in it"
        return
    if window.covered == ((window.start_ns, window.end_ns),):
        # A device is missing from all of it, as its line and the events say.
        return
    for begin_ns, end_ns in window.covered[:_MOST_PARTS]:
        yield f"  readings go from {utc_text(begin_ns + 999)} to {utc_text(end_ns)}: ask for that part"
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
            yield f"  {utc_text(event.t_ns)} {event.kind}: {event.message}"
        elif left == 1:
            yield f"  ... {counts[event.kind] - _MOST_EVENTS - 1} more {event.kind}"


def _accuracies(window: WindowEnergy) -> Iterator[str]:
    """Yield where the accuracy of the series that are summed is from, or why it is unknown."""
    origins: dict[str, list[str]] = {}
    for e in window.best:
        if e.accuracy_origin:
            origins.setdefault(e.accuracy_origin, []).append(f"{e.device} {e.domain}")
    for origin, devices in origins.items():
        yield f"  accuracy of {', '.join(devices)}: {origin}"


def _no_baseline(window: WindowEnergy) -> Iterator[str]:
    """Yield which figures are gross though net ones were asked for."""
    lacking = [f"{e.device} {e.domain}" for e in window.best if e.idle_j is None]
    if window.is_net and lacking:
        yield (
            f"  no idle baseline of {', '.join(lacking)} before this window, so these joules are gross: "
            "`run --idle-s 10` records one at its start"
        )


def _clock(window: WindowEnergy) -> str:
    if window.clock == "controller":
        error_ms = (window.clock_error_ns or 0) / 1e6
        return f"the controller's clock ({window.offset_ns / 1e6:+.3f} ms, ±{error_ms:.3f} ms)"
    return "its own clock" if window.clock == "own" else "clock offset unknown, taken as 0"


def _components(components: Sequence[EnergyComponent], amounts: Mapping[str, float], *, net: bool) -> list[str]:
    head = ["", *_FIGURES, *(["idle J", "net J", "± J"] if net else [])]
    head += ["g CO2" if name == "co2_g" else name for name in amounts]
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
        cells += [_UNKNOWN if c.joules is None else f"{amount_of(c.joules, amounts[name]):.4g}" for name in amounts]
        rows.append([*cells, source])
    return _table(head, rows) if rows else []


def _series(window: WindowEnergy) -> list[str]:
    rows = []
    for e in window.energies:
        cells = [e.domain, e.device, *_figures(e)]
        if window.is_net:
            cells.append(_j(e.net_j) if e in window.best else "")
        rows.append([*cells, e.source if e in window.best else f"{e.source} (not summed)"])
    net = ["net J"] if window.is_net else []
    return _table(["", TableColumn("device", left=True), *_FIGURES, *net], rows)


def _figures(of: EnergyComponent | Energy) -> list[str]:
    bounds = (_bound(error_j, of.joules) for error_j in (of.error_j, of.edge_error_j, of.clock_error_j))
    return [_j(of.joules), *bounds, _j(of.accuracy_j), f"{of.interpolated_share:.2%}"]


def _table(head: Sequence[TableColumn | str], rows: Sequence[Sequence[str]]) -> list[str]:
    return to_text(Table([*head, TableColumn("source", left=True)], rows), "  ").split("\n")


def _j(value: float | None) -> str:
    return _UNKNOWN if value is None else f"{value:.3f}"


def _bound(error_j: float | None, joules: float | None) -> str:
    """Return an error bound; an estimate has a figure and no bound."""
    return "none" if error_j is None and joules is not None else _j(error_j)
