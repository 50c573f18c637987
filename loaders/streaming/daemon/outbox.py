"""Back-pressure: what has been handed to ZeroMQ for every client and has not gone to the kernel yet.

ZeroMQ frees a message when it has been sent. The first frame of every answer holds a place, which tells of that
when it is freed, so a client which does not read is given no more than its share, and its requests, which are
small, wait.
"""

from __future__ import annotations

import os
from collections import deque
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from loaders.streaming.protocol.messages import Buffer

__all__ = ["Name", "Outbox", "Place"]

_SHARE_BYTES = 4 * 2**20
"""Bytes under way to one client up to which it gets a further answer."""
_OWNED_BYTES = 64 * 2**20
"""Bytes of answers that are no views of shards, under way to all clients together, beyond which requests wait."""
_WAITING_BYTES = 64 * 2**20
"""Bytes of requests that may wait, for all clients together; each counts for _REQUEST_BYTES more."""
_REQUEST_BYTES = 256

Name: TypeAlias = bytes
"""What the socket calls a connection."""


class Place:
    """Room that an answer takes; given back when the last reference is gone."""

    __slots__ = ("_outbox", "name", "nbytes", "owned")

    def __init__(self, outbox: Outbox, name: Name, nbytes: int, owned: int) -> None:
        self._outbox, self.name, self.nbytes, self.owned = outbox, name, nbytes, owned

    def hold(self, data: bytes) -> npt.NDArray[np.uint8]:
        """Return the answer's first frame; as long as ZeroMQ has it, the place is taken."""
        frame = np.frombuffer(data, np.uint8).view(_Frame)
        frame.place = self
        return frame

    def __del__(self) -> None:
        self._outbox._left(self)


class _Frame(np.ndarray[Any, np.dtype[np.uint8]]):
    place: Place


@dataclass(slots=True)
class _Client:
    answers: int = 0
    nbytes: int = 0
    owned: int = 0
    waiting_bytes: int = 0
    waiting: deque[Buffer] = field(default_factory=deque)


class Outbox:
    """Counts what is under way; one thread uses it, ZeroMQ's threads report to it."""

    def __init__(self) -> None:
        self.wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        """Readable when a client for which requests wait may have room."""
        self.owned = 0
        """Bytes of answers under way that are no views of shards."""
        self._clients: dict[Name, _Client] = {}
        self._waiting: dict[Name, None] = {}
        self.waiting_bytes = 0
        """Bytes of requests that wait."""
        self._departures: deque[tuple[Name, int, int]] = deque()
        self._closed = False

    @property
    def waiting(self) -> int:
        """Number of requests that wait."""
        return sum(len(self._clients[name].waiting) for name in self._waiting)

    def place(self, name: Name, *, nbytes: int, owned: int) -> Place:
        """Take room for an answer of `nbytes` in all, of which `owned` are no views of shards."""
        client = self._clients.setdefault(name, _Client())
        client.answers += 1
        client.nbytes += nbytes
        client.owned += owned
        self.owned += owned
        return Place(self, name, nbytes, owned)

    def room(self, name: Name) -> bool:
        """Return whether a client may be given one more answer now, and has no older request that waits."""
        client = self._clients.get(name)
        return self.owned < _OWNED_BYTES and (client is None or (client.nbytes < _SHARE_BYTES and not client.waiting))

    def wait(self, name: Name, request: Buffer) -> Name | None:
        """Have a request wait until there is room; return whose requests are too many now, None where none are."""
        client = self._clients.setdefault(name, _Client())
        client.waiting.append(request)
        self._waiting[name] = None
        self._count_waiting(client, request, 1)
        if self.waiting_bytes <= _WAITING_BYTES:
            return None
        return max(self._waiting, key=lambda one: self._clients[one].waiting_bytes)

    def waiting_bytes_of(self, name: Name) -> int:
        """Return the bytes of a client's requests that wait."""
        client = self._clients.get(name)
        return client.waiting_bytes if client else 0

    def held(self, name: Name) -> int:
        """Return the bytes of a client's answers that are no views of shards, and of its requests that wait."""
        client = self._clients.get(name)
        return client.owned + client.waiting_bytes if client else 0

    def take(self) -> list[tuple[Name, Buffer]]:
        """Count what has left, and return the oldest request of every client for which there is room again."""
        while self._departures:
            name, nbytes, owned = self._departures.popleft()
            client = self._clients[name]
            client.answers -= 1
            client.nbytes -= nbytes
            client.owned -= owned
            self.owned -= owned
            self._tidy(name)
        taken = []
        for name in list(self._waiting):
            client = self._clients[name]
            if self.owned < _OWNED_BYTES and client.nbytes < _SHARE_BYTES:
                taken.append((name, self._oldest(name, client)))
        return taken

    def gone(self, name: Name) -> int:
        """Forget the requests of a client that is not connected any more; return how many waited."""
        client = self._clients.get(name, None)
        waited = len(client.waiting) if client else 0
        for _ in range(waited):
            assert client is not None
            self._oldest(name, client)
        return waited

    def close(self) -> None:
        """Stop to be told of what leaves."""
        self._closed = True
        os.close(self.wake)

    def _oldest(self, name: Name, client: _Client) -> Buffer:
        request = client.waiting.popleft()
        self._count_waiting(client, request, -1)
        if not client.waiting:
            del self._waiting[name]
            self._tidy(name)
        return request

    def _count_waiting(self, client: _Client, request: Buffer, sign: int) -> None:
        nbytes = sign * (len(request) + _REQUEST_BYTES)
        client.waiting_bytes += nbytes
        self.waiting_bytes += nbytes

    def _tidy(self, name: Name) -> None:
        client = self._clients[name]
        if not client.answers and not client.waiting:
            del self._clients[name]

    def _left(self, place: Place) -> None:
        self._departures.append((place.name, place.nbytes, place.owned))
        # Who makes a request wait looks at the departures once more before it sleeps.
        if self._waiting and not self._closed:
            os.eventfd_write(self.wake, 1)
