"""The daemon on a storage node: answers requests for slices with views of the mapped shards, without a copy.

One thread reads requests and makes answers, ZeroMQ's threads move the bytes, and a few more wait for the disk, or
serialise where that is asked for. The daemon keeps nothing of a client except the bytes on their way to it. A client
that wants more asks for more, so its window is the back-pressure, and a client or daemon that comes back goes on by
asking again.
"""

from __future__ import annotations

import os
import time
from dataclasses import asdict

import zmq

from joulefeed.closing import Closing
from loaders.streaming.daemon.counters import DaemonCounters, Log, is_logged
from loaders.streaming.daemon.listener import Listener, limit_connections
from loaders.streaming.daemon.memory import MemoryBound, read_anonymous_bytes, read_resident_bytes
from loaders.streaming.daemon.request_handler import RequestHandler
from loaders.streaming.daemon.send_budget import SendBudget
from loaders.streaming.daemon.server_socket import ServerSocket
from loaders.streaming.daemon.store import ShardStore
from loaders.streaming.daemon.supervisor import StopSignals
from loaders.streaming.keys import KeyPair
from loaders.streaming.timestamps import EpochMarks, TimestampLogger

_AT_ONCE = 64
"""Requests that are read before anything else has its turn."""
_IDLE_MS, _LOOK_S = 25, 0.005
"""How often memory is checked without and with traffic; a peer on loopback can send 2 MB in 1 ms."""
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
        listener: Listener,
        *,
        log: Log,
        threads: int = 1,
        serializers: int = 0,
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
            threads: Threads of ZeroMQ that move the bytes (default: 1).
            serializers: Threads that read and serialise msgpack answers (default: 0, this thread does).
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
        self._socket = ServerSocket(host, listener, threads=threads, keys=keys, no_auth=no_auth)
        self.endpoint = self._socket.endpoint
        """The address for clients, such as tcp://10.77.0.1:41234."""
        self.congestion = self._socket.congestion
        """TCP's congestion control of the connections."""
        self._budget = SendBudget(high_water_mark)
        self._requests = RequestHandler(
            store,
            self._socket,
            self._budget,
            self.counters,
            serializers=serializers,
            report=self.report,
            marks=self._marks,
            log=log,
        )
        self._closed = False
        self._started = time.monotonic()
        self._flushed = self._looked = self._started
        # pyzmq opens what it frees messages with, and imports it, at the first one that is not copied.
        zmq.Frame(b"", copy=False)
        self._full = False
        self._memory = MemoryBound(self._socket, self._budget, self.counters, log)

    def serve(self, *, until_eof: int | None = None) -> str:
        """Answer requests until SIGTERM or SIGINT, or until the descriptor `until_eof` is at its end; return which."""
        with StopSignals() as stop:
            poller = self._poller(stop, until_eof)
            has_more = False
            while True:
                ready = dict(poller.poll(0 if has_more else _IDLE_MS))
                if stop.descriptor in ready:
                    return "signal"
                if until_eof in ready and not os.read(until_eof, 4096):  # type: ignore[arg-type]
                    return "standard input ended"
                if self._budget.wake in ready:
                    os.eventfd_read(self._budget.wake)
                self._requests.send_loaded()
                if self._socket.socket in ready:
                    self._read_requests()
                has_more = self._answer_waiting()
                if self._socket.monitor in ready:
                    self._bound_connections()
                if self._look():
                    poller = self._poller(stop, until_eof)

    def _poller(self, stop: StopSignals, until_eof: int | None) -> zmq.Poller:
        poller = zmq.Poller()
        for descriptor in (stop.descriptor, self._budget.wake, until_eof):
            if descriptor is not None:
                poller.register(descriptor, zmq.POLLIN)
        for socket in (self._socket.socket, self._socket.monitor):
            poller.register(socket, zmq.POLLIN)
        return poller

    def _read_requests(self) -> None:
        """Take arrived requests, a bounded number so that a stop and full memory are seen under load too."""
        end = time.monotonic() + _LOOK_S
        for _ in range(_AT_ONCE):
            message = self._socket.receive()
            if message is None:
                return
            self._requests.take(*message)
            if time.monotonic() > end:
                return

    def _answer_waiting(self) -> bool:
        """Answer a bounded number of requests that waited for room; return whether more may have room."""
        end = time.monotonic() + _LOOK_S
        for _ in range(_AT_ONCE):
            taken = self._budget.take()
            for name, request in taken:
                self._requests.answer(name, request)
            if not taken:
                return False
            if time.monotonic() > end:
                break
        return True

    def report(self) -> dict[str, object]:
        """Return the daemon's health: seconds since its start, open connections, memory, and its counters."""
        self._socket.count()
        return {
            "uptime_s": round(time.monotonic() - self._started, 3),
            "clients": len(self._socket.connections),
            "max_clients": self.max_connections,
            "congestion": self.congestion,
            "is_shuffled": self._store.is_shuffled,
            "rejected": self._socket.rejected,
            "rss_bytes": read_resident_bytes(),
            "anonymous_bytes": read_anonymous_bytes(),
            "waiting": self._budget.waiting,
            **asdict(self.counters),
        }

    def _bound_connections(self) -> None:
        """Count connections; take no more at the limit, and more again once an eighth of them is gone."""
        self._socket.count()
        connections, limit = len(self._socket.connections), self.max_connections
        full = connections >= (limit - limit // 8 if self._full else limit)
        if full != self._full:
            self._full = full
            self._socket.refuse(full)
            if full:
                self.counters.full += 1
                if is_logged(self.counters.full):
                    self._log("full", count=self.counters.full, connections=connections, limit=limit)

    def _look(self) -> bool:
        """Check memory, connections and events now and then; return whether the sockets are new ones."""
        now = time.monotonic()
        if self._events is not None and now - self._flushed > _FLUSH_S:
            self._flushed = now
            self._events.flush()
        if now - self._looked < _LOOK_S:
            return False
        self._looked = now
        if self._full:
            self._memory.close_idle()
        is_new = self._memory.look()
        if is_new:
            self._bound_connections()
        return is_new

    def close(self) -> None:
        """Take nothing more, finish the answers under way within a few seconds, and close every connection."""
        if self._closed:
            return
        self._closed = True
        self._requests.close()
        self._socket.close(_LINGER_MS)
        self._budget.close()
        if self._marks is not None and self._events is not None:
            self._marks.close()
            self._events.close()
