"""The daemon's socket: a plain one, or with keys a CURVE one, and how many connections it has."""

from __future__ import annotations

import errno
import ipaddress

import zmq
from zmq.auth.thread import ThreadAuthenticator
from zmq.utils.monitor import recv_monitor_message

from loaders.errors import LoaderConfigError
from loaders.streaming.daemon.connections import Connections
from loaders.streaming.daemon.listener import Listener
from loaders.streaming.keys import KeyPair
from loaders.streaming.protocol.messages import MAX_REQUEST_BYTES

__all__ = ["ServerSocket", "is_loopback"]

_DOMAIN = "streaming"
_HANDSHAKE_MS = 5_000
"""How long a connection may take to speak the protocol."""
_KEEPALIVE_S = 10
"""How often the other end of a silent connection is asked, by TCP, whether it is still there."""
_STALLED_MS = 120_000
"""After how long a connection is closed whose other end takes no bytes or gives no sign of life."""


class _KnownClient:
    """Tells ZeroMQ's authenticator which client may connect."""

    def __init__(self, public: bytes) -> None:
        self._public = public
        self.rejected = 0
        """Connections that were turned away."""

    def callback(self, _domain: str, key: bytes) -> bool:
        """Return whether a public key, in Z85, is the client's."""
        known = key == self._public
        self.rejected += not known
        return known


class ServerSocket:
    """A listening socket, and how many connections it has."""

    def __init__(
        self,
        host: str,
        listener: Listener,
        *,
        threads: int,
        keys: KeyPair | None,
        no_auth: bool,
    ) -> None:
        """Accept what `listener` on `host` gets; with `keys`, speak CURVE with the client whose key they hold alone.

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
        # monitor's queue is full. What comes is bounded in bytes: the daemon sheds connections.
        self._context.setsockopt(zmq.RCVHWM, 0)
        self._client: _KnownClient | None = None
        self._authenticator: ThreadAuthenticator | None = None
        self.connections = Connections(encrypted=keys is not None)
        """Those that are open."""
        self.is_empty = True
        """Whether all that had arrived was taken when it was last looked for."""
        if keys is not None:
            self._client = _KnownClient(keys.peer)
            self._authenticator = ThreadAuthenticator(self._context)
            self._authenticator.start()
            self._authenticator.configure_curve_callback(_DOMAIN, self._client)
        self.refuse(False)  # a daemon that died may have left it
        self._open()
        self.congestion = self._listener.congestion
        """TCP's congestion control of what is sent."""
        self.endpoint = self.socket.getsockopt_string(zmq.LAST_ENDPOINT)
        """Where clients connect to, such as tcp://10.77.0.1:41234."""

    @property
    def rejected(self) -> int:
        """Connections that were turned away because of their key."""
        return self._client.rejected if self._client else 0

    def count(self) -> None:
        """Read what became of connections."""
        while self.monitor.poll(0):
            event = recv_monitor_message(self.monitor)
            noted = self.connections.opened if event["event"] == zmq.EVENT_ACCEPTED else self.connections.closed
            noted(int(event["value"]))

    def receive(self) -> tuple[bytes, list[bytes]] | None:
        """Return a message that has arrived, with its sender's name; None where there is none."""
        try:
            name = self.socket.recv(zmq.NOBLOCK)
        except zmq.Again:
            self.is_empty = True
            return None
        self.is_empty = False
        connection = self.connections.named(name)
        if connection is None:
            # Only the frame itself knows its connection. It is asked once, for that costs as much as to read it.
            first = self.socket.recv(copy=False)
            frames = [first.bytes, *(self.socket.recv_multipart() if first.more else ())]
            self.count()
            if (descriptor := _descriptor(first)) is not None:
                connection = self.connections.name(descriptor, name)
        else:
            frames = self.socket.recv_multipart()
        if connection is not None:
            self.connections.took(connection, frames)
        return name, frames

    def refuse(self, refuses: bool) -> None:
        """Take no further connections for now, or take them again."""
        self._listener.refuse(refuses)

    def reopen(self) -> None:
        """Close every connection, and take new ones."""
        self._shut(0)
        self._open()

    def close(self, linger_ms: int) -> None:
        """Take no more connections, send what is under way for at most `linger_ms`, and close."""
        self._listener.close()
        self._shut(linger_ms)
        if self._authenticator is not None:
            self._authenticator.stop()
        self._context.term()

    def _open(self) -> None:
        socket = self.socket = self._context.socket(zmq.ROUTER)
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.IPV6, ":" in self._host)
        socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
        # The outbox bounds what is under way, in bytes.
        socket.setsockopt(zmq.SNDHWM, 0)
        socket.setsockopt(zmq.MAXMSGSIZE, MAX_REQUEST_BYTES)
        socket.setsockopt(zmq.HANDSHAKE_IVL, _HANDSHAKE_MS)
        # TCP's signs of life and not ZeroMQ's, which must not be sent once a socket is being closed.
        socket.setsockopt(zmq.TCP_KEEPALIVE, 1)
        socket.setsockopt(zmq.TCP_KEEPALIVE_IDLE, _KEEPALIVE_S)
        socket.setsockopt(zmq.TCP_KEEPALIVE_INTVL, _KEEPALIVE_S)
        socket.setsockopt(zmq.TCP_MAXRT, _STALLED_MS)
        if self._keys is not None:
            self._keys.secure_daemon(socket, _DOMAIN)
        host = f"[{self._host}]" if ":" in self._host else self._host
        self.monitor = socket.get_monitor_socket(zmq.EVENT_ACCEPTED | zmq.EVENT_DISCONNECTED)
        socket.setsockopt(zmq.USE_FD, self._listener.descriptor())
        socket.bind(f"tcp://{host}:{self._listener.port}")

    def _shut(self, linger_ms: int) -> None:
        self.socket.disable_monitor()
        self.monitor.close(linger=0)
        self.socket.close(linger=linger_ms)
        self.connections.clear()


def _descriptor(frame: zmq.Frame) -> int | None:
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
