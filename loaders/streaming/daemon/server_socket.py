"""The daemon's socket, open or with keys a CURVE one (ZAP authentication by pyzmq), and its connections one by one.

ZeroMQ reads a connection whether or not its messages are taken, and cannot close one of a socket's connections. The
kernel knows how much a connection has received, and this process may drop its packets or end it by its descriptor.
"""

from __future__ import annotations

import errno
import ipaddress
import socket
import struct
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TypeVar

import zmq
from zmq.auth.thread import ThreadAuthenticator
from zmq.utils.monitor import recv_monitor_message

from loaders.errors import LoaderConfigError
from loaders.streaming.daemon.listener import Listener, refuse_data
from loaders.streaming.keys import KeyPair
from loaders.streaming.protocol import MAX_REQUEST_BYTES

__all__ = ["Connection", "Connections", "ServerSocket", "is_loopback"]

_DOMAIN = "streaming"
_HANDSHAKE_MS = 5_000
"""Time for a connection to speak the protocol."""
_KEEPALIVE_S = 10
"""How often TCP asks the other end of a silent connection for a sign of life."""
_STALLED_MS = 120_000
"""Time after which a connection is closed whose other end takes no bytes or gives no sign of life."""
_RECEIVED = struct.Struct("Q")
_RECEIVED_AT = 128
"""Where struct tcp_info (linux/tcp.h) has tcpi_bytes_received."""
_ENDED = (errno.EBADF, errno.ENOTSOCK, errno.ENOTCONN, errno.EINVAL)
_FREE_BYTES, _FREE_BYTES_PER_S = 4096, 300
"""Bytes of handshakes and signs of life, at most."""
_FRAME_BYTES, _LONG_FRAME_BYTES, _ENCRYPTED_BYTES = 2, 9, 33
"""What ZMTP adds to a message of up to 255 bytes, to a longer one, and CURVE to every message (ZeroMQ RFC 23, 26)."""

_Result = TypeVar("_Result")


@dataclass(slots=True)
class Connection:
    """One connection."""

    descriptor: int
    """ZeroMQ's."""
    since_s: float = field(default_factory=time.monotonic)
    name: bytes | None = None
    """The socket's name for it, once it has sent a message."""
    asked_s: float | None = None
    """When its last message came."""
    read: int = 0
    """Bytes of its messages that were taken."""
    is_paused: bool = False

    def idle_s(self, now: float) -> float:
        """Return for how long it has sent no message."""
        return now - (self.since_s if self.asked_s is None else self.asked_s)

    def unread(self, now: float) -> int:
        """Return about how many bytes it has sent that were not taken; 0 once it has ended."""
        info = self._do(lambda own: own.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _RECEIVED_AT + 8))
        if info is None:
            return 0
        allowance = _FREE_BYTES + _FREE_BYTES_PER_S * (now - self.since_s)
        return int(_RECEIVED.unpack_from(info, _RECEIVED_AT)[0] - self.read - allowance)

    def pause(self, is_paused: bool) -> None:
        """Take nothing more that it sends, or take it again; its TCP sends dropped packets once more."""
        self._do(lambda own: refuse_data(own, is_paused))
        self.is_paused = is_paused

    def close(self) -> None:
        """End it; ZeroMQ notices."""
        self.pause(False)
        self._do(lambda own: own.shutdown(socket.SHUT_RDWR))

    def _do(self, action: Callable[[socket.socket], _Result]) -> _Result | None:
        """Do something with ZeroMQ's descriptor; return None where the connection has ended meanwhile."""
        own: socket.socket | None = None
        try:
            own = socket.socket(socket.AF_INET, socket.SOCK_STREAM, fileno=self.descriptor)
            return action(own)
        except OSError as error:
            if error.errno not in _ENDED:
                raise
            return None
        finally:
            if own is not None:
                own.detach()


class Connections:
    """The open connections by descriptor and by name; one thread uses it."""

    def __init__(self, *, encrypted: bool) -> None:
        self._overhead = _ENCRYPTED_BYTES if encrypted else 0
        self._by_descriptor: dict[int, Connection] = {}
        self._by_name: dict[bytes, Connection] = {}

    def __len__(self) -> int:
        return len(self._by_descriptor)

    def __iter__(self) -> Iterator[Connection]:
        return iter(list(self._by_descriptor.values()))

    def add(self, descriptor: int) -> None:
        """Note a connection."""
        self.remove(descriptor)
        self._by_descriptor[descriptor] = Connection(descriptor)

    def remove(self, descriptor: int) -> None:
        """Forget a connection."""
        connection = self._by_descriptor.pop(descriptor, None)
        if connection is not None and connection.name is not None:
            self._by_name.pop(connection.name, None)

    def get(self, name: bytes) -> Connection | None:
        """Return the connection of a name, None where it has sent nothing or is gone."""
        return self._by_name.get(name)

    def set_name(self, descriptor: int, name: bytes) -> Connection | None:
        """Note by which name a connection sends; None where it is gone already."""
        connection = self._by_descriptor.get(descriptor)
        if connection is not None:
            connection.name = name
            self._by_name[name] = connection
        return connection

    def count_read(self, connection: Connection, frames: list[bytes]) -> None:
        """Note that a message was taken."""
        connection.asked_s = time.monotonic()
        for frame in frames:
            connection.read += len(frame) + (_FRAME_BYTES if len(frame) < 256 else _LONG_FRAME_BYTES) + self._overhead

    def clear(self) -> None:
        """Forget all."""
        self._by_descriptor.clear()
        self._by_name.clear()


class _ZapCallback:
    """Answers pyzmq's ZAP authenticator: only one client may connect."""

    def __init__(self, public: bytes) -> None:
        self._public = public
        self.rejected = 0
        """Connections that were turned away."""

    def callback(self, _domain: str, key: bytes) -> bool:
        """Return whether a public key, in Z85, is the client's."""
        is_known = key == self._public
        self.rejected += not is_known
        return is_known


class ServerSocket:
    """A listening ZeroMQ socket with its connections."""

    def __init__(self, host: str, listener: Listener, *, threads: int, keys: KeyPair | None, no_auth: bool) -> None:
        """Accept the connections of `listener` on `host`; with `keys`, only CURVE ones of the client of these keys.

        Raises LoaderConfigError for a host other than a loopback address without keys and without `no_auth`.
        """
        if keys is None and not no_auth and not is_loopback(host):
            raise LoaderConfigError(
                f"{host} can be reached from other hosts, and without keys anyone there could read the shards: "
                "give --keys DIR (made by `python -m loaders.streaming keygen`), or --no-auth to allow it"
            )
        self._host, self._keys, self._listener = host, keys, listener
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context(io_threads=threads)
        # Of every socket, monitors too. libzmq 4.3.5 aborts when a connection ends whose input it stopped for a full
        # queue and a sign of life is then to be sent (stream_engine_base.cpp, out_event), and it blocks where a
        # monitor's queue is full. Incoming bytes are bounded elsewhere: the daemon sheds connections.
        self._context.setsockopt(zmq.RCVHWM, 0)
        self._zap: _ZapCallback | None = None
        self._authenticator: ThreadAuthenticator | None = None
        self.connections = Connections(encrypted=keys is not None)
        """The open ones."""
        self.is_empty = True
        """Whether the last look took all that had arrived."""
        if keys is not None:
            self._zap = _ZapCallback(keys.peer)
            self._authenticator = ThreadAuthenticator(self._context)
            self._authenticator.start()
            self._authenticator.configure_curve_callback(_DOMAIN, self._zap)
        self.refuse(False)  # a daemon that died may have left it
        self._open()
        self.congestion = self._listener.congestion
        """TCP's congestion control of the connections."""
        self.endpoint = self.socket.getsockopt_string(zmq.LAST_ENDPOINT)
        """The address for clients, such as tcp://10.77.0.1:41234."""

    @property
    def rejected(self) -> int:
        """Connections that were turned away because of their key."""
        return self._zap.rejected if self._zap else 0

    def count(self) -> None:
        """Read which connections were opened and closed."""
        while self.monitor.poll(0):
            event = recv_monitor_message(self.monitor)
            note = self.connections.add if event["event"] == zmq.EVENT_ACCEPTED else self.connections.remove
            note(int(event["value"]))

    def receive(self) -> tuple[bytes, list[bytes]] | None:
        """Return a message that has arrived, with its sender's name, or None."""
        try:
            name = self.socket.recv(zmq.NOBLOCK)
        except zmq.Again:
            self.is_empty = True
            return None
        self.is_empty = False
        connection = self.connections.get(name)
        if connection is None:
            # Only the frame itself knows its connection. It is asked once, which costs as much as reading it.
            first = self.socket.recv(copy=False)
            frames = [first.bytes, *(self.socket.recv_multipart() if first.more else ())]
            self.count()
            if (descriptor := _find_descriptor(first)) is not None:
                connection = self.connections.set_name(descriptor, name)
        else:
            frames = self.socket.recv_multipart()
        if connection is not None:
            self.connections.count_read(connection, frames)
        return name, frames

    def refuse(self, refuses: bool) -> None:
        """Take no further connections for now, or take them again."""
        self._listener.refuse(refuses)

    def reopen(self) -> None:
        """Close every connection, and take new ones."""
        self._shut(0)
        self._open()

    def close(self, linger_ms: int) -> None:
        """Take no more connections, send the answers under way for at most `linger_ms`, and close."""
        self._listener.close()
        self._shut(linger_ms)
        if self._authenticator is not None:
            self._authenticator.stop()
        self._context.term()

    def _open(self) -> None:
        router = self.socket = self._context.socket(zmq.ROUTER)
        options = {
            zmq.LINGER: 0,
            zmq.IPV6: int(":" in self._host),
            zmq.ROUTER_MANDATORY: 1,
            zmq.SNDHWM: 0,  # the send budget bounds the answers under way, in bytes
            zmq.MAXMSGSIZE: MAX_REQUEST_BYTES,
            zmq.HANDSHAKE_IVL: _HANDSHAKE_MS,
            # TCP's signs of life and not ZeroMQ's, which must not be sent while a socket closes.
            zmq.TCP_KEEPALIVE: 1,
            zmq.TCP_KEEPALIVE_IDLE: _KEEPALIVE_S,
            zmq.TCP_KEEPALIVE_INTVL: _KEEPALIVE_S,
            zmq.TCP_MAXRT: _STALLED_MS,
        }
        for option, value in options.items():
            router.setsockopt(option, value)
        if self._keys is not None:
            self._keys.secure_daemon(router, _DOMAIN)
        host = f"[{self._host}]" if ":" in self._host else self._host
        self.monitor = router.get_monitor_socket(zmq.EVENT_ACCEPTED | zmq.EVENT_DISCONNECTED)
        router.setsockopt(zmq.USE_FD, self._listener.descriptor())
        router.bind(f"tcp://{host}:{self._listener.port}")

    def _shut(self, linger_ms: int) -> None:
        self.socket.disable_monitor()
        self.monitor.close(linger=0)
        self.socket.close(linger=linger_ms)
        self.connections.clear()


def _find_descriptor(frame: zmq.Frame) -> int | None:
    """Return the descriptor on which a frame came; None of a peer that speaks ZMTP before version 3, as garbage may."""
    try:
        return int(frame.get(zmq.SRCFD))
    except zmq.ZMQError as error:
        if error.errno != errno.EINVAL:
            raise
        return None


def is_loopback(host: str) -> bool:
    """Return whether a numeric address can be reached from this host alone."""
    return ipaddress.ip_address(host.partition("%")[0]).is_loopback
