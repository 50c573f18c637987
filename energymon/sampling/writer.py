"""The thread that decodes and commits what the monitor brings, and reports what went wrong."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from energymon.clock.monotonic import NS, Clock, boot_id
from energymon.clock.offsets import WALL
from energymon.errors import StoreError
from energymon.reading import START, ClockOffset, CounterStart, Event, News, Ticks
from energymon.sampling.outages import Jitter, Outages
from energymon.sampling.records import ClockStep, Gap, Record, Sampled
from energymon.sensors.base import Sensor, SensorChannel
from energymon.store import Row, Series, SqliteStore

if TYPE_CHECKING:
    from energymon.sampling.monitor import Monitor

_COMMIT_NS: Final = 2 * NS
"""Readings wait in memory for this long at most, unless somebody asks for them; a kill of the agent loses them. A
commit at every tick would double the agent's CPU time."""
_HASTY_NS: Final = NS // 10
"""Time between two commits of readings at the edges of windows."""
_PULL_S: Final = 2.1
"""How often ticks are asked for that nobody brings; a little later than those that are brought."""
_RETRY_S: Final = 1.0
_BACKLOG: Final = 20_000
"""Readings kept in memory while the store refuses them, before every second tick is given up."""
_FULL_NS: Final = 10 * NS
"""How often the store's size is looked at, and the time between two ticks that a store at its limit still takes."""
_FORGET_ROWS: Final = 5_000
"""Old readings that are deleted before a commit, at least."""


@dataclass(slots=True)
class _TickContent:
    """Readings of one tick, or the ticks of a gap, on their way to the store."""

    rows: list[Row] = field(default_factory=list)
    ticks: list[Ticks] = field(default_factory=list)
    news: list[News] = field(default_factory=list)

    @property
    def may_be_given_up(self) -> bool:
        """Whether losing it costs resolution alone: a cumulative counter carries the energy over."""
        return not self.news and not any(row[4] == START for row in self.rows)


class StoreWriter:
    """Takes records on any thread, and decodes and commits them on its own.

    While the store refuses, for example on a full disk, readings are kept and committed later. Beyond a bound every
    second tick is given up, which costs resolution and no energy.
    """

    def __init__(
        self,
        store: SqliteStore,
        node: str,
        sensors: Sequence[Sensor],
        interval_ns: int,
        *,
        on_stored: Callable[[int], None],
        on_failure: Callable[[BaseException], None],
        on_event: Callable[[Event], None],
        limit_bytes: int | None = None,
        keep_ns: int | None = None,
        clock: Clock | None = None,
    ) -> None:
        """Take what to decode and where it is stored; nothing starts yet.

        Args:
            store: Store that the records are committed to.
            node: Name of this host in the readings.
            sensors: The monitor's sensors, which decode.
            interval_ns: Time between two ticks, ns.
            on_stored: Called after each commit with the number of readings.
            on_failure: Called with the exception that ends the thread.
            on_event: Called with each event that is stored.
            limit_bytes: Size of the store from which on it takes a tick every ten seconds, bytes; default none.
            keep_ns: Age at which readings are deleted, ns; default never.
            clock: The clock of the ticks; default a new one.
        """
        self._store, self._node, self._sensors, self._interval_ns = store, node, sensors, interval_ns
        self._on_stored, self._on_failure, self._on_event = on_stored, on_failure, on_event
        self._limit_bytes, self._keep_ns = limit_bytes, keep_ns
        self._source: Monitor | None = None
        self._problem = False
        """Whether a sensor's answer made no sense."""
        # A sender notes in the store that it is there as soon as it starts.
        self._forget_due_ns = time.monotonic_ns() + _FULL_NS
        self._clock = clock or Clock()
        self._queue: deque[Iterable[Record | News]] = deque()
        # Released to wake the writer, by the thread that brings a tick: the writer's work is then done before the next
        # tick. Anything but a bare lock doubles what waking costs.
        self._wake = threading.Lock()
        self._wake.acquire()
        self._due_ns = 0
        self._stopping = False
        self._hastened = False
        self._committed_ns = 0
        self._backlog: list[_TickContent] = []
        self._refused: StoreError | None = None
        self._retry_s = 0.0
        self._full = False
        self._size_due_ns = 0
        self._kept_ns = 0
        self.jitter = Jitter()
        self._series: dict[SensorChannel, Series] = {}
        self._outages = Outages(sensors, interval_ns, self._event)
        self._thread = threading.Thread(target=self._run, name="writer", daemon=True)

    def put(self, record: Record | News) -> None:
        """Queue a record, as `put_all` does."""
        self.put_all((record,))

    def put_all(self, records: Iterable[Record | News]) -> None:
        """Queue records, which the thread takes from their iterator; the first is committed at once."""
        self._queue.append(records)
        if threading.get_ident() == self._thread.ident:
            return
        now_ns = time.monotonic_ns()
        if now_ns >= self._due_ns:
            self._due_ns = now_ns + _COMMIT_NS
            self._awaken()

    def follow(self, source: Monitor) -> None:
        """Ask a monitor for the ticks that compiled code has taken, too."""
        self._source = source

    def flush(self) -> None:
        """Have all that is queued committed now."""
        self._hastened = False
        self._awaken()

    def hasten(self) -> None:
        """Have all readings committed within a tenth of a second."""
        if not self._hastened:
            self._hastened = True
            self._awaken()

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Commit all that is queued and end the thread; raises StoreError when the store still refuses."""
        self._stopping = True
        self.flush()
        self._thread.join()
        if self._refused is not None:
            lost = sum(len(batch.rows) for batch in self._backlog)
            raise StoreError(f"{self._refused}; {lost} readings that came after that could not be stored")

    def _awaken(self) -> None:
        # Somebody else may have released it a moment ago, which serves as well.
        with contextlib.suppress(RuntimeError):
            self._wake.release()

    def _run(self) -> None:
        try:
            stopping = False
            while not stopping:
                self._wake.acquire(timeout=_PULL_S)
                if self._hastened:
                    left_ns = self._committed_ns + _HASTY_NS - time.monotonic_ns()
                    self._wake.acquire(timeout=max(0, left_ns) / NS)
                    self._hastened = False
                stopping = self._stopping
                if self._source is not None:
                    self._source.drain()
                    self._source.unstick()
                while self._queue:
                    self._backlog += map(self._batch, self._queue.popleft())
                if self._source is not None and self._problem:
                    self._source.attend()
                self._problem = False
                self._backlog += [_TickContent(news=[event]) for event in self._outages.missed(last=stopping)]
                self._commit(last=stopping)
                if sum(len(batch.rows) + len(batch.ticks) for batch in self._backlog) > _BACKLOG:
                    self._backlog = [b for i, b in enumerate(self._backlog) if i % 2 == 0 or not b.may_be_given_up]
        except BaseException as error:  # noqa: BLE001 - passed to the owner, who ends the process
            self._on_failure(error)

    def _batch(self, record: Record | News) -> _TickContent:
        match record:
            case Sampled():
                return self._tick(record)
            case Gap(first_ns, last_ns, interval_ns):
                count = (last_ns - first_ns) // interval_ns + 1
                self.jitter.missed += count
                self._outages.unseen.add(first_ns, count, interval_ns)
                return _TickContent(ticks=[Ticks(first_ns, self._node, True, count, interval_ns)])
            case ClockStep():
                message = f"the wall clock was set by {record.step_ns / NS:+.6f} s; readings keep the time they had"
                wall = ClockOffset(record.t_ns, self._node, WALL, record.wall_ns, record.within_ns)
                return _TickContent(news=[self._event(record.t_ns, "clock-step", message), wall])
            case Event():
                self._on_event(record)
        return _TickContent(news=[record])

    def _tick(self, record: Sampled) -> _TickContent:
        batch = _TickContent()
        rows, known, lost = batch.rows, self._series, self._outages.lost_ns
        whole, tick_ns, ahead_ns = record.whole, record.tick_ns, record.ahead_ns
        for index, raw in record.samples:
            for decoded in self._sensors[index].decode(raw, record.offset_ns):
                point = decoded._replace(t_ns=decoded.t_ns + ahead_ns) if ahead_ns else decoded
                channel, t_ns, joules, flags, _, early_ns, late_ns, counter, _ = point
                if joules is None or flags or channel in lost:
                    batch.news += self._outages.watch(point, is_new=channel not in known)
                if joules is None:
                    self._problem = True
                    # A meter at the wall is not read at the ticks.
                    whole = whole and channel.domain == "wall"
                    continue
                series = known.get(channel)
                if series is None:
                    series = known[channel] = (self._node, channel.device, channel.domain, channel.source)
                if counter is not None:
                    since_boot_ns = t_ns - self._clock.boot_offset_ns
                    fields = self._node, *channel, tick_ns, t_ns, since_boot_ns, boot_id(), joules, *counter
                    batch.news.append(CounterStart._make(fields))
                rows.append((tick_ns, series, t_ns, joules, flags, early_ns, late_ns))
        self._outages.note(record)
        if not record.late:
            if record.samples:
                late_ns = record.start_ns + record.offset_ns + ahead_ns - tick_ns
                self.jitter.add(late_ns, record.end_ns - record.start_ns)
            batch.ticks.append(Ticks(tick_ns, self._node, not whole, 1, self._interval_ns))
        return batch

    def _event(self, t_ns: int, kind: str, message: str) -> Event:
        event = Event(t_ns, self._node, kind, message)
        self._on_event(event)
        return event

    def _report(self, kind: str, message: str) -> None:
        """Have an event of now stored."""
        self._backlog.append(_TickContent(news=[self._event(self._clock.now_ns(), kind, message)]))

    def _commit(self, *, last: bool) -> None:
        if not self._backlog or (self._refused is not None and not last and time.monotonic() < self._retry_s):
            return
        back: list[Event] = []
        if self._refused is not None:
            # Stored in the very transaction that makes it true.
            message = f"{self._store.path}: written again"
            back = [Event(self._clock.now_ns(), self._node, "store-back", message)]
        try:
            self._store.require_in_place()
            self._heed_limit()
            self._forget()
            self._store.append_rows(
                [row for batch in self._backlog for row in batch.rows],
                [tick for batch in self._backlog for tick in batch.ticks],
                [*(item for batch in self._backlog for item in batch.news), *back],
            )
        except StoreError as error:
            self._retry_s = time.monotonic() + _RETRY_S
            if self._refused is None:
                self._refused = error
                self._report("store-failed", f"{error}; readings are kept in memory meanwhile")
            return
        self._refused = None
        for event in back:
            self._on_event(event)
        self._committed_ns = time.monotonic_ns()
        stored = sum(len(batch.rows) for batch in self._backlog)
        self._backlog.clear()
        self._on_stored(stored)

    def _heed_limit(self) -> None:
        """Give up most ticks while the store is at its limit; the sender that empties it makes room."""
        if self._limit_bytes is None:
            return
        now_ns = time.monotonic_ns()
        if now_ns >= self._size_due_ns:
            self._size_due_ns = now_ns + _FULL_NS
            used, was_full = self._store.used_bytes(), self._full
            self._full = used >= self._limit_bytes
            if self._full and not was_full:
                limit = f"{self._limit_bytes / 1e6:.0f} MB"
                message = f"unsent readings fill their {limit}; a tick every ten seconds is kept"
                self._report("spool-full", f"{self._store.path}: {message}")
            elif was_full and not self._full:
                self._report("spool-room", f"{self._store.path}: there is room again; every tick is kept")
        if self._full:
            keeps_first = now_ns - self._kept_ns >= _FULL_NS
            if keeps_first:
                self._kept_ns = now_ns
            self._backlog = [
                batch for i, batch in enumerate(self._backlog) if not batch.may_be_given_up or (keeps_first and i == 0)
            ]

    def _forget(self) -> None:
        """Delete some of the readings that are too old, more than come in, while there are any."""
        if self._keep_ns is None or time.monotonic_ns() < self._forget_due_ns:
            return
        most_rows = max(_FORGET_ROWS, 2 * sum(len(batch.rows) for batch in self._backlog))
        if not self._store.forget(self._clock.now_ns() - self._keep_ns, most_rows):
            self._forget_due_ns = time.monotonic_ns() + _FULL_NS
