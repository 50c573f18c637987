"""Bounds the memory that connections cost a daemon: a flood waits, and the idle and the slow are closed first."""

from __future__ import annotations

import ctypes
import os
import time
from functools import cache

from loaders.streaming.daemon.connections import Connection
from loaders.streaming.daemon.counters import DaemonCounters, Log, is_logged
from loaders.streaming.daemon.send_budget import SendBudget
from loaders.streaming.daemon.server_socket import ServerSocket

_PAGE = os.sysconf("SC_PAGE_SIZE")
_libc = ctypes.CDLL(None)
_CONNECTION_BYTES = 48 * 2**10
"""Memory that ZeroMQ needs for a connection."""
_UNREAD_BYTES = 16 * 2**20
"""With so much unexplained memory the kernel is asked how much each connection has received ..."""
_MAX_UNREAD = 256 * 2**10
"""... and a connection with more unanswered bytes is paused. It is longer than any request."""
_SPARE_BYTES = 160 * 2**20
"""Memory beyond that at the start, and beyond that of connections, at which the daemon closes some of them."""
_SHED_SHARE = 8
"""One of so many connections is closed where no connection has much."""
_FREED_S, _LAST_RESORT_S = 0.1, 2.0
"""Time until the memory of closed connections is free; time over the limit after which every connection is closed."""
_UNKNOWN_S, _IDLE_S = 2.0, 60.0
"""At the limit of connections: how long one may be silent that never asked, or that has asked."""
_LOOKING_SHARE = 20
"""Connections are checked for at most one in so many seconds."""


def read_resident_bytes() -> int:
    """Return the resident bytes, mapped files included."""
    return _read_statm()[1] * _PAGE


def read_anonymous_bytes() -> int:
    """Return the resident bytes that belong to no file."""
    statm = _read_statm()
    # proc(5): resident pages, then the shared ones of them, which are those of mapped files.
    return (statm[1] - statm[2]) * _PAGE


def _read_statm() -> list[int]:
    return [int(value) for value in os.pread(_open_statm(), 200, 0).split()]


@cache
def _open_statm() -> int:
    """Open the file once: later there may be no descriptor left."""
    return os.open("/proc/self/statm", os.O_RDONLY | os.O_CLOEXEC)


class MemoryBound:
    """Watches the connections of one socket; one thread uses it."""

    def __init__(self, socket: ServerSocket, budget: SendBudget, counters: DaemonCounters, log: Log) -> None:
        """Take the memory of the process now as what it needs without connections."""
        self._socket, self._budget, self._counters, self._log = socket, budget, counters, log
        self._ready = read_anonymous_bytes()
        self._has_paused = False
        self._look_again_s = self._shed_again_s = 0.0
        self._over_since_s: float | None = None

    def look(self) -> bool:
        """Pause and close connections as far as the memory demands; return whether the socket is a new one."""
        now, found = time.monotonic(), read_anonymous_bytes()
        needed = self._ready + _CONNECTION_BYTES * len(self._socket.connections)
        is_unexplained = found > needed + self._budget.owned + _UNREAD_BYTES
        if (is_unexplained or self._has_paused) and now >= self._look_again_s:
            self._bound_unread(now, is_unexplained)
        if found <= needed + _SPARE_BYTES:
            self._over_since_s = None
            return False
        self._over_since_s = now if self._over_since_s is None else self._over_since_s
        if now - self._over_since_s > _LAST_RESORT_S:
            self._count_shed(len(self._socket.connections), found)
            self._socket.reopen()
            self._over_since_s = None
            _libc.malloc_trim(0)
            return True
        if now >= self._shed_again_s:
            self._shed(now, found, found - needed - _SPARE_BYTES)
            self._shed_again_s = time.monotonic() + _FREED_S
        return False

    def close_idle(self) -> None:
        """Close the connections that were silent for too long, so that others find room."""
        now = time.monotonic()
        idle = [one for one in self._socket.connections if one.idle_s(now) > (_IDLE_S if one.asked_s else _UNKNOWN_S)]
        for one in idle:
            one.close()
        self._counters.idle += len(idle)

    def _bound_unread(self, now: float, is_unexplained: bool) -> None:
        began_s = time.thread_time()
        self._socket.count()
        self._has_paused = False
        for one in self._socket.connections:
            waiting = self._budget.waiting_bytes_of(one.name) if one.name is not None else 0
            unread = one.unread(now) + waiting
            if not one.is_paused:
                if is_unexplained and unread > _MAX_UNREAD:
                    one.pause(True)
                    self._counters.paused += 1
            elif unread <= _MAX_UNREAD // 2:
                one.pause(False)
            elif self._socket.is_empty and not waiting:
                # A message without end: ZeroMQ keeps its frames until the last one is there.
                one.close()
                self._count_shed(1, read_anonymous_bytes())
            self._has_paused |= one.is_paused
        # By processor time: on a busy machine a paused peer must not wait for what others use.
        self._look_again_s = now + _LOOKING_SHARE * (time.thread_time() - began_s)

    def _shed(self, now: float, found: int, over: int) -> None:
        """Close the connections with the most bytes; where none has many, those whose last request is the oldest."""
        self._socket.count()
        connections = self._socket.connections
        nbytes = {one.descriptor: max(0, one.unread(now)) + self._owned_bytes_of(one) for one in connections}
        closed = 0
        for one in sorted(connections, key=lambda one: -nbytes[one.descriptor]):
            if over <= 0 or nbytes[one.descriptor] < _MAX_UNREAD:
                break
            over -= nbytes[one.descriptor]
            one.close()
            closed += 1
        if not closed:
            by_idleness = sorted(connections, key=lambda one: -one.idle_s(now))
            for one in by_idleness[: -(-len(by_idleness) // _SHED_SHARE)]:
                one.close()
                closed += 1
        self._count_shed(closed, found)
        _libc.malloc_trim(0)

    def _owned_bytes_of(self, one: Connection) -> int:
        return self._budget.owned_bytes_of(one.name) if one.name is not None else 0

    def _count_shed(self, count: int, found: int) -> None:
        before, self._counters.shed = self._counters.shed, self._counters.shed + count
        if any(is_logged(number) for number in range(before + 1, self._counters.shed + 1)):
            connections = len(self._socket.connections)
            self._log("shed", count=self._counters.shed, anonymous_bytes=found, connections=connections)
