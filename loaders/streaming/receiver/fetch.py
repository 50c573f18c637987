"""Batches under way: which is requested next, from which daemon, and which parts of it have arrived."""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import zmq

from loaders.errors import StreamError, WireError
from loaders.records.planner import BatchPlan, Slice
from loaders.records.raw_batch import RawBatch
from loaders.streaming.protocol import MAX_SLICES, BatchHeader, Damaged, Refusal
from loaders.streaming.receiver.batch import ArrivalOrder, BatchAssembler, PlanOrder
from loaders.streaming.receiver.connections import DaemonConnections, FetchInterrupted
from loaders.streaming.receiver.remote_daemon import RemoteDaemon, unpack
from loaders.streaming.receiver.stream import DaemonStream
from loaders.streaming.timestamps import TimestampLogger

_PART_BYTES = 2**20
"""A batch is cut into parts for several streams, none of them smaller: each part costs the same CPU time."""
_PLANNED_AHEAD = 4096
"""Batches that are searched, at most, for one whose daemon has room."""


@dataclass(frozen=True, slots=True)
class _PartRequest:
    """A request under way: one part of one batch, from one daemon."""

    assembler: BatchAssembler
    part: int
    daemon: RemoteDaemon
    nbytes: int
    is_repeated: bool = False
    """Whether the first answer was damaged."""


class BatchFetch:
    """Batches under way, in order of arrival or of the plan; one thread uses it, except for `close`.

    A batch is requested in parts over several streams, so that all of them carry the batch that is needed first, and
    a new connection, which is still slow, delays no batch alone.
    """

    def __init__(
        self,
        connections: DaemonConnections,
        plans: Iterable[BatchPlan],
        *,
        pieces: int = 1,
        events: TimestampLogger | None = None,
    ) -> None:
        """Start to request planned batches, as many as the settings of the connections allow.

        `pieces` planned batches become one, those that arrive first. `events` gets a line for every batch.
        """
        connections.check_process()
        self._connections, self._plans, self._pieces, self._events = connections, iter(plans), pieces, events
        self._settings = connections.settings
        self._lock = threading.Lock()
        """Held while batches are taken, so that `close` waits until that has ended."""
        self._is_ended = self._is_dropped = False
        self._look_s = min(daemon.silence.look_s for daemon in connections.daemons)
        self._under_way: dict[int, _PartRequest] = {}
        self._daemons_of: dict[tuple[int, int], set[int]] = {}
        """By epoch and batch, until it is taken: the daemons with a part of it."""
        self._waiting: dict[frozenset[int], deque[BatchPlan]] = {}
        """Batches without room yet, by their daemons."""
        self._ready = PlanOrder() if self._settings.order == "strict" else ArrivalOrder(pieces)
        self._places = connections.shards.places
        self._is_alone = len(connections.daemons) == 1
        self._record_bytes = connections.shards.record_bytes()
        self._fill()

    def __iter__(self) -> Iterator[RawBatch]:
        try:
            while True:
                batch = self.next()
                assert batch is not None
                yield batch
        except StopIteration:
            return
        finally:
            self.close()

    def next(self, wait: bool = True) -> RawBatch | None:
        """Return the next batch; None where `wait` is false and it has not arrived.

        Raises StopIteration after the last batch or once it is closed, StreamError naming the daemon that is silent for
        longer than the timeout, refuses, or sends something else.
        """
        with self._lock:
            batch = None if self._is_ended else self._take(wait)
            if self._is_ended:
                raise StopIteration
            if batch is None:
                if self._under_way:
                    return None
                # A batch that waits for room waits for one that is under way, or that could be taken.
                assert not self._waiting, "batches are planned and none is under way"
                raise StopIteration
            for number in batch.planned:
                for index in self._daemons_of.pop((batch.epoch, number)):
                    self._connections.daemons[index].batches -= 1
            self._fill()
        if self._events is not None:
            nbytes = sum(map(len, batch.frames))
            self._events.log("batch_received", epoch=batch.epoch, batch=batch.batch, nbytes=nbytes)
        return batch

    def _take(self, wait: bool) -> RawBatch | None:
        """Return the next batch once it is complete, or None; with `wait`, None where none is under way."""
        connections = self._connections
        self._fill()
        batch = self._ready.take()
        try:
            while batch is None and self._under_way and not self._is_ended:
                for daemon, stream, frames in connections.receive(self._look_s if wait else 0.0):
                    if frames:
                        self._accept(daemon, stream, frames)
                    else:
                        connections.counters.asked_again += stream.ask_again()
                batch = self._ready.take()
                self._check_silence()
                if not wait:
                    break
        except FetchInterrupted:
            self._is_ended = True
        connections.window.measure(time.monotonic(), connections.counters.bytes, connections.counters.batches)
        return batch

    def close(self) -> None:
        """Drop the requests under way; connections that still carry them are replaced. May be called twice.

        A `next` that another thread is in ends.
        """
        if self._is_dropped:  # the requests under way now are another fetch's
            return
        self._is_ended = True
        self._connections.interrupt()
        with self._lock:
            self._connections.clear_interrupt()
            if not self._is_dropped:
                self._is_dropped = True
                for daemon in self._connections.daemons:
                    daemon.reset()
                self._under_way.clear()

    @property
    def _allowed(self) -> int:
        """Planned batches that each daemon may have under way now."""
        if self._settings.prefetch_batches == "auto":  # it counts the planned ones
            return max(self._connections.window.batches, 2 * self._pieces if self._pieces > 1 else 1)
        return self._pieces * self._settings.prefetch_batches

    def _fill(self) -> None:
        """Request batches where there is room; of an automatic window, half of it at a time.

        A daemon that sleeps wakes for every request that comes by itself, which costs CPU time.
        """
        allowed = self._allowed
        if self._settings.prefetch_batches == "auto":
            most = allowed - max(1, allowed // 2)
            if all(daemon.batches > most for daemon in self._connections.daemons):
                return
        while (plan := self._next_plan(allowed)) is not None:
            self._ask(plan)

    def _next_plan(self, allowed: int) -> BatchPlan | None:
        """Return the next batch for which all its daemons have room, or None."""
        fitting = [key for key in self._waiting if self._has_room(key, allowed)]
        if fitting:
            key = min(fitting, key=lambda key: (self._waiting[key][0].epoch, self._waiting[key][0].batch))
            plan = self._waiting[key].popleft()
            if not self._waiting[key]:
                del self._waiting[key]
            return plan
        # Batches in strict order are also requested in order.
        most = 1 if self._settings.order == "strict" else _PLANNED_AHEAD
        while any(daemon.batches < allowed for daemon in self._connections.daemons):
            if sum(map(len, self._waiting.values())) >= most or (plan := next(self._plans, None)) is None:  # type: ignore[assignment]
                return None
            self._ready.expect(plan)
            key = frozenset(self._share(plan))
            if key not in self._waiting and self._has_room(key, allowed):
                return plan
            self._waiting.setdefault(key, deque()).append(plan)
        return None

    def _has_room(self, key: frozenset[int], allowed: int) -> bool:
        return all(self._connections.daemons[index].batches < allowed for index in key)

    def _share(self, plan: BatchPlan) -> Mapping[int, Sequence[int]]:
        """Return the places of a batch's slices in the plan, by the daemon that has them."""
        if self._is_alone:
            return {0: range(len(plan.slices))}
        shares: dict[int, list[int]] = {}
        for place, piece in enumerate(plan.slices):
            shares.setdefault(self._places[piece.shard].daemon, []).append(place)
        return shares

    def _ask(self, plan: BatchPlan) -> None:
        """Request a batch from the daemons that have its slices, in parts over their streams."""
        daemons = self._connections.daemons
        shares = self._share(plan)
        self._daemons_of[plan.epoch, plan.batch] = set(shares)
        parts: list[tuple[int, Sequence[int], int]] = []
        for index, places in shares.items():
            daemons[index].batches += 1
            sizes = [plan.slices[place].records * self._record_bytes[plan.slices[place].shard] for place in places]
            # The more batches are under way, the fewer parts keep all streams busy; each part costs CPU time.
            max_parts = math.ceil(len(daemons[index].streams) / daemons[index].batches)
            parts += ((index, part, nbytes) for part, nbytes in _split(places, sizes, max_parts))
        assembler = BatchAssembler(plan, tuple(part for _, part, _ in parts))
        for number, (index, _, nbytes) in enumerate(parts):
            self._send(_PartRequest(assembler, number, daemons[index], nbytes))

    def _send(self, request: _PartRequest) -> None:
        sequence = next(self._connections.sequence)
        self._under_way[sequence] = request
        plan, slices = request.assembler.plan, request.assembler.slices(request.part)
        if not self._is_alone:  # one daemon sorts its shards by name, as the map does
            slices = tuple(Slice(self._places[shard].place, first, records) for shard, first, records in slices)
        request.daemon.ask(sequence, plan.epoch, plan.batch, slices, request.nbytes, check=request.is_repeated)

    def _check_silence(self) -> None:
        """Repeat the requests of a daemon after half of the timeout: a flipped bit may have cost a request.

        Raises StreamError for one that was silent for too long.
        """
        for daemon in self._connections.daemons:
            if daemon.silence.seconds < self._settings.timeout_s / 2:
                daemon.is_asked_again = False
            elif not daemon.is_asked_again:
                daemon.is_asked_again = True
                self._connections.counters.asked_again += daemon.ask_again()
            if daemon.silence.is_over:
                raise StreamError(daemon.silence.describe())

    def _accept(self, daemon: RemoteDaemon, stream: DaemonStream, frames: list[zmq.Frame]) -> None:
        counters, endpoint = self._connections.counters, daemon.endpoint
        try:
            reply, records = unpack(endpoint, frames)
            if isinstance(reply, Damaged):
                raise WireError(f"{endpoint} got a damaged request")
        except WireError as error:
            counters.damaged += 1
            counters.asked_again += stream.ask_again_damaged(error)
            return
        stream.damaged = 0
        # Other replies are of a greeting that was repeated.
        request = self._under_way.get(reply.sequence) if isinstance(reply, BatchHeader | Refusal) else None
        if request is None or request.daemon is not daemon:
            counters.stale += 1
            return
        assert isinstance(reply, BatchHeader | Refusal)
        del self._under_way[reply.sequence]
        stream.done(reply.sequence)
        plan, assembler = request.assembler.plan, request.assembler
        if isinstance(reply, Refusal):
            raise StreamError(f"{endpoint} refused batch {plan.batch} of epoch {plan.epoch}: {reply.reason}")
        try:
            assembler.add(request.part, reply, records)
        except WireError as error:
            raise WireError(f"{endpoint} sent a malformed batch {plan.batch}: {error}") from error
        counters.bytes += sum(map(len, frames))
        began = time.perf_counter_ns()
        is_intact = assembler.is_intact(request.part, payloads=self._settings.verify)
        counters.verify_s += (time.perf_counter_ns() - began) * 1e-9
        if not is_intact:
            counters.damaged += 1
            if request.is_repeated:
                raise StreamError(
                    f"{endpoint}: batch {plan.batch} of epoch {plan.epoch} came damaged twice, and is whole on the "
                    "daemon's disk: the link, or memory on the way, changes the bytes"
                )
            assembler.drop(request.part)
            counters.asked_again += 1
            self._send(replace(request, is_repeated=True))
        elif assembler.complete:
            self._ready.add(assembler.batch())
            counters.batches += 1


def _split(places: Sequence[int], sizes: list[float], max_parts: int) -> Iterator[tuple[Sequence[int], int]]:
    """Cut slices into at most `max_parts` runs of about equal bytes, yielding each with its bytes.

    There are more where a run would have more slices than a request may have.
    """
    total = sum(sizes)
    count = max(1, min(max_parts, len(places), math.ceil(total / _PART_BYTES)))
    if count == 1 and len(places) <= MAX_SLICES:
        yield places, math.ceil(total)
        return
    begin, at = 0, 0.0
    for end, size in enumerate(sizes, 1):
        at += size
        left = len(sizes) - end
        # A part ends where its share is full, or where every later part needs one of the slices left.
        if left == 0 or at >= total / count or left < count - 1 or end - begin == MAX_SLICES:
            yield places[begin:end], math.ceil(sum(sizes[begin:end]))
            total -= sum(sizes[begin:end])
            count = max(1, count - 1)
            begin, at = end, 0.0
