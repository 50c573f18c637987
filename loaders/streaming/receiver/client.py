"""The compute node's end of the service: sessions with one or more daemons.

Each stream is a connection of its own. A connection that is lost is made again by ZeroMQ, and what was asked for
on it is asked for again, of another daemon that holds the same shards where there is one; an answer that comes
twice is dropped by its sequence number.
"""

from __future__ import annotations

import itertools
import os
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeAlias

import zmq

from loaders.errors import LoaderConfigError, LoaderError, StreamError
from loaders.shared.arguments import check_seconds, check_whole
from loaders.streaming.errors import NoAnswerError
from loaders.streaming.planner import BatchPlan, EpochPlan, plan
from loaders.streaming.protocol.messages import WireFormat
from loaders.streaming.receiver.arrivals import Order
from loaders.streaming.receiver.fetch import Fetch, Interrupted, check_window
from loaders.streaming.receiver.growth import AUTO_LEAST, AUTO_MOST, Growth, Streams, check_streams
from loaders.streaming.receiver.memory import keep_freed_memory
from loaders.streaming.receiver.placement import Placement
from loaders.streaming.receiver.session import Session
from loaders.streaming.receiver.source import Source
from loaders.streaming.receiver.stream import Stream, check_endpoint
from loaders.streaming.shards.mixing import Mixing

__all__ = ["Endpoints", "StreamClient", "Traffic"]

Endpoints: TypeAlias = str | Sequence[str | Sequence[str]]
"""One daemon or several; those in a list of their own are replicas."""

_MESSAGES = 32
"""Messages taken of one stream before the next one's turn."""
_REPLICA_PATIENCE_S = 3.0
"""How long a replica is waited for where another one may answer."""
_MOST_WARM_BYTES = 4 * 2**30


@dataclass(slots=True)
class Traffic:
    """What a client counted since it was made."""

    batches: int = 0
    bytes: int = 0
    """Bytes of all frames taken, headers included."""
    answers: int = 0
    """Batches, or parts of them, that were taken."""
    wait_s: float = 0.0
    """Time in which the next batch was wanted and had not arrived."""
    asked_again: int = 0
    """Requests that were repeated on a new connection."""
    moved: int = 0
    """Requests that were taken to another daemon."""
    damaged: int = 0
    """Messages and batches, or parts of them, that came damaged; they were asked for again."""
    verify_s: float = 0.0
    """Time in which checksums were computed."""
    stale: int = 0
    """Answers that nobody waited for any more."""


class StreamClient:
    """Connections to daemons; one thread at a time uses it, except for `interrupt`."""

    def __init__(
        self,
        endpoints: Endpoints,
        *,
        streams: Streams,
        timeout_s: float,
        keys: Path | str | None = None,
        warm_bytes: int = 0,
        wire: WireFormat = "raw",
    ) -> None:
        """Connect `streams` streams to every daemon, learn what each serves, and move `warm_bytes` of padding.

        With "auto" streams each daemon gets 2, then 4 and up to 32 while batches come quicker with them.
        Daemons may hold different shards, or the same ones, of which any then serves. A list among the endpoints names
        replicas, which hold the same shards: one of them has to answer, and those that do not are left out.

        Raises StreamError naming the endpoint when nothing answers within `timeout_s` seconds.
        """
        groups = [_listed(entry) for entry in _listed(endpoints)]
        self.endpoints: tuple[str, ...] = tuple(endpoint for group in groups for endpoint in group)
        for endpoint in self.endpoints:
            check_endpoint(endpoint)
        if not all(groups) or not groups or len(set(self.endpoints)) != len(self.endpoints):
            raise LoaderConfigError(f"endpoints={endpoints}: expected one or more, each once")
        check_streams(streams)
        check_whole("warm_bytes", warm_bytes, 0, _MOST_WARM_BYTES)
        timeout_s = check_seconds("timeout_s", timeout_s)
        if wire not in ("raw", "msgpack"):
            raise LoaderConfigError(f"wire={wire!r}: expected raw or msgpack")
        keep_freed_memory()
        self.timeout_s = timeout_s
        self.traffic = Traffic()
        self.sequence = itertools.count()
        """Numbers of requests, none of which is used twice."""
        self._pid = os.getpid()
        self._context = zmq.Context(io_threads=1)
        self._poller = zmq.Poller()
        self._interrupt = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._poller.register(self._interrupt, zmq.POLLIN)
        self._sessions: list[Session] = []
        # One that is dropped unclosed: ZeroMQ's own end of a context waits for ever for sockets that are still open.
        self._dropped = weakref.finalize(self, _drop, self._sessions, self._context, self._pid)
        self._dropped.atexit = False
        self._polled = time.monotonic()
        self._closed = False
        try:
            connect = partial(
                Session,
                self._context,
                self._poller,
                streams=AUTO_LEAST if streams == "auto" else streams,
                keys=keys,
                warm_bytes=warm_bytes,
                wire=wire,
            )
            for group in groups:
                self._sessions += _reached(group, connect, timeout_s, alone=len(groups) == 1)
            connected = [session.endpoint for session in self._sessions]
            self.placement = Placement.of(connected, [session.catalog for session in self._sessions])
        except BaseException:
            self.close()
            raise
        self.left_out = tuple(endpoint for endpoint in self.endpoints if endpoint not in connected)
        """Replicas that did not answer when the client was made."""
        self.catalog = self.placement.catalog
        """What all daemons serve together."""
        self.sources = tuple(
            Source(session, places) for session, places in zip(self._sessions, self.placement.places, strict=True)
        )

        self._growth = Growth(max(session.rtt_s for session in self._sessions)) if streams == "auto" else None

    @property
    def streams(self) -> int:
        """Number of streams to all daemons together."""
        return sum(len(session.streams) for session in self._sessions)

    @property
    def mixings(self) -> list[Mixing | None]:
        """How well classes are mixed in every daemon's shards, None where it does not say."""
        return [session.mixing for session in self._sessions]

    @property
    def transport(self) -> str:
        """How many streams lead to each daemon, and their congestion control, in words."""
        controls = " and ".join(sorted({session.congestion for session in self._sessions}))
        told = f"{self.streams // len(self._sessions)} streams to each daemon, congestion control {controls}"
        if self._growth is not None:
            tried = ", ".join(f"{8e-6 * rate:.0f} by {count}" for count, rate in self._growth.goodput.items())
            told += f"; streams=auto tries up to {AUTO_MOST}, and measured in Mbit/s: {tried or 'nothing yet'}"
        if self.left_out:
            told += f"; left out at the start, for no answer came: {', '.join(self.left_out)}; replicas serve instead"
        return told

    def grow(self, now: float) -> None:
        """Make more streams where "auto" finds that they are of use; `now` in seconds of the monotonic clock."""
        traffic, growth = self.traffic, self._growth
        if growth is not None and growth.measured(now, traffic.bytes, traffic.answers, traffic.wait_s):
            for source in self.sources:
                source.grow(growth.streams)

    def plan(self, *, order: Order = "arrival", **arguments: Any) -> EpochPlan:
        """Plan an epoch over the shards of all daemons; the arguments are those of `planner.plan`.

        Where batches are to be used as they arrive, all but the last few are of one daemon's shards each, or of
        those that the same daemons hold, so that a slow daemon delays none that it has no part in.
        """
        planned = plan(self.catalog.shard_records, **arguments)
        return self.grouped(planned) if order == "arrival" else planned

    def grouped(self, planned: EpochPlan) -> EpochPlan:
        """Return a plan's records in batches of one daemon's shards each, as far as they can be."""
        groups = self.placement.groups
        return planned.grouped(groups) if len(set(groups)) > 1 and len(planned) else planned

    def fetch(
        self,
        batches: Iterable[BatchPlan],
        *,
        window: int,
        order: Order = "arrival",
        step: int = 0,
        verify: bool | None = None,
    ) -> Fetch:
        """Start to fetch batches, at most `window` of each daemon asked for and not yet taken.

        Batches are planned epoch after epoch. A `step` above 0 begins with so many batches and asks for so many
        more with each one taken, until the window is full. With `verify` every record's checksum is computed, with
        False the one that it states is compared with the index; what is damaged is asked for once more.
        """
        rest = iter(batches)
        return self.fetch_from(lambda: next(rest, None), window=window, order=order, step=step, verify=verify)

    def fetch_from(
        self,
        pull: Callable[[], BatchPlan | None],
        *,
        window: int,
        order: Order = "arrival",
        step: int = 0,
        verify: bool | None = None,
    ) -> Fetch:
        """Start to fetch what `pull` returns whenever there is room for another batch; None is nothing for now."""
        self.check_process()
        check_window(window, order, step)
        self._interrupted()  # one that came when nothing was under way is of no concern to this fetch
        return Fetch(self, pull, window, order, step, verify=verify)

    def interrupt(self) -> None:
        """End the fetch that was started last, as if it were finished; may be called from another thread."""
        os.eventfd_write(self._interrupt, 1)

    def receive(self, timeout_s: float) -> Iterator[tuple[Source, Stream, list[zmq.Frame]]]:
        """Yield what has arrived, waiting for the first message; a stream without frames was lost.

        Adds to what every daemon that is waited for has been silent.
        """
        began = time.monotonic()
        ready = dict(self._poller.poll(max(0, int(timeout_s * 1000) + 1) if timeout_s > 0 else 0))
        now = time.monotonic()
        # Time in which nobody looked is not the daemon's, but for a part: silence has to end some time.
        passed = now - began + min(began - self._polled, self.timeout_s / 4)
        self._polled = now
        for source in self.sources:
            source.silent_s = source.silent_s + passed if source.waited_for else 0.0
            for stream in source.session.streams:
                lost = stream.monitor in ready and stream.lost()
                if not lost and stream.socket not in ready:
                    continue
                # Of a connection that was lost, what had arrived is taken before the rest is asked for again.
                left = _MESSAGES
                while (lost or left) and (frames := stream.receive()) is not None:
                    source.silent_s = 0.0
                    left -= 1
                    yield source, stream, frames
                if lost:
                    yield source, stream, []
        if self._interrupt in ready and self._interrupted():
            raise Interrupted

    def close(self) -> None:
        """Close every connection; may be called twice."""
        if self._closed:
            return
        self._closed = True
        self._dropped.detach()
        if os.getpid() != self._pid:  # a fork's sockets are its parent's
            return
        for session in self._sessions:
            session.close()
        self._context.destroy(linger=0)
        os.close(self._interrupt)

    def check_process(self) -> None:
        """Raise LoaderError in a process that was forked after the client was made."""
        if os.getpid() != self._pid:
            raise LoaderError("connections do not survive a fork: make the loader in the process that uses it")
        if self._closed:
            raise StreamError("the client is closed: make a new one")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _interrupted(self) -> bool:
        try:
            return bool(os.eventfd_read(self._interrupt))
        except BlockingIOError:
            return False


def _listed(entry: object) -> tuple[Any, ...]:
    return tuple(entry) if isinstance(entry, list | tuple | set) else (entry,)


def _reached(
    replicas: Sequence[str], connect: Callable[..., Session], timeout_s: float, *, alone: bool
) -> list[Session]:
    """Return sessions with the replicas that answer, at least one of them.

    Raises NoAnswerError where none does, StreamError where two of them are no replicas.
    """
    if len(replicas) == 1:
        try:
            return [connect(replicas[0], timeout_s=timeout_s)]
        except NoAnswerError as error:
            if alone:
                raise
            raise NoAnswerError(
                f"{error} If it is a replica of another daemon, list the two together, endpoints=[[A, B]]: then one "
                "that is down is left out"
            ) from error
    sessions: list[Session] = []
    try:
        for patience_s in (min(timeout_s, _REPLICA_PATIENCE_S), timeout_s):
            silent: list[NoAnswerError] = []
            for endpoint in replicas:
                try:
                    sessions.append(connect(endpoint, timeout_s=timeout_s, greeting_s=patience_s))
                except NoAnswerError as error:
                    silent.append(error)
            if sessions:
                break
        if not sessions:
            raise NoAnswerError("none of the replicas answers: " + "; ".join(map(str, silent))) from silent[0]
        for session in sessions:
            if session.catalog.fingerprint != sessions[0].catalog.fingerprint:
                raise StreamError(
                    f"{sessions[0].endpoint} and {session.endpoint} are listed as replicas and serve different data: "
                    "copy the shards of one to the other, or list them side by side"
                )
    except BaseException:
        for session in sessions:
            session.close()
        raise
    return sessions


def _drop(sessions: list[Session], context: zmq.Context[zmq.Socket[bytes]], pid: int) -> None:
    if os.getpid() == pid:
        for session in sessions:
            session.close()
        context.destroy(linger=0)
