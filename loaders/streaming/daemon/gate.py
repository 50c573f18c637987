"""Who is let in: the ZAP handler (ZeroMQ RFC 27) that judges every connection's handshake.

Before it says yes, ZeroMQ takes no message of a connection. On a CURVE socket the client's public key has to be the
known one; on an open one, a connection says PLAIN the name of its session and the password that belongs to it.
"""

from __future__ import annotations

import hmac
import threading
from types import TracebackType
from typing import Self

import zmq
from zmq.utils import z85

from loaders.streaming.keys import KeyPair
from loaders.streaming.protocol.seal import Seals

__all__ = ["Gate"]

_STOP = b"stop"


class Gate:
    """Judges the handshakes of one context's sockets in a thread of its own."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], keys: KeyPair, seals: Seals) -> None:
        """Begin to judge; has to be there before the first socket is bound."""
        self._client = z85.decode(keys.peer)
        self._seals = seals
        self.rejected = 0
        """Connections that were turned away."""
        self._socket = context.socket(zmq.ROUTER)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.bind("inproc://zeromq.zap.01")
        self._stop = context.socket(zmq.PAIR)
        self._stop.bind("inproc://gate-stop")
        self._stopped = context.socket(zmq.PAIR)
        self._stopped.connect("inproc://gate-stop")
        self._thread = threading.Thread(target=self._run, name="streaming-gate", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        poller = zmq.Poller()
        poller.register(self._socket, zmq.POLLIN)
        poller.register(self._stopped, zmq.POLLIN)
        while self._stopped not in (ready := dict(poller.poll())):
            if self._socket in ready:
                self._judge(self._socket.recv_multipart())
        self._stopped.close(linger=0)
        self._socket.close(linger=0)

    def _judge(self, frames: list[bytes]) -> None:
        # RFC 27: envelope, empty, version, request, domain, address, identity, mechanism, credentials.
        sender, empty, version, request, _, _, _, mechanism, *credentials = frames
        welcome = self._welcome(mechanism, credentials)
        self.rejected += not welcome
        status, text = (b"200", b"OK") if welcome else (b"400", b"not known here")
        self._socket.send_multipart([sender, empty, version, request, status, text, b"", b""])

    def _welcome(self, mechanism: bytes, credentials: list[bytes]) -> bool:
        match mechanism, credentials:
            case b"CURVE", [key]:
                return hmac.compare_digest(key, self._client)
            case b"PLAIN", [name, password]:
                return self._seals.lets_in(name, password)
        return False

    def close(self) -> None:
        """End the thread; nobody is let in any more."""
        if not self._stop.closed:
            self._stop.send(_STOP)
            self._thread.join()
            self._stop.close(linger=0)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
