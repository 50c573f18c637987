from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import zmq

from loaders.records.planner import Slice
from loaders.streaming.protocol import BatchHeader, Get, WireFormat, pack, unpack_answer
from loaders.streaming.receiver.session import DaemonSession, health

pytestmark = pytest.mark.process

MIB = 2**20


@contextmanager
def _session(endpoint: str, **options: object) -> Iterator[tuple[DaemonSession, zmq.Poller]]:
    poller = zmq.Poller()
    with zmq.Context() as context, DaemonSession(context, poller, endpoint, timeout_s=10, **options) as session:  # type: ignore[arg-type]
        yield session, poller


def _fetch(session: DaemonSession, poller: zmq.Poller, requests: int, records: int = 8) -> int:
    """Ask for batches one stream after the other, all at once, and return the bytes that came."""
    shards = session.catalog.shards
    for sequence in range(requests):
        part = Slice(sequence % len(shards), sequence * 3 % (shards[0].records - records), records)
        stream = session.streams[sequence % len(session.streams)]
        stream.ask(sequence, session.request(sequence, 0, sequence, (part,)))
    came = nbytes = 0
    while came < requests:
        assert poller.poll(10_000), f"{came} of {requests} came"
        for stream in session.streams:
            while (frames := stream.receive()) is not None:
                header, parts = session.unpack(frames)
                assert isinstance(header, BatchHeader), header
                stream.done(header.sequence)
                came += 1
                nbytes += sum(len(part) for part in parts)
    return nbytes


@contextmanager
def _greedy(endpoint: str, requests: int, wire: WireFormat, slices: tuple[Slice, ...]) -> Iterator[zmq.Socket[bytes]]:
    """A client that asks for a lot and reads nothing."""
    with _session(endpoint, streams=1) as (session, _):
        fingerprint = session.catalog.fingerprint
    with zmq.Context() as context, context.socket(zmq.DEALER) as greedy:
        greedy.linger = 0
        greedy.rcvhwm = 1
        greedy.rcvbuf = 65_536
        greedy.connect(endpoint)
        for sequence in range(requests):
            greedy.send(pack(Get(sequence, fingerprint, 0, 0, slices, wire)))
        yield greedy


SERIALIZERS = ("--serializers", "2", "--high-water-mark", "16")


@pytest.mark.parametrize(("wire", "options"), [("raw", ()), ("msgpack", ()), ("msgpack", SERIALIZERS)])
def test_clients_that_do_not_read_cost_no_memory_and_hold_up_nobody(
    start_daemon: Callable[..., object], large_shards: Path, wire: WireFormat, options: tuple[str, ...]
) -> None:
    daemon = start_daemon(large_shards, options=options)
    before = daemon.anonymous_bytes()
    slices = tuple(Slice(shard, 8 * index, 8) for shard in range(4) for index in range(4))
    with (
        _greedy(daemon.endpoint, 3000, wire, slices),
        _greedy(daemon.endpoint, 3000, wire, slices[:1]),
        _session(daemon.endpoint, streams=2) as (session, poller),
    ):
        most = 0
        for _ in range(10):
            assert _fetch(session, poller, 32) == 32 * 8 * 100_000
            most = max(most, daemon.anonymous_bytes() - before)
        assert most < 128 * MIB
        report = health(daemon.endpoint, timeout_s=5)
        assert report["shed"] == 0 and int(report["waiting"]) > 100  # type: ignore[call-overload]


def test_small_records_of_a_client_that_does_not_read_cost_no_memory(
    start_daemon: Callable[..., object], make_shards: Callable[..., Path], tmp_path: Path
) -> None:
    daemon = start_daemon(make_shards(tmp_path, shards=1, records=8000, size=5000))
    before = daemon.anonymous_bytes()
    slices = tuple(Slice(0, 2 * index, 1) for index in range(1000))
    with _greedy(daemon.endpoint, 900, "raw", slices) as one, _greedy(daemon.endpoint, 900, "raw", slices):
        time.sleep(2)
        assert daemon.anonymous_bytes() - before < 128 * MIB
        for _ in range(3):
            header, records = unpack_answer(one.recv_multipart())
            assert isinstance(header, BatchHeader)
            assert len(records) == 1000


def test_a_client_that_reads_at_last_gets_everything_once(
    start_daemon: Callable[..., object], large_shards: Path
) -> None:
    daemon = start_daemon(large_shards)
    with _greedy(daemon.endpoint, 400, "raw", (Slice(0, 0, 32),)) as greedy:
        time.sleep(0.5)
        came = []
        for _ in range(400):
            assert greedy.poll(10_000)
            header, records = unpack_answer(greedy.recv_multipart())
            assert isinstance(header, BatchHeader)
            came.append(header.sequence)
            assert len(records[0]) == 32 * 100_000
        # Records that are not in memory are read by several threads.
        assert sorted(came) == list(range(400))


def test_what_is_under_way_to_a_client_that_dies_is_forgotten(
    start_daemon: Callable[..., object], large_shards: Path
) -> None:
    daemon = start_daemon(large_shards)
    for _ in range(20):
        with _greedy(daemon.endpoint, 300, "raw", (Slice(0, 0, 32),)):
            pass
    deadline = time.monotonic() + 20
    while (report := health(daemon.endpoint, timeout_s=5))["waiting"] or report["clients"] != 1:
        assert time.monotonic() < deadline, report
        time.sleep(0.05)


def test_memory_stays_the_same_over_many_epochs(start_daemon: Callable[..., object], large_shards: Path) -> None:
    daemon = start_daemon(large_shards)
    with _session(daemon.endpoint, streams=4) as (session, poller):
        _fetch(session, poller, 200)
        before = daemon.anonymous_bytes()
        for _ in range(20):
            _fetch(session, poller, 200)
        assert daemon.anonymous_bytes() - before < 16 * MIB


def _evict(root: Path) -> bool:
    """Drop a folder's files from the page cache; return whether that could be done."""
    for path in root.glob("*.tfrecord"):
        file = os.open(path, os.O_RDONLY)
        os.fsync(file)
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(file)
    return not root.is_relative_to("/dev/shm")


def test_records_that_are_not_in_memory_are_read_and_sent(
    start_daemon: Callable[..., object], make_shards: Callable[..., Path], tmp_path: Path
) -> None:
    root = make_shards(tmp_path, shards=2, records=100, size=100_000)
    whole = [path.read_bytes() for path in sorted(root.glob("*.tfrecord"))]
    _evict(root)
    daemon = start_daemon(root)
    with _session(daemon.endpoint, streams=2) as (session, poller):
        for sequence in range(40):
            part = Slice(sequence % 2, sequence * 2, 3)
            session.streams[0].ask(sequence, session.request(sequence, 0, 0, (part,)))
        for _ in range(40):
            assert poller.poll(10_000)
            frames = session.streams[0].receive()
            assert frames is not None
            header, (record,) = session.unpack(frames)
            assert isinstance(header, BatchHeader)
            start = header.sequence * 200_000
            assert bytes(record) == whole[header.sequence % 2][start : start + 300_000]
    report = health(daemon.endpoint, timeout_s=5)
    assert report["batches"] == 40
    if not report["from_disk"]:
        pytest.skip("this file system keeps its pages in memory")


def test_a_shard_that_becomes_shorter_is_refused_and_ends_nothing(
    start_daemon: Callable[..., object], make_shards: Callable[..., Path], tmp_path: Path
) -> None:
    root = make_shards(tmp_path, shards=2, records=100, size=100_000)
    daemon = start_daemon(root)
    with _session(daemon.endpoint, streams=1) as (session, poller):
        os.truncate(root / "shard-0.tfrecord", 1_000_000)
        session.streams[0].ask(0, session.request(0, 0, 0, (Slice(0, 50, 8),)))
        assert poller.poll(10_000)
        frames = session.streams[0].receive()
        assert frames is not None
        refusal, _ = session.unpack(frames)
        assert str(refusal)
        session.streams[0].done(0)
        session.streams[0].ask(1, session.request(1, 0, 0, (Slice(1, 50, 8),)))
        assert poller.poll(10_000)
    assert daemon.process.poll() is None


def test_many_clients_at_once_get_all_that_they_ask_for(
    start_daemon: Callable[..., object], large_shards: Path
) -> None:
    daemon = start_daemon(large_shards, options=["--threads", "2"])
    came: list[int] = []

    def use() -> None:
        with _session(daemon.endpoint, streams=2) as (session, poller):
            came.append(sum(_fetch(session, poller, 60) for _ in range(3)))

    threads = [threading.Thread(target=use) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert came == [180 * 8 * 100_000] * 8
