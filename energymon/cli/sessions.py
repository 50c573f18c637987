"""The command `sessions`: what a store has, agent by agent."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from energymon.analysis.attribution import directness, series_of
from energymon.analysis.sessions import known_nodes, sessions_of
from energymon.clock.monotonic import NS, utc_text
from energymon.reading import Session, Ticks
from energymon.store import SqliteStore
from joulefeed.table import Table, TableColumn, to_text


def run_sessions(path: Path, *, as_json: bool) -> int:
    """Print each run of an agent in a store, by node and time; return the exit status, 0. Raises StoreError.

    In JSON, begin_ns and end_ns are the first and the last tick, UTC ns by the clock of the readings, None without one;
    is_ended is false where the agent runs or was killed; gaps are the first and the last of missed ticks in a row.
    """
    with SqliteStore.open(path) as store:
        every = [pair for node in known_nodes(store.sessions()) for pair in sessions_of(store, node)]
        found = [_described(session, store.ticks(session.start_ns, end, session.node)) for session, end in every]
    columns = [TableColumn(name, left=True) for name in ("node", "begin", "end", "", "sources")]
    numbers = "every ms", "gaps", "ticks missed", "longest gap s"
    table = Table([*columns, *numbers], [_cells(one) for one in found])
    text = to_text(table) if found else "there is no session in this store"
    print(json.dumps(found) if as_json else text)
    return 0


def _described(session: Session, ticks: Sequence[Ticks]) -> dict[str, Any]:
    description: Mapping[str, Any] = session.description
    return {
        "node": session.node,
        "begin_ns": ticks[0].first_ns if ticks else None,
        "end_ns": ticks[-1].last_ns if ticks else None,
        "is_ended": session.end_ns is not None,
        "interval_ms": session.interval_ns / 1e6,
        "sources": sorted({s["source"] for s in series_of(description.get("sensors") or ())}, key=directness),
        "missed_ticks": sum(t.count for t in ticks if t.missed),
        "gaps": [(t.first_ns, t.last_ns) for t in ticks if t.missed],
    }


def _cells(one: Mapping[str, Any]) -> list[str]:
    times = ["no tick" if at_ns is None else utc_text(at_ns) for at_ns in (one["begin_ns"], one["end_ns"])]
    longest_s = max((last - first for first, last in one["gaps"]), default=-1e6 * one["interval_ms"]) / NS
    gaps = len(one["gaps"]), one["missed_ticks"], longest_s + one["interval_ms"] / 1e3
    state = "ended" if one["is_ended"] else "open"
    return [one["node"], *times, state, "+".join(one["sources"]), f"{one['interval_ms']:g}", *(f"{n:g}" for n in gaps)]
