"""Back-pressure: the bytes of answers that ZeroMQ has for every client and has not given to the kernel yet.

ZeroMQ frees a message when it is sent. The first frame of every answer owns a Reservation, which returns its bytes to
the budget when the frame is freed. So a client that does not read gets no more than its share, and its requests, which
are small, wait.
"""

from __future__ import annotations

import os
from collections import deque
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from loaders.streaming.protocol import Buffer

_SHARE_BYTES = 4 * 2**20
"""A client with fewer bytes under way gets a further answer."""
MAX_OWNED_BYTES = 64 * 2**20
"""Requests wait while answers of all clients own so many bytes that are no views of shards."""
_MAX_OWNED_OF_CLIENT = 16 * 2**20
"""The same for one client, where a number of messages is its limit."""
_MAX_WAITING = 8192
"""Requests of one client that may wait; a loader has far fewer under way."""

Name: TypeAlias = bytes
"""The socket's name for a connection."""


class Reservation:
    """The bytes of one answer; they are free again when the last reference is gone."""

    __slots__ = ("_budget", "name", "nbytes", "owned")

    def __init__(self, budget: SendBudget, name: Name, nbytes: int, owned: int) -> None:
        self._budget, self.name, self.nbytes, self.owned = budget, name, nbytes, owned

    def hold(self, data: Buffer) -> npt.NDArray[np.uint8]:
        """Return the answer's first frame; the reservation lasts while ZeroMQ has it."""
        frame = np.frombuffer(data, np.uint8).view(_Frame)
        frame.reservation = self
        return frame

    def __del__(self) -> None:
        self._budget._return(self)


class _Frame(np.ndarray[Any, np.dtype[np.uint8]]):
    reservation: Reservation


@dataclass(slots=True)
class _Client:
    answers: int = 0
    nbytes: int = 0
    owned: int = 0
    waiting: deque[Buffer] = field(default_factory=deque)


class SendBudget:
    """Counts the bytes under way. One thread uses it; ZeroMQ's threads return reservations."""

    def __init__(self, high_water_mark: int | None = None) -> None:
        """Let each client have so many messages under way; None: as many as have 4 MiB."""
        self._high_water_mark = high_water_mark
        self.wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        """Readable when a client with waiting requests may have room."""
        self.owned = 0
        """Bytes of answers under way that are no views of shards."""
        self._clients: dict[Name, _Client] = {}
        self._waiting: dict[Name, None] = {}
        self._returned: deque[tuple[Name, int, int]] = deque()
        self._closed = False

    @property
    def waiting(self) -> int:
        """Number of waiting requests."""
        return sum(len(self._clients[name].waiting) for name in self._waiting)

    def reserve(self, name: Name, *, nbytes: int, owned: int) -> Reservation:
        """Reserve `nbytes` for an answer; `owned` of them are no views of shards."""
        client = self._clients.setdefault(name, _Client())
        client.answers += 1
        client.nbytes += nbytes
        client.owned += owned
        self.owned += owned
        return Reservation(self, name, nbytes, owned)

    def has_room(self, name: Name) -> bool:
        """Return whether a client may get one more answer now and has no older request that waits."""
        client = self._clients.get(name)
        return self.owned < MAX_OWNED_BYTES and (client is None or (self._is_below(client) and not client.waiting))

    def _is_below(self, client: _Client) -> bool:
        """Return whether a client has less under way than it may have."""
        if self._high_water_mark is None:
            return client.nbytes < _SHARE_BYTES
        return client.answers < self._high_water_mark and client.owned < _MAX_OWNED_OF_CLIENT

    def wait(self, name: Name, request: Buffer) -> bool:
        """Queue a request until there is room; return False, and drop it, where its client has too many."""
        client = self._clients.setdefault(name, _Client())
        if len(client.waiting) >= _MAX_WAITING:
            return False
        client.waiting.append(request)
        self._waiting[name] = None
        return True

    def take(self) -> list[tuple[Name, Buffer]]:
        """Count the reservations that were returned; return the oldest request of every client that has room."""
        while self._returned:
            name, nbytes, owned = self._returned.popleft()
            client = self._clients[name]
            client.answers -= 1
            client.nbytes -= nbytes
            client.owned -= owned
            self.owned -= owned
            self._drop_if_idle(name)
        taken = []
        for name in list(self._waiting):
            client = self._clients[name]
            if self.owned < MAX_OWNED_BYTES and self._is_below(client):
                taken.append((name, self._pop_request(name, client)))
        return taken

    def forget(self, name: Name) -> int:
        """Drop the waiting requests of a client that is gone; return their number."""
        client = self._clients.get(name)
        if client is None:
            return 0
        count = len(client.waiting)
        client.waiting.clear()
        self._waiting.pop(name, None)
        self._drop_if_idle(name)
        return count

    def close(self) -> None:
        """Ignore the reservations that are returned from now on."""
        self._closed = True
        os.close(self.wake)

    def _pop_request(self, name: Name, client: _Client) -> Buffer:
        request = client.waiting.popleft()
        if not client.waiting:
            del self._waiting[name]
            self._drop_if_idle(name)
        return request

    def _drop_if_idle(self, name: Name) -> None:
        client = self._clients[name]
        if not client.answers and not client.waiting:
            del self._clients[name]

    def _return(self, reservation: Reservation) -> None:
        self._returned.append((reservation.name, reservation.nbytes, reservation.owned))
        # The thread that queues a request looks at the returned reservations once more before it sleeps.
        if self._waiting and not self._closed:
            os.eventfd_write(self.wake, 1)
