"""Batches under way: which is asked for next, of whom, and what has arrived of it."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import zmq

from loaders.errors import LoaderConfigError, StreamError
from loaders.shared.arguments import check_whole
from loaders.streaming.errors import WireError
from loaders.streaming.planner import BatchPlan
from loaders.streaming.protocol.messages import MAX_SLICES, BatchHeader, Damaged, Refusal
from loaders.streaming.receiver.arrivals import Arrivals, AsArrived, AsPlanned, Order
from loaders.streaming.receiver.batch import Assembly, RawBatch
from loaders.streaming.receiver.source import Source
from loaders.streaming.receiver.stream import Stream

if TYPE_CHECKING:
    from loaders.streaming.receiver.client import StreamClient

__all__ = ["Fetch", "Interrupted", "check_window"]

_PART_BYTES = 2**20
"""A batch is cut into parts for several streams, but into none that is smaller: each costs the same CPU time."""
_PLANNED_AHEAD = 4096
"""Batches looked through, at most, for one that a daemon with room has."""


class Interrupted(Exception):
    """A fetch was ended from another thread."""


def check_window(window: int, order: Order, step: int) -> None:
    """Raise LoaderConfigError for an argument of a fetch that is out of range."""
    check_whole("prefetch_batches", window, 1, 256)
    check_whole("prefetch_step", step, 0)
    if order not in ("arrival", "strict"):
        raise LoaderConfigError(f"order={order!r}: expected arrival or strict")


@dataclass(frozen=True, slots=True)
class _Asked:
    """A request under way: one part of one batch, of one daemon."""

    assembly: Assembly
    index: int
    source: Source
    nbytes: int
    again: bool = False
    """Whether it came damaged before."""
    refused_by: tuple[Source, ...] = ()
    """Daemons that cannot answer it."""


class Fetch:
    """Batches under way, in the order in which they are complete or planned; iterate, or `take` them.

    A batch is asked for in parts over several streams, so that all of them carry the batch that is wanted first,
    and a connection that has just begun, and is slow yet, holds up no batch alone.
    """

    def __init__(
        self,
        client: StreamClient,
        pull: Callable[[], BatchPlan | None],
        window: int,
        order: Order,
        step: int,
        *,
        verify: bool | None,
    ) -> None:
        """Start to ask for the batches that `pull` returns.

        With `verify` every record's checksum is computed, without it the one that the record states is compared with
        the index; None compares nothing.
        """
        self._verify = verify
        self._client, self._pull, self._window, self._step = client, pull, window, step
        self._strict = order == "strict"
        self._closed = False
        self._allowed = min(step, window) if step else window
        self._sequence = client.sequence
        self._under_way: dict[int, _Asked] = {}
        self._asked_of: dict[tuple[int, int], set[int]] = {}
        """By epoch and batch, until it is taken: the daemons that were asked for a part."""
        self._waiting: dict[frozenset[int], deque[BatchPlan]] = {}
        """Batches without room yet, by the groups of shards that they are made of."""
        self._arrivals: Arrivals = AsPlanned() if self._strict else AsArrived()
        self._groups = client.placement.groups
        self._holders = dict(zip(self._groups, client.placement.holders, strict=True))
        self._record_bytes = client.placement.record_bytes()
        self._fill()

    def __iter__(self) -> Iterator[RawBatch]:
        try:
            while (batch := self.take()) is not None:
                yield batch
        finally:
            self.close()

    def take(self, *, wait: bool = True) -> RawBatch | None:
        """Return the next batch; None when none is planned, or when none is there and `wait` is false.

        Raises StreamError naming the daemon: silent for longer than the client's timeout, refusing, or sending
        what it was not asked for.
        """
        client = self._client
        started = time.monotonic()
        self._fill()
        batch = self._arrivals.take()
        try:
            while batch is None and self._under_way:
                for source, stream, frames in client.receive(self._patience() if wait else 0.0):
                    if frames:
                        self._accept(source, stream, frames)
                    else:
                        self._ask_again(source, stream)
                batch = self._arrivals.take()
                self._check_silence()
                if not wait:
                    break
        except Interrupted:
            self.close()
            return None
        now = time.monotonic()
        client.traffic.wait_s += now - started
        client.grow(now)
        # Whatever waits for room waits for a batch that is under way, or that could be taken.
        assert batch is not None or not wait or not self._waiting, "batches are planned and none is under way"
        if batch is not None:
            for daemon in self._asked_of.pop((batch.epoch, batch.batch), ()):
                client.sources[daemon].batches -= 1
            self._allowed = min(self._window, self._allowed + self._step)
            self._fill()
        return batch

    @property
    def finished(self) -> bool:
        """Whether every batch that was planned so far has been taken."""
        return not self._under_way and not len(self._arrivals)

    def close(self) -> None:
        """Forget what is under way; connections that still carry it are made anew. May be called twice."""
        if self._closed:  # what is under way now is another fetch's
            return
        self._closed = True
        for source in self._client.sources:
            source.reset()
        self._under_way.clear()
        self._asked_of.clear()
        self._waiting.clear()
        self._arrivals = AsPlanned() if self._strict else AsArrived()
        self._pull = _nothing

    def _patience(self) -> float:
        """Return how long to wait until a daemon that is waited for is asked again, or has been silent for too long."""
        timeout_s = self._client.timeout_s
        return min(
            (
                max(0.0, (timeout_s if source.is_asked_again else timeout_s / 2) - source.silent_s)
                for source in self._client.sources
                if source.waited_for
            ),
            default=timeout_s,
        )

    def _fill(self) -> None:
        while (batch := self._next()) is not None:
            self._ask(batch)

    def _next(self) -> BatchPlan | None:
        """Return the next batch that all its daemons have room for, None where there is none."""
        # Nothing of a later epoch takes the room of what an earlier one still waits for: it could not be handed out.
        oldest = min((queue[0].epoch for queue in self._waiting.values()), default=None)
        fitting = [
            (queue[0].epoch, queue[0].batch, key)
            for key, queue in self._waiting.items()
            if queue[0].epoch == oldest and self._room(key)
        ]
        if fitting:
            key = min(fitting, key=lambda entry: entry[:2])[2]
            batch = self._waiting[key].popleft()
            if not self._waiting[key]:
                del self._waiting[key]
            return batch
        while any(source.batches < self._allowed for source in self._client.sources):
            if oldest is not None and max(queue[-1].epoch for queue in self._waiting.values()) > oldest:
                return None
            # What comes strictly in order is asked for in order as well.
            if sum(map(len, self._waiting.values())) >= (1 if self._strict else _PLANNED_AHEAD):
                return None
            pulled = self._pull()
            if pulled is None:
                return None
            self._arrivals.expect(pulled)
            key = self._key(pulled)
            if (oldest is None or pulled.epoch == oldest) and key not in self._waiting and self._room(key):
                return pulled
            self._waiting.setdefault(key, deque()).append(pulled)
            oldest = pulled.epoch if oldest is None else oldest
        return None

    def _key(self, plan: BatchPlan) -> frozenset[int]:
        """Return the groups of shards that a batch is made of."""
        if len(self._holders) == 1:
            return frozenset(self._holders)
        return frozenset(self._groups[piece.shard] for piece in plan.slices)

    def _room(self, key: frozenset[int]) -> bool:
        sources = self._client.sources
        return all(any(sources[daemon].batches < self._allowed for daemon in self._usable(group)) for group in key)

    def _usable(self, group: int) -> Sequence[int]:
        """Return the daemons of which the shards of a group can be had: those that are connected, if any is."""
        holders = self._holders[group]
        if len(holders) == 1:
            return holders
        return [daemon for daemon in holders if self._client.sources[daemon].connected] or holders

    def _ask(self, plan: BatchPlan) -> None:
        """Ask for a batch, of the daemons that hold its slices, in parts over their streams."""
        sources = self._client.sources
        chosen = {
            group: min(self._usable(group), key=lambda daemon: sources[daemon].reluctance(self._allowed))
            for group in self._key(plan)
        }
        shares: dict[int, Sequence[int]] = {}
        if len(chosen) == 1:
            shares[chosen.popitem()[1]] = range(len(plan.slices))
        else:
            found: dict[int, list[int]] = {daemon: [] for daemon in chosen.values()}
            for place, piece in enumerate(plan.slices):
                found[chosen[self._groups[piece.shard]]].append(place)
            shares.update(found)
        self._asked_of[plan.epoch, plan.batch] = set(shares)
        asked: list[tuple[int, Sequence[int], int]] = []
        for daemon, places in shares.items():
            sources[daemon].batches += 1
            sizes = [plan.slices[place].records * self._record_bytes[plan.slices[place].shard] for place in places]
            # The more batches are under way, the fewer parts keep all streams busy; each part costs CPU time.
            most = math.ceil(len(sources[daemon].session.streams) / sources[daemon].batches)
            asked += ((daemon, part, nbytes) for part, nbytes in _parts(places, sizes, most))
        assembly = Assembly(plan, tuple(part for _, part, _ in asked))
        for index, (daemon, _, nbytes) in enumerate(asked):
            self._send(_Asked(assembly, index, sources[daemon], nbytes))

    def _send(self, asked: _Asked) -> None:
        sequence = next(self._sequence)
        self._under_way[sequence] = asked
        plan = asked.assembly.plan
        slices = asked.assembly.slices(asked.index)
        asked.source.ask(sequence, plan.epoch, plan.batch, slices, asked.nbytes, check=asked.again)

    def _ask_again(self, source: Source, stream: Stream) -> None:
        """Ask anew for what a connection that was lost had carried, of other daemons where they have it."""
        for sequence in list(stream.under_way):
            self._move(sequence, source)
        self._client.traffic.asked_again += stream.ask_again()

    def _move(self, sequence: int, source: Source) -> bool:
        """Ask another daemon for what this one was asked for; return whether there is one."""
        asked = self._under_way.get(sequence)
        if asked is None or (other := self._other(asked, source)) is None:
            return False
        source.done(sequence)
        del self._under_way[sequence]
        self._client.traffic.moved += 1
        self._send(replace(asked, source=other))
        return True

    def _other(self, asked: _Asked, source: Source) -> Source | None:
        """Return the least busy daemon, other than `source`, that holds what was asked for and has not refused it."""
        slices = asked.assembly.slices(asked.index)
        others = [
            one
            for one in self._client.sources
            if one is not source and one not in asked.refused_by and one.connected and one.holds(slices)
        ]
        return min(others, key=lambda one: one.nbytes, default=None)

    def _check_silence(self) -> None:
        """Ask a daemon again that has been silent for half of what is allowed: a flipped bit may have cost a request.

        Raises StreamError for one that was silent for too long and has what no other one does.
        """
        for source in self._client.sources:
            if source.silent_s <= self._client.timeout_s / 2:
                source.is_asked_again = False
            elif not source.is_asked_again:
                source.is_asked_again = True
                self._client.traffic.asked_again += source.ask_again()
            if source.silent_s > self._client.timeout_s:
                silence = source.silence()
                if not all([self._move(sequence, source) for sequence in source.sequences]):
                    raise StreamError(silence)

    def _accept(self, source: Source, stream: Stream, frames: list[zmq.Frame]) -> None:
        client, endpoint = self._client, source.session.endpoint
        try:
            reply, records = source.session.unpack(frames)
            if isinstance(reply, Damaged):
                raise WireError(f"{endpoint} got a damaged request")
        except WireError as error:
            client.traffic.damaged += 1
            client.traffic.asked_again += stream.ask_again_damaged(error)
            return
        stream.damaged = 0
        asked = None
        if isinstance(reply, BatchHeader | Refusal):  # others are of a greeting that was repeated
            asked = self._under_way.get(reply.sequence)
        if asked is None or asked.source is not source:
            client.traffic.stale += 1
            return
        assert isinstance(reply, BatchHeader | Refusal)
        del self._under_way[reply.sequence]
        source.done(reply.sequence)
        plan, assembly = asked.assembly.plan, asked.assembly
        if isinstance(reply, Refusal):
            if (other := self._other(asked, source)) is None:
                raise StreamError(f"{endpoint} refused batch {plan.batch} of epoch {plan.epoch}: {reply.reason}")
            client.traffic.moved += 1
            self._send(replace(asked, source=other, refused_by=(*asked.refused_by, source)))
            return
        try:
            assembly.add(asked.index, reply, records)
        except WireError as error:
            raise WireError(f"{endpoint} sent a malformed batch {plan.batch}: {error}") from error
        client.traffic.bytes += sum(map(len, frames))
        client.traffic.answers += 1
        if not self._is_intact(assembly, asked.index):
            client.traffic.damaged += 1
            if asked.again:
                raise StreamError(
                    f"{endpoint}: batch {plan.batch} of epoch {plan.epoch} came damaged twice, and is whole on the "
                    "daemon's disk: the link, or memory on the way, changes what is sent"
                )
            assembly.drop(asked.index)
            client.traffic.asked_again += 1
            self._send(replace(asked, again=True))
        elif assembly.complete:
            self._arrivals.add(assembly.batch())
            client.traffic.batches += 1

    def _is_intact(self, assembly: Assembly, index: int) -> bool:
        if self._verify is None:
            return True
        began = time.perf_counter_ns()
        is_intact = assembly.is_intact(index, payloads=self._verify)
        self._client.traffic.verify_s += (time.perf_counter_ns() - began) * 1e-9
        return is_intact


def _parts(places: Sequence[int], sizes: list[float], most: int) -> Iterator[tuple[Sequence[int], int]]:
    """Cut slices into at most `most` runs of about equal bytes, yielding each with its bytes.

    There are more where a run would have more slices than a request may name.
    """
    total = sum(sizes)
    count = max(1, min(most, len(places), math.ceil(total / _PART_BYTES)))
    if count == 1 and len(places) <= MAX_SLICES:
        yield places, math.ceil(total)
        return
    begin, at = 0, 0.0
    for end, size in enumerate(sizes, 1):
        at += size
        left = len(sizes) - end
        # A part ends where its share is full, or where every part to come needs one of the slices left.
        if left == 0 or at >= total / count or left < count - 1 or end - begin == MAX_SLICES:
            yield places[begin:end], math.ceil(sum(sizes[begin:end]))
            total -= sum(sizes[begin:end])
            count = max(1, count - 1)
            begin, at = end, 0.0


def _nothing() -> None:
    return None
