"""What of a store the server does not have yet, in order, as lines; and the room that the rest may take.

The table `sent` has, by kind, up to which row or tick the server has acknowledged. Readings and energy tuples are sent
by tick. The table `late` has readings that were stored after later ticks of their node.
"""

from __future__ import annotations

import socket
import sqlite3
import time
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from itertools import groupby, islice
from pathlib import Path
from typing import Any, Final, TypeVar

from energymon.analysis.attribution import channels_of
from energymon.analysis.restarts import bridged
from energymon.analysis.tuples import tuples
from energymon.clock.monotonic import LAST_NS, NS, tick_at
from energymon.database import connect, store_error, transaction
from energymon.errors import StoreError
from energymon.influx import lineprotocol as lines_of
from energymon.reading import LAG_S, WHOLES, EpochMark, Event, Session
from energymon.store import OF_NODE, PATIENCE_NS, SqliteStore, columns, delete_oldest
from joulefeed.closing import Closing

_BATCH_LINES: Final = 4_000
"""With the tuples some 900 kB; proxies refuse requests of more than 1 MB by default."""
_BATCH_TUPLES: Final = 1_300
_NEWS_ROWS: Final = 1_000
_TRIM_ROWS: Final = 5_000
"""Readings deleted at a time, so that the agent's commits wait for milliseconds only."""
_TRIM_FROM: Final = 0.9
_TRIM_TO: Final = 0.8
"""Parts of the limit at which acknowledged readings begin and cease to be deleted."""
_WAL_BYTES: Final = 8_000_000
_READINGS: Final = f"""SELECT tick_ns, series_id, t_ns, joules, flags, early_ns, late_ns FROM readings
    WHERE tick_ns > ? AND {OF_NODE} ORDER BY tick_ns, series_id LIMIT ?"""  # noqa: S608
_LATE: Final = f"""SELECT r.tick_ns, r.series_id, r.t_ns, r.joules, r.flags, r.early_ns, r.late_ns
    FROM late JOIN readings r USING (tick_ns, series_id) WHERE r.{OF_NODE} LIMIT ?"""  # noqa: S608
_TICKS: Final = """SELECT first_ns, last_ns, max(interval_ns, 1), missed FROM ticks WHERE node = ? AND last_ns > ?
    ORDER BY first_ns"""
_LATEST: Final = """SELECT (SELECT tick_ns FROM readings WHERE series_id = s.id AND tick_ns BETWEEN ? AND ?
    ORDER BY tick_ns DESC LIMIT 1) FROM series s WHERE s.node = ?"""

_Row = TypeVar("_Row", bound=tuple[Any, ...])


class BusyError(StoreError):
    """Another sender empties the store."""


@dataclass(frozen=True, slots=True)
class LineBatch:
    """Lines to be sent, and what the store notes once the server has them."""

    lines: list[str]
    sent: dict[str, int]
    """The last row or tick (UTC ns) of each kind that the server has then, by kind."""
    late: list[tuple[int, int]]
    """Tick and series of late readings among the lines."""


class StoreCursor(Closing):
    """An agent's store, open for the one sender that empties it, while the agent writes or after it has gone."""

    def __init__(self, path: Path) -> None:
        """Open the store; raises StoreError when there is none, BusyError when another sender empties it."""
        self.path = path
        with ExitStack() as opened:
            self._store = opened.enter_context(SqliteStore.open(path))
            opened.enter_context(_lock(path))
            self._db = opened.enter_context(closing(connect(path, "rw")))
            try:
                self._db.execute(f"PRAGMA journal_size_limit = {_WAL_BYTES}")
                self._db.execute("PRAGMA synchronous = NORMAL")
                # From now on the agent notes late readings.
                self._db.execute("INSERT OR IGNORE INTO sent VALUES ('opened', 0)")
                self._sent: dict[str, int] = dict(self._db.execute("SELECT kind, last FROM sent"))
            except sqlite3.Error as error:
                raise store_error(path, error) from error
            self._opened = opened.pop_all()

    def next_batch(self, *, last: bool = False, after: LineBatch | None = None) -> LineBatch | None:
        """Return what comes next, the same until it is acknowledged, or None when all has been sent.

        With `last` no agent writes the store any more: tuples do not wait for readings that follow. `after` is a batch
        on its way: the result is what comes next once it is acknowledged.
        """
        sent = self._sent if after is None else after.sent
        batch = LineBatch([], dict(sent), [])
        with self._reading():
            # Read after the snapshot began, so that no tick in it is of a session that is not known.
            sessions = self._store.sessions()
            self._add_sessions(batch, sessions)
            self._add_news(batch)
            for node in dict.fromkeys(session.node for session in sessions):
                own = [session for session in sessions if session.node == node]
                self._add_tuples(batch, node, own, last=last)
                self._add_readings(batch, node, own)
                if after is None:
                    self._add_late(batch, node, own)
        return batch if batch.late or batch.sent != sent else None

    def acknowledge(self, batch: LineBatch) -> None:
        """Note that the server has the batch; raises StoreError when the store cannot be written."""
        with transaction(self.path, self._db):
            self._db.executemany(
                "INSERT INTO sent VALUES (?, ?) ON CONFLICT DO UPDATE SET last = excluded.last", batch.sent.items()
            )
            self._db.executemany("DELETE FROM late WHERE tick_ns = ? AND series_id = ?", batch.late)
        self._sent = batch.sent

    def set_aside(self, lines: Iterable[str], reason: str) -> None:
        """Keep lines that the server will never take in the table `rejected`."""
        rows = [(time.time_ns(), line, reason) for line in lines]
        with transaction(self.path, self._db):
            self._db.executemany("INSERT INTO rejected (t_ns, line, reason) VALUES (?, ?, ?)", rows)

    def unsent(self) -> int:
        """Return how many readings have not been acknowledged."""
        count = f"SELECT count(*) FROM readings WHERE tick_ns > ? AND {OF_NODE}"  # noqa: S608
        with self._reading():
            (found,) = self._db.execute("SELECT count(*) FROM late").fetchone()
            for (node,) in self._db.execute("SELECT DISTINCT node FROM series").fetchall():
                found += self._db.execute(count, (self._sent.get(f"readings {node}", -1), node)).fetchone()[0]
        return int(found)

    def trim(self, limit_bytes: int) -> bool:
        """Delete acknowledged readings, oldest first, when the store nears its limit; return whether it is below."""
        used = self._store.used_bytes
        some = used() >= limit_bytes * _TRIM_FROM
        while some and used() > limit_bytes * _TRIM_TO:
            with transaction(self.path, self._db):
                some = delete_oldest(self._db, LAST_NS, _TRIM_ROWS)
        return used() < limit_bytes

    def close(self) -> None:
        """Let another sender have the store; may be called twice."""
        self._opened.close()

    def _add_sessions(self, batch: LineBatch, sessions: Sequence[Session]) -> None:
        """Add sessions that began, and those that ended since."""
        for number, session in enumerate(sessions, 1):
            kinds = ["sessions"] if session.end_ns is None else ["sessions", "ends"]
            new = {kind: number for kind in kinds if number > batch.sent.get(kind, 0)}
            batch.sent.update(new)
            if new:
                batch.lines.append(lines_of.session_line(session))

    def _add_news(self, batch: LineBatch) -> None:
        """Add epochs and events."""
        batch.lines.extend(map(lines_of.epoch_line, self._records(batch, "epochs", EpochMark)))
        rowid = batch.sent.get("events", 0)
        if events := self._records(batch, "events", Event):
            # Events of one nanosecond differ in their count, which must come out the same when sent again.
            first_ns = min(event.t_ns for event in events)
            earlier = "SELECT t_ns, node FROM events WHERE t_ns >= ? AND rowid <= ?"
            seen = Counter(self._db.execute(earlier, (first_ns, rowid)).fetchall())
            for event in events:
                batch.lines.append(lines_of.event_line(event, seen[event.t_ns, event.node]))
                seen[event.t_ns, event.node] += 1

    def _records(self, batch: LineBatch, table: str, kind: type[Any]) -> list[Any]:
        """Return the next records of a table."""
        rows = self._db.execute(
            f"SELECT rowid, {columns(kind)} FROM {table} WHERE rowid > ? ORDER BY rowid LIMIT ?",  # noqa: S608
            (batch.sent.get(table, 0), _NEWS_ROWS),
        ).fetchall()
        if rows:
            batch.sent[table] = rows[-1][0]
        return [kind(*row) for _, *row in rows]

    def _add_tuples(self, batch: LineBatch, node: str, sessions: Sequence[Session], *, last: bool) -> None:
        """Add a node's energy tuples, each once the next reading of each series, and its lag, are there."""
        kind = f"tuples {node}"
        sent_ns = batch.sent.get(kind)
        for session, after in zip(sessions, [*sessions[1:], None], strict=True):
            next_ns = LAST_NS if after is None else after.start_ns
            if sent_ns is not None and sent_ns >= next_ns:
                continue
            first_ns, last_ns = self._db.execute(
                "SELECT min(first_ns), max(last_ns) FROM ticks WHERE node = ? AND first_ns >= ? AND first_ns < ?",
                (node, session.start_ns, next_ns),
            ).fetchone()
            if first_ns is None:
                continue
            # The counters have the joules between two agents: one goes on where the tuples of the one before it end.
            begin_ns = first_ns if sent_ns is None or first_ns - sent_ns > PATIENCE_NS else sent_ns
            start_ns = tick_at(begin_ns, session.interval_ns)
            over = last or session.end_ns is not None or after is not None
            settle_ns = _settle_ns(session)
            found = self._db.execute(_LATEST, (last_ns - PATIENCE_NS, last_ns, node)).fetchall()
            latest = [t_ns for (t_ns,) in found if t_ns is not None] or [0]
            # At the end of a session, a sensor that was lost before it is not waited for.
            edge = max if over and max(latest) - min(latest) > NS else min
            until_ns = tick_at(edge(latest) - (0 if over else settle_ns), session.interval_ns)
            until_ns = min(until_ns, start_ns + _BATCH_TUPLES * session.interval_ns)
            if until_ns > start_ns:
                stored = self._store.readings(start_ns - settle_ns, until_ns + settle_ns, node)
                readings = bridged(stored, self._store.counters(node), sessions)
                expected = {node: channels_of(session.description, node).devices}
                run = lines_of.run_of(session)
                each = tuples(readings, start_ns, until_ns, session.interval_ns, expected)
                batch.lines.extend(lines_of.tuple_line(one, run) for one in each)
                batch.sent[kind] = until_ns
                return

    def _add_readings(self, batch: LineBatch, node: str, sessions: Sequence[Session]) -> None:
        """Add a node's next readings and ticks."""
        kind = f"readings {node}"
        sent_ns = batch.sent.get(kind, -1)
        rows = self._db.execute(_READINGS, (sent_ns, node, _BATCH_LINES)).fetchall()
        every = (
            (tick_ns, missed)
            for first_ns, last_ns, step_ns, missed in self._db.execute(_TICKS, (node, sent_ns))
            for tick_ns in range(first_ns, last_ns + 1, step_ns)[max(0, (sent_ns - first_ns) // step_ns + 1) :]
        )
        ticks = list(islice(every, _BATCH_LINES))
        if not rows and not ticks:
            return
        until_ns = max(found[-1][0] for found in (rows, ticks) if found)
        for found in (rows, ticks):
            if len(found) == _BATCH_LINES:
                # There may be more; the last tick may be cut, and comes with the next batch.
                until_ns = min(until_ns, found[-1][0] - 1)
        batch.sent[kind] = until_ns
        self._add_lines(batch, node, sessions, (row for row in rows if row[0] <= until_ns))
        for session, some in _by_session(sessions, (tick for tick in ticks if tick[0] <= until_ns)):
            batch.lines.extend(lines_of.tick_lines(some, node, session.name))

    def _add_late(self, batch: LineBatch, node: str, sessions: Sequence[Session]) -> None:
        """Add readings that were stored after later ticks of the node."""
        rows = self._db.execute(_LATE, (node, _BATCH_LINES)).fetchall()
        batch.late.extend((row[0], row[1]) for row in rows)
        self._add_lines(batch, node, sessions, rows)

    def _add_lines(
        self, batch: LineBatch, node: str, sessions: Sequence[Session], rows: Iterable[lines_of.RawReading]
    ) -> None:
        """Add the lines of readings, each with the session that it is from."""
        series = self._db.execute("SELECT id, device, domain, source FROM series WHERE node = ?", (node,)).fetchall()
        for session, some in _by_session(sessions, rows):
            prefixes = {key: lines_of.energy_prefix(session.name, node, *names) for key, *names in series}
            batch.lines.extend(lines_of.reading_lines(some, prefixes))

    @contextmanager
    def _reading(self) -> Iterator[None]:
        """See one state of the store throughout, whatever the agent commits meanwhile."""
        with transaction(self.path, self._db, "BEGIN"):
            self._db.execute("SELECT 1 FROM sent").fetchone()
            yield


def _settle_ns(session: Session) -> int:
    """Return after which time the joules at an instant change no more, ns: a counter shows them in its next update."""
    known = channels_of(session.description, session.node).lags
    lags_s = [lag_s for (_, _, domain, _), lag_s in known.items() if domain not in WHOLES]
    return round(2 * NS * max(lags_s, default=min(LAG_S.values()))) + session.interval_ns


def _by_session(sessions: Sequence[Session], rows: Iterable[_Row]) -> Iterator[tuple[Session, Iterable[_Row]]]:
    """Yield rows, which begin with their tick and are in order, by the last session that had started."""
    starts = [session.start_ns for session in sessions]
    for number, some in groupby(rows, lambda row: max(0, bisect_right(starts, row[0]) - 1)):
        yield sessions[number], some


def _lock(path: Path) -> socket.socket:
    """Return a socket whose name no other sender of this host can take until it is closed or the process ends."""
    file = path.stat()
    lock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
    try:
        lock.bind(f"\0energymon-sender-{file.st_dev}-{file.st_ino}")
    except OSError as error:
        lock.close()
        raise BusyError(
            f"{path}: another sender is emptying this store; let that one finish, or stop the agent that runs it"
        ) from error
    return lock
