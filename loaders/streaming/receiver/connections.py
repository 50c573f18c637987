"""The compute node's connections to one or more daemons.

Each stream is a connection of its own. ZeroMQ makes a lost connection again, and its requests are sent again. A second
answer is dropped by its sequence number.
"""

from __future__ import annotations

import itertools
import os
import time
import weakref
from collections.abc import Iterator
from dataclasses import dataclass

import zmq

from joulefeed.closing import Closing
from loaders.errors import LoaderError, StreamError
from loaders.records.planner import EpochPlan
from loaders.streaming.receiver.prefetch_window import PrefetchWindow
from loaders.streaming.receiver.remote_daemon import RemoteDaemon, keep_freed_memory
from loaders.streaming.receiver.shard_map import ShardMap
from loaders.streaming.receiver.stream import DaemonStream
from loaders.streaming.settings import StreamSettings

_MESSAGES = 32
"""Messages taken of one stream before the next one's turn."""
_PIECE_BYTES, _PIECE_MS = 2**20, 100
"""Bytes of an answer for which ZeroMQ is woken while others follow; milliseconds after which it is for any."""


class FetchInterrupted(Exception):
    """A fetch was ended from another thread."""


@dataclass(slots=True)
class ReceiverCounters:
    """Counts since the connections were made."""

    batches: int = 0
    bytes: int = 0
    """Bytes of all frames taken, headers included."""
    asked_again: int = 0
    """Requests that were repeated."""
    damaged: int = 0
    """Messages and batches, or parts of them, that came damaged; they were requested again."""
    verify_s: float = 0.0
    """Time spent on checksums."""
    stale: int = 0
    """Answers to requests that had an answer or were dropped."""


class DaemonConnections(Closing):
    """Connections to daemons; one thread at a time uses it, except for `interrupt`."""

    def __init__(self, settings: StreamSettings) -> None:
        """Connect to every daemon, read the catalogs, and move padding.

        Raises StreamError naming the endpoint when nothing answers in time, and naming a shard that two daemons serve.
        """
        keep_freed_memory()
        self.settings = settings
        self.counters = ReceiverCounters()
        self.sequence = itertools.count()
        """Numbers of requests; each is used once."""
        self.daemons: list[RemoteDaemon] = []
        self._pid = os.getpid()
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context(io_threads=1)
        self._poller = zmq.Poller()
        self._interrupt = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._poller.register(self._interrupt, zmq.POLLIN)
        # For connections that are dropped unclosed: ZeroMQ ends a context only when all sockets are closed.
        self._dropped = weakref.finalize(self, _drop, self.daemons, self._context, self._pid)
        self._dropped.atexit = False
        self._polled = time.monotonic()
        self._closed = False
        try:
            for endpoint in settings.addresses:
                self.daemons.append(RemoteDaemon(self._context, self._poller, endpoint, settings))
            self.shards = ShardMap.merge(settings.addresses, [daemon.catalog for daemon in self.daemons])
            """The shards of all daemons together."""
        except BaseException:
            self.close()
            raise
        self.rtt_s = max(daemon.rtt_s for daemon in self.daemons)
        """The longest round trip to a daemon, on the idle link."""
        self.window = PrefetchWindow(self.rtt_s, len(self.daemons), settings.streams)
        """How many batches the links need under way."""

    @property
    def is_shuffled(self) -> bool:
        """Whether the records of all daemons were shuffled when their shards were made."""
        return all(daemon.is_shuffled for daemon in self.daemons)

    @property
    def transport(self) -> str:
        """How many streams lead to each daemon, and their congestion control, in words."""
        controls = " and ".join(sorted({daemon.congestion for daemon in self.daemons}))
        return f"{self.settings.streams} streams to each daemon, congestion control {controls}"

    def group(self, planned: EpochPlan) -> EpochPlan:
        """Return a plan's records in batches of one daemon's shards each, but for the last few.

        So a slow daemon does not delay the batches of others.
        """
        return planned.group(self.shards.daemons) if len(self.daemons) > 1 and len(planned) else planned

    def interrupt(self) -> None:
        """Have `receive` raise FetchInterrupted; may be called from another thread."""
        os.eventfd_write(self._interrupt, 1)

    def clear_interrupt(self) -> bool:
        """Forget a call of `interrupt`; return whether there was one."""
        try:
            return bool(os.eventfd_read(self._interrupt))
        except BlockingIOError:
            return False

    def receive(self, timeout_s: float) -> Iterator[tuple[RemoteDaemon, DaemonStream, list[zmq.Frame]]]:
        """Yield the messages that have arrived, waiting for the first; an empty one says that its stream was lost.

        Counts how long every daemon with open requests has been silent. Raises FetchInterrupted after `interrupt`.
        """
        began = time.monotonic()
        ready = self._poll(int(timeout_s * 1000) + 1 if timeout_s > 0 else 0)
        now = time.monotonic()
        # Between two calls a daemon may have answered, so this time counts as its silence for a part of the timeout.
        passed = now - began + min(began - self._polled, self.settings.timeout_s / 4)
        self._polled = now
        for daemon in self.daemons:
            if daemon.has_requests:
                daemon.silence.add(passed)
            else:
                daemon.silence.end()
            for stream in daemon.streams:
                lost = stream.monitor in ready and stream.lost()
                if not lost and stream.socket not in ready:
                    continue
                # The messages of a lost connection are taken before its requests are sent again.
                left = _MESSAGES
                while (lost or left) and (frames := stream.receive()) is not None:
                    daemon.silence.end()
                    left -= 1
                    yield daemon, stream, frames
                if lost:
                    daemon.silence.was_lost = True
                    yield daemon, stream, []
        if self._interrupt in ready and self.clear_interrupt():
            raise FetchInterrupted

    def _poll(self, timeout_ms: int) -> dict[object, int]:
        """Return the sockets that are ready, waiting for the first of them.

        A link of 1 Gbit/s delivers 64 kB at a time, and to be woken for each costs as much as to copy them.
        """
        streams = [each for daemon in self.daemons for each in daemon.streams_with_more(_PIECE_BYTES)]
        if not streams or not timeout_ms:
            return dict(self._poller.poll(timeout_ms))
        for stream in streams:
            stream.wake_at(_PIECE_BYTES)
        try:
            ready = self._poller.poll(min(timeout_ms, _PIECE_MS))
        finally:
            for stream in streams:
                stream.wake_at(1)
        return dict(ready or self._poller.poll(max(0, timeout_ms - _PIECE_MS)))

    def close(self) -> None:
        """Close every connection; may be called twice."""
        if self._closed:
            return
        self._closed = True
        self._dropped.detach()
        if os.getpid() != self._pid:  # a fork's sockets are its parent's
            return
        for daemon in self.daemons:
            daemon.close()
        self._context.destroy(linger=0)
        os.close(self._interrupt)

    def check_process(self) -> None:
        """Raise LoaderError in a process that was forked after the connections were made, StreamError once closed."""
        if os.getpid() != self._pid:
            raise LoaderError("connections do not survive a fork: make the loader in the process that uses it")
        if self._closed:
            raise StreamError("the connections are closed: make new ones")


def _drop(daemons: list[RemoteDaemon], context: zmq.Context[zmq.Socket[bytes]], pid: int) -> None:
    if os.getpid() == pid:
        for daemon in daemons:
            daemon.close()
        context.destroy(linger=0)
