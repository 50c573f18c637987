from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import zmq

from loaders.records.planner import BatchPlan, Slice
from loaders.streaming.daemon.send_budget import SendBudget
from loaders.streaming.protocol import Get, pack
from loaders.streaming.receiver.connections import DaemonConnections
from loaders.streaming.receiver.fetch import BatchFetch
from loaders.streaming.receiver.remote_daemon import health
from loaders.streaming.settings import StreamSettings, WireFormat

pytestmark = pytest.mark.process

MIB = 2**20


def _fetch(connections: DaemonConnections, requests: int, records: int = 8) -> int:
    """Ask for batches and return the bytes that came."""
    shards = connections.shards.catalog.shards
    plans = [
        BatchPlan(0, number, (Slice(number % len(shards), number * 3 % (shards[0].records - records), records),))
        for number in range(requests)
    ]
    return sum(sum(map(len, batch.frames)) for batch in BatchFetch(connections, plans))


@contextmanager
def _greedy(endpoint: str, requests: int, wire: WireFormat, slices: tuple[Slice, ...]) -> Iterator[zmq.Socket[bytes]]:
    """A client that asks for a lot and reads nothing."""
    with DaemonConnections(StreamSettings(batch_size=8, seed=0, endpoint=endpoint, warm_bytes=0)) as connections:
        fingerprint = connections.shards.catalog.fingerprint
    with zmq.Context() as context, context.socket(zmq.DEALER) as greedy:
        greedy.linger = 0
        greedy.rcvhwm = 1
        greedy.rcvbuf = 65_536
        greedy.connect(endpoint)
        for sequence in range(requests):
            greedy.send(pack(Get(sequence, fingerprint, 0, 0, slices, wire)))
        yield greedy


EMLIO = ("--threads", "2", "--high-water-mark", "16")


@pytest.mark.parametrize(("wire", "options"), [("raw", ()), ("msgpack", ()), ("msgpack", EMLIO)])
def test_clients_that_do_not_read_cost_no_memory_and_hold_up_nobody(
    start_daemon: Callable[..., Any],
    large_shards: Path,
    wire: WireFormat,
    options: tuple[str, ...],
    connect: Callable[..., Any],
) -> None:
    daemon = start_daemon(large_shards, options=options)
    before = daemon.anonymous_bytes()
    slices = tuple(Slice(shard, 8 * index, 8) for shard in range(4) for index in range(4))
    with (
        _greedy(daemon.endpoint, 3000, wire, slices),
        _greedy(daemon.endpoint, 3000, wire, slices[:1]),
        connect(daemon.endpoint, prefetch_batches=32) as connections,
    ):
        most = 0
        for _ in range(10):
            assert _fetch(connections, 32) == 32 * 8 * 100_000
            most = max(most, daemon.anonymous_bytes() - before)
        assert most < 128 * MIB
        report = health(daemon.endpoint, timeout_s=5)
        assert int(report["waiting"]) > 100  # type: ignore[call-overload]


def test_what_is_under_way_to_a_client_that_dies_is_forgotten(
    start_daemon: Callable[..., Any], large_shards: Path
) -> None:
    daemon = start_daemon(large_shards)
    for _ in range(20):
        with _greedy(daemon.endpoint, 300, "raw", (Slice(0, 0, 32),)):
            pass
    deadline = time.monotonic() + 20
    while (report := health(daemon.endpoint, timeout_s=5))["waiting"] or report["clients"] != 1:
        assert time.monotonic() < deadline, report
        time.sleep(0.05)


def test_memory_stays_the_same_over_many_epochs(
    start_daemon: Callable[..., Any], connect: Callable[..., Any], large_shards: Path
) -> None:
    daemon = start_daemon(large_shards)
    with connect(daemon.endpoint, streams=4, prefetch_batches=64) as connections:
        _fetch(connections, 200)
        before = daemon.anonymous_bytes()
        for _ in range(10):
            _fetch(connections, 200)
        assert daemon.anonymous_bytes() - before < 16 * MIB


def test_requests_beyond_a_bound_are_dropped_and_counted() -> None:
    budget = SendBudget(high_water_mark=1)
    reservation = budget.reserve(b"a", nbytes=1, owned=1)
    assert not budget.has_room(b"a") and budget.has_room(b"b")
    assert all(budget.wait(b"a", b"request") for _ in range(8192))
    assert not budget.wait(b"a", b"one more")
    assert budget.take() == []
    del reservation
    assert budget.take() == [(b"a", b"request")]
    assert budget.forget(b"a") == 8191 and budget.waiting == 0
    budget.close()


def _evict(root: Path) -> bool:
    """Drop a folder's files from the page cache; return whether that could be done."""
    for path in root.glob("*.tfrecord"):
        file = os.open(path, os.O_RDONLY)
        os.fsync(file)
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(file)
    return not root.is_relative_to("/dev/shm")


def test_records_that_are_not_in_memory_are_read_and_sent(
    start_daemon: Callable[..., Any], make_shards: Callable[..., Path], tmp_path: Path, connect: Callable[..., Any]
) -> None:
    root = make_shards(tmp_path, shards=2, records=100, size=100_000)
    whole = [path.read_bytes() for path in sorted(root.glob("*.tfrecord"))]
    _evict(root)
    daemon = start_daemon(root)
    with connect(daemon.endpoint) as connections:
        plans = [BatchPlan(0, number, (Slice(number % 2, number * 2, 3),)) for number in range(40)]
        for batch in BatchFetch(connections, plans):
            start = batch.batch * 200_000
            assert bytes(batch.frames[0]) == whole[batch.batch % 2][start : start + 300_000]
    report = health(daemon.endpoint, timeout_s=5)
    assert report["batches"] == 40
    if not report["from_disk"]:
        pytest.skip("this file system keeps its pages in memory")


def test_many_clients_at_once_get_all_that_they_ask_for(
    start_daemon: Callable[..., Any], large_shards: Path, connect: Callable[..., Any]
) -> None:
    daemon = start_daemon(large_shards, options=["--threads", "2"])
    came: list[int] = []

    def use() -> None:
        with connect(daemon.endpoint) as connections:
            came.append(sum(_fetch(connections, 60) for _ in range(3)))

    threads = [threading.Thread(target=use) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert came == [180 * 8 * 100_000] * 8
