"""The receiver of benchmarks/streaming.py as a process of its own, on the compute node.

It reads its orders as one JSON object from standard input and prints one JSON object: seconds, bytes and CPU of
the window that was measured, and the seconds of every epoch. Orders and answers are `Orders` and `Received`.
"""

from __future__ import annotations

import itertools
import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Literal

from bench import cpu_s, status_kb

from loaders.records.planner import BatchPlan, plan_epoch
from loaders.records.raw_batch import RawBatch
from loaders.streaming import StreamingLoader
from loaders.streaming.receiver.connections import DaemonConnections
from loaders.streaming.receiver.fetch import BatchFetch
from loaders.streaming.settings import StreamSettings


@dataclass(frozen=True, slots=True)
class Orders:
    """What to receive, and how."""

    endpoints: list[str]
    streams: int = 8
    """Connections to every daemon."""
    window: int | Literal["auto"] = 16
    """Batches under way, for every daemon."""
    batch_size: int = 32
    slice_records: int = 8
    shuffle_window: int = 0
    """Records within which records are shuffled; 0 leaves slices together."""
    warm_bytes: int = 0
    seconds: float = 0.0
    """Receive epoch after epoch for so long, after `omit_s`; 0 for whole epochs."""
    omit_s: float = 0.0
    """Bytes of these first seconds are not counted."""
    epochs: int = 1
    step_ms: float = 0.0
    """Decode the images of whole epochs in the loader, and wait so long with each batch."""
    verify: bool = False
    """Compute the checksum of every record, and not only compare the one that it states with the index."""
    pids: list[int] = field(default_factory=list)
    """The daemons' processes, whose CPU time counts."""
    keys: str | None = None
    wire: Literal["raw", "msgpack"] = "raw"
    stop_reading: bool = False
    """Ask for a full window, and take nothing off the sockets any more."""


@dataclass(frozen=True, slots=True)
class Received:
    """The figures of one measurement."""

    seconds: float
    nbytes: int
    """Bytes of records."""
    receiver_cpu_s: float
    daemon_cpu_s: float
    epoch_s: list[float]
    anonymous_mb: list[float]
    """Most memory of a daemon that is no file's, after every epoch."""
    samples: int
    wait_s: list[float] = field(default_factory=list)
    """Of the training loop for batches, by epoch."""

    @property
    def gbit(self) -> float:
        """Goodput in Gbit/s."""
        return 8e-9 * self.nbytes / self.seconds

    @property
    def cpu_s_per_gb(self) -> float:
        """CPU seconds of daemon and receiver per GB of records."""
        return 1e9 * (self.receiver_cpu_s + self.daemon_cpu_s) / self.nbytes


def anonymous_mb(pids: list[int]) -> float:
    """Return the most resident memory, in MB, that one of the processes has beyond the files that it maps."""
    return max((status_kb(pid, "RssAnon") for pid in pids), default=0) * 1024e-6


def connect(orders: Orders) -> DaemonConnections:
    """Connect to the daemons."""
    return DaemonConnections(
        StreamSettings(
            batch_size=orders.batch_size,
            seed=0,
            endpoints=orders.endpoints,
            streams=orders.streams,
            prefetch_batches=orders.window,
            keys=orders.keys,
            warm_bytes=orders.warm_bytes,
            wire=orders.wire,
            verify=orders.verify,
        )
    )


def plans(connections: DaemonConnections, orders: Orders, epochs: Iterator[int]) -> Iterator[BatchPlan]:
    """Yield the batches of epoch after epoch."""
    for epoch in epochs:
        yield from connections.group(
            plan_epoch(
                connections.shards.catalog.shard_records,
                epoch=epoch,
                batch_size=orders.batch_size,
                seed=0,
                slice_records=orders.slice_records,
                shuffle_window=orders.shuffle_window,
            )
        )


def taken(connections: DaemonConnections, orders: Orders, epochs: Iterator[int]) -> Iterator[RawBatch]:
    """Yield the batches as they arrive."""
    yield from BatchFetch(connections, plans(connections, orders, epochs))


def stop_reading(orders: Orders) -> Received:
    """Ask for a full window in a process that then stands still, its socket buffers filling; watch the daemons."""
    child = os.fork()
    if child == 0:
        with connect(orders) as connections:
            BatchFetch(connections, plans(connections, orders, itertools.count()))
            time.sleep(0.05)
            os.kill(os.getpid(), signal.SIGSTOP)
    try:
        time.sleep(orders.seconds)
        return Received(orders.seconds, 0, 0.0, 0.0, [], [anonymous_mb(orders.pids)], 0)
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def train(orders: Orders) -> Received:
    """Run whole epochs of the loader with a step that waits, as one on an accelerator does."""
    with StreamingLoader(
        endpoints=orders.endpoints,
        batch_size=orders.batch_size,
        seed=0,
        streams=orders.streams,
        prefetch_batches=orders.window,
        slice_records=orders.slice_records,
        warm_bytes=orders.warm_bytes,
        verify=orders.verify,
        keys=orders.keys,
    ) as loader:
        times, waits = [], []
        own, daemons = cpu_s([os.getpid()]), cpu_s(orders.pids)
        for epoch in range(orders.epochs):
            started, waited = time.perf_counter(), loader.stats().details["wait_s"]
            for _ in loader.epoch(epoch):
                time.sleep(orders.step_ms / 1e3)
            times.append(time.perf_counter() - started)
            waits.append(loader.stats().details["wait_s"] - waited)
        own, daemons, stats = cpu_s([os.getpid()]) - own, cpu_s(orders.pids) - daemons, loader.stats()
        return Received(sum(times), stats.bytes, own, daemons, times, [], stats.samples, waits)


def receive(orders: Orders) -> Received:
    """Do one order."""
    if orders.stop_reading:
        return stop_reading(orders)
    if orders.step_ms:
        return train(orders)
    me = [os.getpid()]
    with connect(orders) as connections:
        if orders.seconds:
            batches = taken(connections, orders, itertools.count())
            begin = time.perf_counter() + orders.omit_s
            while time.perf_counter() < begin:
                next(batches)
            nbytes = samples = 0
            before = (cpu_s(me), cpu_s(orders.pids))
            started = time.perf_counter()
            end = started + orders.seconds
            while (now := time.perf_counter()) < end:
                batch = next(batches)
                nbytes += sum(len(frame) for frame in batch.frames)
                samples += len(batch)
            own, daemons = cpu_s(me) - before[0], cpu_s(orders.pids) - before[1]
            batches.close()  # type: ignore[attr-defined]
            return Received(now - started, nbytes, own, daemons, [], [anonymous_mb(orders.pids)], samples)
        times, memory, nbytes, samples = [], [], 0, 0
        before = (cpu_s(me), cpu_s(orders.pids))
        for epoch in range(orders.epochs):
            started = time.perf_counter()
            for batch in taken(connections, orders, iter([epoch])):
                nbytes += sum(len(frame) for frame in batch.frames)
                samples += len(batch)
            times.append(time.perf_counter() - started)
            memory.append(anonymous_mb(orders.pids))
        own, daemons = cpu_s(me) - before[0], cpu_s(orders.pids) - before[1]
        return Received(sum(times), nbytes, own, daemons, times, memory, samples)


if __name__ == "__main__":
    print(json.dumps(asdict(receive(Orders(**json.load(sys.stdin))))))
