"""The thread that commits what the monitor brings, and tells what went wrong."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from energymon.clock import NS
from energymon.errors import StoreError
from energymon.monitor import ClockStep, Gap, Record, TickPoints
from energymon.reading import START, Event, Reading, Tick
from energymon.sensors.base import Channel, Point
from energymon.stores.sqlite import SqliteStore

__all__ = ["Writer"]

_COMMIT_S: Final = 0.5
"""Readings wait in memory for this long at most: what a kill of the agent itself can cost. Waking up and committing
for every tick would double the agent's CPU time."""
_RETRY_S: Final = 1.0
_BACKLOG: Final = 20_000
"""Readings kept in memory while the store refuses them, before every second tick is given up."""
_RECORDED_TICKS: Final = 10_000
"""Missed ticks of one gap that get rows; the rest of a longer one, a suspended machine, has its event."""
_QUIET_NS: Final = 10 * NS
"""A channel that comes and goes is told about this often at most."""


@dataclass(slots=True)
class _Batch:
    """Readings of one tick, or the ticks of a gap, on their way to the store."""

    readings: list[Reading] = field(default_factory=list)
    ticks: list[Tick] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)

    @property
    def may_be_given_up(self) -> bool:
        """Whether losing it costs resolution alone: a cumulative counter carries the energy over."""
        return not self.events and not any(r.flags == START for r in self.readings)


class Writer:
    """Takes records on any thread and commits them on its own.

    While the store refuses, a full disk for one, readings are kept and committed later; beyond a bound every
    second tick is given up, which costs resolution and no energy.
    """

    def __init__(
        self,
        store: SqliteStore,
        node: str,
        *,
        on_stored: Callable[[], None],
        on_failure: Callable[[BaseException], None],
        tell: Callable[[Event], None],
    ) -> None:
        self._store = store
        self._node = node
        self._on_stored = on_stored
        self._on_failure = on_failure
        self._tell = tell
        self._queue: deque[Record] = deque()
        # Set to wake the writer before its time: for the first record, and to stop.
        self._wake = threading.Event()
        self._began = False
        self._stopping = False
        self._backlog: list[_Batch] = []
        self._refused: StoreError | None = None
        self._retry_s = 0.0
        self._problems: dict[Channel, str] = {}
        self._told_ns: dict[Channel, int] = {}
        self._seen: set[Channel] = set()
        self._thread = threading.Thread(target=self._run, name="writer", daemon=True)

    def put(self, record: Record) -> None:
        """Queue a record; the first is committed at once."""
        self._queue.append(record)
        if not self._began:
            self._began = True
            self._wake.set()

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Commit what is queued and end the thread; raises StoreError when the store refuses to the last."""
        self._stopping = True
        self._wake.set()
        self._thread.join()
        if self._refused is not None:
            lost = sum(len(batch.readings) for batch in self._backlog)
            raise StoreError(f"{self._refused}; {lost} readings that came after that could not be stored")

    def _run(self) -> None:
        try:
            stopping = False
            while not stopping:
                self._wake.wait(_COMMIT_S)
                self._wake.clear()
                stopping = self._stopping
                while self._queue:
                    self._backlog.append(self._batch(self._queue.popleft()))
                self._commit(last=stopping)
        except BaseException as error:  # noqa: BLE001 - told to the owner, who ends the process
            self._on_failure(error)

    def _batch(self, record: Record) -> _Batch:
        match record:
            case TickPoints():
                return self._tick(record)
            case Gap():
                return self._gap(record)
            case ClockStep():
                message = f"the wall clock was set by {record.step_ns / NS:+.6f} s; ticks follow it"
                return _Batch(events=[self._event(record.t_ns, "clock-step", message)])

    def _tick(self, record: TickPoints) -> _Batch:
        batch = _Batch()
        if not record.late:
            batch.ticks.append(Tick(record.tick_ns, self._node, missed=not record.whole))
        for point in record.points:
            channel = point.channel
            self._watch(point, batch)
            if point.joules is not None:
                batch.readings.append(
                    Reading(
                        record.tick_ns,
                        point.t_ns,
                        self._node,
                        channel.device,
                        channel.domain,
                        channel.source,
                        point.joules,
                        point.flags,
                    )
                )
        return batch

    def _gap(self, gap: Gap) -> _Batch:
        count = (gap.last_ns - gap.first_ns) // gap.interval_ns + 1
        message = f"{count} ticks passed unseen ({count * gap.interval_ns / NS:.3f} s); energy is carried over them"
        ticks = [Tick(gap.first_ns + i * gap.interval_ns, self._node, True) for i in range(min(count, _RECORDED_TICKS))]
        return _Batch(ticks=ticks, events=[self._event(gap.last_ns, "ticks-missed", message)])

    def _watch(self, point: Point, batch: _Batch) -> None:
        """Tell when a channel is lost, comes back, or begins anew."""
        channel = point.channel
        name = f"{channel.device} {channel.domain} ({channel.source})"
        known = channel in self._problems
        if point.joules is None:
            if not known and point.t_ns - self._told_ns.get(channel, 0) >= _QUIET_NS:
                self._told_ns[channel] = point.t_ns
                self._problems[channel] = point.problem
                batch.events.append(self._event(point.t_ns, "sensor-lost", f"{name}: {point.problem}"))
            return
        if known:
            del self._problems[channel]
            batch.events.append(self._event(point.t_ns, "sensor-back", f"{name}: read again"))
        if point.flags == START and channel in self._seen:
            message = f"{name}: the counter began anew; windows across this instant have no figure for it"
            batch.events.append(self._event(point.t_ns, "counter-restart", message))
        self._seen.add(channel)

    def _event(self, t_ns: int, kind: str, message: str) -> Event:
        event = Event(t_ns, self._node, kind, message)
        self._tell(event)
        return event

    def _commit(self, *, last: bool) -> None:
        if not self._backlog or (self._refused is not None and not last and time.monotonic() < self._retry_s):
            self._bound_backlog()
            return
        events = [event for batch in self._backlog for event in batch.events]
        if self._refused is not None:
            # Told in the very transaction that makes it true.
            back = Event(time.time_ns(), self._node, "store-back", f"{self._store.path}: written again")
            events.append(back)
        try:
            self._store.append(
                [reading for batch in self._backlog for reading in batch.readings],
                [tick for batch in self._backlog for tick in batch.ticks],
                events,
            )
        except StoreError as error:
            self._retry_s = time.monotonic() + _RETRY_S
            if self._refused is None:
                self._refused = error
                message = f"{error}; readings are kept in memory meanwhile"
                self._backlog.append(_Batch(events=[self._event(time.time_ns(), "store-failed", message)]))
            self._bound_backlog()
            return
        if self._refused is not None:
            self._refused = None
            self._tell(back)
        self._backlog.clear()
        self._on_stored()

    def _bound_backlog(self) -> None:
        if sum(len(batch.readings) + len(batch.ticks) for batch in self._backlog) <= _BACKLOG:
            return
        self._backlog = [batch for i, batch in enumerate(self._backlog) if i % 2 == 0 or not batch.may_be_given_up]
