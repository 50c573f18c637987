"""One connection to a daemon with the requests on it, and how long a daemon has sent nothing."""

from __future__ import annotations

import errno
import socket
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeVar

import zmq
from zmq.utils.monitor import recv_monitor_message

from loaders.errors import StreamError, WireError
from loaders.streaming.keys import KeyPair

_RECONNECT_MS = 100
_RECONNECT_MAX_MS = 500
_CONNECT_MS, _CONNECT_MAX_MS = 1_000, 2_000
"""Time for a connection to be made: the kernel's pauses between its own attempts double up to minutes (tcp(7))."""
_LOOPBACK_S = 0.5
"""How long a loopback address may take to accept a connection."""
_BYTES_RECEIVED = 128
"""Offset of tcpi_bytes_received in tcp_info (linux/tcp.h), 8 bytes."""
_DAMAGED = 3
"""Consecutive damaged messages after which a connection is given up."""
_HEARTBEAT_S = 1.0
"""How often the daemon is asked for a sign of life."""
_EVENTS = (
    zmq.EVENT_CONNECTED
    | zmq.EVENT_HANDSHAKE_SUCCEEDED
    | zmq.EVENT_DISCONNECTED
    | zmq.EVENT_HANDSHAKE_FAILED_AUTH
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
    | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
)
_ENDED = (errno.EBADF, errno.ENOTSOCK, errno.ENOTCONN, errno.EINVAL)
"""Errors of a connection that has ended meanwhile."""
_LOOKS = 8
"""How often within the timeout the bytes from a daemon without an answer are counted."""
_LEAST_BYTES = 64 * 2**10
"""Bytes that are a part of an answer: ZeroMQ's signs of life are fewer within a timeout."""
_MAX_LOSSES = 3
"""Connections lost one after the other in the middle of a message, after which its bytes are no progress."""
_RECONNECT_S, _RECONNECT_SHARE = 2.0, 0.2
"""Time beyond the timeout in which a lost connection may be made again; at most such a share of the timeout."""

_Result = TypeVar("_Result")


def _on_descriptor(descriptor: int, action: Callable[[socket.socket], _Result]) -> _Result | None:
    """Do something with a connection that ZeroMQ has opened; return None where it has ended meanwhile.

    Raises OSError where the action fails for another reason.
    """
    try:
        connection = socket.socket(socket.AF_INET, socket.SOCK_STREAM, fileno=descriptor)
        try:
            return action(connection)
        finally:
            connection.detach()  # ZeroMQ closes it
    except OSError as error:
        if error.errno not in _ENDED:
            raise
        return None


def _choose_address(endpoint: str) -> str:
    """Return the endpoint; one of localhost by the loopback address on which something listens, of IPv4 or IPv6."""
    host, _, port = endpoint.removeprefix("tcp://").rpartition(":")
    if host == "localhost" and port.isdecimal():
        for address in ("127.0.0.1", "::1"):
            with suppress(OSError), socket.create_connection((address, int(port)), _LOOPBACK_S):
                return f"tcp://[{address}]:{port}" if ":" in address else f"tcp://{address}:{port}"
    return endpoint


class DaemonStream:
    """A ZeroMQ connection that knows which of its requests have no answer yet."""

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        endpoint: str,
        timeout_s: float,
        poller: zmq.Poller,
        *,
        keys: KeyPair | None = None,
    ) -> None:
        """Start to connect; with `keys` by CURVE. The sockets are registered with `poller`."""
        self._context, self._timeout_s, self._poller = context, timeout_s, poller
        self.endpoint = endpoint
        """Where it leads to."""
        self._keys = keys
        self.under_way: dict[int, tuple[bytes, int]] = {}
        """Requests without an answer, by sequence number, with about the bytes of the answer."""
        self.load = 0
        """About the bytes of all these answers."""
        self.losses = 0
        """How often the connection was lost or replaced since a message came on it."""
        self._open()

    def _open(self) -> None:
        self.connected = False
        """Whether the handshake succeeded and the connection has not been lost since, as far as `lost` has read."""
        self.state = "it was never reached"
        """The state of the connection, in words."""
        self.damaged = 0
        """Consecutive messages that could not be read, on either side."""
        self.refused = False
        """Whether the daemon refused this side's key."""
        self._descriptor: int | None = None
        """ZeroMQ's, of the connection."""
        self._wakes_at = 1
        self.socket = self._context.socket(zmq.DEALER)
        self.socket.setsockopt(zmq.LINGER, 0)
        self.socket.setsockopt(zmq.IPV6, 1)
        if self._keys is not None:
            self._keys.secure_client(self.socket)
        # The window bounds the requests under way; a limit here could only stop a repetition.
        self.socket.setsockopt(zmq.SNDHWM, 0)
        self.socket.setsockopt(zmq.RCVHWM, 0)
        self.socket.setsockopt(zmq.RECONNECT_IVL, _RECONNECT_MS)
        self.socket.setsockopt(zmq.RECONNECT_IVL_MAX, _RECONNECT_MAX_MS)
        connect_ms = min(max(_CONNECT_MS, int(100 * self._timeout_s)), _CONNECT_MAX_MS)
        self.socket.setsockopt(zmq.CONNECT_TIMEOUT, connect_ms)
        # TCP closes a connection that does not acknowledge the heartbeats, well before the caller's timeout. Answers to
        # heartbeats are behind a large message that is under way, so they have no timeout.
        self.socket.setsockopt(zmq.HEARTBEAT_IVL, int(1000 * min(_HEARTBEAT_S, self._timeout_s / 6)))
        self.socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, 0)
        self.socket.setsockopt(zmq.TCP_MAXRT, int(1000 * self._timeout_s / 3))
        self.monitor = self.socket.get_monitor_socket(_EVENTS)
        try:
            self.socket.connect(_choose_address(self.endpoint))
        except zmq.ZMQError as error:
            self.socket.disable_monitor()
            self.socket.close(linger=0)
            raise StreamError(
                f"{self.endpoint}: cannot connect to such an address: {zmq.strerror(error.errno or 0)}"
            ) from error
        self._poller.register(self.socket, zmq.POLLIN)
        self._poller.register(self.monitor, zmq.POLLIN)

    def ask(self, sequence: int, request: bytes, nbytes: int = 0) -> None:
        """Send a request whose answer has about `nbytes`, or have it sent once connected."""
        self.under_way[sequence] = request, nbytes
        self.load += nbytes
        self._send(request)

    def _send(self, request: bytes) -> None:
        # After a handshake that failed there is no connection for a moment, and a send would wait without end.
        # The request stays under way, and `refused` or silence ends the wait for its answer.
        with suppress(zmq.Again):
            self.socket.send(request, zmq.DONTWAIT)

    def done(self, sequence: int) -> None:
        """Forget a request that has its answer."""
        self.load -= self.under_way.pop(sequence, (b"", 0))[1]

    def has_more(self, nbytes: int) -> bool:
        """Return whether, once any of its answers is there, about so many bytes are still to come."""
        return self.load > nbytes and self.load - max(size for _, size in self.under_way.values()) >= nbytes

    def lost(self) -> bool:
        """Read the events of the connection; return whether one that had carried requests is gone."""
        lost = False
        while self.monitor.poll(0):
            message = recv_monitor_message(self.monitor)
            event = message["event"]
            if event == zmq.EVENT_CONNECTED:
                self._descriptor, self._wakes_at = int(message["value"]), 1
            elif event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
                self.connected = True
                self.state = "it is connected and silent, as a daemon of another version is"
            elif event == zmq.EVENT_HANDSHAKE_FAILED_AUTH:
                self.refused = True
                self.state = "it does not know this client's key"
            elif event == zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL:
                self.state = self._mismatch()
            elif event == zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL:
                # A mismatch looks like this where the daemon's end of the connection came first.
                cause = (
                    "whose key is another one, or that serves without keys"
                    if self._keys
                    else "that wants keys (keys=DIR), or that has as many connections as it takes"
                )
                self.state = f"it broke the connection off before it was made, as a daemon does {cause}"
            # Nothing was sent on a connection whose handshake failed: its requests wait for the next one.
            elif event == zmq.EVENT_DISCONNECTED and self.connected:
                self.connected = False
                self.state = "the connection was lost and not restored"
                self.losses += 1
                lost = True
        return lost

    def wake_at(self, nbytes: int) -> None:
        """Have the kernel wake ZeroMQ for no fewer bytes than so many, SO_RCVLOWAT of socket(7); 1 for any."""
        if self.connected and self._descriptor is not None and nbytes != self._wakes_at:
            with suppress(OSError):  # it saves time, no more
                _on_descriptor(
                    self._descriptor, lambda own: own.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, nbytes)
                )
            self._wakes_at = nbytes

    def count_received(self) -> int:
        """Return the bytes that the kernel has received on the connection, whole messages or not; 0 without one."""
        if not self.connected or self._descriptor is None:
            return 0
        info = _on_descriptor(
            self._descriptor, lambda own: own.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _BYTES_RECEIVED + 8)
        )
        return int.from_bytes((info or b"")[_BYTES_RECEIVED:], sys.byteorder)

    def _mismatch(self) -> str:
        if self._keys is None:
            return "it speaks another protocol, or wants keys (keys=DIR)"
        return "it speaks another protocol, or serves without keys"

    def receive(self) -> list[zmq.Frame] | None:
        """Return a message that has arrived, None where there is none."""
        try:
            frames = [self.socket.recv(zmq.NOBLOCK, copy=False)]
        except zmq.Again:
            return None
        self.losses = 0
        # `recv_multipart` asks the socket for what each frame says, and takes twice the time.
        while frames[-1].more:
            frames.append(self.socket.recv(copy=False))
        return frames

    def ask_again(self) -> int:
        """Repeat the requests without an answer; return their number."""
        for request, _ in self.under_way.values():
            self._send(request)
        return len(self.under_way)

    def reconnect(self) -> int:
        """Replace the connection, and repeat the requests without an answer; return their number."""
        state = self.state
        self.close()
        self._open()
        self.state = state
        self.losses += 1
        return self.ask_again()

    def ask_again_damaged(self, error: WireError) -> int:
        """Repeat the requests after a message that cannot be read; raise `error` after too many in a row."""
        self.damaged += 1
        if self.damaged > _DAMAGED:
            raise error
        return self.ask_again()

    def reset(self) -> None:
        """Drop the connection with its requests, and make a new one."""
        self.close()
        self.under_way.clear()
        self.load = self.losses = 0
        self._open()

    def close(self) -> None:
        """Close the connection."""
        self._poller.unregister(self.socket)
        self._poller.unregister(self.monitor)
        self.socket.disable_monitor()
        self.socket.close(linger=0)


@dataclass(slots=True)
class Silence:
    """The time in which a daemon's open requests have had no answer and no bytes of one."""

    timeout_s: float
    streams: Sequence[DaemonStream]
    """The connections to the daemon."""
    seconds: float = 0.0
    was_lost: bool = False
    """Whether a connection was lost in it."""
    _received: int | None = None
    """Bytes of the connections when they were last counted as a part of an answer."""
    _since_s: float = 0.0
    """`seconds` at that time."""

    @property
    def look_s(self) -> float:
        """Longest wait for a message between two calls of `add`, in seconds."""
        return self.timeout_s / _LOOKS

    @property
    def is_over(self) -> bool:
        """Whether the daemon is to be given up."""
        more_s = min(_RECONNECT_S, _RECONNECT_SHARE * self.timeout_s) if self.was_lost else 0.0
        return self.seconds >= self.timeout_s + more_s

    def end(self) -> None:
        """Begin again: a message has come, or no request is open."""
        self.seconds, self.was_lost, self._received = 0.0, False, None

    def add(self, seconds: float) -> None:
        """Add time without a message, unless bytes have come on the connections."""
        self.seconds += seconds
        if self.seconds < self.look_s:
            return
        received = self._count()
        if self._received is None or received < self._received:  # a new connection counts from 0
            self._received, self._since_s = received, self.seconds
        elif received - self._received >= _LEAST_BYTES:
            self._received, self._since_s = received, 0.0
            self.seconds, self.was_lost = 0.0, False

    def describe(self) -> str:
        """Return the message of the error for a daemon that is given up, with the rate that was seen."""
        stream = max(self.streams, key=lambda one: len(one.under_way))
        received = self._count() - (self._received or 0)
        rate = max(0, received) / max(self.seconds - self._since_s, self.look_s)
        return (
            f"{stream.endpoint}: no answer within timeout_s={self.timeout_s:g}, at {rate / 1000:.3g} kB/s; "
            f"{stream.state}. Is the daemon running there (python -m loaders.streaming serve), and can this node reach "
            "it?"
        )

    def _count(self) -> int:
        """Return the bytes on connections that can be parts of answers."""
        return sum(stream.count_received() for stream in self.streams if stream.losses < _MAX_LOSSES)


def take_messages(
    streams: Sequence[DaemonStream], ready: Mapping[object, int], silence: Silence, most: int
) -> Iterator[tuple[DaemonStream, list[zmq.Frame]]]:
    """Yield the messages on those of a daemon's streams that are ready, at most so many of each.

    All are taken of a stream that was lost; an empty message after them says so.
    """
    for stream in streams:
        lost = stream.monitor in ready and stream.lost()
        if not lost and stream.socket not in ready:
            continue
        left = most
        while (lost or left) and (frames := stream.receive()) is not None:
            silence.end()
            left -= 1
            yield stream, frames
        if lost:
            silence.was_lost = True
            yield stream, []
