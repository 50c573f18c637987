"""A daemon's connections one by one, which ZeroMQ does not show.

ZeroMQ reads a connection whether or not its messages are taken, and cannot close one of a socket's connections. The
kernel knows how much a connection has received, and this process may drop its packets or end it by its descriptor.
"""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TypeVar

from loaders.streaming.daemon.listener import refuse_data
from loaders.streaming.descriptor import on_descriptor

_RECEIVED = struct.Struct("Q")
_RECEIVED_AT = 128
"""Where struct tcp_info (linux/tcp.h) has tcpi_bytes_received."""
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
        return on_descriptor(self.descriptor, action)


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
