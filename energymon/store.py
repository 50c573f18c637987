"""A host's readings in one SQLite file: one agent writes, anyone reads, a kill loses nothing committed."""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Final, TypeVar

from energymon.database import connect, open_for_reading, open_for_writing, transaction
from energymon.errors import StoreError
from energymon.reading import Baseline, ClockOffset, CounterStart, EpochMark, Event, News, Reading, Session, Ticks
from joulefeed.closing import Closing

_Record = TypeVar("_Record", ClockOffset, Baseline, CounterStart)
Series = tuple[str, str, str, str]
"""Node, device, domain and source."""
Row = tuple[int, Series, int, float, str, int | None, int]
"""A reading on its way in: tick, series, time (UTC ns), cumulative joules, flags, early_ns and late_ns."""

_END_OF_TIME_NS: Final = 2**63 - 1
_TABLES: Final = {Event: "events", ClockOffset: "clocks", Baseline: "baselines", CounterStart: "counters"}
"""Of the records beside readings and ticks; their columns are the fields, in order."""

OF_NODE: Final = "series_id IN (SELECT id FROM series WHERE node = ?)"
PATIENCE_NS: Final = 30_000_000_000
"""A series without a reading for so long is not waited for: the ticks until it is back have no value of its domain. An
agent that starts later than this after another one begins a sum of its own."""
_READING: Final = """SELECT r.tick_ns, r.t_ns, s.node, s.device, s.domain, s.source, r.joules, r.flags,
    r.early_ns, r.late_ns FROM readings r JOIN series s ON s.id = r.series_id
    WHERE r.series_id = ? AND r.tick_ns BETWEEN ? AND ? ORDER BY r.tick_ns"""
# One reading beyond the one that covers the edge gives the power there, and with it the error.
_BEFORE: Final = """SELECT min(tick_ns) FROM (SELECT tick_ns FROM readings
    WHERE series_id = ? AND tick_ns <= ? AND t_ns <= ? ORDER BY tick_ns DESC LIMIT 2)"""
_AFTER: Final = """SELECT max(tick_ns) FROM (SELECT tick_ns FROM readings
    WHERE series_id = ? AND tick_ns >= ? AND t_ns >= ? ORDER BY tick_ns LIMIT 2)"""

# Those that follow each other unbroken are one row, of which the last one before the span may reach into it.
_TICKS: Final = """SELECT first_ns, last_ns, interval_ns, missed FROM ticks WHERE node = ? AND first_ns >= coalesce(
    (SELECT max(first_ns) FROM ticks WHERE node = ? AND first_ns <= ?), 0) AND first_ns < ? ORDER BY first_ns"""
_LAST_TICKS: Final = """SELECT first_ns, last_ns, interval_ns, missed FROM ticks WHERE node = ?
    ORDER BY first_ns DESC LIMIT 1"""
_NEWEST: Final = """SELECT max(coalesce((SELECT max(tick_ns) FROM readings), -1),
    coalesce((SELECT max(last_ns) FROM ticks WHERE node = ?), -1))"""
_FLAGGED: Final = """SELECT DISTINCT r.tick_ns FROM series s JOIN readings r INDEXED BY flagged ON r.series_id = s.id
    AND r.tick_ns BETWEEN ? AND ? AND r.flags <> '' WHERE s.node = ? ORDER BY r.tick_ns"""


class SqliteStore(Closing):
    """One store, open for reading or, by one process at a time, for writing."""

    def __init__(self, path: Path, connection: sqlite3.Connection, lock_fd: int | None) -> None:
        self.path = path
        self._db = connection
        self._lock_fd = lock_fd
        self._series: dict[Series, int] = {}
        self._since_ns = 0
        self._newest_ns: dict[str, int] = {}
        """The last tick of each node that was stored."""

    @classmethod
    def create(cls, path: Path, group: int | None = None) -> SqliteStore:
        """Open for writing, and make a missing file; with a group only its members and the owner may read it.

        Raises StoreError when another agent writes it, when it is not a store, or when it cannot be made.
        """
        return cls(path, *open_for_writing(path, group))

    @classmethod
    def open(cls, path: Path) -> SqliteStore:
        """Open for reading, while an agent writes or after it has gone; raises StoreError when there is no store."""
        return cls(path, open_for_reading(path), None)

    def append(self, readings: Iterable[Reading], ticks: Sequence[Ticks] = (), news: Iterable[News] = ()) -> None:
        """Commit a batch whole or not at all; what is there stays, so a repeat is harmless; raises StoreError."""
        rows = [(r.tick_ns, r[2:6], r.t_ns, r.joules, r.flags, r.early_ns, r.late_ns) for r in readings]
        self.append_rows(rows, ticks, news)

    def append_rows(self, rows: Sequence[Row], ticks: Sequence[Ticks] = (), news: Iterable[News] = ()) -> None:
        """Commit a batch as `append` does, its readings as rows."""
        with self._transaction():
            numbered = self._numbered(rows)
            self._note_late(rows, ticks)
            self._db.executemany("INSERT OR IGNORE INTO readings VALUES (?, ?, ?, ?, ?, ?, ?)", numbered)
            self._add_ticks(ticks)
            for item in news:
                places = ", ".join("?" * len(item))
                self._db.execute(f"INSERT OR IGNORE INTO {_TABLES[type(item)]} VALUES ({places})", item)  # noqa: S608

    def begin_session(self, node: str, start_ns: int, interval_ns: int, description: Mapping[str, object]) -> Session:
        """Record that an agent starts."""
        name = f"{start_ns}-{os.getpid()}"
        with self._transaction():
            self._db.execute(
                "INSERT INTO sessions (name, node, start_ns, interval_ns, description) VALUES (?, ?, ?, ?, ?)",
                (name, node, start_ns, interval_ns, json.dumps(description)),
            )
            self._since_ns = start_ns
        return Session(name, node, start_ns, None, interval_ns, None, description)

    def end_session(
        self, session: Session, end_ns: int, cpu_s: float, more: Mapping[str, object] = MappingProxyType({})
    ) -> None:
        """Record that the agent ended in order, what CPU time it took, and more of its description."""
        with self._transaction():
            self._db.execute(
                "UPDATE sessions SET end_ns = ?, cpu_s = ?, description = ? WHERE node = ? AND name = ?",
                (end_ns, cpu_s, json.dumps({**session.description, **more}), session.node, session.name),
            )

    def readings(self, start_ns: int, end_ns: int, node: str | None = None) -> list[Reading]:
        """Return the readings in [start, end], UTC ns, and the nearest two of each series around, by series, tick."""
        found: list[Reading] = []
        every = "SELECT id FROM series WHERE ? IS NULL OR node = ? ORDER BY node, device, domain, source"
        with self._reading():
            for (series,) in self._db.execute(every, (node, node)).fetchall():
                (first,) = self._db.execute(_BEFORE, (series, start_ns, start_ns)).fetchone()
                (last,) = self._db.execute(_AFTER, (series, end_ns, end_ns)).fetchone()
                span = 0 if first is None else first, _END_OF_TIME_NS if last is None else last
                found.extend(Reading(*row) for row in self._db.execute(_READING, (series, *span)))
        return found

    def ticks(self, start_ns: int, end_ns: int, node: str | None = None) -> list[Ticks]:
        """Return the ticks in [start, end), UTC ns, by node and time, and what follows or precedes them unbroken."""
        nodes = "SELECT DISTINCT node FROM ticks WHERE ? IS NULL OR node = ? ORDER BY node"
        with self._reading():
            return [
                Ticks(first_ns, name, bool(missed), (last_ns - first_ns) // max(interval_ns, 1) + 1, interval_ns)
                for (name,) in self._db.execute(nodes, (node, node)).fetchall()
                for first_ns, last_ns, interval_ns, missed in self._db.execute(_TICKS, (name, name, start_ns, end_ns))
                if last_ns >= start_ns
            ]

    def flagged(self, start_ns: int, end_ns: int, node: str) -> list[int]:
        """Return the ticks in [start, end], UTC ns, of all readings that have a flag, in order."""
        with self._reading():
            return [tick_ns for (tick_ns,) in self._db.execute(_FLAGGED, (start_ns, end_ns, node))]

    def events(self, start_ns: int = 0, end_ns: int = _END_OF_TIME_NS) -> list[Event]:
        """Return the events in [start, end), UTC ns, by time."""
        query = f"SELECT {columns(Event)} FROM events WHERE t_ns >= ? AND t_ns < ? ORDER BY t_ns, rowid"  # noqa: S608
        with self._reading():
            return [Event(*row) for row in self._db.execute(query, (start_ns, end_ns))]

    def sessions(self) -> list[Session]:
        """Return the sessions of all agents in the order of their starts."""
        with self._reading():
            rows = self._db.execute(f"SELECT {columns(Session)} FROM sessions ORDER BY id").fetchall()  # noqa: S608
        return [Session(*row)._replace(description=json.loads(row[-1])) for row in rows]

    def clocks(self, node: str | None = None, peers: Sequence[str] = ()) -> list[ClockOffset]:
        """Return every offset measured against some peers, or all of them, by time."""
        return self._all(ClockOffset, node, "t_ns, node, peer", peers)

    def baselines(self, node: str | None = None) -> list[Baseline]:
        """Return every idle baseline recorded, by time and series."""
        return self._all(Baseline, node, "start_ns, node, device, domain, source")

    def counters(self, node: str | None = None) -> list[CounterStart]:
        """Return every counter that a series began with, by time and series."""
        return self._all(CounterStart, node, "t_ns, node, device, domain, source")

    def last_tick_ns(self, node: str) -> int:
        """Return the latest tick that a node has, UTC ns; 0 when it has none."""
        with self._reading():
            (last,) = self._db.execute("SELECT max(last_ns) FROM ticks WHERE node = ?", (node,)).fetchone()
        return int(last or 0)

    def forget(self, before_ns: int, most_rows: int) -> bool:
        """Delete the oldest readings as `delete_oldest` does; return whether there were any; raises StoreError.

        Offsets of clocks that are as old go too, but for those of wall clocks, which hold until the next one.
        """
        with self._transaction():
            old = "SELECT rowid FROM clocks WHERE t_ns <= ? AND peer <> 'wall' LIMIT ?"
            self._db.execute(f"DELETE FROM clocks WHERE rowid IN ({old})", (before_ns, most_rows))  # noqa: S608
            return delete_oldest(self._db, before_ns, most_rows)

    def require_in_place(self) -> None:
        """Raise StoreError where the file was moved, removed or replaced by another one while it is written."""
        assert self._lock_fd is not None
        try:
            if os.path.samestat(self.path.stat(), os.fstat(self._lock_fd)):
                return
            why = "replaced by another file"
        except OSError as error:
            why = f"moved or removed ({error.strerror})"
        raise StoreError(f"{self.path}: was {why} while it was written; move it back, or stop the agent")

    def used_bytes(self) -> int:
        """Return what the store's content takes on disk; freed pages, which are used again, not counted."""
        with self._reading():
            names = "page_count", "freelist_count", "page_size"
            pages, free, size = (self._db.execute(f"PRAGMA {name}").fetchone()[0] for name in names)
        return int((pages - free) * size)

    def close(self) -> None:
        """Close the file and let another agent have it; may be called twice."""
        self._db.close()
        if self._lock_fd is not None:
            os.close(self._lock_fd)
            self._lock_fd = None

    def _all(self, kind: type[_Record], node: str | None, order: str, peers: Sequence[str] = ()) -> list[_Record]:
        """Return the records of a class, of one node or of all."""
        of = "(? IS NULL OR node = ?)" + (f" AND peer IN ({', '.join('?' * len(peers))})" if peers else "")
        query = f"SELECT {columns(kind)} FROM {_TABLES[kind]} WHERE {of} ORDER BY {order}"  # noqa: S608
        with self._reading():
            return [kind(*row) for row in self._db.execute(query, (node, node, *peers))]

    def _numbered(self, rows: Sequence[Row]) -> list[tuple[object, ...]]:
        """Return rows with the ids of their series; a new series is added."""
        ids = self._series
        for series in dict.fromkeys(row[1] for row in rows):
            if series not in ids:
                self._db.execute(
                    "INSERT OR IGNORE INTO series (node, device, domain, source) VALUES (?, ?, ?, ?)", series
                )
                (ids[series],) = self._db.execute(
                    "SELECT id FROM series WHERE node = ? AND device = ? AND domain = ? AND source = ?", series
                ).fetchone()
        return [(row[0], ids[row[1]], *row[2:]) for row in rows]

    def _add_ticks(self, ticks: Sequence[Ticks]) -> None:
        """Add ticks that are later than those there are; those that go on unbroken make their session's row longer."""
        rows: dict[str, list[tuple[int, int, int, int]]] = {}
        for t in ticks:
            if t.node not in rows:
                rows[t.node] = self._db.execute(_LAST_TICKS, (t.node,)).fetchall()
            own = rows[t.node]
            first_ns, last_ns, interval_ns, missed = own[-1] if own else (0, -1, 0, 0)
            goes_on = (t.first_ns, t.interval_ns, t.missed) == (last_ns + interval_ns, interval_ns, missed)
            if goes_on and first_ns >= self._since_ns:
                own[-1] = first_ns, t.last_ns, interval_ns, missed
            elif t.first_ns > last_ns:
                own.append((t.first_ns, t.last_ns, t.interval_ns, t.missed))
        self._db.executemany(
            "INSERT OR REPLACE INTO ticks VALUES (?, ?, ?, ?, ?)", [(n, *row) for n, own in rows.items() for row in own]
        )

    def _note_late(self, rows: Sequence[Row], ticks: Sequence[Ticks]) -> None:
        """Note readings whose tick is no later than one that was stored before: a sender may have passed it by."""
        before_ns: dict[str, int] = {}
        for node in {row[1][0] for row in rows} | {t.node for t in ticks}:
            # At first of any node: a reading that is noted though it need not be is sent twice, as one point.
            before_ns[node] = self._newest_ns.get(node) or self._db.execute(_NEWEST, (node,)).fetchone()[0]
        late = [(row[0], self._series[row[1]]) for row in rows if row[0] <= before_ns[row[1][0]]]
        if late:
            self._db.executemany("INSERT OR IGNORE INTO late SELECT ?, ? WHERE EXISTS (SELECT 1 FROM sent)", late)
        for node, tick_ns in [*((row[1][0], row[0]) for row in rows), *((t.node, t.last_ns) for t in ticks)]:
            before_ns[node] = max(before_ns[node], tick_ns)
        self._newest_ns |= before_ns

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        try:
            with transaction(self.path, self._db):
                yield
        except BaseException as error:
            # Ids of a transaction that is undone are no ids.
            self._series.clear()
            if isinstance(error, OverflowError):
                raise StoreError(f"{self.path}: a number does not fit into 64 bits ({error})") from error
            raise

    def _reading(self) -> AbstractContextManager[None]:
        """See one state of the store throughout, whatever the agent commits meanwhile."""
        return transaction(self.path, self._db, "BEGIN")


def add_epochs(path: Path, epochs: Iterable[EpochMark]) -> None:
    """Add epochs to a store, for its sender, while an agent writes the store or after it; raises StoreError."""
    with closing(connect(path, "rw")) as connection, transaction(path, connection):
        connection.executemany("INSERT INTO epochs VALUES (?, ?, ?, ?, ?, ?, ?)", epochs)


def delete_oldest(db: sqlite3.Connection, before_ns: int, most_rows: int) -> bool:
    """Delete the oldest readings of each node, in a transaction of the caller; return whether there were any.

    Those with a tick after `before_ns`, UTC ns, stay. Where a sender has ever opened the store, those stay too that the
    server has not acknowledged, or that tuples to come depend on. `most_rows` of a node bound how long others wait.
    """
    sent = dict(db.execute("SELECT kind, last FROM sent").fetchall())
    (late_ns,) = db.execute("SELECT min(tick_ns) FROM late").fetchone()
    found = False
    for (node,) in db.execute("SELECT DISTINCT node FROM series").fetchall():
        last_ns = before_ns
        if sent:
            sent_ns = min(sent.get(f"{kind} {node}", 0) for kind in ("readings", "tuples"))
            last_ns = min(last_ns, min(sent_ns, late_ns or sent_ns) - PATIENCE_NS)
        cut = db.execute(
            f"SELECT max(tick_ns) FROM (SELECT tick_ns FROM readings WHERE tick_ns <= ? AND {OF_NODE}"  # noqa: S608
            " ORDER BY tick_ns LIMIT ?)",
            (last_ns, node, most_rows),
        ).fetchone()[0]
        if cut is None:
            continue
        db.execute(f"DELETE FROM readings WHERE tick_ns <= ? AND {OF_NODE}", (cut, node))  # noqa: S608
        db.execute(
            "UPDATE ticks SET first_ns = first_ns + ((?1 - first_ns) / interval_ns + 1) * interval_ns"
            " WHERE first_ns <= ?1 AND last_ns > ?1 AND node = ?2",
            (cut, node),
        )
        db.execute("DELETE FROM ticks WHERE last_ns <= ? AND node = ?", (cut, node))
        found = True
    return found


def columns(kind: type[ClockOffset | Baseline | CounterStart | Event | EpochMark | Session]) -> str:
    """Return the columns of the records of a class, which are its fields, for a SELECT."""
    return ", ".join(kind._fields)
