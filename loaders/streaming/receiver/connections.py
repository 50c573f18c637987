"""The compute node's connections to one or more daemons, their shards together, and how many batches their links need.

Each stream is a connection of its own. ZeroMQ makes a lost connection again, and its requests are sent again. A second
answer is dropped by its sequence number.
"""

from __future__ import annotations

import hashlib
import itertools
import math
import os
import time
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import zmq

from joulefeed.closing import Closing
from loaders.errors import LoaderError, StreamError
from loaders.records.planner import EpochPlan
from loaders.streaming.memory import keep_freed_memory
from loaders.streaming.protocol import ServedShard, ShardCatalog
from loaders.streaming.receiver.remote_daemon import RemoteDaemon
from loaders.streaming.receiver.stream import DaemonStream, take_messages
from loaders.streaming.settings import MAX_PREFETCH, StreamSettings

_MESSAGES = 32
"""Messages taken of one stream before the next one's turn."""
_PIECE_BYTES, _PIECE_MS = 2**20, 100
"""Bytes of an answer for which ZeroMQ is woken while others follow; milliseconds after which it is for any."""

_PER_STREAM = 2
"""Batches for each stream: one that arrives, and the request for the next one."""
_FEW_BYTES, _FEW_BATCHES = 32 * 2**20, 8
"""Batches are requested in groups, which costs less CPU time: so many are under way, if they have no more bytes."""
_PRODUCTS = 2
"""Bandwidth-delay products under way, so that the rate can double in a round trip while it is learned."""
_MAX_BYTES = 512 * 2**20
_RATE_RTTS, _RATE_S = 2, 0.1
"""Round trips, and at least seconds, of a measurement of the rate."""


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


class ShardPlace(NamedTuple):
    """Where a shard is served."""

    daemon: int
    place: int
    """In the daemon's own catalog."""


@dataclass(frozen=True, slots=True)
class ShardMap:
    """All shards, sorted by name, and the daemon that has each."""

    catalog: ShardCatalog
    """Its fingerprint does not depend on which daemon has which shard."""
    places: tuple[ShardPlace, ...]

    @classmethod
    def merge(cls, endpoints: Sequence[str], catalogs: Sequence[ShardCatalog]) -> ShardMap:
        """Merge the daemons' catalogs; raises StreamError naming a shard that two of them serve, and both daemons."""
        found: dict[str, tuple[ServedShard, ShardPlace]] = {}
        for daemon, catalog in enumerate(catalogs):
            for place, shard in enumerate(catalog.shards):
                if shard.name in found:
                    raise StreamError(
                        f"{endpoints[found[shard.name][1].daemon]} and {endpoints[daemon]} both serve a shard of the "
                        f"name {shard.name}: give each daemon shards of its own, with names of their own"
                    )
                found[shard.name] = shard, ShardPlace(daemon, place)
        names = sorted(found)
        digest = hashlib.blake2b(digest_size=16)
        for name in names:
            digest.update(f"{name}\0{found[name][0].digest}\0".encode())
        shards = tuple(found[name][0] for name in names)
        return cls(ShardCatalog(digest.hexdigest(), shards), tuple(found[name][1] for name in names))

    @property
    def daemons(self) -> tuple[int, ...]:
        """The daemon of every shard."""
        return tuple(place.daemon for place in self.places)

    def record_bytes(self) -> tuple[float, ...]:
        """Return the mean size of a record of every shard, in bytes."""
        return tuple(shard.nbytes / max(1, shard.records) for shard in self.catalog.shards)


class PrefetchWindow:
    """Counts the batches that a link needs under way, by the highest rate that it has carried."""

    def __init__(self, rtt_s: float, daemons: int, streams: int) -> None:
        """Begin with a few batches, over `streams` connections to each daemon with a round trip of `rtt_s` seconds."""
        self._rtt_s, self._daemons, self._streams = rtt_s, daemons, streams
        self._rate, self._on_link, self._fewest = 0.0, 0, _FEW_BATCHES
        self._from: tuple[float, int] | None = None

    @property
    def batches(self) -> int:
        """Batches that should be under way from each daemon."""
        return min(MAX_PREFETCH, max(_PER_STREAM * self._streams + self._on_link, self._fewest))

    def measure(self, now: float, nbytes: int, batches: int) -> None:
        """Measure the rate from the totals of all daemons since the start, at `now` in seconds."""
        if self._from is None or not batches:
            self._from = now, nbytes
        elif (passed := now - self._from[0]) >= max(_RATE_S, _RATE_RTTS * self._rtt_s):
            self._rate = max(self._rate, (nbytes - self._from[1]) / passed)
            self._from = now, nbytes
            each = nbytes / batches
            product = self._rate * self._rtt_s / self._daemons
            self._on_link = int(min(_PRODUCTS * product, _MAX_BYTES) / each)
            self._fewest = min(_FEW_BATCHES, math.ceil(_FEW_BYTES / each))


class DaemonConnections(Closing):
    """Connections to daemons; one thread at a time uses it, except for `interrupt`."""

    def __init__(self, settings: StreamSettings) -> None:
        """Connect to every daemon, read the catalogs, and move padding.

        Raises StreamError naming the endpoint when nothing answers in time, and naming a shard that two daemons serve.
        """
        keep_freed_memory(_MAX_BYTES)
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
            for stream, frames in take_messages(daemon.streams, ready, daemon.silence, _MESSAGES):
                yield daemon, stream, frames
        if self._interrupt in ready and self.clear_interrupt():
            raise FetchInterrupted

    def _poll(self, timeout_ms: int) -> dict[object, int]:
        """Return the sockets that are ready, waiting for the first of them.

        A link of 1 Gbit/s delivers 64 kB at a time, and to be woken for each costs as much as to copy them.
        """
        streams = [each for daemon in self.daemons for each in daemon.streams if each.has_more(_PIECE_BYTES)]
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
