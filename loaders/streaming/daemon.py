"""The daemon on a storage node: answers requests for slices with views of the mapped shards, without a copy.

It keeps nothing about its clients. Who wants more asks for more, so back-pressure is the client's window,
and a client or daemon that comes back goes on where it was by asking again.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Self

import zmq

from loaders.errors import StreamError
from loaders.streaming.errors import WireError
from loaders.streaming.store import ShardStore
from loaders.streaming.wire import MAX_PADDING, MAX_REQUEST_BYTES, Hello, Refusal, pack, unpack_request

__all__ = ["Daemon", "Served"]

_WAITING_REPLIES = 512
"""Replies that wait for one client's connection; more are dropped, for that client does not read."""
_HEARTBEAT_MS = 5_000
"""How often a silent client is asked for a sign of life, so that the connections of dead ones are closed."""
_HANDSHAKE_MS = 5_000
"""How long a connection may take to speak the protocol."""

Log = Callable[..., None]


@dataclass(slots=True)
class Served:
    """What a daemon counted since it was started."""

    requests: int = 0
    batches: int = 0
    bytes: int = 0
    """Bytes of records handed to the connections."""
    refused: int = 0
    """Well-formed requests for what does not exist."""
    malformed: int = 0
    """Messages that are no request; they get no answer."""
    dropped: int = 0
    """Replies to clients that are gone or do not read."""


class Daemon:
    """Serves one shard folder at one address until it is stopped."""

    def __init__(self, store: ShardStore, host: str, port: int, *, threads: int, log: Log) -> None:
        """Listen on host:port, any free port for 0; `threads` move the bytes.

        Raises StreamError naming the address when it cannot be bound.
        """
        self._store, self._log = store, log
        self.served = Served()
        self._zeros = memoryview(bytes(MAX_PADDING))
        self._context = zmq.Context(io_threads=threads)
        self._socket = self._context.socket(zmq.ROUTER)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.setsockopt(zmq.IPV6, ":" in host)
        self._socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
        self._socket.setsockopt(zmq.SNDHWM, _WAITING_REPLIES)
        self._socket.setsockopt(zmq.MAXMSGSIZE, MAX_REQUEST_BYTES)
        self._socket.setsockopt(zmq.HANDSHAKE_IVL, _HANDSHAKE_MS)
        self._socket.setsockopt(zmq.HEARTBEAT_IVL, _HEARTBEAT_MS)
        address = f"tcp://[{host}]:{port}" if ":" in host else f"tcp://{host}:{port}"
        try:
            self._socket.bind(address)
        except zmq.ZMQError as error:
            self._context.destroy(linger=0)
            raise StreamError(f"cannot listen on {host}:{port}: {zmq.strerror(error.errno or 0)}") from error
        self.endpoint = self._socket.getsockopt_string(zmq.LAST_ENDPOINT)
        """Where clients connect to, such as tcp://10.77.0.1:41234."""

    def serve(self, *, until_eof: int | None = None) -> None:
        """Answer requests until SIGTERM or SIGINT, or until the descriptor `until_eof` is at its end."""
        poller = zmq.Poller()
        poller.register(self._socket, zmq.POLLIN)
        with _StopSignals() as stop:
            poller.register(stop.descriptor, zmq.POLLIN)
            if until_eof is not None:
                poller.register(until_eof, zmq.POLLIN)
            while True:
                ready = dict(poller.poll())
                if stop.descriptor in ready:
                    return
                if until_eof in ready and not os.read(until_eof, 4096):  # type: ignore[arg-type]
                    return
                if self._socket in ready:
                    self._answer_waiting()

    def _answer_waiting(self) -> None:
        """Answer what has arrived, a bounded number so that a stop is seen under load too."""
        for _ in range(64):
            try:
                client, *frames = self._socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            self._answer(client, frames)

    def _answer(self, client: bytes, frames: list[bytes]) -> None:
        self.served.requests += 1
        try:
            if len(frames) != 1:
                raise WireError(f"a request of {len(frames)} frames, expected 1")
            request = unpack_request(frames[0])
        except WireError as error:
            self.served.malformed += 1
            # One line for each power of two: a flood of garbage must not become a flood of log.
            if self.served.malformed & (self.served.malformed - 1) == 0:
                self._log("malformed", count=self.served.malformed, reason=str(error))
            return
        if isinstance(request, Hello):
            padding = [self._zeros[: request.padding]] if request.padding else []
            self._send(client, [pack(self._store.catalog), *padding])
            return
        try:
            if request.fingerprint != self._store.catalog.fingerprint:
                raise WireError("the shards are not those that this client planned with; start its epoch again")
            header, records = self._store.batch(request)
        except WireError as error:
            self.served.refused += 1
            self._send(client, [pack(Refusal(request.sequence, str(error)))])
            return
        if self._send(client, [pack(header), *records]):
            self.served.batches += 1
            self.served.bytes += sum(record.nbytes for record in records)

    def _send(self, client: bytes, frames: list[bytes | memoryview]) -> bool:
        try:
            self._socket.send_multipart([client, *frames], zmq.NOBLOCK, copy=False)
        except zmq.ZMQError as error:
            if error.errno not in (zmq.EHOSTUNREACH, zmq.EAGAIN):
                raise
            self.served.dropped += 1
            return False
        return True

    def close(self) -> None:
        """Close the address and every connection."""
        self._context.destroy(linger=0)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class _StopSignals:
    """Turns SIGTERM and SIGINT into a readable descriptor while it is entered."""

    def __init__(self) -> None:
        self.descriptor, self._write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    def __enter__(self) -> Self:
        self._wakeup = signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        self._handlers = {number: signal.signal(number, lambda *_: None) for number in (signal.SIGTERM, signal.SIGINT)}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._wakeup)
        os.close(self.descriptor)
        os.close(self._write)
