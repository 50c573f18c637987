"""The command `sessions`: what a store has, agent by agent."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from energymon.analysis.attribution import directness, series_of
from energymon.clock.monotonic import LAST_NS, NS, utc_text
from energymon.store import SqliteStore
from joulefeed.table import Table, TableColumn, to_text


def run_sessions(path: Path, *, as_json: bool) -> int:
    """Print what a store has; return the exit status, 0. Raises StoreError."""
    with SqliteStore.open(path) as store:
        found = stored_sessions(store)
    columns: list[TableColumn | str] = [
        TableColumn(name, left=True) for name in ("node", "begin", "end", "", "sources")
    ]
    columns += ["every ms", "gaps", "ticks missed", "longest gap s"]
    text = to_text(Table(columns, [_cells(one) for one in found]), "") if found else "there is no session in this store"
    print(json.dumps(found) if as_json else text)
    return 0


def stored_sessions(store: SqliteStore) -> list[dict[str, Any]]:
    """Return each run of an agent, by node and time, as JSON types; times by the clock of its readings, UTC ns.

    begin_ns and end_ns are the first and the last tick that are stored, None without one; is_ended is false where the
    agent runs or was killed; gaps are the first and the last of missed ticks that follow each other. Raises StoreError.
    """
    sessions = sorted(store.sessions(), key=lambda session: (session.node, session.start_ns))
    found = []
    for session, after in zip(sessions, [*sessions[1:], None], strict=True):
        until_ns = after.start_ns if after is not None and after.node == session.node else LAST_NS
        ticks = [t for t in store.ticks(session.start_ns, until_ns, session.node) if t.last_ns >= session.start_ns]
        sensors = cast(list[Mapping[str, object]], session.description.get("sensors") or [])
        one: dict[str, Any] = {
            "node": session.node,
            "begin_ns": ticks[0].first_ns if ticks else None,
            "end_ns": ticks[-1].last_ns if ticks else None,
            "is_ended": session.end_ns is not None,
            "interval_ms": session.interval_ns / 1e6,
            "sources": sorted({str(series["source"]) for series in series_of(sensors)}, key=directness),
            "missed_ticks": sum(t.count for t in ticks if t.missed),
            "gaps": [(t.first_ns, t.last_ns) for t in ticks if t.missed],
        }
        found.append(one)
    return found


def _cells(one: Mapping[str, Any]) -> list[str]:
    times = ["no tick" if at_ns is None else utc_text(at_ns) for at_ns in (one["begin_ns"], one["end_ns"])]
    longest_s = max((last - first for first, last in one["gaps"]), default=-1e6 * one["interval_ms"]) / NS
    gaps = len(one["gaps"]), one["missed_ticks"], longest_s + one["interval_ms"] / 1e3
    state = "ended" if one["is_ended"] else "open"
    return [one["node"], *times, state, "+".join(one["sources"]), f"{one['interval_ms']:g}", *(f"{n:g}" for n in gaps)]
