"""Batches of one daemon, or of several, as they are requested and arrive."""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from loaders.base import Samples
from loaders.errors import LoaderConfigError, StreamError, WireError
from loaders.records.planner import BatchPlan, Slice
from loaders.records.raw_batch import RawBatch
from loaders.records.shards.index import index_path, save_manifest
from loaders.streaming.protocol import MAX_SLICES, BatchHeader, Get, Hello, Refusal, Warmed, pack
from loaders.streaming.receiver.batch import ArrivalOrder
from loaders.streaming.receiver.connections import PrefetchWindow
from loaders.streaming.receiver.fetch import BatchFetch
from loaders.streaming.receiver.remote_daemon import health
from loaders.streaming.receiver.stream import DaemonStream
from loaders.streaming.settings import MAX_PREFETCH, StreamSettings

pytestmark = pytest.mark.process

Start = Callable[..., Any]
Connect = Callable[..., Any]
Planned = Callable[..., Any]


def _ids(batches: Sequence[RawBatch]) -> list[int]:
    return sorted(sample_id for batch in batches for sample_id in batch.ids.tolist())


@pytest.mark.parametrize(
    ("streams", "window", "batch_size"), [(1, 1, 8), (2, 8, 8), (4, 3, 1), (3, 256, 61), (2, "auto", 100)]
)
def test_an_epoch_brings_every_sample_once_with_its_bytes(
    daemon, connect: Connect, planned: Planned, samples: Samples, streams: int, window: Any, batch_size: int
) -> None:
    with connect(daemon.endpoint, streams=streams, prefetch_batches=window, warm_bytes=5 * 2**20) as connections:
        assert connections.counters.bytes == connections.counters.stale == 0, "padding is no sample"
        for epoch in range(2):
            batches = list(BatchFetch(connections, planned(connections, epoch, batch_size)))
            assert len(batches) == -(-len(samples) // batch_size)
            assert _ids(batches) == list(range(len(samples)))
            for batch in batches:
                assert batch.epoch == epoch
                assert (batch.labels == samples.labels[batch.ids]).all()
                for sample_id, image in zip(batch.ids.tolist(), batch.images(), strict=True):
                    assert image == samples.path(sample_id).read_bytes()


def test_the_kernel_wakes_a_client_for_large_pieces_while_it_waits_and_for_any_byte_otherwise(
    start_daemon: Start, connect: Connect, planned: Planned, large_shards: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    daemon = start_daemon(large_shards)
    set_to: dict[int, set[int]] = {}
    wake_at = DaemonStream.wake_at

    def noted(self: DaemonStream, nbytes: int) -> None:
        wake_at(self, nbytes)
        assert self._descriptor is not None
        with socket.socket(fileno=os.dup(self._descriptor)) as own:
            set_to.setdefault(nbytes, set()).add(own.getsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT))

    monkeypatch.setattr(DaemonStream, "wake_at", noted)
    with connect(daemon.endpoint) as connections:
        assert _ids(list(BatchFetch(connections, planned(connections, 0, 32)))) == list(range(640))
    assert set_to == {1: {1}, max(set_to): {max(set_to)}} and max(set_to) > 100_000
    with connect(daemon.endpoint, prefetch_batches=2) as connections:
        set_to.clear()
        assert len(list(BatchFetch(connections, planned(connections, 0, 2)))) == 320
    assert not set_to, "with one small answer on each stream, nothing follows that would wake it"


def test_a_fetch_left_in_the_middle_leaves_nothing_for_the_next(
    daemon, connect: Connect, planned: Planned, samples: Samples
) -> None:
    with connect(daemon.endpoint, prefetch_batches=5) as connections:
        for epoch in range(4):
            fetch = BatchFetch(connections, planned(connections, epoch))
            assert fetch.next() is not None
            fetch.close()
            with pytest.raises(StopIteration):
                fetch.next()
        batches = list(BatchFetch(connections, planned(connections, 9)))
        assert _ids(batches) == list(range(len(samples)))
        assert {batch.epoch for batch in batches} == {9}


def test_close_ends_a_fetch_that_another_thread_waits_for(
    start_daemon: Start, connect: Connect, planned: Planned, shards: Path
) -> None:
    daemon = start_daemon(shards)
    with connect(daemon.endpoint, prefetch_batches=1, timeout_s=100) as connections:
        fetch = BatchFetch(connections, planned(connections, batch_size=2))
        assert fetch.next() is not None
        os.kill(daemon.pid, signal.SIGSTOP)
        taken: list[RawBatch] = []
        waiting = threading.Thread(target=lambda: taken.extend(fetch))
        waiting.start()
        time.sleep(0.3)
        fetch.close()
        waiting.join(10)
        assert not waiting.is_alive()
        os.kill(daemon.pid, signal.SIGCONT)
        assert list(BatchFetch(connections, planned(connections)))


@pytest.mark.parametrize("way", [signal.SIGKILL, signal.SIGSTOP])
def test_a_daemon_that_stays_away_or_stands_still_is_named(
    start_daemon: Start, connect: Connect, planned: Planned, shards: Path, way: int
) -> None:
    daemon = start_daemon(shards)
    with connect(daemon.endpoint, timeout_s=1, prefetch_batches=2) as connections:
        fetch = iter(BatchFetch(connections, planned(connections, batch_size=2)))
        next(fetch)
        os.kill(daemon.pid, way)
        with pytest.raises(StreamError, match=daemon.endpoint):
            list(fetch)
        if way == signal.SIGSTOP:
            os.kill(daemon.pid, signal.SIGCONT)
            assert list(BatchFetch(connections, planned(connections)))


@pytest.mark.parametrize("listens", [False, True])
def test_nobody_or_somebody_else_there_is_named_within_the_timeout(connect: Connect, listens: bool) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        endpoint = f"tcp://127.0.0.1:{other.getsockname()[1]}"
        if not listens:
            other.close()
        with pytest.raises(StreamError, match=endpoint):
            connect(endpoint, timeout_s=0.5)


@pytest.mark.parametrize(
    "endpoint", ["", "127.0.0.1:80", "tcp://127.0.0.1", "ftp://a:1", "tcp://a:99999", "tcp://a:1/", 80, b"tcp://a:1"]
)
def test_an_endpoint_that_is_none_is_named_with_what_is_expected(endpoint: object) -> None:
    with pytest.raises(LoaderConfigError, match="tcp://HOST:PORT") as raised:
        StreamSettings(batch_size=8, seed=0, endpoint=endpoint)  # type: ignore[arg-type]
    assert repr(endpoint) in str(raised.value)
    with pytest.raises(LoaderConfigError, match="tcp://HOST:PORT"):
        health(endpoint, timeout_s=1)  # type: ignore[arg-type]


_COLUMNS = ("ids", "labels", "offsets", "sizes", "checksums")
_PART = BatchPlan(0, 0, (Slice(0, 0, 8),))


def _header(get: Get, **changed: Any) -> bytes:
    columns = dict.fromkeys(_COLUMNS, [0] * 8) | {"ids": range(8), "offsets": range(8), "sizes": [1] * 8} | changed
    arrays = {name: np.array(columns[name], np.int64) for name in _COLUMNS}
    return pack(BatchHeader(get.sequence, get.epoch, get.batch + changed.get("batch", 0), **arrays))


@pytest.mark.parametrize(
    "answer",
    [
        lambda get: [os.urandom(40)],
        lambda get: [pack(Hello())],
        lambda get: [_header(get)],
        lambda get: [_header(get), b"12345678", b"12345678", b""],
        lambda get: [_header(get, batch=1), b"12345678"],
        lambda get: [_header(get), b"1234567"],
        lambda get: [_header(get, offsets=[-1] * 8), b"12345678"],
        lambda get: [_header(get, sizes=[-1] * 8), b"12345678"],
        lambda get: [_header(get, sizes=[2**63 - 1] * 8), b"12345678"],
        lambda get: [_header(get, **{name: [0] for name in _COLUMNS}), b"12345678"],
    ],
)
def test_a_malformed_answer_names_the_daemon(
    false_daemon: Callable[..., Any], connect: Connect, answer: Callable[[Get], list[bytes]]
) -> None:
    greeting = {"warm": [pack(Warmed(0))]}
    with (
        false_daemon(answer, **greeting) as endpoint,
        connect(endpoint, streams=1, timeout_s=5) as connections,
        pytest.raises(WireError, match=f"^{endpoint}"),
    ):
        list(BatchFetch(connections, [_PART]))


@pytest.mark.parametrize(
    "greeting",
    [
        {"hello": [b"rubbish"]},
        {"hello": [pack(Refusal(0, "no"))]},
        {"hello": [pack(Warmed(0)), b"more"]},
        {"warm": [b"rubbish"]},
        {"warm": [pack(Refusal(0, "no"))]},
    ],
)
def test_a_malformed_greeting_names_the_daemon(
    false_daemon: Callable[..., Any], connect: Connect, greeting: dict[str, list[bytes]]
) -> None:
    with (
        false_daemon(lambda get: [], **({"warm": [pack(Warmed(0))]} | greeting)) as endpoint,
        pytest.raises(WireError, match=f"^{endpoint}"),
    ):
        connect(endpoint, timeout_s=5)


def test_an_answer_that_comes_twice_is_used_once(
    start_daemon: Start, connect: Connect, planned: Planned, shards: Path, samples: Samples
) -> None:
    daemon = start_daemon(shards)
    with connect(daemon.endpoint, streams=1, prefetch_batches=1) as connections:
        fetch = BatchFetch(connections, planned(connections))
        # The same request again, as after a lost connection.
        (stream,) = connections.daemons[0].streams
        stream.socket.send(next(iter(stream.under_way.values()))[0])
        assert _ids(list(fetch)) == list(range(len(samples)))
        assert connections.counters.stale == 1


def test_descriptors_do_not_grow_over_clients(daemon, connect: Connect, planned: Planned) -> None:
    def use() -> int:
        with connect(daemon.endpoint) as connections:
            BatchFetch(connections, planned(connections)).next()
        return psutil.Process().num_fds()

    first = use()
    assert all(use() <= first for _ in range(5))
    assert int(str(health(daemon.endpoint, timeout_s=5)["clients"])) <= 13


def test_a_batch_of_more_slices_than_a_request_may_name_is_asked_for_in_parts(
    start_daemon: Start, connect: Connect, planned: Planned, make_shards: Callable[..., Path], tmp_path: Path
) -> None:
    daemon = start_daemon(make_shards(tmp_path, shards=2, records=5000, size=40))
    with connect(daemon.endpoint, streams=1, prefetch_batches=2) as connections:
        batches = planned(connections, batch_size=9_999, slice_records=1)
        assert len(batches[0].slices) > 2 * MAX_SLICES
        first, last = BatchFetch(connections, batches)
        assert sorted([*first.ids.tolist(), *last.ids.tolist()]) == list(range(10_000))


def _part(shards: Path, root: Path, which: Sequence[int]) -> Path:
    """A shard folder with some of the shards of another."""
    paths = sorted(shards.glob("*.tfrecord"))
    root.mkdir()
    for place in which:
        for path in (paths[place], index_path(paths[place])):
            (root / path.name).hardlink_to(path)
    save_manifest(root, key="part", seed=None, shards=[root / paths[place].name for place in which])
    return root


@pytest.fixture
def halves(shards: Path, tmp_path: Path) -> tuple[Path, Path]:
    count = len(list(shards.glob("*.tfrecord")))
    assert count >= 4
    return _part(shards, tmp_path / "even", range(0, count, 2)), _part(shards, tmp_path / "odd", range(1, count, 2))


@pytest.mark.parametrize("order", ["arrival", "strict"])
@pytest.mark.parametrize("window", [1, 3])
def test_daemons_with_halves_bring_every_sample_once(
    start_daemon: Start,
    connect: Connect,
    planned: Planned,
    halves: tuple[Path, Path],
    samples: Samples,
    order: str,
    window: int,
) -> None:
    endpoints = [start_daemon(half).endpoint for half in halves]
    with connect(endpoints, order=order, prefetch_batches=window) as connections:
        plans = [planned(connections, epoch, 4, slice_records=3) for epoch in range(3)]
        batches = list(BatchFetch(connections, chain.from_iterable(plans)))
        for epoch in range(3):
            assert _ids([batch for batch in batches if batch.epoch == epoch]) == list(range(len(samples)))
        for batch in batches:
            for sample_id, image in zip(batch.ids.tolist(), batch.images(), strict=True):
                assert image == samples.path(sample_id).read_bytes()


def test_in_strict_order_batches_do_not_depend_on_who_holds_what(
    start_daemon: Start, connect: Connect, planned: Planned, shards: Path, halves: tuple[Path, Path]
) -> None:
    def ordered(*roots: Path) -> list[list[int]]:
        endpoints = [start_daemon(root).endpoint for root in roots]
        with connect(endpoints, order="strict") as connections:
            return [batch.ids.tolist() for batch in BatchFetch(connections, planned(connections))]

    assert ordered(shards) == ordered(*halves) == ordered(halves[1], halves[0])


def test_a_slow_daemon_holds_up_no_batch_that_it_has_no_part_in(
    start_daemon: Start, connect: Connect, planned: Planned, halves: tuple[Path, Path], samples: Samples
) -> None:
    fast, slow = (start_daemon(half) for half in halves)
    with connect([fast.endpoint, slow.endpoint], prefetch_batches=2, timeout_s=30) as connections:
        plan = planned(connections, batch_size=4, slice_records=3)
        of_fast = {shard for shard, daemon in enumerate(connections.shards.daemons) if daemon == 0}
        alone = sum(all(piece.shard in of_fast for piece in batch.slices) for batch in plan)
        assert alone >= 5
        os.kill(slow.pid, signal.SIGSTOP)
        fetch = BatchFetch(connections, plan)
        batches: list[RawBatch] = []
        try:
            deadline = time.monotonic() + 20
            while len(batches) < alone:
                assert time.monotonic() < deadline, f"{len(batches)} batches"
                if (batch := fetch.next(wait=False)) is not None:
                    batches.append(batch)
        finally:
            os.kill(slow.pid, signal.SIGCONT)
        assert _ids([*batches, *fetch]) == list(range(len(samples)))


def test_one_of_two_daemons_that_stays_away_is_named_while_the_other_goes_on(
    start_daemon: Start, connect: Connect, planned: Planned, halves: tuple[Path, Path]
) -> None:
    here, gone = (start_daemon(half) for half in halves)
    with connect([here.endpoint, gone.endpoint], prefetch_batches=2, timeout_s=1.5) as connections:
        fetch = iter(BatchFetch(connections, planned(connections, batch_size=4)))
        assert next(fetch)
        gone.kill()
        with pytest.raises(StreamError, match=gone.endpoint):
            for _ in fetch:
                time.sleep(0.1)  # a training step


def test_a_shard_that_two_daemons_serve_is_refused(start_daemon: Start, connect: Connect, shards: Path) -> None:
    endpoints = [start_daemon(shards).endpoint for _ in range(2)]
    with pytest.raises(StreamError, match="both serve a shard") as raised:
        connect(endpoints)
    assert all(endpoint in str(raised.value) for endpoint in endpoints)


@pytest.mark.parametrize("endpoints", [["tcp://127.0.0.1:1"] * 2, []])
def test_the_same_daemon_twice_and_none_are_refused(endpoints: list[str]) -> None:
    with pytest.raises(LoaderConfigError, match="each once"):
        StreamSettings(batch_size=8, seed=0, endpoints=endpoints)


def test_a_batch_takes_the_pieces_that_came_first_whichever_batch_they_were_planned_for() -> None:
    def piece(number: int, records: int = 2) -> RawBatch:
        ids = 10 * number + np.arange(records)
        frame = memoryview(bytes(ids.astype(np.uint8)))
        return RawBatch(0, number, ids, ids, (frame,), 0 * ids, np.arange(records), 0 * ids + 1, ids)

    order = ArrivalOrder(pieces=3)
    for number in range(8):
        order.expect(BatchPlan(0, number, (Slice(0, 2 * number, 1 if number == 7 else 2),)))
    taken: list[RawBatch] = []
    for number in (7, 5, 0, 3, 4, 1, 6, 2):
        order.add(piece(number, 1 if number == 7 else 2))
        while (batch := order.take()) is not None:
            taken.append(batch)
    assert [batch.planned for batch in taken] == [(5, 0, 3), (4, 1, 6), (2, 7)]
    assert [batch.ids.tolist() for batch in taken] == [[50, 51, 0, 1, 30, 31], [40, 41, 10, 11, 60, 61], [20, 21, 70]]
    assert all([image[0] for image in batch.images()] == batch.ids.tolist() for batch in taken)


def test_the_window_follows_the_links_rate_and_stays_within_its_bounds() -> None:
    def window(rtt_s: float, rate: float, batch_bytes: int, streams: int = 2, daemons: int = 1) -> int:
        found = PrefetchWindow(rtt_s, daemons, streams)
        for step in range(100):
            now = 0.1 * step
            found.measure(now, round(now * rate), round(now * rate / batch_bytes))
        return found.batches

    assert PrefetchWindow(0.03, 1, 2).batches == 8
    assert window(0.0001, 125e6, 3_200_000) == 8
    assert window(0.0001, 125e6, 64_000_000) == 4, "two for each stream where batches are large"
    far = window(0.15, 125e6, 3_200_000)
    assert far > 2 * 0.15 * 125e6 / 3_200_000, "two bandwidth-delay products and more"
    assert window(0.15, 125e6, 3_200_000, daemons=3) < far
    assert window(1.0, 1e9, 1000) == MAX_PREFETCH
