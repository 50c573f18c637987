"""Bounds what connections cost a daemon in memory: a flood waits, and the idle and the slow are closed first."""

from __future__ import annotations

import time

from loaders.streaming.daemon.connections import Connection
from loaders.streaming.daemon.log import Log, is_logged
from loaders.streaming.daemon.outbox import Outbox
from loaders.streaming.daemon.rss import anonymous_bytes, trim
from loaders.streaming.daemon.served import Served
from loaders.streaming.daemon.server_socket import ServerSocket

__all__ = ["MemoryBound"]

_CONNECTION_BYTES = 48 * 2**10
"""What ZeroMQ takes for a connection."""
_UNREAD_BYTES = 16 * 2**20
"""Memory that nothing known explains, from which on connections are asked what they have sent ..."""
_MOST_UNREAD = 256 * 2**10
"""... and of which one that has sent so much that was not answered is paused. It is longer than any request."""
_SPARE_BYTES = 160 * 2**20
"""Memory beyond what the daemon had when it was ready, and its connections take, at which it closes some of them."""
_SHED_SHARE = 8
"""One of so many connections is closed where none holds much."""
_FREED_S, _LAST_RESORT_S = 0.1, 2.0
"""How long what was closed takes to be freed; after how long over the limit every connection is closed."""
_UNKNOWN_S, _IDLE_S = 2.0, 60.0
"""Where there is no room for further connections: how long one may be silent that never asked, or has asked."""
_LOOKING_SHARE = 20
"""Connections are looked at for one in so many seconds at most."""


class MemoryBound:
    """Looks after the connections of one socket; one thread uses it."""

    def __init__(self, socket: ServerSocket, outbox: Outbox, served: Served, log: Log) -> None:
        """Take what the process has now for what it needs without connections."""
        self._socket, self._outbox, self._served, self._log = socket, outbox, served, log
        self._ready = anonymous_bytes()
        self._has_paused = False
        self._look_again_s = self._shed_again_s = 0.0
        self._over_since_s: float | None = None

    def look(self) -> bool:
        """Pause and close connections as far as memory asks for it; return whether the socket is a new one."""
        now, found = time.monotonic(), anonymous_bytes()
        needed = self._ready + _CONNECTION_BYTES * len(self._socket.connections)
        is_unexplained = found > needed + self._outbox.owned + _UNREAD_BYTES
        if (is_unexplained or self._has_paused) and now >= self._look_again_s:
            self._bound_unread(now, is_unexplained)
        if found <= needed + _SPARE_BYTES:
            self._over_since_s = None
            return False
        self._over_since_s = now if self._over_since_s is None else self._over_since_s
        if now - self._over_since_s > _LAST_RESORT_S:
            self._closed(len(self._socket.connections), found)
            self._socket.reopen()
            self._over_since_s = None
            trim()
            return True
        if now >= self._shed_again_s:
            self._shed(now, found, found - needed - _SPARE_BYTES)
            self._shed_again_s = time.monotonic() + _FREED_S
        return False

    def close_idle(self) -> None:
        """Close the connections that have been silent for long, so that others find room."""
        now = time.monotonic()
        idle = [one for one in self._socket.connections if one.idle_s(now) > (_IDLE_S if one.asked_s else _UNKNOWN_S)]
        for one in idle:
            one.close()
        self._served.idle += len(idle)

    def _bound_unread(self, now: float, is_unexplained: bool) -> None:
        self._socket.count()
        self._has_paused = False
        for one in self._socket.connections:
            waiting = self._outbox.waiting_bytes_of(one.name) if one.name is not None else 0
            unread = one.unread(now) + waiting
            if not one.is_paused:
                if is_unexplained and unread > _MOST_UNREAD:
                    one.pause(True)
                    self._served.paused += 1
            elif unread <= _MOST_UNREAD // 2:
                one.pause(False)
            elif (
                self._socket.is_empty and not waiting
            ):  # a message without end: ZeroMQ keeps its frames until the last has come
                one.close()
                self._closed(1, anonymous_bytes())
            self._has_paused |= one.is_paused
        self._look_again_s = now + _LOOKING_SHARE * (time.monotonic() - now)

    def _shed(self, now: float, found: int, over: int) -> None:
        """Close the connections that hold the most, and where none holds much those that asked longest ago."""
        self._socket.count()
        held = {one.descriptor: max(0, one.unread(now)) + self._holds(one) for one in self._socket.connections}
        by_held = sorted(self._socket.connections, key=lambda one: -held[one.descriptor])
        closed = 0
        for one in by_held:
            if over <= 0 or held[one.descriptor] < _MOST_UNREAD:
                break
            over -= held[one.descriptor]
            one.close()
            closed += 1
        if not closed:
            by_idleness = sorted(self._socket.connections, key=lambda one: -one.idle_s(now))
            for one in by_idleness[: -(-len(by_idleness) // _SHED_SHARE)]:
                one.close()
                closed += 1
        self._closed(closed, found)
        trim()

    def _holds(self, one: Connection) -> int:
        return self._outbox.held(one.name) if one.name is not None else 0

    def _closed(self, count: int, found: int) -> None:
        before, self._served.shed = self._served.shed, self._served.shed + count
        if any(is_logged(number) for number in range(before + 1, self._served.shed + 1)):
            self._log("shed", count=self._served.shed, anonymous_bytes=found, connections=len(self._socket.connections))
