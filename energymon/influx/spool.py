"""The SQLite store as a spool: what has not been sent yet, in order, as lines, and the room that the rest may take."""

from __future__ import annotations

import fcntl
import json
import os
import sqlite3
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import Any, Final, NamedTuple, Self

from energymon.errors import StoreError
from energymon.influx.lineprotocol import (
    baseline_line,
    clock_line,
    counter_line,
    energy_prefix,
    epoch_line,
    event_line,
    reading_lines,
    session_line,
    tick_lines,
    ticks_prefix,
)
from energymon.influx.tuple_feed import TupleFeed
from energymon.reading import Baseline, ClockOffset, CounterStart, EpochMark, Event
from energymon.stores.base import Session
from energymon.stores.database import connect, store_error
from energymon.stores.sqlite import SqliteStore, columns

_BATCH_LINES: Final = 5_000
"""Some 750 kB; proxies refuse requests of more than 1 MB by default."""
_BATCH_SPANS: Final = 500
_OUTBOX_ROWS: Final = 2_000
_NEWS_ROWS: Final = 1_000
_NOTE: Final = "INSERT INTO sent VALUES (?, ?) ON CONFLICT DO UPDATE SET last = excluded.last"
_TRIM_ROWS: Final = 5_000
"""Readings deleted at a time, so that the agent's commits wait for milliseconds only."""
_TRIM_FROM: Final = 0.9
_TRIM_TO: Final = 0.8
"""Parts of the limit at which acknowledged readings begin and cease to be deleted."""
_WAL_BYTES: Final = 8_000_000
_NEWS: Final = {
    table: f"SELECT rowid, {columns(kind)} FROM {table} WHERE rowid > ? ORDER BY rowid LIMIT ?"  # noqa: S608
    for table, kind in (
        ("clocks", ClockOffset),
        ("baselines", Baseline),
        ("counters", CounterStart),
        ("epochs", EpochMark),
        ("events", Event),
    )
}

Statement = tuple[str, Sequence[object]]
_Row = Sequence[Any]


class BusyError(StoreError):
    """Another sender empties the store."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Lines to be sent, and the statements that note it in the store once they have been."""

    lines: list[str]
    notes: tuple[Statement, ...]
    resume: tuple[int, int] | None = None
    """Where the readings of the next batch begin: the outbox row and the tick, UTC ns."""
    tuples: tuple[str, int] | None = None
    """Up to which tick, UTC ns, the tuples of a session go, by its name in the table `sent`."""


class _Span(NamedTuple):
    """Ticks of one session that commits following each other have touched."""

    first_id: int
    last_id: int
    session_id: int
    first_ns: int
    last_ns: int


class Spool:
    """An agent's store, open for the one sender that empties it, while the agent writes or after it has gone."""

    def __init__(self, path: Path) -> None:
        """Open the store; raises StoreError when there is none, BusyError when another sender empties it."""
        SqliteStore.open(path).close()
        self.path = path
        real = path.resolve()
        self._lock_path = real.with_name(f"{real.name}-sender")
        self._lock_fd: int | None = _lock(self._lock_path)
        try:
            self._db = connect(path, "rw")
            self._db.execute(f"PRAGMA journal_size_limit = {_WAL_BYTES}")
            self._db.execute("PRAGMA synchronous = NORMAL")
            self._feed = TupleFeed(path)
        except (sqlite3.Error, StoreError) as error:
            self._unlock()
            raise store_error(path, error) from error
        self._resume = (0, 0)
        self._prefixes: dict[tuple[int, int], str] = {}

    def next_batch(self, *, last: bool = False, after: Batch | None = None) -> Batch | None:
        """Return what comes next, the same until it is acknowledged, or None when all has been sent.

        With `last` no agent writes the store any more: tuples do not wait for readings that follow. `after` is a batch
        on its way: the result is what comes next once it is acknowledged, or None where that is not known yet.
        """
        if after is not None and after.resume is None and after.tuples is None:
            return None
        with self._naming():
            # Tuples first: readings that the server has may be deleted.
            return self._news_batch() or self._tuples_batch(after, last=last) or self._ticks_batch(after)

    def acknowledge(self, batch: Batch) -> None:
        """Note that the server has the batch; raises StoreError when the store cannot be written."""
        with self._transaction():
            for statement, values in batch.notes:
                self._db.execute(statement, values)
        self._resume = batch.resume or self._resume

    def set_aside(self, lines: Iterable[str], reason: str) -> None:
        """Keep lines that the server will never take in the table `rejected`."""
        with self._transaction():
            self._db.executemany(
                "INSERT INTO rejected (t_ns, line, reason) VALUES (?, ?, ?)",
                [(time.time_ns(), line, reason) for line in lines],
            )

    def unsent(self) -> int:
        """Return how many readings have not been acknowledged."""
        with self._naming():
            return int(self._db.execute("SELECT coalesce(sum(readings), 0) FROM outbox").fetchone()[0])

    def used_bytes(self) -> int:
        """Return what the store's content takes on disk."""
        with self._naming():
            pages, free, size = (
                self._db.execute(f"PRAGMA {name}").fetchone()[0]
                for name in ("page_count", "freelist_count", "page_size")
            )
        return int((pages - free) * size)

    def trim(self, limit_bytes: int) -> bool:
        """Delete acknowledged readings, oldest first, when the store nears its limit; return whether it is below.

        The room is used again by what comes, so the file grows no further. Readings that were never queued for a
        server, or not acknowledged by it, stay.
        """
        if self.used_bytes() < limit_bytes * _TRIM_FROM:
            return True
        while self.used_bytes() > limit_bytes * _TRIM_TO:
            if not self._delete_some():
                break
        return self.used_bytes() < limit_bytes

    def close(self) -> None:
        """Let another sender have the spool; may be called twice."""
        self._feed.close()
        self._db.close()
        self._unlock()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _news_batch(self) -> Batch | None:
        """Return sessions, clocks, baselines and events that have not been sent."""
        lines: list[str] = []
        notes: list[Statement] = []
        for number, ended, *session, description in self._db.execute(
            "SELECT id, end_ns IS NOT NULL, name, node, start_ns, end_ns, interval_ns, cpu_s, description FROM sessions"
            " WHERE sent < 1 + (end_ns IS NOT NULL) ORDER BY id LIMIT ?",
            (_NEWS_ROWS,),
        ).fetchall():
            lines.append(session_line(Session(*(*session, json.loads(description)))))
            notes.append(("UPDATE sessions SET sent = max(sent, ?) WHERE id = ?", (1 + ended, number)))
        last = dict(self._db.execute("SELECT kind, last FROM sent"))
        news = {k: self._db.execute(query, (last.get(k, 0), _NEWS_ROWS)).fetchall() for k, query in _NEWS.items()}
        for kind, rows in news.items():
            if rows:
                notes.append((_NOTE, (kind, rows[-1][0])))
        lines += [clock_line(ClockOffset(*row)) for _, *row in news["clocks"]]
        lines += [baseline_line(Baseline(*row)) for _, *row in news["baselines"]]
        lines += [counter_line(CounterStart(*row)) for _, *row in news["counters"]]
        lines += [epoch_line(EpochMark(*row)) for _, *row in news["epochs"]]
        lines += self._event_lines(news["events"])
        return Batch(lines, tuple(notes)) if notes else None

    def _tuples_batch(self, after: Batch | None, *, last: bool) -> Batch | None:
        """Return the energy tuples that are final."""
        sent = after.tuples if after else None
        while (found := self._feed.next(self._db, last=last, sent=sent)) is not None:
            note = (_NOTE, (found.kind, found.until_ns))
            if found.lines:
                return Batch(found.lines, (note,), tuples=(found.kind, found.until_ns))
            if sent is not None:
                return None
            with self._transaction():
                self._db.execute(*note)
        return None

    def _event_lines(self, rows: Sequence[_Row]) -> list[str]:
        if not rows:
            return []
        events = [Event(*row) for _, *row in rows]
        # Events of one nanosecond differ in their count, which must come out the same when sent again.
        first = min(event.t_ns for event in events)
        earlier = "SELECT t_ns, node FROM events WHERE t_ns >= ? AND rowid < ?"
        seen = Counter(self._db.execute(earlier, (first, rows[0][0])).fetchall())
        lines: list[str] = []
        for event in events:
            key = (event.t_ns, event.node)
            lines.append(event_line(event, seen[key]))
            seen[key] += 1
        return lines

    def _ticks_batch(self, after: Batch | None) -> Batch | None:
        """Return readings and ticks of the oldest commits that are still in the outbox."""
        lines: list[str] = []
        notes: list[Statement] = []
        resume = after.resume if after and after.resume else self._resume
        for span in self._spans(resume[0]):
            first_ns, whole = span.first_ns, True
            if span.first_id == resume[0]:
                first_ns = max(first_ns, resume[1])
            name, node = self._db.execute("SELECT name, node FROM sessions WHERE id = ?", (span.session_id,)).fetchone()
            last_ns = span.last_ns
            runs = self._db.execute(
                "SELECT first_ns, min(last_ns, ?) + 1, max(interval_ns, 1), missed FROM ticks"
                " WHERE last_ns >= ? AND first_ns <= ? AND node = ? ORDER BY first_ns",
                (last_ns, first_ns, last_ns, node),
            )
            each = (
                (at_ns, missed)
                for first, stop, step, missed in runs
                for at_ns in range(first, stop, step)[max(0, -((first - first_ns) // step)) :]
            )
            ticks = list(islice(each, _BATCH_LINES))
            rows = self._db.execute(
                "SELECT tick_ns, series_id, t_ns, joules, flags, early_ns, late_ns FROM readings"
                " WHERE tick_ns BETWEEN ? AND ? AND series_id IN (SELECT id FROM series WHERE node = ?)"
                " ORDER BY tick_ns, series_id LIMIT ?",
                (first_ns, last_ns, node, _BATCH_LINES),
            ).fetchall()
            for found in (ticks, rows):
                if len(found) == _BATCH_LINES and found[0][0] < found[-1][0]:
                    # There are more than were asked for; the last tick may be cut, and comes with the next batch.
                    last_ns, whole = min(last_ns, found[-1][0] - 1), False
            if not whole:
                ticks = [row for row in ticks if row[0] <= last_ns]
                rows = [row for row in rows if row[0] <= last_ns]
            lines += reading_lines(rows, self._series_prefixes(span.session_id, name, node))
            lines += tick_lines(ticks, ticks_prefix(node, name))
            notes.append(
                (
                    "INSERT INTO acknowledged VALUES (?, ?, ?) ON CONFLICT DO UPDATE SET"
                    " first_tick_ns = min(first_tick_ns, excluded.first_tick_ns),"
                    " last_tick_ns = max(last_tick_ns, excluded.last_tick_ns)",
                    (span.session_id, first_ns, last_ns),
                )
            )
            if not whole:
                # The commits of this span stay in the outbox until its last tick is through.
                return Batch(lines, tuple(notes), resume=(span.first_id, last_ns + 1))
            notes.append(("DELETE FROM outbox WHERE id BETWEEN ? AND ?", (span.first_id, span.last_id)))
            resume = (span.last_id + 1, 0)
        return Batch(lines, tuple(notes), resume) if notes else None

    def _spans(self, first_id: int) -> list[_Span]:
        """Return what the oldest commits from a row on touched, those that follow each other on the grid as one."""
        spans: list[_Span] = []
        expected = 0
        for number, session_id, first_ns, last_ns, readings, interval_ns in self._db.execute(
            "SELECT o.id, o.session_id, o.first_tick_ns, o.last_tick_ns, o.readings, s.interval_ns"
            " FROM outbox o JOIN sessions s ON s.id = o.session_id WHERE o.id >= ? ORDER BY o.id LIMIT ?",
            (first_id, _OUTBOX_ROWS),
        ):
            ticks = (last_ns - first_ns) // interval_ns + 1
            expected += max(readings, 1) + ticks
            if spans and (expected > _BATCH_LINES or len(spans) == _BATCH_SPANS):
                break
            last = spans[-1] if spans else None
            if last and last.session_id == session_id and 0 < first_ns - last.last_ns <= interval_ns:
                spans[-1] = last._replace(last_id=number, last_ns=last_ns)
            else:
                spans.append(_Span(number, number, session_id, first_ns, last_ns))
        return spans

    def _series_prefixes(self, session_id: int, session: str, node: str) -> dict[int, str]:
        found: dict[int, str] = {}
        for number, device, domain, source in self._db.execute(
            "SELECT id, device, domain, source FROM series WHERE node = ?", (node,)
        ):
            key = (session_id, number)
            if key not in self._prefixes:
                self._prefixes[key] = energy_prefix(node, device, domain, source, session)
            found[number] = self._prefixes[key]
        return found

    def _delete_some(self) -> bool:
        """Delete the oldest acknowledged readings, a few thousand; return whether there were any."""
        with self._transaction():
            (unsent_ns,) = self._db.execute("SELECT min(first_tick_ns) FROM outbox").fetchone()
            for session_id, first_ns, last_ns, node in self._db.execute(
                "SELECT a.session_id, a.first_tick_ns, a.last_tick_ns, s.node FROM acknowledged a"
                " JOIN sessions s ON s.id = a.session_id ORDER BY a.first_tick_ns"
            ).fetchall():
                until_ns = last_ns if unsent_ns is None else min(last_ns, unsent_ns - 1)
                if until_ns < first_ns:
                    continue
                cut = self._db.execute(
                    "SELECT tick_ns FROM readings WHERE tick_ns BETWEEN ? AND ? ORDER BY tick_ns LIMIT 1 OFFSET ?",
                    (first_ns, until_ns, _TRIM_ROWS),
                ).fetchone()
                cut_ns = until_ns if cut is None else cut[0]
                self._db.execute(
                    "DELETE FROM readings WHERE tick_ns BETWEEN ? AND ?"
                    " AND series_id IN (SELECT id FROM series WHERE node = ?)",
                    (first_ns, cut_ns, node),
                )
                self._db.execute(
                    "UPDATE ticks SET first_ns = first_ns + ((? - first_ns) / interval_ns + 1) * interval_ns"
                    " WHERE first_ns BETWEEN ? AND ? AND last_ns > ? AND node = ?",
                    (cut_ns, first_ns, cut_ns, cut_ns, node),
                )
                self._db.execute(
                    "DELETE FROM ticks WHERE first_ns >= ? AND last_ns <= ? AND node = ?", (first_ns, cut_ns, node)
                )
                self._db.execute(
                    "UPDATE acknowledged SET first_tick_ns = ? WHERE session_id = ?", (cut_ns + 1, session_id)
                )
                self._db.execute("DELETE FROM acknowledged WHERE first_tick_ns > last_tick_ns")
                return True
        return False

    def _unlock(self) -> None:
        if self._lock_fd is not None:
            # Removed while it is held; a sender that waits for this very file finds it gone and makes another.
            self._lock_path.unlink(missing_ok=True)
            os.close(self._lock_fd)
            self._lock_fd = None

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        with self._naming():
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield
                self._db.execute("COMMIT")
            except BaseException:
                with suppress(sqlite3.Error):
                    self._db.execute("ROLLBACK")
                raise

    @contextmanager
    def _naming(self) -> Iterator[None]:
        """Name the store in what SQLite has to say."""
        try:
            yield
        except sqlite3.Error as error:
            raise store_error(self.path, error) from error


def _lock(path: Path) -> int:
    """Return a descriptor that holds the lock of the sender of a store.

    A file of its own: closing a descriptor of the store would drop SQLite's locks on it in the whole process.
    """
    while True:
        try:
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise StoreError(f"{path}: cannot be made: {error.strerror}; a sender writes where the store is") from error
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(os.fstat(fd), path.stat()):
                return fd
        except BlockingIOError as error:
            os.close(fd)
            raise BusyError(
                f"{path}: another sender is emptying this store; let that one finish, or stop the agent that runs it"
            ) from error
        except FileNotFoundError:
            pass
        os.close(fd)
