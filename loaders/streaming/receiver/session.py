"""A client's session with one daemon: greeting, catalog, and the streams that carry the batches."""

from __future__ import annotations

import ctypes
import functools
import math
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
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
    Buffer,
    Catalog,
    Damaged,
    Get,
    Health,
    HealthReport,
    Hello,
    Reply,
    Request,
    Warm,
    Warmed,
    WireFormat,
    pack,
    unpack_answer,
)
from loaders.streaming.receiver.silence import Silence
from loaders.streaming.receiver.stream import Stream, check_endpoint, list_addresses

_M_TRIM_THRESHOLD: Final = -1
_M_TOP_PAD: Final = -2
_M_MMAP_THRESHOLD: Final = -3
_MIB: Final = 2**20
_RTT_TRIES: Final = 5
_NEAR_S: Final = 0.02
"""A round trip near by is measured several times, because both processes may wait for a CPU meanwhile."""

_Context = zmq.Context[zmq.Socket[bytes]]


class DaemonSession(Closing):
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
        """Greet the daemon, connect every stream, and move padding over all streams together.

        Args:
            context: ZeroMQ's context for the sockets.
            poller: Watches the streams' sockets.
            endpoint: Address of the daemon, tcp://HOST:PORT.
            streams: Number of connections.
            timeout_s: Seconds without an answer after which the daemon is given up.
            keys: The client's half of what keygen made, for a daemon with keys (default: none).
            warm_bytes: Bytes of padding (default: 0).
            wire: How batches travel (default: "raw").
            greeting_s: Seconds for the answer to the greeting (default: `timeout_s`).

        Raises NoAnswerError naming the endpoint without an answer in time, StreamError when the key is refused,
        WireError for a malformed answer, LoaderConfigError naming a key file that is missing.
        """
        self.endpoint, self.timeout_s, self._wire = endpoint, timeout_s, wire
        self.streams: list[Stream] = []
        pair = load_client_keys(keys) if keys is not None else None
        with _open_controls(context, endpoint, timeout_s, keys) as controls:
            control, catalog = _exchange(controls, endpoint, Hello(), timeout_s if greeting_s is None else greeting_s)
            self.rtt_s = math.inf
            """A round trip on the idle link."""
            for _ in range(_RTT_TRIES):
                asked = time.monotonic()
                _, report = _exchange([control], endpoint, Health(), timeout_s)
                self.rtt_s = min(self.rtt_s, time.monotonic() - asked)
                if self.rtt_s > _NEAR_S:
                    break
        if not isinstance(catalog, Catalog) or not isinstance(report, HealthReport):
            raise WireError(f"{endpoint} sent a malformed answer: expected a catalog and a report")
        self.catalog = catalog
        """The daemon's shards."""
        self.congestion = str(report.fields.get("congestion", "unknown"))
        """TCP's congestion control on the daemon's side."""
        self.is_shuffled = report.fields.get("is_shuffled") is True
        """Whether the records were shuffled when the shards were made."""
        self._open_stream = functools.partial(Stream, context, control.endpoint, timeout_s, poller, keys=pair)
        try:
            self.connect(streams)
            # TCP starts every connection slowly, and a far one for long. Padding opens its window.
            per_stream = math.ceil(warm_bytes / streams)
            self._warm([min(MAX_PADDING, per_stream - at) for at in range(0, max(per_stream, 1), MAX_PADDING)])
        except BaseException:
            self.close()
            raise

    def connect(self, count: int) -> None:
        """Start to connect so many further streams; their requests are sent once they are connected."""
        self.streams += [self._open_stream() for _ in range(count)]

    def request(
        self, sequence: int, epoch: int, batch: int, slices: tuple[Slice, ...], *, check: bool = False
    ) -> bytes:
        """Return a packed request for slices, whose `shard` is the place in this daemon's catalog.

        With `check` the daemon checks its own records first.
        """
        return pack(Get(sequence, self.catalog.fingerprint, epoch, batch, slices, self._wire, check))

    def unpack(self, frames: Sequence[zmq.Frame]) -> tuple[Reply, list[memoryview]]:
        """Return an answer and its records; raises WireError naming the daemon when it is malformed."""
        return _unpack(self.endpoint, frames)

    def close(self) -> None:
        """Close every stream; may be called twice."""
        while self.streams:
            self.streams.pop().close()

    def _warm(self, paddings: list[int]) -> None:
        """Have zeros sent over every stream, so that all are connected before the first batch is requested."""
        for stream in self.streams:
            for sequence, padding in enumerate(paddings):
                stream.ask(sequence, pack(Warm(sequence, padding)))
        silence = Silence(self.timeout_s)
        while any(stream.under_way for stream in self.streams):
            for stream, frames in _receive(self.streams, silence):
                reply = _read(self.endpoint, stream, frames)
                if reply is None:
                    continue
                if not isinstance(reply, Warmed):
                    raise WireError(f"{self.endpoint} sent a malformed answer: expected padding")
                stream.done(reply.sequence)
            if silence.is_over:
                raise NoAnswerError(silence.describe(self.endpoint, self.streams))


def health(endpoint: str, *, timeout_s: float, keys: Path | str | None = None) -> dict[str, object]:
    """Return a daemon's counters and state, by their names.

    `keys` is the client's half of what keygen made, for a daemon with keys.

    Raises StreamError naming the endpoint when nothing answers in time or the key is refused, WireError for a
    malformed answer, LoaderConfigError for a malformed endpoint, time or key.
    """
    check_endpoint(endpoint)
    check_seconds("timeout_s", timeout_s)
    context: _Context = zmq.Context()
    try:
        with _open_controls(context, endpoint, timeout_s, keys) as controls:
            _, reply = _exchange(controls, endpoint, Health(), timeout_s)
    finally:
        context.destroy(linger=0)
    if not isinstance(reply, HealthReport):
        raise WireError(f"{endpoint} sent a malformed answer: no report")
    return dict(reply.fields)


@functools.cache
def keep_freed_memory() -> bool:
    """Have the C library keep freed memory for frames, up to 512 MiB; return whether it can do so.

    ZeroMQ allocates every frame. glibc maps large ones each time, and the kernel clears their pages, which costs as
    much as receiving a third of them (mallopt(3)). 32 MiB is the largest threshold that glibc takes.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    settings = {_M_MMAP_THRESHOLD: 32 * _MIB, _M_TRIM_THRESHOLD: 512 * _MIB, _M_TOP_PAD: 64 * _MIB}
    return all([bool(mallopt(name, value)) for name, value in settings.items()])


@contextmanager
def _open_controls(
    context: _Context, endpoint: str, timeout_s: float, keys: Path | str | None
) -> Iterator[list[Stream]]:
    """Open a stream to each address of the daemon: it may listen on one of them alone."""
    pair = load_client_keys(keys) if keys is not None else None
    with ExitStack() as opened:
        yield [
            opened.enter_context(closing(Stream(context, address, timeout_s, zmq.Poller(), keys=pair)))
            for address in list_addresses(endpoint)
        ]


def _exchange(streams: Sequence[Stream], endpoint: str, request: Request, timeout_s: float) -> tuple[Stream, Reply]:
    """Send a request on each stream; return the first answer, and the stream that it came on."""
    for stream in streams:
        stream.ask(0, pack(request))
    silence = Silence(timeout_s)
    while not silence.is_over:
        for stream, frames in _receive(streams, silence):
            reply = _read(endpoint, stream, frames)
            if reply is not None:
                return stream, reply
        for stream in streams:
            if stream.refused:
                raise StreamError(f"{endpoint} refused: {stream.state}")
    raise NoAnswerError(silence.describe(endpoint, streams))


def _receive(streams: Sequence[Stream], silence: Silence) -> Iterator[tuple[Stream, list[zmq.Frame]]]:
    """Yield the messages on some streams, waiting for the first; repeat the requests of lost connections."""
    began = time.monotonic()
    # A poller of its own: messages on other sockets must not wake this one.
    poller = zmq.Poller()
    for stream in streams:
        poller.register(stream.socket, zmq.POLLIN)
        poller.register(stream.monitor, zmq.POLLIN)
    ready = dict(poller.poll(math.ceil(silence.look_s * 1000)))
    silence.add(time.monotonic() - began, streams)
    for stream in streams:
        lost = stream.monitor in ready and stream.lost()
        while (lost or stream.socket in ready) and (frames := stream.receive()) is not None:
            silence.end()
            yield stream, frames
            if not lost:
                break
        if lost:
            silence.was_lost = True
            stream.ask_again()


def _read(endpoint: str, stream: Stream, frames: Sequence[zmq.Frame]) -> Reply | None:
    """Return an answer; None after asking again, where it or its request came damaged.

    Raises WireError naming the daemon where that happens repeatedly.
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
