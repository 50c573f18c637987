"""Batches under way: which is requested next, from which daemon, and which parts of it have arrived."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import get_args

import zmq

from loaders.errors import LoaderConfigError, StreamError, WireError
from loaders.records.planner import BatchPlan
from loaders.records.raw_batch import RawBatch
from loaders.shared.options import as_number, as_whole
from loaders.streaming.protocol import MAX_SLICES, BatchHeader, Damaged, Refusal
from loaders.streaming.receiver.batch import (
    ArrivalOrder,
    BatchAssembler,
    BatchOrder,
    DeliveryOrder,
    PlanOrder,
)
from loaders.streaming.receiver.connections import DaemonConnections, Interrupted
from loaders.streaming.receiver.growth import MAX_PREFETCH, Prefetch
from loaders.streaming.receiver.remote_daemon import RemoteDaemon
from loaders.streaming.receiver.stream import Stream

_PART_BYTES = 2**20
"""A batch is cut into parts for several streams, none of them smaller: each part costs the same CPU time."""
_PLANNED_AHEAD = 4096
"""Batches that are searched, at most, for one whose daemon has room."""


def check_window(window: Prefetch, order: BatchOrder, step: float) -> None:
    """Raise LoaderConfigError for an argument of a fetch that is out of range."""
    if window != "auto" and as_whole(window, 1, MAX_PREFETCH) is None:
        raise LoaderConfigError(f"prefetch_batches={window!r}: expected 1 to {MAX_PREFETCH}, or auto")
    if as_number(step, 0) is None:
        raise LoaderConfigError(f"prefetch_step={step!r}: expected a number of batches that is 0 or more")
    if order not in get_args(BatchOrder):
        raise LoaderConfigError(f"order={order!r}: expected arrival, sample or strict")


@dataclass(frozen=True, slots=True)
class _Request:
    """A request under way: one part of one batch, from one daemon."""

    assembler: BatchAssembler
    part: int
    daemon: RemoteDaemon
    nbytes: int
    is_repeated: bool = False
    """Whether the first answer was damaged."""
    refused_by: tuple[RemoteDaemon, ...] = ()
    """Daemons that cannot answer it."""


class Fetch:
    """Batches under way, in order of arrival or of the plan; iterate, or `take` them.

    A batch is requested in parts over several streams, so that all of them carry the batch that is needed first, and
    a new connection, which is still slow, delays no batch alone.
    """

    def __init__(
        self,
        connections: DaemonConnections,
        pull: Callable[[], BatchPlan | None],
        window: Prefetch,
        order: BatchOrder,
        step: float,
        *,
        pieces: int,
        verify: bool | None,
    ) -> None:
        """Start to request the batches that `pull` returns, a `window` of them; "auto" is what the link needs.

        So many planned `pieces` are joined into one batch, as they arrive; the window and the step count such batches.

        With `verify` every record's checksum is computed; with False the checksum that the record states is compared
        with the index; None compares nothing.
        """
        self._verify = verify
        self._connections, self._pull, self._window, self._step = connections, pull, window, step
        self._strict = order == "strict"
        self._pieces = pieces
        self._closed = False
        self._begun = max(1.0, step)
        """Batches that were allowed by steps up to now."""
        self._sequence = connections.sequence
        self._look_s = min(daemon.silence.look_s for daemon in connections.daemons)
        self._under_way: dict[int, _Request] = {}
        self._asked_of: dict[tuple[int, int], set[int]] = {}
        """By epoch and batch, until it is taken: the daemons with a part of it."""
        self._waiting: dict[frozenset[int], deque[BatchPlan]] = {}
        """Batches without room yet, by the groups of their shards."""
        self._ready = self._make_order()
        self._groups = connections.placement.groups
        self._holders = dict(zip(self._groups, connections.placement.holders, strict=True))
        self._record_bytes = connections.placement.record_bytes()
        self._fill()

    def __iter__(self) -> Iterator[RawBatch]:
        try:
            while (batch := self.take()) is not None:
                yield batch
        finally:
            self.close()

    def take(self, *, wait: bool = True) -> RawBatch | None:
        """Return the next batch; None when no further one is planned, or with `wait` false when the next is not there.

        Raises StreamError naming the daemon that is silent for longer than the client's timeout, refuses, or sends
        something else.
        """
        connections = self._connections
        started = time.monotonic()
        self._fill()
        batch = self._ready.take()
        try:
            while batch is None and self._under_way:
                for daemon, stream, frames in connections.receive(self._look_s if wait else 0.0):
                    if frames:
                        self._accept(daemon, stream, frames)
                    else:
                        self._ask_again(daemon, stream)
                batch = self._ready.take()
                self._check_silence()
                if not wait:
                    break
        except Interrupted:
            self.close()
            return None
        now = time.monotonic()
        connections.traffic.wait_s += now - started
        connections.grow(now)
        # A batch that waits for room waits for one that is under way, or that could be taken.
        assert batch is not None or not wait or not self._waiting, "batches are planned and none is under way"
        if batch is not None:
            for number in batch.planned:
                for index in self._asked_of.pop((batch.epoch, number), ()):
                    connections.daemons[index].batches -= 1
            self._begun += self._step
            self._fill()
        return batch

    @property
    def finished(self) -> bool:
        """Whether every batch that was planned so far has been taken."""
        return not self._under_way and not len(self._ready)

    def close(self) -> None:
        """Drop the requests under way; connections that still carry them are replaced. May be called twice."""
        if self._closed:  # the requests under way now are another fetch's
            return
        self._closed = True
        for daemon in self._connections.daemons:
            daemon.reset()
        self._under_way.clear()
        self._asked_of.clear()
        self._waiting.clear()
        self._ready = self._make_order()
        self._pull = _pull_nothing

    def _make_order(self) -> DeliveryOrder:
        return PlanOrder() if self._strict else ArrivalOrder(self._pieces)

    @property
    def _allowed(self) -> int:
        """Planned batches that each daemon may have under way now."""
        if self._window == "auto":  # it counts the planned ones
            window = max(self._connections.window.batches, 2 * self._pieces if self._pieces > 1 else 1)
        else:
            window = self._pieces * self._window
        return min(window, int(self._pieces * self._begun)) if self._step else window

    def _fill(self) -> None:
        """Request batches where there is room; of an automatic window, half of it at a time.

        A daemon that sleeps wakes for every request that comes by itself, which costs CPU time.
        """
        if self._window == "auto" and not self._step:
            most = self._allowed - max(1, self._allowed // 2)
            if all(daemon.batches > most for daemon in self._connections.daemons):
                return
        while (batch := self._next()) is not None:
            self._ask(batch)

    def _next(self) -> BatchPlan | None:
        """Return the next batch for which all its daemons have room, or None."""
        # A later epoch does not take the room of an earlier one: its batches could not be delivered yet.
        oldest = min((queue[0].epoch for queue in self._waiting.values()), default=None)
        fitting = [
            (queue[0].epoch, queue[0].batch, key)
            for key, queue in self._waiting.items()
            if queue[0].epoch == oldest and self._has_room(key)
        ]
        if fitting:
            key = min(fitting, key=lambda entry: entry[:2])[2]
            batch = self._waiting[key].popleft()
            if not self._waiting[key]:
                del self._waiting[key]
            return batch
        while any(daemon.batches < self._allowed for daemon in self._connections.daemons):
            if oldest is not None and max(queue[-1].epoch for queue in self._waiting.values()) > oldest:
                return None
            # Batches in strict order are also requested in order.
            if sum(map(len, self._waiting.values())) >= (1 if self._strict else _PLANNED_AHEAD):
                return None
            pulled = self._pull()
            if pulled is None:
                return None
            self._ready.expect(pulled)
            key = self._key(pulled)
            if (oldest is None or pulled.epoch == oldest) and key not in self._waiting and self._has_room(key):
                return pulled
            self._waiting.setdefault(key, deque()).append(pulled)
            oldest = pulled.epoch if oldest is None else oldest
        return None

    def _key(self, plan: BatchPlan) -> frozenset[int]:
        """Return the groups of a batch's shards."""
        if len(self._holders) == 1:
            return frozenset(self._holders)
        return frozenset(self._groups[piece.shard] for piece in plan.slices)

    def _has_room(self, key: frozenset[int]) -> bool:
        daemons = self._connections.daemons
        return all(any(daemons[index].batches < self._allowed for index in self._usable(group)) for group in key)

    def _usable(self, group: int) -> Sequence[int]:
        """Return the daemons with the shards of a group: the connected ones, if any is."""
        holders = self._holders[group]
        if len(holders) == 1:
            return holders
        return [index for index in holders if self._connections.daemons[index].connected] or holders

    def _ask(self, plan: BatchPlan) -> None:
        """Request a batch from the daemons that have its slices, in parts over their streams."""
        daemons = self._connections.daemons
        chosen = {
            group: min(self._usable(group), key=lambda index: daemons[index].load_key(self._allowed))
            for group in self._key(plan)
        }
        shares: dict[int, Sequence[int]] = {}
        if len(chosen) == 1:
            shares[chosen.popitem()[1]] = range(len(plan.slices))
        else:
            found: dict[int, list[int]] = {index: [] for index in chosen.values()}
            for place, piece in enumerate(plan.slices):
                found[chosen[self._groups[piece.shard]]].append(place)
            shares.update(found)
        self._asked_of[plan.epoch, plan.batch] = set(shares)
        parts: list[tuple[int, Sequence[int], int]] = []
        for index, places in shares.items():
            daemons[index].batches += 1
            sizes = [plan.slices[place].records * self._record_bytes[plan.slices[place].shard] for place in places]
            # The more batches are under way, the fewer parts keep all streams busy; each part costs CPU time.
            max_parts = math.ceil(len(daemons[index].session.streams) / daemons[index].batches)
            parts += ((index, part, nbytes) for part, nbytes in _split(places, sizes, max_parts))
        assembler = BatchAssembler(plan, tuple(part for _, part, _ in parts))
        for number, (index, _, nbytes) in enumerate(parts):
            self._send(_Request(assembler, number, daemons[index], nbytes))

    def _send(self, request: _Request) -> None:
        sequence = next(self._sequence)
        self._under_way[sequence] = request
        plan, slices = request.assembler.plan, request.assembler.slices(request.part)
        request.daemon.ask(sequence, plan.epoch, plan.batch, slices, request.nbytes, check=request.is_repeated)

    def _ask_again(self, daemon: RemoteDaemon, stream: Stream) -> None:
        """Repeat the requests of a lost connection, to other daemons where they have the shards."""
        for sequence in list(stream.under_way):
            self._move(sequence, daemon)
        self._connections.traffic.asked_again += stream.ask_again()

    def _move(self, sequence: int, daemon: RemoteDaemon) -> bool:
        """Send a daemon's request to another one; return whether there is one."""
        request = self._under_way.get(sequence)
        if request is None or (other := self._find_other(request, daemon)) is None:
            return False
        daemon.done(sequence)
        del self._under_way[sequence]
        self._connections.traffic.moved += 1
        self._send(replace(request, daemon=other))
        return True

    def _find_other(self, request: _Request, daemon: RemoteDaemon) -> RemoteDaemon | None:
        """Return the least busy daemon, other than `daemon`, with a request's shards that has not refused it."""
        slices = request.assembler.slices(request.part)
        others = [
            one
            for one in self._connections.daemons
            if one is not daemon and one not in request.refused_by and one.connected and one.has_shards(slices)
        ]
        return min(others, key=lambda one: one.nbytes, default=None)

    def _check_silence(self) -> None:
        """Repeat the requests of a daemon after half of the timeout: a flipped bit may have cost a request.

        Raises StreamError for one that was silent for too long and has shards that no other one has.
        """
        for daemon in self._connections.daemons:
            if daemon.silence.seconds < self._connections.timeout_s / 2:
                daemon.is_asked_again = False
            elif not daemon.is_asked_again:
                daemon.is_asked_again = True
                self._connections.traffic.asked_again += daemon.ask_again()
            if daemon.silence.is_over:
                silence = daemon.describe_silence()
                if not all([self._move(sequence, daemon) for sequence in daemon.sequences]):
                    raise StreamError(silence)

    def _accept(self, daemon: RemoteDaemon, stream: Stream, frames: list[zmq.Frame]) -> None:
        traffic, endpoint = self._connections.traffic, daemon.session.endpoint
        try:
            reply, records = daemon.session.unpack(frames)
            if isinstance(reply, Damaged):
                raise WireError(f"{endpoint} got a damaged request")
        except WireError as error:
            traffic.damaged += 1
            traffic.asked_again += stream.ask_again_damaged(error)
            return
        stream.damaged = 0
        # Other replies are of a greeting that was repeated.
        request = self._under_way.get(reply.sequence) if isinstance(reply, BatchHeader | Refusal) else None
        if request is None or request.daemon is not daemon:
            traffic.stale += 1
            return
        assert isinstance(reply, BatchHeader | Refusal)
        del self._under_way[reply.sequence]
        daemon.done(reply.sequence)
        plan, assembler = request.assembler.plan, request.assembler
        if isinstance(reply, Refusal):
            if (other := self._find_other(request, daemon)) is None:
                raise StreamError(f"{endpoint} refused batch {plan.batch} of epoch {plan.epoch}: {reply.reason}")
            traffic.moved += 1
            self._send(replace(request, daemon=other, refused_by=(*request.refused_by, daemon)))
            return
        try:
            assembler.add(request.part, reply, records)
        except WireError as error:
            raise WireError(f"{endpoint} sent a malformed batch {plan.batch}: {error}") from error
        traffic.bytes += sum(map(len, frames))
        traffic.answers += 1
        if not self._is_intact(assembler, request.part):
            traffic.damaged += 1
            if request.is_repeated:
                raise StreamError(
                    f"{endpoint}: batch {plan.batch} of epoch {plan.epoch} came damaged twice, and is whole on the "
                    "daemon's disk: the link, or memory on the way, changes the bytes"
                )
            assembler.drop(request.part)
            traffic.asked_again += 1
            self._send(replace(request, is_repeated=True))
        elif assembler.complete:
            self._ready.add(assembler.batch())
            traffic.batches += 1

    def _is_intact(self, assembler: BatchAssembler, part: int) -> bool:
        if self._verify is None:
            return True
        began = time.perf_counter_ns()
        is_intact = assembler.is_intact(part, payloads=self._verify)
        self._connections.traffic.verify_s += (time.perf_counter_ns() - began) * 1e-9
        return is_intact


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


def _pull_nothing() -> None:
    return None
