"""The compute node's end of the service: keeps a window of requests under way and takes what arrives.

Each stream is a connection of its own. A connection that is lost is made again by ZeroMQ, and what was asked for
on it is asked for again; an answer that comes twice is dropped by its sequence number.
"""

from __future__ import annotations

import itertools
import math
import os
import time
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

import zmq

from loaders.errors import LoaderConfigError, StreamError
from loaders.streaming.batch import Assembly, RawBatch
from loaders.streaming.errors import WireError
from loaders.streaming.planner import BatchPlan, Slice
from loaders.streaming.stream import Stream
from loaders.streaming.wire import MAX_PADDING, BatchHeader, Catalog, Get, Hello, Refusal, pack, unpack_reply

__all__ = ["Fetch", "StreamClient", "Traffic"]


@dataclass(slots=True)
class Traffic:
    """What a client counted since it was made."""

    batches: int = 0
    bytes: int = 0
    """Bytes of all frames taken, headers included."""
    wait_s: float = 0.0
    """Time in which the next batch was wanted and had not arrived."""
    asked_again: int = 0
    """Requests that were repeated on a new connection."""
    stale: int = 0
    """Answers that nobody waited for any more."""


class StreamClient:
    """Connections to one daemon; one thread at a time uses it, except for `interrupt`."""

    def __init__(self, endpoint: str, *, streams: int, timeout_s: float, warm_bytes: int = 0) -> None:
        """Connect every stream, learn what is served, and move `warm_bytes` of padding over all streams together.

        Raises StreamError naming the endpoint when nothing answers within `timeout_s` seconds.
        """
        if not 1 <= streams <= 64:
            raise LoaderConfigError(f"streams={streams}: expected 1 to 64")
        if warm_bytes < 0:
            raise LoaderConfigError(f"warm_bytes={warm_bytes}: expected 0 or more")
        if not timeout_s > 0:
            raise LoaderConfigError(f"timeout_s={timeout_s}: expected more than 0 s")
        self.endpoint, self._timeout_s = endpoint, timeout_s
        self.traffic = Traffic()
        self._sequence = itertools.count()
        self._context = zmq.Context(io_threads=1)
        self._poller = zmq.Poller()
        self._interrupt = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._poller.register(self._interrupt, zmq.POLLIN)
        self._streams: list[Stream] = []
        self._closed = False
        try:
            for _ in range(streams):
                self._streams.append(Stream(self._context, endpoint, timeout_s, self._poller))
            self.catalog = self._greet(Hello(), 1)
            """What the daemon serves."""
            # TCP starts every connection slowly, and a far one for long. Padding opens its window.
            if per_stream := math.ceil(warm_bytes / streams / MAX_PADDING):
                self._greet(Hello(MAX_PADDING), per_stream)
        except BaseException:
            self.close()
            raise

    def _greet(self, hello: Hello, times: int) -> Catalog:
        """Say hello on every stream, so that all are connected before the first batch is asked for."""
        for stream in self._streams:
            for sequence in range(times):
                stream.ask(sequence, pack(hello))
        catalog: Catalog | None = None
        deadline = time.monotonic() + self._timeout_s
        while waiting := [stream for stream in self._streams if stream.under_way]:
            for stream, frames in self._receive(deadline - time.monotonic()):
                reply = self._unpack(frames)
                if not isinstance(reply, Catalog):
                    raise WireError(f"{self.endpoint} sent a malformed answer: no catalog to a greeting")
                catalog = reply
                # Catalogs have no sequence number: any of them answers the greeting that is oldest.
                stream.done(next(iter(stream.under_way), -1))
                deadline = time.monotonic() + self._timeout_s
            if time.monotonic() > deadline:
                raise StreamError(self._silence(waiting[0]))
        assert catalog is not None, "there is a stream, and it was greeted"
        return catalog

    def fetch(self, batches: Iterable[BatchPlan], *, window: int) -> Fetch:
        """Start to fetch batches, at most `window` of them asked for and not yet taken."""
        if not 1 <= window <= 256:
            raise LoaderConfigError(f"prefetch_batches={window}: expected 1 to 256")
        self._interrupted()  # one that came when nothing was under way is of no concern to this fetch
        return Fetch(self, iter(batches), window)

    def interrupt(self) -> None:
        """End the fetch that was started last, as if it were finished; may be called from another thread."""
        os.eventfd_write(self._interrupt, 1)

    def close(self) -> None:
        """Close every connection; may be called twice."""
        if self._closed:
            return
        self._closed = True
        for stream in self._streams:
            stream.close()
        self._context.destroy(linger=0)
        os.close(self._interrupt)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _ask(self, plan: BatchPlan, slices: tuple[Slice, ...]) -> int:
        """Ask for a part of a batch on the stream with the fewest requests; return its sequence number."""
        sequence = next(self._sequence)
        get = Get(sequence, self.catalog.fingerprint, plan.epoch, plan.batch, slices)
        min(self._streams, key=lambda stream: len(stream.under_way)).ask(sequence, pack(get))
        return sequence

    def _receive(self, timeout_s: float) -> Iterator[tuple[Stream, list[zmq.Frame]]]:
        """Yield one message of every stream that has one, waiting for the first; ask again for what was lost."""
        ready = dict(self._poller.poll(max(0, int(timeout_s * 1000) + 1) if timeout_s > 0 else 0))
        for stream in self._streams:
            lost = stream.monitor in ready and stream.lost()
            # Of a connection that was lost, what had arrived is taken before the rest is asked for again.
            while (lost or stream.socket in ready) and (frames := stream.receive()) is not None:
                yield stream, frames
                if not lost:
                    break
            if lost:
                self.traffic.asked_again += stream.ask_again()

    def _interrupted(self) -> bool:
        try:
            return bool(os.eventfd_read(self._interrupt))
        except BlockingIOError:
            return False

    def _unpack(self, frames: list[zmq.Frame]) -> Catalog | BatchHeader | Refusal:
        try:
            return unpack_reply(frames[0].buffer)
        except WireError as error:
            raise WireError(f"{self.endpoint} sent a malformed answer: {error}") from error

    def _silence(self, stream: Stream) -> str:
        """Say what it looks like when nothing has come for the time that is allowed."""
        return (
            f"{self.endpoint}: no answer within {self._timeout_s:g} s; {stream.state}. Is the daemon running "
            "there (python -m loaders.streaming serve), and can this node reach it?"
        )


@dataclass(slots=True)
class Fetch:
    """Batches under way, in the order in which they are complete; iterate, or `take` them.

    A batch is asked for in as many parts as there are streams, so that all of them carry the batch that is
    wanted first, and a connection that has just begun, and is slow yet, holds up no batch alone.
    """

    _client: StreamClient
    _left: Iterator[BatchPlan]
    _window: int
    _under_way: dict[int, tuple[Assembly, int]] = field(default_factory=dict)
    _incomplete: int = 0
    _arrived: deque[RawBatch] = field(default_factory=deque)

    def __post_init__(self) -> None:
        self._fill()

    def __iter__(self) -> Iterator[RawBatch]:
        try:
            while (batch := self.take()) is not None:
                yield batch
        finally:
            self.close()

    def take(self, *, wait: bool = True) -> RawBatch | None:
        """Return the next batch; None at the end, or when none is there and `wait` is false.

        Raises StreamError naming the daemon: silent for longer than the client's timeout, refusing, or sending
        what it was not asked for.
        """
        client = self._client
        started = time.monotonic()
        deadline = started + client._timeout_s
        while not self._arrived and self._under_way:
            now = time.monotonic()
            for stream, frames in client._receive(deadline - now if wait else 0):
                deadline = time.monotonic() + client._timeout_s
                self._accept(stream, frames)
            if client._interrupted():
                self.close()
                return None
            if not wait:
                break
            if not self._arrived and time.monotonic() > deadline:
                slowest = max(client._streams, key=lambda stream: len(stream.under_way))
                raise StreamError(client._silence(slowest))
        client.traffic.wait_s += time.monotonic() - started
        if not self._arrived:
            return None
        batch = self._arrived.popleft()
        self._fill()
        return batch

    @property
    def finished(self) -> bool:
        """Whether every batch has been taken."""
        return not self._under_way and not self._arrived

    def close(self) -> None:
        """Forget what is under way; connections that still carry it are made anew."""
        for stream in self._client._streams:
            if stream.under_way:
                stream.reset()
        self._under_way.clear()
        self._incomplete = 0
        self._arrived.clear()
        self._left = iter(())

    def _fill(self) -> None:
        while self._incomplete + len(self._arrived) < self._window:
            plan = next(self._left, None)
            if plan is None:
                return
            count = min(len(plan.slices), len(self._client._streams))
            assembly = Assembly(plan, count)
            self._incomplete += 1
            for index in range(count):
                self._under_way[self._client._ask(plan, assembly.slices(index))] = (assembly, index)

    def _accept(self, stream: Stream, frames: list[zmq.Frame]) -> None:
        client = self._client
        reply = client._unpack(frames)
        if isinstance(reply, Catalog):  # of a greeting that was repeated on a new connection
            client.traffic.stale += 1
            return
        assembly, index = self._under_way.pop(reply.sequence, (None, 0))
        if assembly is None:
            client.traffic.stale += 1
            return
        stream.done(reply.sequence)
        plan = assembly.plan
        if isinstance(reply, Refusal):
            raise StreamError(f"{client.endpoint} refused batch {plan.batch} of epoch {plan.epoch}: {reply.reason}")
        try:
            assembly.add(index, reply, [frame.buffer for frame in frames[1:]])
        except WireError as error:
            raise WireError(f"{client.endpoint} sent a malformed batch {plan.batch}: {error}") from error
        client.traffic.bytes += sum(len(frame) for frame in frames)
        if assembly.complete:
            self._incomplete -= 1
            self._arrived.append(assembly.batch())
            client.traffic.batches += 1
