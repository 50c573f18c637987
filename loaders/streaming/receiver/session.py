"""A client's session with one daemon: greeting, catalog, and the streams that carry the batches."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Self

import zmq

from loaders.errors import StreamError
from loaders.shared.arguments import check_seconds
from loaders.streaming.errors import NoAnswerError, WireError
from loaders.streaming.keys import load_client_keys
from loaders.streaming.planner import Slice
from loaders.streaming.protocol.messages import (
    MAX_PADDING,
    Buffer,
    Catalog,
    Damaged,
    Get,
    Health,
    Hello,
    Reply,
    Report,
    Request,
    Warm,
    Warmed,
    WireFormat,
)
from loaders.streaming.protocol.wire import pack, unpack_answer
from loaders.streaming.receiver.stream import Stream, check_endpoint
from loaders.streaming.shards.mixing import Mixing

__all__ = ["Session", "health"]

_Context = zmq.Context[zmq.Socket[bytes]]


class Session:
    """Connections to one daemon; one thread at a time uses it."""

    def __init__(
        self,
        context: _Context,
        poller: zmq.Poller,
        endpoint: str,
        *,
        streams: int,
        timeout_s: float,
        keys: Path | str | None = None,
        warm_bytes: int = 0,
        wire: WireFormat = "raw",
        greeting_s: float | None = None,
    ) -> None:
        """Greet the daemon, connect every stream, and move `warm_bytes` of padding over all streams together.

        `keys` is the client's half of what keygen made, for a daemon that serves with keys. `wire` is how batches
        shall travel. The streams' sockets are registered with `poller`.

        Raises StreamError naming the endpoint when nothing answers within `timeout_s` seconds, or the greeting is not
        answered within `greeting_s`, or the key is refused,
        LoaderConfigError naming the key file that is missing.
        """
        self.endpoint, self._timeout_s, self._wire = endpoint, timeout_s, wire
        self.streams: list[Stream] = []
        pair = load_client_keys(keys) if keys is not None else None
        with _control(context, endpoint, timeout_s if greeting_s is None else greeting_s, keys) as control:
            catalog = control.exchange(Hello())
            asked = time.monotonic()
            report = control.exchange(Health())
            self.rtt_s = time.monotonic() - asked
            """A round trip, when the link was idle."""
        if not isinstance(catalog, Catalog):
            raise WireError(f"{endpoint} sent a malformed answer: no catalog to a greeting")
        if not isinstance(report, Report):
            raise WireError(f"{endpoint} sent a malformed answer: no report")
        self.catalog = catalog
        """What the daemon serves."""
        self.congestion = str(report.fields.get("congestion", "unknown"))
        """TCP's congestion control of what the daemon sends."""
        self.mixing = Mixing.of(report.fields.get("mixing"))
        """How well classes are mixed in the shards; None of a daemon of an older version."""
        self._stream = partial(Stream, context, endpoint, timeout_s, poller, keys=pair)
        try:
            self.connect(streams)
            # TCP starts every connection slowly, and a far one for long. Padding opens its window.
            per_stream = math.ceil(warm_bytes / streams)
            self._warm([min(MAX_PADDING, per_stream - at) for at in range(0, max(per_stream, 1), MAX_PADDING)])
        except BaseException:
            self.close()
            raise

    def connect(self, count: int) -> None:
        """Start to connect so many further streams; what is asked on them is sent once they are connected."""
        for _ in range(count):
            self.streams.append(self._stream())

    def request(
        self, sequence: int, epoch: int, batch: int, slices: tuple[Slice, ...], *, check: bool = False
    ) -> bytes:
        """Return a packed request for slices, in which `shard` is the place in this daemon's catalog.

        With `check` the daemon looks first whether its own records are whole.
        """
        return pack(Get(sequence, self.catalog.fingerprint, epoch, batch, slices, self._wire, check))

    def unpack(self, frames: Sequence[zmq.Frame]) -> tuple[Reply, list[memoryview]]:
        """Return an answer and the records that came with it; WireError naming the daemon when it is malformed."""
        return _unpack(self.endpoint, frames)

    def silence(self, stream: Stream) -> str:
        """Say what it looks like when nothing has come for the time that is allowed."""
        return _silence(self.endpoint, self._timeout_s, stream)

    def close(self) -> None:
        """Close every stream; may be called twice."""
        while self.streams:
            self.streams.pop().close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _warm(self, paddings: list[int]) -> None:
        """Have zeros sent over every stream, so that all are connected before the first batch is asked for."""
        for stream in self.streams:
            for sequence, padding in enumerate(paddings):
                stream.ask(sequence, pack(Warm(sequence, padding)))
        deadline = time.monotonic() + self._timeout_s
        while waiting := [stream for stream in self.streams if stream.under_way]:
            for stream, frames in _received(self.streams, deadline - time.monotonic()):
                reply = _readable(self.endpoint, stream, frames)
                if reply is None:
                    continue
                if not isinstance(reply, Warmed):
                    raise WireError(f"{self.endpoint} sent a malformed answer: expected padding")
                stream.done(reply.sequence)
                deadline = time.monotonic() + self._timeout_s
            if time.monotonic() > deadline:
                raise NoAnswerError(self.silence(waiting[0]))


class _Control:
    """A short conversation on the control channel."""

    def __init__(self, stream: Stream, endpoint: str, timeout_s: float) -> None:
        self._stream, self._endpoint, self._timeout_s = stream, endpoint, timeout_s

    def exchange(self, request: Request) -> Reply:
        """Ask, and return the answer."""
        self._stream.ask(0, pack(request))
        deadline = time.monotonic() + self._timeout_s
        while (left := deadline - time.monotonic()) > 0:
            for _, frames in _received([self._stream], left):
                reply = _readable(self._endpoint, self._stream, frames)
                if reply is not None:
                    return reply
            if self._stream.refused:
                raise StreamError(f"{self._endpoint} refused: {self._stream.state}")
        raise NoAnswerError(_silence(self._endpoint, self._timeout_s, self._stream))


def health(endpoint: str, *, timeout_s: float, keys: Path | str | None = None) -> dict[str, object]:
    """Return how the daemon at `endpoint` is; StreamError naming it when it does not answer in time.

    Raises LoaderConfigError for an endpoint or a time that is none.
    """
    check_endpoint(endpoint)
    check_seconds("timeout_s", timeout_s)
    context: _Context = zmq.Context()
    try:
        with _control(context, endpoint, timeout_s, keys) as control:
            reply = control.exchange(Health())
    finally:
        context.destroy(linger=0)
    if not isinstance(reply, Report):
        raise WireError(f"{endpoint} sent a malformed answer: no report")
    return reply.fields


@contextmanager
def _control(context: _Context, endpoint: str, timeout_s: float, keys: Path | str | None) -> Iterator[_Control]:
    pair = load_client_keys(keys) if keys is not None else None
    stream = Stream(context, endpoint, timeout_s, zmq.Poller(), keys=pair)
    try:
        yield _Control(stream, endpoint, timeout_s)
    finally:
        stream.close()


def _received(streams: Sequence[Stream], timeout_s: float) -> Iterator[tuple[Stream, list[zmq.Frame]]]:
    """Yield what has come on some streams, waiting for the first message; ask again for what was lost."""
    # A poller of its own: what others wait for on theirs must not wake this one.
    poller = zmq.Poller()
    for stream in streams:
        poller.register(stream.socket, zmq.POLLIN)
        poller.register(stream.monitor, zmq.POLLIN)
    ready = dict(poller.poll(max(0, math.ceil(timeout_s * 1000))))
    for stream in streams:
        lost = stream.monitor in ready and stream.lost()
        while (lost or stream.socket in ready) and (frames := stream.receive()) is not None:
            yield stream, frames
            if not lost:
                break
        if lost:
            stream.ask_again()


def _readable(endpoint: str, stream: Stream, frames: Sequence[zmq.Frame]) -> Reply | None:
    """Return an answer; None after asking again, where it or its request came damaged.

    Raises WireError naming the daemon where that happens again and again.
    """
    try:
        reply, more = _unpack(endpoint, frames)
        if more and not isinstance(reply, Warmed):
            raise WireError(f"{endpoint} sent a malformed answer: is the daemon of another version?")
    except WireError as error:
        stream.ask_again_damaged(error)
        return None
    if isinstance(reply, Damaged):
        stream.ask_again_damaged(WireError(f"{endpoint} got a damaged request"))
        return None
    stream.damaged = 0
    return reply


def _unpack(endpoint: str, frames: Sequence[zmq.Frame]) -> tuple[Reply, list[memoryview]]:
    buffers: list[Buffer] = [frame.buffer for frame in frames]
    try:
        return unpack_answer(buffers)
    except WireError as error:
        raise WireError(f"{endpoint} sent a malformed answer: {error}") from error


def _silence(endpoint: str, timeout_s: float, stream: Stream) -> str:
    return (
        f"{endpoint}: no answer within {timeout_s:g} s; {stream.state}. Is the daemon running "
        "there (python -m loaders.streaming serve), and can this node reach it?"
    )
