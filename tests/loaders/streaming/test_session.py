from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import zmq

from loaders.errors import StreamError, WireError
from loaders.records.planner import Slice
from loaders.records.shards.index import ShardSet
from loaders.streaming.protocol import (
    BatchHeader,
    Catalog,
    Health,
    HealthReport,
    Hello,
    Refusal,
    Shard,
    Warm,
    Warmed,
    pack,
    unpack_request,
)
from loaders.streaming.receiver.session import DaemonSession, health

pytestmark = pytest.mark.process


@contextmanager
def _session(endpoint: str, **options: object) -> Iterator[DaemonSession]:
    options = {"streams": 2, "timeout_s": 5} | options
    with zmq.Context() as context, DaemonSession(context, zmq.Poller(), endpoint, **options) as session:  # type: ignore[arg-type]
        yield session


def test_the_catalog_names_every_shard_in_order(daemon, shards: Path) -> None:
    with _session(daemon.endpoint) as session:
        catalog = session.catalog
    found = sorted(ShardSet.open(shards).shards, key=lambda shard: shard.path.name)
    assert [(shard.name, shard.records, shard.nbytes) for shard in catalog.shards] == [
        (shard.path.name, len(shard.records), shard.nbytes) for shard in found
    ]
    assert len({shard.digest for shard in catalog.shards}) == len(found)
    assert catalog.samples == daemon.ready["samples"]


def test_copies_of_a_shard_have_one_digest_and_others_another(
    start_daemon: Callable[..., object], make_shards: Callable[..., Path], tmp_path: Path
) -> None:
    catalogs = []
    for name, size in (("a", 500), ("b", 500), ("c", 600)):
        (tmp_path / name).mkdir()
        daemon = start_daemon(make_shards(tmp_path / name, shards=2, records=5, size=size))
        with _session(daemon.endpoint) as session:
            catalogs.append(session.catalog)
    assert catalogs[0] == catalogs[1]
    assert catalogs[0].fingerprint != catalogs[2].fingerprint
    assert not {shard.digest for shard in catalogs[0].shards} & {shard.digest for shard in catalogs[2].shards}


@pytest.mark.parametrize("warm_bytes", [0, 1, 2**20, 5 * 2**20 + 7])
def test_padding_leaves_nothing_under_way(daemon, warm_bytes: int) -> None:
    with _session(daemon.endpoint, streams=3, warm_bytes=warm_bytes) as session:
        assert len(session.streams) == 3
        for stream in session.streams:
            assert not stream.under_way
            stream.lost()
            assert stream.connected
            assert not stream.socket.poll(50)


@pytest.mark.parametrize("wire", ["raw", "msgpack"])
def test_records_are_the_same_in_either_wire_format(daemon, shards: Path, wire: str) -> None:
    with _session(daemon.endpoint, wire=wire) as session:
        parts = (Slice(1, 2, 3), Slice(0, 0, 1))
        session.streams[1].ask(9, session.request(9, 4, 2, parts))
        assert session.streams[1].socket.poll(5000)
        frames = session.streams[1].receive()
        assert frames is not None
        header, records = session.unpack(frames)
        assert isinstance(header, BatchHeader)
        assert (header.sequence, header.epoch, header.batch) == (9, 4, 2)
        for part, record in zip(parts, records, strict=True):
            name = session.catalog.shards[part.shard].name
            rows = next(shard for shard in ShardSet.open(shards).shards if shard.path.name == name).records
            rows = rows[part.first : part.first + part.records]
            start, end = int(rows["offset"][0]), int(rows["offset"][-1] + rows["size"][-1])
            assert bytes(record) == (shards / name).read_bytes()[start:end]


def _frames(session: DaemonSession, slices: tuple[Slice, ...]) -> list[zmq.Frame]:
    session.streams[0].ask(1, session.request(1, 0, 0, slices))
    assert session.streams[0].socket.poll(5000)
    frames = session.streams[0].receive()
    assert frames is not None
    return frames


def test_many_small_slices_come_in_one_frame_and_large_ones_in_their_own(
    start_daemon: Callable[..., object], make_shards: Callable[..., Path], large_shards: Path, tmp_path: Path
) -> None:
    daemon = start_daemon(make_shards(tmp_path, shards=1, records=50, size=500))
    with _session(daemon.endpoint) as session:
        frames = _frames(session, tuple(Slice(0, 3 * place, 1) for place in range(16)))
        header, records = session.unpack(frames)
        assert isinstance(header, BatchHeader) and (len(frames), len(records)) == (2, 16)
        assert header.ids.tolist() == [3 * place for place in range(16)]
    daemon = start_daemon(large_shards)
    with _session(daemon.endpoint) as session:
        assert len(_frames(session, tuple(Slice(shard, 0, 1) for shard in range(4)))) == 5
    with _session(daemon.endpoint, wire="msgpack") as session:
        # Too much to be copied into one frame, as where a few records are much larger than the mean.
        assert len(_frames(session, tuple(Slice(shard, 0, 100) for shard in range(4)))) == 5


def test_a_session_leaves_no_connection_behind(daemon) -> None:
    for _ in range(3):
        with _session(daemon.endpoint, streams=4):
            pass
    assert int(str(health(daemon.endpoint, timeout_s=5)["clients"])) <= 13


def test_nobody_there_is_named_within_the_timeout() -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        endpoint = f"tcp://127.0.0.1:{closed.getsockname()[1]}"
        with (
            pytest.raises(StreamError, match=endpoint),
            _session(endpoint, timeout_s=0.5),
        ):
            pass


_CATALOG = pack(Catalog("x", (Shard("a", 8, 8, "d"),)))


@pytest.mark.parametrize(
    ("greeting", "warm"),
    [
        ([b"rubbish"], [pack(Warmed(0))]),
        ([pack(Refusal(0, "no"))], [pack(Warmed(0))]),
        ([_CATALOG, b"more"], [pack(Warmed(0))]),
        ([_CATALOG], [b"rubbish"]),
        ([_CATALOG], [_CATALOG]),
    ],
)
def test_a_malformed_greeting_names_the_daemon(greeting: list[bytes], warm: list[bytes]) -> None:
    with zmq.Context() as context, context.socket(zmq.ROUTER) as router:
        router.linger = 0
        endpoint = f"tcp://127.0.0.1:{router.bind_to_random_port('tcp://127.0.0.1')}"
        stop = threading.Event()

        def serve() -> None:
            while not stop.is_set():
                if router.poll(20):
                    client, data = router.recv_multipart()
                    request = unpack_request(data)
                    answers = {Hello: greeting, Health: [pack(HealthReport({}))], Warm: warm}
                    router.send_multipart([client, *answers[type(request)]])

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            with pytest.raises(WireError, match=f"^{endpoint}"), _session(endpoint):
                pass
        finally:
            stop.set()
            thread.join()
