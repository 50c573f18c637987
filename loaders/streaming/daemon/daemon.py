"""The daemon on a storage node: answers requests for slices with views of the mapped shards, without a copy.

One thread reads requests and makes answers, ZeroMQ's threads move the bytes, and a few more wait for the disk. The
daemon knows nothing of its clients but what is on its way to them. Who wants more asks for more, so back-pressure
is the client's window, and a client or daemon that comes back goes on where it was by asking again.
"""

from __future__ import annotations

import os
import time
from dataclasses import asdict
from types import TracebackType
from typing import Self

import zmq

from loaders.streaming.daemon.answers import Answers
from loaders.streaming.daemon.listener import Listener, max_connections
from loaders.streaming.daemon.log import Log, is_logged
from loaders.streaming.daemon.memory import MemoryBound
from loaders.streaming.daemon.outbox import Outbox
from loaders.streaming.daemon.rss import anonymous_bytes, resident_bytes
from loaders.streaming.daemon.served import Served
from loaders.streaming.daemon.server_socket import ServerSocket
from loaders.streaming.daemon.signals import StopSignals
from loaders.streaming.daemon.store import ShardStore
from loaders.streaming.keys import KeyPair
from loaders.streaming.timestamps import EpochMarks, TimestampLogger

__all__ = ["Daemon", "Served"]

_AT_ONCE = 64
"""Requests that are read before anything else has its turn."""
_IDLE_MS, _LOOK_S = 25, 0.005
"""How often memory is looked at where nothing comes, and where much does; a peer on loopback can send 2 MB in 1 ms."""
_FLUSH_S = 1.0
"""How often events are written."""
_LINGER_MS = 5_000
"""How long a stop waits for what is being sent."""


class Daemon:
    """Serves one shard folder at one address until it is stopped."""

    def __init__(
        self,
        store: ShardStore,
        host: str,
        listener: Listener,
        *,
        log: Log,
        threads: int = 1,
        keys: KeyPair | None = None,
        no_auth: bool = False,
        events: TimestampLogger | None = None,
    ) -> None:
        """Serve on `listener`, which listens on `host`; `threads` of ZeroMQ's move the bytes.

        With `keys` only the client whose key they hold is served, and all that passes is encrypted and authenticated
        (CURVE). Without keys nothing is, and the host has to be a loopback address unless `no_auth` is set.
        `events` gets a line for every batch, and is closed with the daemon.

        Raises StreamError when hardly a descriptor is left for connections, LoaderConfigError for a host that others
        can reach without keys.
        """
        self._log = log
        self.max_connections = max_connections(threads)
        """Connections beyond which none is taken."""
        self.served = Served()
        self._mixing = asdict(store.mixing)
        self._events = events
        self._marks = EpochMarks(events, store.catalog.samples) if events is not None else None
        self._socket = ServerSocket(
            host,
            listener,
            threads=threads,
            keys=keys,
            no_auth=no_auth,
        )
        self.endpoint = self._socket.endpoint
        """Where clients connect to, such as tcp://10.77.0.1:41234."""
        self._outbox = Outbox()
        self._answers = Answers(
            store,
            self._socket,
            self._outbox,
            self.served,
            report=self.report,
            marks=self._marks,
            log=log,
        )
        self.congestion = self._socket.congestion
        """TCP's congestion control of what is sent."""
        self._closed = False
        self._started = time.monotonic()
        self._flushed = self._looked = self._started
        # pyzmq opens what it frees messages with, and imports it, at the first one that is not copied.
        zmq.Frame(b"", copy=False)
        self._full = False
        self._memory = MemoryBound(self._socket, self._outbox, self.served, log)

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
                if self._outbox.wake in ready:
                    os.eventfd_read(self._outbox.wake)
                self._answers.send_loaded()
                if self._socket.socket in ready:
                    self._read_waiting()
                has_more = self._answer_waiting()
                if self._socket.monitor in ready:
                    self._bound_connections()
                if self._look():
                    poller = self._poller(stop, until_eof)

    def _answer_waiting(self) -> bool:
        """Answer requests that waited for room, but never on and on; return whether more may have room."""
        end = time.monotonic() + _LOOK_S
        for _ in range(_AT_ONCE):
            taken = self._outbox.take()
            for name, request in taken:
                self._answers.answer(name, request)
            if not taken:
                return False
            if time.monotonic() > end:
                break
        return True

    def _poller(self, stop: StopSignals, until_eof: int | None) -> zmq.Poller:
        poller = zmq.Poller()
        poller.register(stop.descriptor, zmq.POLLIN)
        poller.register(self._outbox.wake, zmq.POLLIN)
        if until_eof is not None:
            poller.register(until_eof, zmq.POLLIN)
        for socket in (self._socket.socket, self._socket.monitor):
            poller.register(socket, zmq.POLLIN)
        return poller

    def _read_waiting(self) -> None:
        """Take what has arrived, a bounded number so that a stop is seen under load too, and memory that fills."""
        end = time.monotonic() + _LOOK_S
        for _ in range(_AT_ONCE):
            message = self._socket.receive()
            if message is None:
                return
            self._answers.take(*message)
            if time.monotonic() > end:
                return

    def report(self) -> dict[str, object]:
        """Return how the daemon is: seconds since its start, open connections, memory, and what it counted."""
        self._socket.count()
        return {
            "uptime_s": round(time.monotonic() - self._started, 3),
            "clients": len(self._socket.connections),
            "max_clients": self.max_connections,
            "congestion": self.congestion,
            "mixing": self._mixing,
            "rejected": self._socket.rejected,
            "rss_bytes": resident_bytes(),
            "anonymous_bytes": anonymous_bytes(),
            "waiting": self._outbox.waiting,
            **asdict(self.served),
        }

    def _bound_connections(self) -> None:
        """Count connections; take no more at the limit, and more again once an eighth of them is gone."""
        self._socket.count()
        connections, most = len(self._socket.connections), self.max_connections
        full = connections >= (most - most // 8 if self._full else most)
        if full != self._full:
            self._full = full
            self._socket.refuse(full)
            if full:
                self.served.full += 1
                if is_logged(self.served.full):
                    self._log("full", count=self.served.full, connections=connections, limit=most)

    def _look(self) -> bool:
        """Look after memory, connections and events now and then; return whether the sockets are new ones."""
        now = time.monotonic()
        if self._marks is not None and now - self._flushed > _FLUSH_S and self._events is not None:
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
        """Take nothing more, finish what is being sent within a few seconds, and close every connection."""
        if self._closed:
            return
        self._closed = True
        self._answers.close()
        self._socket.close(_LINGER_MS)
        self._outbox.close()
        if self._marks is not None and self._events is not None:
            self._marks.close()
            self._events.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
