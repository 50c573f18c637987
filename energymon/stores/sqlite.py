"""A host's readings in one SQLite file: one agent writes, anyone reads, a kill loses nothing committed."""

from __future__ import annotations

import fcntl
import json
import os
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from energymon.errors import StoreError
from energymon.reading import Event, Reading, Tick

__all__ = ["Session", "SqliteStore"]

_APPLICATION_ID: Final = 0x4A4F_554C  # "JOUL"
_VERSION: Final = 1
_BUSY_TIMEOUT_S: Final = 5.0

# Keyed by tick first, so that all readings of a tick land on one page of the tree and one of the log.
_SCHEMA: Final = f"""
BEGIN IMMEDIATE;
CREATE TABLE IF NOT EXISTS sessions (
    id INTEGER PRIMARY KEY, node TEXT NOT NULL, start_ns INTEGER NOT NULL, end_ns INTEGER,
    interval_ns INTEGER NOT NULL, cpu_s REAL, description TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS series (
    id INTEGER PRIMARY KEY, node TEXT NOT NULL, device TEXT NOT NULL, domain TEXT NOT NULL,
    source TEXT NOT NULL, UNIQUE (node, device, domain, source));
CREATE TABLE IF NOT EXISTS readings (
    tick_ns INTEGER NOT NULL, series_id INTEGER NOT NULL REFERENCES series, t_ns INTEGER NOT NULL,
    joules REAL NOT NULL, flags TEXT NOT NULL, PRIMARY KEY (tick_ns, series_id)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS ticks (
    tick_ns INTEGER NOT NULL, node TEXT NOT NULL, missed INTEGER NOT NULL, PRIMARY KEY (tick_ns, node)
    ) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS events (
    t_ns INTEGER NOT NULL, node TEXT NOT NULL, kind TEXT NOT NULL, message TEXT NOT NULL);
PRAGMA application_id = {_APPLICATION_ID};
PRAGMA user_version = {_VERSION};
COMMIT;
"""

_READING: Final = "SELECT r.tick_ns, r.t_ns, s.node, s.device, s.domain, s.source, r.joules, r.flags"
# One reading beyond the one that covers the edge tells the power there, and thereby the error.
_BEFORE: Final = """SELECT min(tick_ns) FROM (SELECT tick_ns FROM readings
    WHERE series_id = ? AND tick_ns <= ? AND t_ns <= ? ORDER BY tick_ns DESC LIMIT 2)"""
_AFTER: Final = """SELECT max(tick_ns) FROM (SELECT tick_ns FROM readings
    WHERE series_id = ? AND tick_ns >= ? AND t_ns >= ? ORDER BY tick_ns LIMIT 2)"""


@dataclass(frozen=True, slots=True)
class Session:
    """One life of an agent."""

    id: int
    node: str
    start_ns: int
    """UTC ns."""
    end_ns: int | None
    """UTC ns; None when the agent runs or was killed."""
    interval_ns: int
    cpu_s: float | None
    """CPU time that the agent itself took, s; None when it was killed."""
    description: Mapping[str, object]
    """Sensors, what is missing, priority and host."""


class SqliteStore:
    """One store, open for reading or, by one process at a time, for writing."""

    def __init__(self, path: Path, connection: sqlite3.Connection, lock_fd: int | None) -> None:
        self.path = path
        self._db = connection
        self._lock_fd = lock_fd
        self._series: dict[tuple[str, str, str, str], int] = {}

    @classmethod
    def create(cls, path: Path) -> SqliteStore:
        """Open for writing, and make the file if there is none.

        Raises StoreError when another agent writes it, when it is not a store, or when it cannot be made.
        """
        lock_fd: int | None = None
        try:
            # The lock is on the file itself and is held through the store's life: closing any descriptor of
            # the file drops SQLite's own POSIX locks, so it goes last.
            lock_fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            fcntl.flock(lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            if lock_fd is not None:
                os.close(lock_fd)
            raise StoreError(f"{path}: another agent is writing it; stop that one, or name another store") from error
        except OSError as error:
            raise StoreError(f"{path}: cannot be opened for writing: {error.strerror}") from error
        connection: sqlite3.Connection | None = None
        try:
            connection = _connect(path, "rwc")
            _refuse_foreign(path, connection)
            connection.execute("PRAGMA journal_mode = WAL")
            # A killed process loses nothing that was committed; only a power cut may cost the last seconds.
            connection.execute("PRAGMA synchronous = NORMAL")
            connection.executescript(_SCHEMA)
        except (sqlite3.Error, StoreError) as error:
            if connection is not None:
                connection.close()
            os.close(lock_fd)
            raise _told(path, error) from error
        return cls(path, connection, lock_fd)

    @classmethod
    def open(cls, path: Path) -> SqliteStore:
        """Open for reading, while an agent writes or after it has gone.

        Raises StoreError when there is no store at `path`.
        """
        if not path.is_file():
            raise StoreError(f"{path}: there is no store here; expected the file that `energymon run --store` wrote")
        connection = _connect(path, "ro")
        try:
            _refuse_foreign(path, connection)
            connection.execute("SELECT 1 FROM readings LIMIT 1").fetchone()
        except (sqlite3.Error, StoreError) as error:
            connection.close()
            raise _told(path, error) from error
        return cls(path, connection, None)

    def append(self, readings: Iterable[Reading], ticks: Iterable[Tick] = (), events: Iterable[Event] = ()) -> None:
        """Commit a batch whole or not at all; what is there already stays, so a repeat is harmless.

        Raises StoreError, when the disk is full for one.
        """
        with self._transaction():
            rows = [(r.tick_ns, self._series_id(r), r.t_ns, r.joules, r.flags) for r in readings]
            self._db.executemany("INSERT OR IGNORE INTO readings VALUES (?, ?, ?, ?, ?)", rows)
            self._db.executemany(
                "INSERT OR IGNORE INTO ticks VALUES (?, ?, ?)",
                [(t.tick_ns, t.node, int(t.missed)) for t in ticks],
            )
            self._db.executemany(
                "INSERT INTO events VALUES (?, ?, ?, ?)",
                [(e.t_ns, e.node, e.kind, e.message) for e in events],
            )

    def begin_session(self, node: str, start_ns: int, interval_ns: int, description: Mapping[str, object]) -> int:
        """Record that an agent starts; return the session's id."""
        with self._transaction():
            row = self._db.execute(
                "INSERT INTO sessions (node, start_ns, interval_ns, description) VALUES (?, ?, ?, ?)",
                (node, start_ns, interval_ns, json.dumps(description)),
            )
            return int(row.lastrowid or 0)

    def end_session(self, session: int, end_ns: int, cpu_s: float) -> None:
        """Record that the agent ended in order, and what CPU time it took."""
        with self._transaction():
            self._db.execute("UPDATE sessions SET end_ns = ?, cpu_s = ? WHERE id = ?", (end_ns, cpu_s, session))

    def readings(self, start_ns: int, end_ns: int, node: str | None = None) -> list[Reading]:
        """Return what `window.joules` needs for [start, end], UTC ns, by series, then tick.

        That is the readings inside, and the nearest two of each series on either side.
        """
        found: list[Reading] = []
        with self._reading():
            for series, *_ in self._db.execute(
                "SELECT id FROM series WHERE ? IS NULL OR node = ? ORDER BY node, device, domain, source",
                (node, node),
            ).fetchall():
                (first,) = self._db.execute(_BEFORE, (series, start_ns, start_ns)).fetchone()
                (last,) = self._db.execute(_AFTER, (series, end_ns, end_ns)).fetchone()
                rows = self._db.execute(
                    f"{_READING} FROM readings r JOIN series s ON s.id = r.series_id"
                    " WHERE r.series_id = ? AND r.tick_ns BETWEEN ? AND ? ORDER BY r.tick_ns",
                    (series, start_ns if first is None else first, end_ns if last is None else last),
                )
                found.extend(Reading(*row) for row in rows)
        return found

    def ticks(self, start_ns: int, end_ns: int, node: str | None = None) -> list[Tick]:
        """Return the ticks recorded in [start, end), UTC ns, by time."""
        with self._reading():
            return [
                Tick(tick, name, bool(missed))
                for tick, name, missed in self._db.execute(
                    "SELECT tick_ns, node, missed FROM ticks WHERE tick_ns >= ? AND tick_ns < ?"
                    " AND (? IS NULL OR node = ?) ORDER BY tick_ns, node",
                    (start_ns, end_ns, node, node),
                )
            ]

    def events(self, start_ns: int = 0, end_ns: int = 2**63 - 1) -> list[Event]:
        """Return what was told in [start, end), UTC ns, by time."""
        with self._reading():
            return [
                Event(*row)
                for row in self._db.execute(
                    "SELECT t_ns, node, kind, message FROM events WHERE t_ns >= ? AND t_ns < ? ORDER BY t_ns, rowid",
                    (start_ns, end_ns),
                )
            ]

    def sessions(self) -> list[Session]:
        """Return the agents' lives in the order in which they began."""
        with self._reading():
            rows = self._db.execute(
                "SELECT id, node, start_ns, end_ns, interval_ns, cpu_s, description FROM sessions ORDER BY id"
            ).fetchall()
        return [
            Session(id_, node, start_ns, end_ns, interval_ns, cpu_s, json.loads(description))
            for id_, node, start_ns, end_ns, interval_ns, cpu_s, description in rows
        ]

    def close(self) -> None:
        """Close the file and let another agent have it; may be called twice."""
        self._db.close()
        if self._lock_fd is not None:
            os.close(self._lock_fd)
            self._lock_fd = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _series_id(self, reading: Reading) -> int:
        key = (reading.node, reading.device, reading.domain, reading.source)
        if key not in self._series:
            self._db.execute("INSERT OR IGNORE INTO series (node, device, domain, source) VALUES (?, ?, ?, ?)", key)
            row: Sequence[int] = self._db.execute(
                "SELECT id FROM series WHERE node = ? AND device = ? AND domain = ? AND source = ?", key
            ).fetchone()
            self._series[key] = row[0]
        return self._series[key]

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        try:
            self._db.execute("BEGIN IMMEDIATE")
            yield
            self._db.execute("COMMIT")
        except BaseException as error:
            # Ids handed out in a transaction that is undone are no ids.
            self._series.clear()
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
            if isinstance(error, sqlite3.Error):
                raise _told(self.path, error) from error
            raise

    @contextmanager
    def _reading(self) -> Iterator[None]:
        """See one state of the store throughout, whatever the agent commits meanwhile."""
        try:
            self._db.execute("BEGIN")
            try:
                yield
            finally:
                self._db.execute("ROLLBACK")
        except sqlite3.Error as error:
            raise _told(self.path, error) from error


def _connect(path: Path, mode: str) -> sqlite3.Connection:
    try:
        return sqlite3.connect(
            f"{path.resolve().as_uri()}?mode={mode}",
            uri=True,
            timeout=_BUSY_TIMEOUT_S,
            isolation_level=None,
            # Opened in the agent's main thread, used by its writer alone from then on.
            check_same_thread=False,
        )
    except sqlite3.Error as error:
        raise _told(path, error) from error


def _refuse_foreign(path: Path, connection: sqlite3.Connection) -> None:
    """Raise StoreError for a database of another program or of another version; an empty one is fine."""
    application = connection.execute("PRAGMA application_id").fetchone()[0]
    version = connection.execute("PRAGMA user_version").fetchone()[0]
    tables = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
    if tables and application != _APPLICATION_ID:
        raise StoreError(f"{path}: is a database of another program; name another store")
    if tables and version != _VERSION:
        raise StoreError(f"{path}: is a store of version {version}, expected {_VERSION}; name another store")


def _told(path: Path, error: sqlite3.Error | StoreError) -> StoreError:
    if isinstance(error, StoreError):
        return error
    text = str(error)
    if "full" in text:
        return StoreError(f"{path}: the disk is full ({text}); free some space there")
    if "not a database" in text or "malformed" in text:
        return StoreError(f"{path}: is not a store of energymon ({text}); name another file")
    if "no such table" in text:
        return StoreError(f"{path}: holds nothing yet; expected a store that `energymon run` began to write")
    if "locked" in text:
        return StoreError(f"{path}: another program has locked it ({text})")
    return StoreError(f"{path}: {text}")
