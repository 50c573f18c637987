"""The daemon's socket and the connections on it: of everyone, or with keys of their client alone (CURVE)."""

from __future__ import annotations

import ctypes
import socket
from contextlib import suppress

import zmq
from zmq.auth.thread import ThreadAuthenticator
from zmq.backend.cython import _zmq
from zmq.utils.monitor import recv_monitor_message

from loaders.errors import LoaderConfigError
from loaders.streaming.daemon.listener import ListeningSocket, is_loopback
from loaders.streaming.keys import KeyPair
from loaders.streaming.protocol import MAX_REQUEST_BYTES

_DOMAIN = "streaming"
_HANDSHAKE_MS = 5_000
"""Time for a connection to speak the protocol."""
_KEEPALIVE_S = 10
"""How often TCP asks the other end of a silent connection for a sign of life."""
_STALLED_MS = 120_000
"""Time after which a connection is closed whose other end takes no bytes or gives no sign of life."""

# A library is searched together with those that it needs: these functions are of the libzmq that pyzmq uses. They keep
# the interpreter's lock, because they do not wait.
_libzmq = ctypes.PyDLL(_zmq.__file__, use_errno=True)
_POINTER = ctypes.c_void_p
_libzmq.zmq_msg_init_data.argtypes = (_POINTER, _POINTER, ctypes.c_size_t, _POINTER, _POINTER)
_libzmq.zmq_msg_send.argtypes = (_POINTER, _POINTER, ctypes.c_int)
_Message = ctypes.c_uint64 * 8
"""A zmq_msg_t (zmq.h)."""


class Authenticator:
    """Answers ZeroMQ's questions about peers in a thread; `stop` ends it.

    Raises LoaderConfigError for a host other than a loopback address without keys and without `no_auth`.
    """

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], host: str, keys: KeyPair | None, no_auth: bool) -> None:
        if keys is None and not no_auth and not is_loopback(host):
            raise LoaderConfigError(
                f"{host} can be reached from other hosts, and without keys anyone there could read the shards: "
                "give --keys DIR (made by `python -m loaders.streaming keygen`), or --no-auth to allow it"
            )
        self._keys = keys
        self._thread: ThreadAuthenticator | None = None
        self.rejected = 0
        """Connections that were refused because of their key."""
        if keys is not None:
            self._thread = ThreadAuthenticator(context)
            self._thread.start()
            self._thread.configure_curve_callback(_DOMAIN, self)

    def callback(self, _domain: str, key: bytes) -> bool:
        """Return whether a public key, in Z85, is the client's; pyzmq calls it."""
        is_known = self._keys is not None and key == self._keys.peer
        self.rejected += not is_known
        return is_known

    def secure(self, server: zmq.Socket[bytes]) -> None:
        """Make a server's socket accept only CURVE connections, if there are keys; before it is bound."""
        if self._keys is not None:
            self._keys.secure_daemon(server, _DOMAIN)

    def stop(self) -> None:
        """End the thread."""
        if self._thread is not None:
            self._thread.stop()


class ServerSocket:
    """A listening ZeroMQ socket with its connections."""

    def __init__(
        self,
        host: str,
        listener: ListeningSocket,
        *,
        threads: int,
        max_connections: int,
        keys: KeyPair | None,
        no_auth: bool,
    ) -> None:
        """Accept at most so many connections of `listener` on `host`; with `keys`, only of the client of these keys.

        Raises LoaderConfigError for a host other than a loopback address without keys and without `no_auth`.
        """
        self._listener, self._max_connections = listener, max_connections
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context(io_threads=threads)
        # Of every socket, monitors too. libzmq 4.3.5 aborts when a connection ends whose input it stopped for a full
        # queue and a sign of life is then to be sent (stream_engine_base.cpp, out_event), and it blocks where a
        # monitor's queue is full.
        self._context.setsockopt(zmq.RCVHWM, 0)
        self._authenticator = Authenticator(self._context, host, keys, no_auth)
        self._descriptors: set[int] = set()
        """Of the open connections, as ZeroMQ names them."""
        self._message = _Message()
        self.socket = self._context.socket(zmq.ROUTER)
        options = {
            zmq.LINGER: 0,
            zmq.IPV6: int(":" in host),
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
            self.socket.setsockopt(option, value)
        self._authenticator.secure(self.socket)
        self.monitor = self.socket.get_monitor_socket(zmq.EVENT_ACCEPTED | zmq.EVENT_DISCONNECTED)
        self.socket.setsockopt(zmq.USE_FD, listener.descriptor())
        self.socket.bind(f"tcp://[{host}]:{listener.port}" if ":" in host else f"tcp://{host}:{listener.port}")
        self.endpoint = self.socket.getsockopt_string(zmq.LAST_ENDPOINT)
        """The address for clients, such as tcp://10.77.0.1:41234."""

    @property
    def rejected(self) -> int:
        """Connections that were turned away because of their key."""
        return self._authenticator.rejected

    @property
    def connections(self) -> int:
        """Number of open connections, when they were last counted."""
        return len(self._descriptors)

    def count(self) -> int:
        """Read which connections were opened and closed; close those beyond the limit, and return their number.

        The client's ZeroMQ tries again by itself, so that it is let in as soon as there is room.
        """
        refused = 0
        while self.monitor.poll(0):
            event = recv_monitor_message(self.monitor)
            descriptor = int(event["value"])
            if event["event"] != zmq.EVENT_ACCEPTED:
                self._descriptors.discard(descriptor)
            elif len(self._descriptors) < self._max_connections:
                self._descriptors.add(descriptor)
            else:
                refused += 1
                # It may have ended by itself.
                with suppress(OSError), socket.fromfd(descriptor, socket.AF_INET, socket.SOCK_STREAM) as connection:
                    connection.shutdown(socket.SHUT_RDWR)
        return refused

    def receive(self) -> tuple[bytes, list[bytes]] | None:
        """Return a message that has arrived, with its sender's name, or None."""
        try:
            name = self.socket.recv(zmq.NOBLOCK)
        except zmq.Again:
            return None
        return name, self.socket.recv_multipart()

    def send_mapped(self, address: int, nbytes: int, *, more: bool) -> None:
        """Send bytes that stay where they are while the daemon runs as a frame after the first one, not copied.

        For a frame of pyzmq that is not copied, ZeroMQ wakes a thread to drop the reference to its bytes once they are
        sent. This frame has none.

        Raises ZMQError when the socket is closed.
        """
        message = ctypes.addressof(self._message)
        _libzmq.zmq_msg_init_data(message, address, nbytes, None, None)
        # It leaves an empty message, which is used again.
        if _libzmq.zmq_msg_send(message, self.socket.underlying, zmq.SNDMORE if more else 0) < 0:
            raise zmq.ZMQError(ctypes.get_errno())

    def close(self, linger_ms: int) -> None:
        """Accept no more connections, send the answers under way for at most `linger_ms`, and close."""
        self._listener.close()
        self.socket.disable_monitor()
        self.monitor.close(linger=0)
        self.socket.close(linger=linger_ms)
        self._authenticator.stop()
        self._context.term()
