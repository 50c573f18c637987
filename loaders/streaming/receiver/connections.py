"""The compute node's connections to one or more daemons.

Each stream is a connection of its own. ZeroMQ makes a lost connection again, and its requests are sent again, to
another daemon with the same shards where there is one. A second answer is dropped by its sequence number.
"""

from __future__ import annotations

import itertools
import os
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import zmq

from joulefeed.closing import Closing
from loaders.errors import LoaderConfigError, LoaderError, NoAnswerError, StreamError
from loaders.shared.options import check_seconds, check_whole
from loaders.streaming.protocol import WireFormat
from loaders.streaming.receiver.growth import (
    AUTO_MAX_STREAMS,
    AUTO_MIN_STREAMS,
    Growth,
    Streams,
    Window,
    check_streams,
)
from loaders.streaming.receiver.remote_daemon import Placement, RemoteDaemon
from loaders.streaming.receiver.session import DaemonSession, keep_freed_memory
from loaders.streaming.receiver.stream import Stream, check_endpoint

Endpoints: TypeAlias = str | Sequence[str | Sequence[str]]
"""One daemon or several; an inner list names replicas."""

_MESSAGES = 32
"""Messages taken of one stream before the next one's turn."""
_REPLICA_PATIENCE_S = 3.0
"""Time to wait for a replica where another one may answer."""
_PIECE_BYTES, _PIECE_MS = 2**20, 100
"""Bytes of an answer for which ZeroMQ is woken while others follow; milliseconds after which it is for any."""
_MAX_WARM_BYTES = 4 * 2**30


class Interrupted(Exception):
    """A fetch was ended from another thread."""


@dataclass(slots=True)
class Traffic:
    """Counts since the client was made."""

    batches: int = 0
    bytes: int = 0
    """Bytes of all frames taken, headers included."""
    answers: int = 0
    """Batches, or parts of them."""
    wait_s: float = 0.0
    """Time spent waiting for the next batch."""
    asked_again: int = 0
    """Requests that were repeated on a new connection."""
    moved: int = 0
    """Requests that went to another daemon."""
    damaged: int = 0
    """Messages and batches, or parts of them, that came damaged; they were requested again."""
    verify_s: float = 0.0
    """Time spent on checksums."""
    stale: int = 0
    """Answers to requests that had an answer or were dropped."""


class DaemonConnections(Closing):
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
        """Connect `streams` streams to every daemon, read the catalogs, and move `warm_bytes` of padding.

        With "auto" streams each daemon gets 2, then 4 and up to 32 while batches come faster with them. Daemons may
        have different shards, or the same ones. An inner list of endpoints names replicas, which have the same shards:
        one of them must answer, and the others are left out.

        Raises StreamError naming the endpoint when nothing answers within `timeout_s` seconds, LoaderConfigError for
        an argument out of range.
        """
        groups = [_as_tuple(entry) for entry in _as_tuple(endpoints)]
        self.endpoints: tuple[str, ...] = tuple(endpoint for group in groups for endpoint in group)
        for endpoint in self.endpoints:
            check_endpoint(endpoint)
        if not all(groups) or not groups or len(set(self.endpoints)) != len(self.endpoints):
            raise LoaderConfigError(f"endpoints={endpoints}: expected one or more, each once")
        check_streams(streams)
        check_whole("warm_bytes", warm_bytes, 0, _MAX_WARM_BYTES)
        timeout_s = check_seconds("timeout_s", timeout_s)
        if wire not in ("raw", "msgpack"):
            raise LoaderConfigError(f"wire={wire!r}: expected raw or msgpack")
        keep_freed_memory()
        self.timeout_s = timeout_s
        self.traffic = Traffic()
        self.sequence = itertools.count()
        """Numbers of requests; each is used once."""
        self._pid = os.getpid()
        self._context = zmq.Context(io_threads=1)
        self._poller = zmq.Poller()
        self._interrupt = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._poller.register(self._interrupt, zmq.POLLIN)
        self._sessions: list[DaemonSession] = []
        # For a client that is dropped unclosed: ZeroMQ ends a context only when all sockets are closed.
        self._dropped = weakref.finalize(self, _drop, self._sessions, self._context, self._pid)
        self._dropped.atexit = False
        self._polled = time.monotonic()
        self._closed = False
        try:
            connect = partial(
                DaemonSession,
                self._context,
                self._poller,
                streams=AUTO_MIN_STREAMS if streams == "auto" else streams,
                keys=keys,
                warm_bytes=warm_bytes,
                wire=wire,
            )
            for group in groups:
                self._sessions += _connect_replicas(group, connect, timeout_s, alone=len(groups) == 1)
            connected = [session.endpoint for session in self._sessions]
            self.placement = Placement.of(connected, [session.catalog for session in self._sessions])
        except BaseException:
            self.close()
            raise
        self.left_out = tuple(endpoint for endpoint in self.endpoints if endpoint not in connected)
        """Replicas that did not answer when the client was made."""
        self.catalog = self.placement.catalog
        """The shards of all daemons together."""
        self.daemons = tuple(
            RemoteDaemon(session, places) for session, places in zip(self._sessions, self.placement.places, strict=True)
        )
        rtt_s = max(session.rtt_s for session in self._sessions)
        self.window = Window(rtt_s, len(self._sessions), len(self._sessions[0].streams))
        """How many batches the links need under way."""
        self._growth = Growth(rtt_s) if streams == "auto" else None

    @property
    def streams(self) -> int:
        """Number of streams to all daemons together."""
        return sum(len(session.streams) for session in self._sessions)

    @property
    def is_shuffled(self) -> bool:
        """Whether the records of all daemons were shuffled when their shards were made."""
        return all(session.is_shuffled for session in self._sessions)

    @property
    def transport(self) -> str:
        """How many streams lead to each daemon, and their congestion control, in words."""
        controls = " and ".join(sorted({session.congestion for session in self._sessions}))
        text = f"{self.streams // len(self._sessions)} streams to each daemon, congestion control {controls}"
        if self._growth is not None:
            tried = ", ".join(f"{8e-6 * rate:.0f} by {count}" for count, rate in self._growth.goodput.items())
            text += f"; streams=auto tries up to {AUTO_MAX_STREAMS}, and measured in Mbit/s: {tried or 'nothing yet'}"
        if self.left_out:
            text += f"; left out at the start, for no answer came: {', '.join(self.left_out)}; replicas serve instead"
        return text

    def grow(self, now: float) -> None:
        """Measure the rate, and add streams where "auto" finds that they help; `now` is of the monotonic clock."""
        traffic, growth = self.traffic, self._growth
        self.window.measure(now, traffic.bytes, traffic.batches)
        if growth is not None and growth.measure(now, traffic.bytes, traffic.answers, traffic.wait_s):
            for daemon in self.daemons:
                daemon.grow(growth.streams)
            self.window.streams = growth.streams

    def interrupt(self) -> None:
        """End the fetch that was started last, as if it were finished; may be called from another thread."""
        os.eventfd_write(self._interrupt, 1)

    def receive(self, timeout_s: float) -> Iterator[tuple[RemoteDaemon, Stream, list[zmq.Frame]]]:
        """Yield the messages that have arrived, waiting for the first; an empty one says that its stream was lost.

        Counts how long every daemon with open requests has been silent. Raises Interrupted after `interrupt`.
        """
        began = time.monotonic()
        ready = self._poll(int(timeout_s * 1000) + 1 if timeout_s > 0 else 0)
        now = time.monotonic()
        # Time without a look counts only in part as the daemon's silence.
        passed = now - began + min(began - self._polled, self.timeout_s / 4)
        self._polled = now
        for daemon in self.daemons:
            if daemon.has_requests:
                daemon.silence.add(passed, daemon.session.streams)
            else:
                daemon.silence.end()
            for stream in daemon.session.streams:
                lost = stream.monitor in ready and stream.lost()
                if not lost and stream.socket not in ready:
                    continue
                # The messages of a lost connection are taken before its requests are sent again.
                left = _MESSAGES
                while (lost or left) and (frames := stream.receive()) is not None:
                    daemon.silence.end()
                    left -= 1
                    yield daemon, stream, frames
                if lost:
                    daemon.silence.was_lost = True
                    yield daemon, stream, []
        if self._interrupt in ready and self._read_interrupt():
            raise Interrupted

    def _poll(self, timeout_ms: int) -> dict[object, int]:
        """Return the sockets that are ready, waiting for the first of them.

        A link of 1 Gbit/s delivers 64 kB at a time, and to be woken for each costs as much as to copy them.
        """
        streams = [each for daemon in self.daemons for each in daemon.streams_with_more(_PIECE_BYTES)]
        if not streams or not timeout_ms:
            return dict(self._poller.poll(timeout_ms))
        for stream in streams:
            stream.wake_at(_PIECE_BYTES)
        try:
            ready = self._poller.poll(min(timeout_ms, _PIECE_MS))
        finally:
            for stream in streams:
                stream.wake_at(1)
        return dict(ready or self._poller.poll(max(0, timeout_ms - _PIECE_MS)))

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
        """Raise LoaderError in a process that was forked after the client was made, StreamError once it is closed."""
        if os.getpid() != self._pid:
            raise LoaderError("connections do not survive a fork: make the loader in the process that uses it")
        if self._closed:
            raise StreamError("the client is closed: make a new one")

    def _read_interrupt(self) -> bool:
        try:
            return bool(os.eventfd_read(self._interrupt))
        except BlockingIOError:
            return False


def _as_tuple(entry: object) -> tuple[Any, ...]:
    return tuple(entry) if isinstance(entry, list | tuple | set) else (entry,)


def _connect_replicas(
    replicas: Sequence[str], connect: Callable[..., DaemonSession], timeout_s: float, *, alone: bool
) -> list[DaemonSession]:
    """Return sessions with the replicas that answer, at least one of them.

    Raises NoAnswerError without an answer, StreamError where two of them have different data.
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
    sessions: list[DaemonSession] = []
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


def _drop(sessions: list[DaemonSession], context: zmq.Context[zmq.Socket[bytes]], pid: int) -> None:
    if os.getpid() == pid:
        for session in sessions:
            session.close()
        context.destroy(linger=0)
