"""A relay between clients and a daemon, which sees, changes, delays or cuts what passes."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections.abc import Callable
from typing import TypeAlias

Stream: TypeAlias = tuple[int, str]
"""Number of a connection, and the side that sends: client or daemon."""


class Relay:
    """Passes connections on to a port; `close` ends it."""

    def __init__(
        self,
        port: int,
        *,
        host: str = "127.0.0.1",
        piece: int = 65_536,
        on_piece: Callable[[Stream, bytearray], object] = lambda stream, data: None,
    ) -> None:
        """Call `on_piece` with every piece of at most `piece` bytes before it is passed on; it may change the bytes."""
        self._target, self._piece, self._on_piece = (host, port), piece, on_piece
        self._open: list[socket.socket] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.endpoint = f"tcp://127.0.0.1:{self._listener.getsockname()[1]}"
        self._start(self._accept)

    @staticmethod
    def _start(run: Callable[..., None], *arguments: object) -> None:
        threading.Thread(target=run, args=arguments, daemon=True).start()

    def _accept(self) -> None:
        number = 0
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                # What is in buffers counts as passed, so there is little room in them.
                near.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, self._piece)
                try:
                    far = socket.create_connection(self._target)
                except ConnectionError:  # there is no daemon for the moment
                    near.close()
                    continue
                self._open += [near, far]
                self._start(self._pass, near, far, (number, "client"))
                self._start(self._pass, far, near, (number, "daemon"))
                number += 1

    def _pass(self, source: socket.socket, sink: socket.socket, stream: Stream) -> None:
        with contextlib.suppress(OSError):
            while data := bytearray(source.recv(self._piece)):
                self._on_piece(stream, data)
                sink.sendall(data)
        for end in (source, sink):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def cut(self) -> None:
        """Reset every connection."""
        dying, self._open = self._open, []
        for each in dying:
            # Lingering for no time makes the kernel send a reset.
            each.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()

    def close(self) -> None:
        """Accept no more connections, and reset those that are open."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut()

    def __enter__(self) -> Relay:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
