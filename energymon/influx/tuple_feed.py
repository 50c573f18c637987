"""The energy tuples of a store that are final and not yet sent, as lines."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from energymon.analysis.attribution import channels_of
from energymon.analysis.restarts import bridged
from energymon.analysis.tuples import tuples
from energymon.clock.monotonic import NS, tick_at
from energymon.influx.lineprotocol import run_of, tuple_line
from energymon.reading import LAG_S
from energymon.stores.base import Session
from energymon.stores.sqlite import SqliteStore

_TICKS_AT_ONCE: Final = 2_000
"""Some 350 kB of lines."""
_PATIENCE_NS: Final = 30 * NS
"""A series without a reading for so long is not waited for: the ticks until it is back have no value of its domain. An
agent that starts later than this after another one begins a sum of its own."""

# The sessions whose readings are sent, and the ticks that their commits touched.
_TOUCHED: Final = """SELECT s.name, s.node, min(t.first), max(t.last), sent.last
    FROM (SELECT session_id AS id, first_tick_ns AS first, last_tick_ns AS last FROM acknowledged
          UNION ALL SELECT id, (SELECT min(first_tick_ns) FROM outbox WHERE session_id = sessions.id),
                           (SELECT max(last_tick_ns) FROM outbox WHERE session_id = sessions.id) FROM sessions) t
    JOIN sessions s ON s.id = t.id LEFT JOIN sent ON sent.kind = 'tuples ' || s.node || ' ' || s.name
    GROUP BY s.id HAVING max(t.last) IS NOT NULL ORDER BY s.id"""
_LATEST: Final = """SELECT (SELECT tick_ns FROM readings WHERE series_id = s.id AND tick_ns BETWEEN ? AND ?
    ORDER BY tick_ns DESC LIMIT 1) FROM series s WHERE s.node = ?"""


@dataclass(frozen=True, slots=True)
class Tuples:
    """Lines of one session, and up to which tick they go, for the table `sent`."""

    lines: list[str]
    kind: str
    until_ns: int
    """UTC ns."""


class TupleFeed:
    """Computes the tuples of a store in order, each once all readings that it depends on are there.

    Joules at a tick are interpolated between the readings around it, also where the tick itself has none, so a tuple
    waits for the next reading of each series, and for its lag.
    """

    def __init__(self, path: Path) -> None:
        """Open the store; raises StoreError."""
        self._store = SqliteStore.open(path)

    def next(self, database: sqlite3.Connection, *, last: bool, sent: tuple[str, int] | None = None) -> Tuples | None:
        """Return what comes next, or None. With `last` no agent writes any more, and nothing is waited for.

        `sent` is the kind and the last tick of tuples that are on their way.
        """
        touched = database.execute(_TOUCHED).fetchall()
        if not touched:
            return None
        sessions = {(s.node, s.name): s for s in self._store.sessions()}
        newest = {session.node: session for session in sessions.values()}
        ends: dict[str, int] = {}
        for name, node, first_ns, last_ns, stored_ns in touched:
            session = sessions[node, name]
            kind = f"tuples {node} {name}"
            sent_ns = sent[1] if sent is not None and sent[0] == kind else stored_ns
            over = last or session.end_ns is not None or newest[node] is not session
            before_ns = ends.get(node, 0)
            # The counters have the joules between two agents: one goes on where the tuples of the one before it end.
            since_ns = before_ns if first_ns - before_ns <= _PATIENCE_NS else first_ns
            start_ns = tick_at(since_ns, session.interval_ns) if sent_ns is None else sent_ns
            settle_ns = _settle_ns(session)
            found = database.execute(_LATEST, (last_ns - _PATIENCE_NS, last_ns, node)).fetchall()
            latest = [t_ns for (t_ns,) in found if t_ns is not None] or [0]
            # At the end of a session, a sensor that was lost before it is not waited for.
            edge = max if over and max(latest) - min(latest) > NS else min
            until_ns = tick_at(edge(latest) - (0 if over else settle_ns), session.interval_ns)
            until_ns = min(until_ns, start_ns + _TICKS_AT_ONCE * session.interval_ns)
            if until_ns > start_ns:
                lines = self._lines(session, start_ns, until_ns, settle_ns, list(sessions.values()))
                return Tuples(lines, kind, until_ns)
            ends[node] = start_ns
        return None

    def close(self) -> None:
        """Close the store; may be called twice."""
        self._store.close()

    def _lines(
        self, session: Session, start_ns: int, until_ns: int, settle_ns: int, sessions: Sequence[Session]
    ) -> list[str]:
        stored = self._store.readings(start_ns - settle_ns, until_ns + settle_ns, session.node)
        readings = bridged(stored, self._store.counters(session.node), sessions)
        devices = channels_of(session.description, session.node).devices
        expected = {session.node: devices} if devices else None
        found = tuples(readings, start_ns, until_ns, session.interval_ns, expected)
        return [tuple_line(one, run_of(session)) for one in found]


def _settle_ns(session: Session) -> int:
    """Return after which time the joules at an instant change no more, ns: a counter shows them in its next update."""
    lags = channels_of(session.description, session.node).lags
    return round(2 * NS * max(lags.values(), default=min(LAG_S.values()))) + session.interval_ns
