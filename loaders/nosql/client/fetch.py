"""The rows of an epoch under way: asked for in advance, put into batches as they arrive, asked for again if need be."""

from __future__ import annotations

import heapq
import random
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Final

import numpy as np
import numpy.typing as npt
from cassandra import DriverException, FunctionFailure, OperationTimedOut, RequestValidationException
from cassandra.cluster import NoHostAvailable
from cassandra.connection import ConnectionException
from cassandra.pool import NoConnectionsAvailable
from cassandra.protocol import ErrorMessage

from loaders.errors import StreamError
from loaders.nosql.client.connection import SampleRow
from loaders.nosql.client.database import Database
from loaders.nosql.options import NoSQLOptions
from loaders.records.raw_batch import RawBatch
from loaders.records.shards.tfrecord import FOOTER_BYTES, HEADER_BYTES, count_intact
from loaders.shared.arrivals import ArrivalLog
from loaders.shared.threads import Wakeup

_BACKOFF_S: Final = 0.1
"""Time before a row is asked for again, up to half less at random; it doubles with every attempt."""
_MAX_BACKOFF_S: Final = 2.0
_DOUBLINGS: Final = 5
_LOST: Final = (ConnectionException, NoConnectionsAvailable, NoHostAvailable, OperationTimedOut, OSError)
"""Errors of a lost connection: the row is asked for again until the loader's timeout."""
_REFUSED: Final = (RequestValidationException, FunctionFailure)
"""Errors that come again when the row is asked for again."""


@dataclass(slots=True)
class RowTraffic:
    """Counts of all epochs."""

    nbytes: int = 0
    asked_again: int = 0
    late: int = 0
    """Rows that arrived after their epoch was broken off, and were dropped."""
    early_nbytes: int = 0
    """Bytes that arrived before their epoch began."""
    by_connection: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    """Bytes that arrived on each connection."""


class _Slots:
    """One batch: its columns are allocated once; records stay where they were received."""

    def __init__(self, size: int) -> None:
        self.ids, self.labels, self.offsets, self.sizes, self.checksums = np.empty((5, size), np.int64)
        self.frames = [memoryview(b"")] * size
        self.left = size

    def put(self, slot: int, sample_id: int, row: SampleRow) -> None:
        assert row.record is not None and row.label is not None and row.file is not None and row.size is not None
        self.ids[slot], self.labels[slot], self.offsets[slot], self.sizes[slot] = (
            sample_id,
            row.label,
            row.file,
            row.size,
        )
        self.checksums[slot] = int.from_bytes(row.record[-FOOTER_BYTES:], "little")
        self.frames[slot] = row.record
        self.left -= 1


class RowFetch:
    """One epoch's rows; the driver's threads bring them, and one thread takes the batches."""

    def __init__(
        self,
        database: Database,
        ids: npt.NDArray[np.int64],
        epoch: int,
        options: NoSQLOptions,
        traffic: RowTraffic,
        arrivals: ArrivalLog | None = None,
        make_next: Callable[[], RowFetch] | None = None,
    ) -> None:
        """Ask for none of the samples `ids` yet; `begin` does it, in this order.

        `make_next` returns the fetch of the next epoch, whose rows this one has asked for as far as it has room itself.
        """
        self._database, self._ids, self.epoch, self._options, self._traffic = database, ids, epoch, options, traffic
        self._arrivals, self._make_next = arrivals, make_next
        self.following: RowFetch | None = None
        """The fetch of the next epoch, once it has asked for a row."""
        self._allowed: int | None = 0
        """How many rows may be asked for before the epoch begins; None from then on."""
        self._earlier = 0
        """Rows that were taken of the epochs before, since when the prefetch is full."""
        self._lock, self._news = threading.Lock(), Wakeup()
        self._open: dict[int, _Slots] = {}
        self._under_way: dict[int, int] = {}
        """Connection of each row that was asked for, by its place in the epoch; the oldest first."""
        self._load = [0] * database.connections
        self._repeat: list[tuple[float, int, int, int]] = []
        """Rows to ask for again: when, place, attempts, and how many of these the database answered with an error."""
        self._asked = self._arrived = self._taken = self._nbytes = 0
        self._last_arrival = time.monotonic()
        self._last_error: Exception | None = None
        self._error: StreamError | None = None
        self._closed = False

    def begin(self, before: RowFetch | None = None) -> None:
        """Begin the epoch; where the one `before` has asked for rows of it, the prefetch stays as deep as it was."""
        with self._lock:
            self._allowed = None
            if before is not None:
                self._earlier = before._earlier + before._taken
                self._traffic.early_nbytes += self._nbytes
        self._ask()

    def next(self, wait: bool) -> RawBatch | None:
        """Return the next batch, None where `wait` is false and it is not complete.

        Raises StopIteration at the end of the epoch; StreamError naming the row that is missing or wrong, or the host
        that refuses or from which nothing came for the timeout.
        """
        size, began = self._options.batch_size, time.monotonic()
        while True:
            with self._lock:
                number = self._taken // size
                if self._closed or (self._taken == len(self._ids) and not self._error):
                    raise StopIteration
                if self._error is not None:
                    raise self._error
                slots = self._open.get(number)
                if slots is not None and not slots.left:
                    del self._open[number]
                    self._taken += len(slots.ids)
                    break
                now = time.monotonic()
                silent_at = max(began, self._last_arrival) + self._database.timeout_s
                if now >= silent_at:
                    raise self._silence()
                is_due = bool(self._repeat) and self._repeat[0][0] <= now
                if not is_due and not wait:
                    return None
                until = min([silent_at, *(due for due, *_ in self._repeat[:1])])
            if not is_due:
                self._news.wait(until - now)
            self._ask()
        self._ask()
        self._ask_ahead()
        return self._finish(number, slots)

    def close(self) -> None:
        """Drop the rows under way; may be called twice."""
        with self._lock:
            self._closed = True
            self._open.clear()
            self._repeat.clear()
            self._news.wake()

    def _ask(self) -> None:
        """Ask for rows as far as the prefetch goes, and again for those that are due."""
        while (chosen := self._choose()) is not None:
            place, attempts, failures, connection = chosen
            self._database.ask(
                connection,
                int(self._ids[place]),
                partial(self._arrive, place, connection),
                partial(self._fail, place, attempts, failures),
            )

    def _ask_ahead(self) -> None:
        """Have the next epoch's fetch ask for as many rows as this one's prefetch has room for."""
        with self._lock:
            asked_all, room = self._asked == len(self._ids), self._depth() - (self._asked - self._taken)
        if self._make_next is None or not asked_all:
            return
        if self.following is None:
            self.following = self._make_next()
        self.following._allow(room)

    def _allow(self, rows: int) -> None:
        with self._lock:
            self._allowed = rows
        self._ask()

    def _depth(self) -> int:
        return self._options.depth(self._earlier + self._taken)

    def _has_room(self) -> bool:
        """Return whether a row of the epoch may be asked for that was not yet."""
        most = self._taken + self._depth() if self._allowed is None else self._allowed
        return self._asked < min(len(self._ids), most)

    def _choose(self) -> tuple[int, int, int, int] | None:
        """Return place, attempts, failures and connection of the next request; None where none may be made now."""
        options = self._options
        with self._lock:
            if self._closed or self._error is not None:
                return None
            connection = min(range(len(self._load)), key=self._load.__getitem__)
            if self._load[connection] >= options.in_flight:
                return None
            if self._repeat and self._repeat[0][0] <= time.monotonic():
                _, place, attempts, failures = heapq.heappop(self._repeat)
                self._traffic.asked_again += 1
            elif self._has_room():
                place, attempts, failures = self._asked, 0, 0
                self._asked += 1
            else:
                return None
            # Fewer are asked for on a connection that is slow.
            self._load[connection] += 1
            self._under_way[place] = connection
            return place, attempts, failures, connection

    def _arrive(self, place: int, connection: int, rows: list[SampleRow]) -> None:
        traffic, size = self._traffic, self._options.batch_size
        with self._lock:
            self._load[connection] -= 1
            del self._under_way[place]
            if self._closed:
                traffic.late += 1
                return
            self._last_arrival = time.monotonic()
            sample_id = int(self._ids[place])
            if (wrong := _check(rows, sample_id)) is not None:
                self._stop(f"row sample_id={sample_id} of {self._table} {wrong}; prepare it again")
                return
            (row,) = rows
            assert row.record is not None
            traffic.nbytes += len(row.record)
            self._nbytes += len(row.record)
            traffic.by_connection[connection] += len(row.record)
            if self._arrivals is not None:
                self._arrivals.count(self.epoch, connection, len(row.record))
            at = self._arrived if self._options.out_of_order else place
            self._arrived += 1
            number, slot = divmod(at, size)
            if number not in self._open:
                self._open[number] = _Slots(min(size, len(self._ids) - number * size))
            self._open[number].put(slot, sample_id, row)
            if not self._open[number].left:
                self._news.wake()
            # With the prefetch at its depth rows are asked for when a batch is taken.
            has_room = self._has_room()
        if has_room:
            self._ask()

    def _fail(self, place: int, attempts: int, failures: int, error: Exception) -> None:
        with self._lock:
            self._load[self._under_way[place]] -= 1
            if self._closed:
                return
            self._last_error = error
            is_lost = isinstance(error, _LOST)
            known = isinstance(error, DriverException | ErrorMessage) and not isinstance(error, _REFUSED)
            if not is_lost and (not known or failures >= self._options.retries):
                times = "" if not known else f" {failures + 1} times"
                what = f"{type(error).__name__}: {error}".splitlines()[0]
                self._stop(
                    f"row sample_id={int(self._ids[place])} of {self._table} was refused{times} ({what}); see the log "
                    "of the database"
                )
                return
            backoff_s = min(_MAX_BACKOFF_S, _BACKOFF_S * 2 ** min(attempts, _DOUBLINGS))
            due = time.monotonic() + backoff_s * random.uniform(0.5, 1.0)  # noqa: S311 - spreads load
            heapq.heappush(self._repeat, (due, place, attempts + 1, failures + (not is_lost)))
            self._news.wake()

    @property
    def _table(self) -> str:
        return f"{self._database.table.data} at {self._database.where}"

    def _stop(self, why: str) -> None:
        self._error = StreamError(why)
        self._news.wake()

    def _silence(self) -> StreamError:
        """Return the error of an epoch in which no row has arrived for the timeout."""
        waiting = next(iter(self._under_way), self._taken)
        why = "" if self._last_error is None else f" ({type(self._last_error).__name__}: {self._last_error})"
        return StreamError(
            f"{self._database.where}: no row of {self._database.table.data} came for "
            f"{self._database.timeout_s:g} s{why.splitlines()[0] if why else ''}, sample_id={int(self._ids[waiting])} "
            "among those that were asked for; check that the database runs, or raise timeout_s"
        )

    def _finish(self, number: int, slots: _Slots) -> RawBatch:
        if self._options.verify:
            for sample_id, frame, checksum in zip(slots.ids, slots.frames, slots.checksums.tolist(), strict=True):
                if not count_intact(frame, [checksum]):
                    raise StreamError(
                        f"row sample_id={sample_id} of {self._table} is damaged: the checksum of its record does not "
                        "match; prepare it again"
                    )
        frame_of = np.arange(len(slots.ids))
        frames = tuple(slots.frames)
        return RawBatch(
            self.epoch, number, slots.ids, slots.labels, frames, frame_of, slots.offsets, slots.sizes, slots.checksums
        )


def _check(rows: list[SampleRow], sample_id: int) -> str | None:
    """Return the fault of the answer for a sample, None where there is none."""
    if not rows:
        return "is missing"
    found, label, file, size, record = rows[0]
    if found is None or label is None or file is None or size is None or record is None:
        return "is only half there"
    if found != sample_id:
        return f"has the id {found}"
    if not (file >= HEADER_BYTES and 0 <= size <= len(record) - FOOTER_BYTES - file):
        return f"has a file of {size} bytes at {file} in a record of {len(record)}"
    return None
