"""The database of a store: its tables, and how it is opened by the agent that writes it and by those who read it."""

from __future__ import annotations

import fcntl
import os
import sqlite3
import stat
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from typing import Final

from energymon.errors import StoreError

_APPLICATION_ID: Final = 0x4A4F_554C  # "JOUL"
_VERSION: Final = 5
_BUSY_TIMEOUT_S: Final = 5.0

# Keyed by tick first, so that all readings of a tick land on one page of the tree and one of the log.
_SCHEMA: Final = f"""
BEGIN IMMEDIATE;
CREATE TABLE IF NOT EXISTS sessions (
    id INTEGER PRIMARY KEY, name TEXT NOT NULL, node TEXT NOT NULL, start_ns INTEGER NOT NULL, end_ns INTEGER,
    interval_ns INTEGER NOT NULL, cpu_s REAL, description TEXT NOT NULL,
    UNIQUE (node, name));
CREATE TABLE IF NOT EXISTS series (
    id INTEGER PRIMARY KEY, node TEXT NOT NULL, device TEXT NOT NULL, domain TEXT NOT NULL,
    source TEXT NOT NULL, UNIQUE (node, device, domain, source));
CREATE TABLE IF NOT EXISTS readings (
    tick_ns INTEGER NOT NULL, series_id INTEGER NOT NULL REFERENCES series, t_ns INTEGER NOT NULL,
    joules REAL NOT NULL, flags TEXT NOT NULL, early_ns INTEGER, late_ns INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (tick_ns, series_id)) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS flagged ON readings (series_id, tick_ns) WHERE flags <> '';
CREATE TABLE IF NOT EXISTS ticks (
    node TEXT NOT NULL, first_ns INTEGER NOT NULL, last_ns INTEGER NOT NULL, interval_ns INTEGER NOT NULL,
    missed INTEGER NOT NULL, PRIMARY KEY (node, first_ns)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS events (
    t_ns INTEGER NOT NULL, node TEXT NOT NULL, kind TEXT NOT NULL, message TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS clocks (
    t_ns INTEGER NOT NULL, node TEXT NOT NULL, peer TEXT NOT NULL, offset_ns INTEGER NOT NULL,
    error_ns INTEGER NOT NULL, PRIMARY KEY (t_ns, node, peer));
CREATE TABLE IF NOT EXISTS baselines (
    node TEXT NOT NULL, device TEXT NOT NULL, domain TEXT NOT NULL, source TEXT NOT NULL, start_ns INTEGER NOT NULL,
    end_ns INTEGER NOT NULL, watts REAL NOT NULL, error_w REAL,
    PRIMARY KEY (node, device, domain, source, start_ns));
CREATE TABLE IF NOT EXISTS counters (
    node TEXT NOT NULL, device TEXT NOT NULL, domain TEXT NOT NULL, source TEXT NOT NULL, tick_ns INTEGER NOT NULL,
    t_ns INTEGER NOT NULL, boot_ns INTEGER NOT NULL, boot_id TEXT NOT NULL, joules REAL NOT NULL, raw INTEGER NOT NULL,
    unit_j REAL NOT NULL, wrap INTEGER, max_w REAL NOT NULL, counter TEXT NOT NULL,
    PRIMARY KEY (node, device, domain, source, tick_ns));
CREATE TABLE IF NOT EXISTS epochs (
    node TEXT NOT NULL, run TEXT NOT NULL, cell TEXT NOT NULL, loader TEXT NOT NULL, epoch INTEGER NOT NULL,
    start_ns INTEGER NOT NULL, end_ns INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS late (
    tick_ns INTEGER NOT NULL, series_id INTEGER NOT NULL, PRIMARY KEY (tick_ns, series_id)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS sent (kind TEXT PRIMARY KEY, last INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS rejected (
    id INTEGER PRIMARY KEY, t_ns INTEGER NOT NULL, line TEXT NOT NULL, reason TEXT NOT NULL);
PRAGMA application_id = {_APPLICATION_ID};
PRAGMA user_version = {_VERSION};
COMMIT;
"""

_MEANINGS: Final = {
    "full": "the disk is full ({text}); free some space there",
    "malformed": "is damaged ({text}); `sqlite3 {path} .recover` saves what can still be read",
    "not a database": "is not a store of energymon ({text}); name another file",
    "no such table": "holds nothing yet; expected a store that `energymon run` began to write",
    "unable to open": "cannot be opened ({text}); may this user read it? `run --group` lets a group read its store",
    "locked": "another program has locked it ({text})",
}
"""What SQLite says, and what that means for a store."""


def open_for_writing(path: Path, group: int | None = None) -> tuple[sqlite3.Connection, int]:
    """Open a store, made if there is none; return the connection and a descriptor that locks the file.

    With the id of a group, only the owner and the group may read the store, a new one from its begin. Raises StoreError
    when another agent writes it, when it is not a store, or when it cannot be made or given to the group.
    """
    _refuse_foreign_log(path)
    with ExitStack() as opened:
        try:
            # The lock is on the file itself and is held through the store's life: closing any descriptor of
            # the file drops SQLite's own POSIX locks, so it goes last.
            lock_fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644 if group is None else 0o600)
            opened.callback(os.close, lock_fd)
            if not stat.S_ISREG(os.fstat(lock_fd).st_mode):
                raise StoreError(f"{path}: is no regular file; name another store")
            fcntl.flock(lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise StoreError(f"{path}: another agent is writing it; stop that one, or name another store") from error
        except OSError as error:
            raise StoreError(f"{path}: cannot be opened for writing: {error.strerror}") from error
        connection = opened.enter_context(closing(connect(path, "rwc")))
        try:
            _refuse_foreign(path, connection)
            connection.execute("PRAGMA journal_mode = WAL")
            # A killed process loses nothing that was committed; only a power cut may cost the last seconds.
            connection.execute("PRAGMA synchronous = NORMAL")
            connection.executescript(_SCHEMA)
        except sqlite3.Error as error:
            raise store_error(path, error) from error
        if group is not None:
            _give(path, lock_fd, group)
        opened.pop_all()
    return connection, lock_fd


def _give(path: Path, fd: int, group: int) -> None:
    """Let a group read an open store and the files that SQLite has beside it; raises StoreError."""
    real = path.resolve()
    beside = (real.with_name(real.name + end) for end in ("-wal", "-shm"))
    files: list[int | Path] = [fd, *(file for file in beside if file.exists())]
    try:
        for file in files:
            os.chown(file, -1, group)
            os.chmod(file, 0o640)  # noqa: PTH101 - a descriptor cannot be replaced by another file
    except OSError as error:
        raise StoreError(f"{path}: cannot be given to the group {group}: {error.strerror}") from error


def _refuse_foreign_log(path: Path) -> None:
    """Raise StoreError where a new store would take the log of another one, which was moved or removed, for its own."""
    real = path.resolve()
    log = real.with_name(f"{real.name}-wal")
    if not (real.exists() and real.stat().st_size) and log.exists() and log.stat().st_size:
        raise StoreError(
            f"{log}: is the log of a store that was moved or removed, and has readings that this lacks; stop its "
            "agent, rename the log to the name of that store and -wal, or remove it"
        )


def open_for_reading(path: Path) -> sqlite3.Connection:
    """Open a store that is there; raises StoreError when it is not."""
    if not path.is_file():
        raise StoreError(f"{path}: there is no store here; expected the file that `energymon run --store` wrote")
    # A store that was closed in order has no log; opening it makes one, which not everybody may, and not every disk
    # has room for.
    real = path.resolve()
    log = real.with_name(f"{real.name}-wal")
    closed = not log.exists() or not log.stat().st_size
    immutable = closed and not os.access(real.parent, os.W_OK, effective_ids=os.access in os.supports_effective_ids)
    while True:
        connection = connect(path, "ro", immutable=immutable)
        try:
            _refuse_foreign(path, connection)
            connection.execute("SELECT 1 FROM readings LIMIT 1").fetchone()
        except StoreError:
            connection.close()
            raise
        except sqlite3.Error as error:
            connection.close()
            if immutable or not closed or error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_IOERR:
                raise store_error(path, error) from error
            immutable = True
        else:
            return connection


def connect(path: Path, mode: str, *, immutable: bool = False) -> sqlite3.Connection:
    """Open a store's database in one of SQLite's modes; raises StoreError."""
    try:
        return sqlite3.connect(
            f"{path.resolve().as_uri()}?mode={mode}{'&immutable=1' if immutable else ''}",
            uri=True,
            timeout=_BUSY_TIMEOUT_S,
            isolation_level=None,
            # Opened in the agent's main thread, used by its writer alone from then on.
            check_same_thread=False,
        )
    except sqlite3.Error as error:
        raise store_error(path, error) from error


def _refuse_foreign(path: Path, connection: sqlite3.Connection) -> None:
    """Raise StoreError for a database of another program or of another version; an empty one is fine."""
    application = connection.execute("PRAGMA application_id").fetchone()[0]
    version = connection.execute("PRAGMA user_version").fetchone()[0]
    tables = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
    if tables and application != _APPLICATION_ID:
        raise StoreError(f"{path}: is a database of another program; name another store")
    if tables and version != _VERSION:
        raise StoreError(f"{path}: is a store of version {version}, expected {_VERSION}; name another store")


@contextmanager
def transaction(path: Path, connection: sqlite3.Connection, begin: str = "BEGIN IMMEDIATE") -> Iterator[None]:
    """Commit the changes of the context, or undo it where it raises; raises StoreError for what SQLite raises."""
    try:
        connection.execute(begin)
        yield
        connection.execute("COMMIT")
    except BaseException as error:
        if connection.in_transaction:
            with suppress(sqlite3.Error):
                connection.execute("ROLLBACK")
        if isinstance(error, sqlite3.Error):
            raise store_error(path, error) from error
        raise


def store_error(path: Path, error: sqlite3.Error) -> StoreError:
    """Return what went wrong with a store in words that say what to do."""
    text = str(error)
    meaning = next((meaning for words, meaning in _MEANINGS.items() if words in text), "{text}")
    return StoreError(f"{path}: {meaning.format(text=text, path=path)}")
