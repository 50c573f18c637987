"""The daemon on a storage node: answers requests for slices with views of the mapped shards, without a copy.

One thread reads requests and makes answers, ZeroMQ's threads move the bytes, and a few more wait for the disk or
serialise msgpack answers. The daemon keeps nothing of a client except the bytes on their way to it. A client
that wants more asks for more, so its window is the back-pressure, and a client or daemon that comes back goes on by
asking again.
"""

from __future__ import annotations

import os
import time
from dataclasses import asdict

import zmq

from joulefeed.closing import Closing
from joulefeed.signals import signals_noted
from loaders.streaming.daemon.counters import DaemonCounters, Log
from loaders.streaming.daemon.listener import ListeningSocket, limit_connections
from loaders.streaming.daemon.request_handler import RequestHandler
from loaders.streaming.daemon.send_budget import SendBudget
from loaders.streaming.daemon.server_socket import ServerSocket
from loaders.streaming.daemon.store import ShardStore
from loaders.streaming.keys import KeyPair
from loaders.streaming.timestamps import EpochMarks, TimestampLogger

_AT_ONCE = 64
"""Requests that are read before anything else has its turn."""
_SIGNAL_MS = 100
"""How often a daemon without traffic looks for a signal."""
_FLUSH_S = 1.0
"""How often events are written."""
_LINGER_MS = 5_000
"""How long a stop waits for answers under way."""


class Daemon(Closing):
    """Serves one shard folder at one address until it is stopped."""

    def __init__(
        self,
        store: ShardStore,
        host: str,
        listener: ListeningSocket,
        *,
        log: Log,
        threads: int = 1,
        high_water_mark: int | None = None,
        keys: KeyPair | None = None,
        no_auth: bool = False,
        events: TimestampLogger | None = None,
    ) -> None:
        """Serve on `listener`, which listens on `host`.

        Args:
            store: The shards.
            host: Numeric address; a loopback address unless there are keys or `no_auth` is set.
            listener: Listens on it.
            log: Takes an event and its fields.
            threads: Threads of ZeroMQ that move the bytes, and as many that serialise msgpack answers (default: 1).
            high_water_mark: Most messages under way to a client (default: by bytes).
            keys: Of the only client that is served; CURVE encrypts and authenticates all traffic (default: none).
            no_auth: Whether anyone is served who reaches the host (default: False).
            events: Gets a line for every batch, and is closed with the daemon (default: none).

        Raises StreamError when too few descriptors are left for connections, LoaderConfigError for a host that others
        can reach without keys.
        """
        self._log = log
        self.max_connections = limit_connections(threads)
        """Connections beyond which no further one is taken."""
        self.counters = DaemonCounters()
        self._store = store
        self._events = events
        self._marks = EpochMarks(events, store.catalog.samples) if events is not None else None
        self._socket = ServerSocket(
            host, listener, threads=threads, max_connections=self.max_connections, keys=keys, no_auth=no_auth
        )
        self.endpoint = self._socket.endpoint
        """The address for clients, such as tcp://10.77.0.1:41234."""
        self.congestion = listener.congestion
        """TCP's congestion control of the connections."""
        self._budget = SendBudget(high_water_mark)
        self._requests = RequestHandler(
            store,
            self._socket,
            self._budget,
            self.counters,
            threads=threads,
            report=self.report,
            marks=self._marks,
            log=log,
        )
        self._closed = False
        self._started = self._flushed = time.monotonic()
        # pyzmq opens what it frees messages with, and imports it, at the first one that is not copied.
        zmq.Frame(b"", copy=False)

    def serve(self, *, until_eof: int | None = None) -> str:
        """Answer requests until a signal, or until the descriptor `until_eof` is at its end; return which."""
        poller = zmq.Poller()
        for each in (self._socket.socket, self._socket.monitor, self._budget.wake, until_eof):
            if each is not None:
                poller.register(each, zmq.POLLIN)
        has_more = False
        with signals_noted() as stop:
            while stop.number is None:
                ready = dict(poller.poll(0 if has_more else _SIGNAL_MS))
                if until_eof in ready and not os.read(until_eof, 4096):  # type: ignore[arg-type]
                    return "standard input ended"
                if self._budget.wake in ready:
                    os.eventfd_read(self._budget.wake)
                self._requests.send_loaded()
                if self._socket.socket in ready:
                    self._read_requests()
                has_more = self._answer_waiting()
                if self._socket.monitor in ready:
                    self._count_connections()
                self._flush_events()
        return "signal"

    def _read_requests(self) -> None:
        """Read requests that have arrived, a bounded number so that a stop is seen under load too."""
        for _ in range(_AT_ONCE):
            message = self._socket.receive()
            if message is None:
                return
            self._requests.take(*message)

    def _answer_waiting(self) -> bool:
        """Answer the oldest waiting request of every client with room; return whether there was one."""
        taken = self._budget.take()
        for name, request in taken:
            self._requests.answer(name, request)
        return bool(taken)

    def report(self) -> dict[str, object]:
        """Return the daemon's health: seconds since its start, open connections, and its counters."""
        self._count_connections()
        return {
            "uptime_s": round(time.monotonic() - self._started, 3),
            "clients": self._socket.connections,
            "max_clients": self.max_connections,
            "congestion": self.congestion,
            "is_shuffled": self._store.is_shuffled,
            "rejected": self._socket.rejected,
            "waiting": self._budget.waiting,
            **asdict(self.counters),
        }

    def _count_connections(self) -> None:
        self.counters.count("full", self._socket.count(), self._log, limit=self.max_connections)

    def _flush_events(self) -> None:
        now = time.monotonic()
        if self._events is not None and now - self._flushed > _FLUSH_S:
            self._flushed = now
            self._events.flush()

    def close(self) -> None:
        """Accept nothing more, finish the answers under way within a few seconds, and close every connection."""
        if self._closed:
            return
        self._closed = True
        self._requests.close()
        self._socket.close(_LINGER_MS)
        self._budget.close()
        if self._marks is not None and self._events is not None:
            self._marks.close()
            self._events.close()
