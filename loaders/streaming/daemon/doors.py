"""The daemon's sockets: one door for everything, or with keys one for greetings and the next for requests."""

from __future__ import annotations

import ipaddress

import zmq
from zmq.utils.monitor import recv_monitor_message

from loaders.errors import LoaderConfigError, StreamError
from loaders.streaming.daemon.gate import Gate
from loaders.streaming.daemon.listener import Listener
from loaders.streaming.keys import KeyPair
from loaders.streaming.protocol.messages import MAX_REQUEST_BYTES
from loaders.streaming.protocol.seal import Seals

__all__ = ["CONTROL", "DATA", "Doors", "is_loopback"]

CONTROL, DATA = 0, 1
"""Places of the doors; without keys there is the first alone, which does for both."""

_HANDSHAKE_MS = 5_000
"""How long a connection may take to speak the protocol."""
_KEEPALIVE_S = 10
"""How often the other end of a silent connection is asked, by TCP, whether it is still there."""
_STALLED_MS = 120_000
"""After how long a connection is closed whose other end takes no bytes or gives no sign of life."""
_PORTS_TRIED = 32
"""A free port needs a free one next to it."""


class Doors:
    """Listening sockets, and how many connections they have."""

    def __init__(
        self,
        host: str,
        port: int,
        *,
        threads: int,
        keys: KeyPair | None,
        seals: Seals | None,
        encrypt: bool,
        no_auth: bool,
        send_buffer: int | None,
        congestion: str | None,
    ) -> None:
        """Listen on host:port, and with keys on the port after it.

        Raises StreamError naming the address when it cannot be bound, LoaderConfigError for a host other than a
        loopback address without keys and without `no_auth`, or for a congestion control that cannot be had.
        """
        if keys is None and not no_auth and not is_loopback(host):
            raise LoaderConfigError(
                f"{host} can be reached from other hosts, and without keys anyone there could read the shards: "
                "give --keys DIR (made by `python -m loaders.streaming keygen`), or --no-auth to allow it"
            )
        self._host, self._keys, self._encrypt = host, keys, encrypt
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context(io_threads=threads)
        # Of every socket, monitors too. libzmq 4.3.5 aborts when a connection ends whose input it stopped for a full
        # queue and a sign of life is then to be sent (stream_engine_base.cpp, out_event), and it blocks where a
        # monitor's queue is full. What comes is bounded in bytes: the daemon sheds connections.
        self._context.setsockopt(zmq.RCVHWM, 0)
        self._gate: Gate | None = None
        self._listeners: list[Listener] = []
        self.sockets: list[zmq.Socket[bytes]] = []
        self.monitors: list[zmq.Socket[bytes]] = []
        self.connections = 0
        """Connections that are open."""
        try:
            if keys is not None and seals is not None:
                self._gate = Gate(self._context, keys, seals)
            self._listeners = self._listen(port, send_buffer, congestion)
            self._open()
        except BaseException:
            self.close(0)
            raise
        self.port = self._listeners[CONTROL].port
        self.congestion = self._listeners[-1].congestion
        """TCP's congestion control of what is sent."""
        self.endpoint = self.sockets[CONTROL].getsockopt_string(zmq.LAST_ENDPOINT)
        """Where clients connect to, such as tcp://10.77.0.1:41234."""

    @property
    def rejected(self) -> int:
        """Connections that were turned away because of their key."""
        return self._gate.rejected if self._gate else 0

    def data_port(self) -> int:
        """Return the port for requests."""
        return self.port + len(self.sockets) - 1

    def count(self) -> None:
        """Read what became of connections."""
        for monitor in self.monitors:
            while monitor.poll(0):
                event = recv_monitor_message(monitor)["event"]
                self.connections += 1 if event == zmq.EVENT_ACCEPTED else -1

    def refuse(self, refuses: bool) -> None:
        """Take no further connections for now, or take them again."""
        for listener in self._listeners:
            listener.refuse(refuses)

    def reopen(self) -> None:
        """Close every connection, and take new ones."""
        self._shut(0)
        self._open()

    def close(self, linger_ms: int) -> None:
        """Take no more connections, send what is under way for at most `linger_ms`, and close."""
        for listener in self._listeners:
            listener.close()
        self._shut(linger_ms)
        if self._gate is not None:
            self._gate.close()
        self._context.term()

    def _listen(self, port: int, send_buffer: int | None, congestion: str | None) -> list[Listener]:
        """Return a listener for every door, on ports one after the other."""
        count = 1 if self._keys is None else 2
        for _ in range(1 if port or count == 1 else _PORTS_TRIED):
            listeners: list[Listener] = []
            try:
                for door in range(count):
                    place = listeners[CONTROL].port + door if door else port
                    listeners.append(Listener(self._host, place, send_buffer=send_buffer, congestion=congestion))
            except (OSError, OverflowError) as error:  # no port follows 65535
                failed = error
                for listener in listeners:
                    listener.close()
            else:
                return listeners
        where = f"{self._host}:{port}" + (f" and the port after it, {port + 1}" if count == 2 else "")
        reason = failed.strerror if isinstance(failed, OSError) else str(failed)
        raise StreamError(f"cannot listen on {where}: {reason}") from failed

    def _open(self) -> None:
        for door, listener in enumerate(self._listeners):
            self._bind(door, listener)

    def _bind(self, door: int, listener: Listener) -> None:
        socket = self._context.socket(zmq.ROUTER)
        self.sockets.append(socket)
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
            if door == CONTROL or self._encrypt:
                self._keys.secure_daemon(socket, "streaming")
            else:
                socket.setsockopt(zmq.PLAIN_SERVER, 1)
                socket.setsockopt_string(zmq.ZAP_DOMAIN, "streaming")
                socket.setsockopt(zmq.ZAP_ENFORCE_DOMAIN, 1)
        host = f"[{self._host}]" if ":" in self._host else self._host
        self.monitors.append(socket.get_monitor_socket(zmq.EVENT_ACCEPTED | zmq.EVENT_DISCONNECTED))
        socket.setsockopt(zmq.USE_FD, listener.descriptor())
        socket.bind(f"tcp://{host}:{listener.port}")

    def _shut(self, linger_ms: int) -> None:
        while self.sockets:
            socket = self.sockets.pop()
            socket.disable_monitor()
            socket.close(linger=linger_ms)
        self.monitors.clear()
        self.connections = 0


def is_loopback(host: str) -> bool:
    """Return whether a numeric address can be reached from this host alone."""
    return ipaddress.ip_address(host.partition("%")[0]).is_loopback
