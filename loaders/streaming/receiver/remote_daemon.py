"""One daemon as the client sees it: the greeting, its shards, its streams with their requests, and its silence."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Final

import zmq

from joulefeed.closing import Closing
from loaders.errors import NoAnswerError, StreamError, WireError
from loaders.records.planner import Slice
from loaders.shared.options import check_seconds
from loaders.streaming.keys import load_client_keys
from loaders.streaming.protocol import (
    MAX_PADDING,
    Damaged,
    Get,
    Health,
    HealthReport,
    Hello,
    Reply,
    Request,
    ShardCatalog,
    Warm,
    Warmed,
    pack,
    unpack_answer,
)
from loaders.streaming.receiver.stream import DaemonStream, Silence, take_messages
from loaders.streaming.settings import StreamSettings, check_endpoint

_RTT_TRIES: Final = 5
_NEAR_S: Final = 0.02
"""A round trip near by is measured several times, because both processes may wait for a CPU meanwhile."""


class RemoteDaemon(Closing):
    """Connections to one daemon, and the requests on them; one thread at a time uses it."""

    def __init__(
        self, context: zmq.Context[zmq.Socket[bytes]], poller: zmq.Poller, endpoint: str, settings: StreamSettings
    ) -> None:
        """Connect every stream, greet the daemon, and move padding over all streams together.

        Raises NoAnswerError naming the endpoint without an answer in time, StreamError when the key is refused,
        WireError for a malformed answer, LoaderConfigError naming a key file that is missing.
        """
        self.endpoint, self._wire = endpoint, settings.wire
        keys = load_client_keys(settings.keys) if settings.keys is not None else None
        self.streams: list[DaemonStream] = []
        self.silence = Silence(settings.timeout_s, self.streams)
        """Time without a message from it while a request has no answer."""
        self.is_asked_again = False
        """Whether its requests were repeated in this silence."""
        self.batches = 0
        """Batches with a part from it that are not taken yet."""
        try:
            for _ in range(settings.streams):
                self.streams.append(DaemonStream(context, endpoint, settings.timeout_s, poller, keys=keys))
            catalog = _exchange(self.streams[0], Hello(), settings.timeout_s)
            self.rtt_s = math.inf
            """A round trip on the idle link."""
            for _ in range(_RTT_TRIES):
                asked = time.monotonic()
                report = _exchange(self.streams[0], Health(), settings.timeout_s)
                self.rtt_s = min(self.rtt_s, time.monotonic() - asked)
                if self.rtt_s > _NEAR_S:
                    break
            if not isinstance(catalog, ShardCatalog) or not isinstance(report, HealthReport):
                raise WireError(f"{endpoint} sent a malformed answer: expected a catalog and a report")
            self.catalog = catalog
            """The daemon's shards."""
            self.congestion = str(report.fields.get("congestion", "unknown"))
            """TCP's congestion control on the daemon's side."""
            self.is_shuffled = report.fields.get("is_shuffled") is True
            """Whether the records were shuffled when the shards were made."""
            self._warm(math.ceil(settings.warm_bytes / settings.streams))
        except BaseException:
            self.close()
            raise

    def _warm(self, nbytes: int) -> None:
        """Have zeros sent over every stream, so that all are connected before the first batch is requested.

        TCP starts every connection slowly, and a far one for long. Padding opens its window.
        """
        for stream in self.streams:
            for sequence, at in enumerate(range(0, max(nbytes, 1), MAX_PADDING)):
                stream.ask(sequence, pack(Warm(sequence, min(MAX_PADDING, nbytes - at))))
        while any(stream.under_way for stream in self.streams):
            for stream, frames in _receive(self.streams, self.silence):
                reply = _read(stream, frames)
                if reply is None:
                    continue
                if not isinstance(reply, Warmed):
                    raise WireError(f"{self.endpoint} sent a malformed answer: expected padding")
                stream.done(reply.sequence)
            if self.silence.is_over:
                raise NoAnswerError(self.silence.describe())
        self.silence.end()

    @property
    def has_requests(self) -> bool:
        """Whether a request has no answer."""
        return any(stream.under_way for stream in self.streams)

    def ask(
        self, sequence: int, epoch: int, batch: int, slices: tuple[Slice, ...], nbytes: int, *, check: bool = False
    ) -> None:
        """Request slices, about so many bytes, on the stream with the fewest bytes under way.

        The `shard` of a slice is its place in this daemon's catalog. With `check` the daemon checks its own records
        first.
        """
        request = pack(Get(sequence, self.catalog.fingerprint, epoch, batch, slices, self._wire, check))
        min(self.streams, key=lambda stream: stream.load).ask(sequence, request, nbytes)

    def ask_again(self) -> int:
        """Repeat the requests under way over new connections; return their number."""
        return sum(stream.reconnect() for stream in self.streams if stream.under_way and stream.connected)

    def reset(self) -> None:
        """Drop the requests under way, with the connections that carry them."""
        for stream in self.streams:
            if stream.under_way:
                stream.reset()
        self.batches = 0
        self.silence.end()

    def close(self) -> None:
        """Close every stream; may be called twice."""
        while self.streams:
            self.streams.pop().close()


def health(endpoint: str, *, timeout_s: float, keys: Path | str | None = None) -> dict[str, object]:
    """Return a daemon's counters and state, by their names.

    `keys` is the client's half of what keygen made, for a daemon with keys.

    Raises StreamError naming the endpoint when nothing answers in time or the key is refused, WireError for a
    malformed answer, LoaderConfigError for a malformed endpoint, time or key.
    """
    check_endpoint(endpoint)
    check_seconds("timeout_s", timeout_s)
    pair = load_client_keys(keys) if keys is not None else None
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    try:
        with closing(DaemonStream(context, endpoint, timeout_s, zmq.Poller(), keys=pair)) as stream:
            reply = _exchange(stream, Health(), timeout_s)
    finally:
        context.destroy(linger=0)
    if not isinstance(reply, HealthReport):
        raise WireError(f"{endpoint} sent a malformed answer: no report")
    return dict(reply.fields)


def unpack(endpoint: str, frames: Sequence[zmq.Frame]) -> tuple[Reply, list[memoryview]]:
    """Return an answer and its records; raises WireError naming the daemon when it is malformed."""
    try:
        return unpack_answer([frame.buffer for frame in frames])
    except WireError as error:
        raise WireError(f"{endpoint} sent a malformed answer: {error}") from error


def _exchange(stream: DaemonStream, request: Request, timeout_s: float) -> Reply:
    """Send a request, and return its answer."""
    stream.ask(0, pack(request))
    silence = Silence(timeout_s, [stream])
    while not silence.is_over:
        for _, frames in _receive([stream], silence):
            reply = _read(stream, frames)
            if reply is not None:
                stream.done(0)
                return reply
        if stream.refused:
            raise StreamError(f"{stream.endpoint} refused: {stream.state}")
    raise NoAnswerError(silence.describe())


def _receive(streams: Sequence[DaemonStream], silence: Silence) -> Iterator[tuple[DaemonStream, list[zmq.Frame]]]:
    """Yield the messages on some streams, waiting for the first; repeat the requests of lost connections."""
    began = time.monotonic()
    # A poller of its own: messages on other sockets must not wake this one.
    poller = zmq.Poller()
    for stream in streams:
        poller.register(stream.socket, zmq.POLLIN)
        poller.register(stream.monitor, zmq.POLLIN)
    ready = dict(poller.poll(math.ceil(silence.look_s * 1000)))
    silence.add(time.monotonic() - began)
    for stream, frames in take_messages(streams, ready, silence, 1):
        if frames:
            yield stream, frames
        else:
            stream.ask_again()


def _read(stream: DaemonStream, frames: Sequence[zmq.Frame]) -> Reply | None:
    """Return an answer; None after asking again, where it or its request came damaged.

    Raises WireError naming the daemon where that happens repeatedly.
    """
    try:
        reply, more = unpack(stream.endpoint, frames)
        if more and not isinstance(reply, Warmed):
            raise WireError(f"{stream.endpoint} sent a malformed answer: is the daemon of another version?")
        if isinstance(reply, Damaged):
            raise WireError(f"{stream.endpoint} got a damaged request")
    except WireError as error:
        stream.ask_again_damaged(error)
        return None
    stream.damaged = 0
    return reply
