from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import psutil
import pytest
import zmq

from loaders.base import Samples
from loaders.errors import LoaderConfigError, StreamError, WireError
from loaders.records.planner import BatchPlan, Slice, plan_epoch
from loaders.records.raw_batch import RawBatch
from loaders.records.shards.convert import convert
from loaders.streaming.protocol import (
    MAX_SLICES,
    BatchHeader,
    Catalog,
    Get,
    Health,
    HealthReport,
    Hello,
    Shard,
    Warm,
    Warmed,
    pack,
    unpack_request,
)
from loaders.streaming.receiver.client import StreamClient
from loaders.streaming.receiver.session import health
from loaders.streaming.receiver.stream import Stream

pytestmark = pytest.mark.process


def _plan(client: StreamClient, epoch: int = 0, batch_size: int = 8) -> tuple[BatchPlan, ...]:
    return plan_epoch(client.catalog.shard_records, batch_size=batch_size, seed=0, epoch=epoch)


def _ids(batches: list[RawBatch]) -> list[int]:
    return sorted(sample_id for batch in batches for sample_id in batch.ids.tolist())


@pytest.mark.parametrize(
    ("streams", "window", "batch_size"), [(1, 1, 8), (2, 8, 8), (4, 3, 1), (3, 256, 61), (2, 4, 100)]
)
def test_an_epoch_brings_every_sample_once_with_its_bytes(
    daemon, samples: Samples, streams: int, window: int, batch_size: int
) -> None:
    with StreamClient(daemon.endpoint, streams=streams, timeout_s=10) as client:
        for epoch in range(3):
            batches = list(client.fetch(_plan(client, epoch, batch_size), window=window, verify=True))
            assert len(batches) == -(-len(samples) // batch_size)
            assert _ids(batches) == list(range(len(samples)))
            for batch in batches:
                assert batch.epoch == epoch
                assert (batch.labels == samples.labels[batch.ids]).all()
                assert batch.nbytes == samples.sizes[batch.ids].sum()
                for sample_id, image in zip(batch.ids.tolist(), batch.images(), strict=True):
                    assert image == samples.path(sample_id).read_bytes()


def test_padding_opens_the_streams_and_is_no_sample(daemon, samples: Samples) -> None:
    with StreamClient(daemon.endpoint, streams=3, timeout_s=10, warm_bytes=5 * 2**20) as client:
        assert client.traffic.bytes == client.traffic.stale == 0
        assert _ids(list(client.fetch(_plan(client), window=4))) == list(range(len(samples)))


def test_clients_at_once_do_not_disturb_one_another(daemon, samples: Samples) -> None:
    with (
        StreamClient(daemon.endpoint, streams=2, timeout_s=10) as one,
        StreamClient(daemon.endpoint, streams=1, timeout_s=10) as other,
    ):
        pairs = zip(one.fetch(_plan(one, 0), window=3), other.fetch(_plan(other, 1), window=2), strict=True)
        left, right = zip(*pairs, strict=True)
    assert _ids(list(left)) == _ids(list(right)) == list(range(len(samples)))


def test_the_kernel_wakes_a_client_for_large_pieces_while_it_waits_and_for_any_byte_otherwise(
    start_daemon: Callable[..., object], large_shards: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    daemon = start_daemon(large_shards)
    set_to: dict[int, set[int]] = {}
    wake_at = Stream.wake_at

    def noted(self: Stream, nbytes: int) -> None:
        wake_at(self, nbytes)
        set_to.setdefault(nbytes, set()).add(_least_bytes(self._descriptor))

    monkeypatch.setattr(Stream, "wake_at", noted)
    with StreamClient(daemon.endpoint, streams=2, timeout_s=10) as client:
        for epoch in range(3):
            batches = list(client.fetch(_plan(client, epoch, 32), window="auto", verify=True))
            assert _ids(batches) == list(range(640))
    assert set_to == {1: {1}, max(set_to): {max(set_to)}} and max(set_to) > 100_000
    with StreamClient(daemon.endpoint, streams=2, timeout_s=10) as client:
        set_to.clear()
        assert len(list(client.fetch(_plan(client, 0, 2), window=2))) == 320
    assert not set_to, "with one small answer on each stream, nothing follows that would wake it"


def _least_bytes(descriptor: int | None) -> int:
    assert descriptor is not None
    with socket.socket(fileno=os.dup(descriptor)) as own:
        return own.getsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT)


def test_an_epoch_left_in_the_middle_leaves_nothing_for_the_next(daemon, samples: Samples) -> None:
    with StreamClient(daemon.endpoint, streams=2, timeout_s=10) as client:
        for epoch in range(4):
            fetch = iter(client.fetch(_plan(client, epoch), window=5))
            next(fetch)
            fetch.close()
        batches = list(client.fetch(_plan(client, 9), window=5))
        assert _ids(batches) == list(range(len(samples)))
        assert {batch.epoch for batch in batches} == {9}


@pytest.mark.parametrize("down_s", [0.0, 1.0])
def test_a_daemon_that_comes_back_costs_no_sample(
    start_daemon: Callable[..., object], shards: Path, samples: Samples, down_s: float
) -> None:
    daemon = start_daemon(shards)
    with StreamClient(daemon.endpoint, streams=3, timeout_s=20) as client:
        fetch = iter(client.fetch(_plan(client, batch_size=2), window=6))
        batches = [next(fetch) for _ in range(5)]
        time.sleep(0.3)  # the answers to what was asked so far are here
        os.kill(daemon.pid, signal.SIGSTOP)
        batches.append(next(fetch))  # asks for one more, which the daemon takes with it
        daemon.kill()
        restart = threading.Timer(down_s, lambda: start_daemon(shards, port=daemon.port))
        restart.start()
        batches += fetch
        restart.join()
        assert _ids(batches) == list(range(len(samples)))
        assert client.traffic.asked_again > 0


def test_a_daemon_that_stays_away_is_named(start_daemon: Callable[..., object], shards: Path) -> None:
    daemon = start_daemon(shards)
    with StreamClient(daemon.endpoint, streams=2, timeout_s=1) as client:
        fetch = iter(client.fetch(_plan(client, batch_size=2), window=4))
        next(fetch)
        daemon.kill()
        with pytest.raises(StreamError, match=daemon.endpoint):
            list(fetch)


def test_a_daemon_that_stands_still_is_named(start_daemon: Callable[..., object], shards: Path) -> None:
    daemon = start_daemon(shards)
    with StreamClient(daemon.endpoint, streams=1, timeout_s=1) as client:
        fetch = iter(client.fetch(_plan(client, batch_size=2), window=2))
        next(fetch)
        os.kill(daemon.pid, 19)
        with pytest.raises(StreamError, match=daemon.endpoint):
            list(fetch)
        os.kill(daemon.pid, 18)
        assert list(client.fetch(_plan(client), window=2))


def test_a_daemon_with_other_data_is_refused(
    start_daemon: Callable[..., object], shards: Path, samples: Samples, tmp_path: Path
) -> None:
    daemon = start_daemon(shards)
    other = convert(samples, tmp_path / "other", key="other", seed=4)
    with StreamClient(daemon.endpoint, streams=1, timeout_s=10) as client:
        fetch = iter(client.fetch(_plan(client, batch_size=2), window=2))
        next(fetch)
        daemon.kill()
        start_daemon(other, port=daemon.port)
        with pytest.raises(StreamError, match=r"refused batch .* not those that this client planned with"):
            list(fetch)


def test_nobody_there_is_named_within_the_timeout() -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        endpoint = f"tcp://127.0.0.1:{closed.getsockname()[1]}"
        with pytest.raises(StreamError, match=endpoint):
            StreamClient(endpoint, streams=2, timeout_s=0.5)


def test_somebody_else_there_is_named_within_the_timeout() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        endpoint = f"tcp://127.0.0.1:{other.getsockname()[1]}"
        with pytest.raises(StreamError, match="it was never reached"):
            StreamClient(endpoint, streams=1, timeout_s=0.5)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"streams": 0}, "streams=0"),
        ({"warm_bytes": -1}, "warm_bytes=-1"),
        ({"timeout_s": 0}, "timeout_s=0"),
        ({"timeout_s": float("nan")}, "timeout_s=nan"),
        ({"timeout_s": float("inf")}, "timeout_s=inf"),
        ({"timeout_s": "3"}, "timeout_s='3'"),
        ({"warm_bytes": 1.5}, "warm_bytes=1.5"),
        ({"warm_bytes": 10**12}, "warm_bytes=1000000000000"),
    ],
)
def test_a_number_out_of_range_is_named(arguments: dict[str, float], said: str) -> None:
    with pytest.raises(LoaderConfigError, match=said):
        StreamClient("tcp://127.0.0.1:1", **({"streams": 1, "timeout_s": 1} | arguments))


@pytest.mark.parametrize(
    "endpoint", ["", "127.0.0.1:80", "tcp://127.0.0.1", "ftp://a:1", "tcp://a:99999", "tcp://a:1/", 80, b"tcp://a:1"]
)
def test_an_endpoint_that_is_none_is_named_with_what_is_expected(endpoint: object) -> None:
    with pytest.raises(LoaderConfigError, match=rf"endpoint={re.escape(repr(endpoint))}"):
        StreamClient(endpoint, streams=1, timeout_s=1)  # type: ignore[arg-type]
    with pytest.raises(LoaderConfigError, match="tcp://HOST:PORT"):
        health(endpoint, timeout_s=1)  # type: ignore[arg-type]


@contextmanager
def _false_daemon(answer: Callable[[Get], list[bytes]]) -> Iterator[str]:
    """A daemon that greets rightly and answers requests as the test wants."""
    with zmq.Context() as context, context.socket(zmq.ROUTER) as router:
        router.linger = 0
        port = router.bind_to_random_port("tcp://127.0.0.1")
        stop = threading.Event()

        def reply(request: object) -> list[bytes]:
            match request:
                case Hello():
                    return [pack(Catalog("x", (Shard("a", 8, 8, "d"),)))]
                case Health():
                    return [pack(HealthReport({}))]
                case Warm(sequence, _):
                    return [pack(Warmed(sequence))]
                case Get():
                    return answer(request)
            raise AssertionError(f"asked for {request}")

        def serve() -> None:
            while not stop.is_set():
                if not router.poll(20):
                    continue
                client, data = router.recv_multipart()
                request = unpack_request(data)
                router.send_multipart([client, *reply(request)])

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield f"tcp://127.0.0.1:{port}"
        finally:
            stop.set()
            thread.join()


_COLUMNS = ("ids", "labels", "offsets", "sizes", "checksums")


def _header(get: Get, **changed: object) -> bytes:
    columns = dict.fromkeys(_COLUMNS, [0] * 8) | {"ids": range(8), "offsets": range(8), "sizes": [1] * 8} | changed
    arrays = {name: np.array(columns[name], np.int64) for name in _COLUMNS}
    return pack(BatchHeader(get.sequence, get.epoch, get.batch + int(changed.get("batch", 0)), **arrays))


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
def test_a_malformed_answer_names_the_daemon(answer: Callable[[Get], list[bytes]]) -> None:
    with (
        _false_daemon(answer) as endpoint,
        StreamClient(endpoint, streams=1, timeout_s=5) as client,
        pytest.raises(WireError, match=f"^{endpoint}"),
    ):
        list(client.fetch([BatchPlan(0, 0, (Slice(0, 0, 8),))], window=1))


def test_an_answer_that_comes_twice_is_used_once() -> None:
    with (
        _false_daemon(lambda get: [_header(get), b"12345678"]) as endpoint,
        StreamClient(endpoint, streams=1, timeout_s=5) as client,
    ):
        part = BatchPlan(0, 0, (Slice(0, 0, 8),))
        fetch = client.fetch([part, part], window=1)
        # The same request again, as after a lost connection.
        (stream,) = client.daemons[0].session.streams
        stream.socket.send(next(iter(stream.under_way.values())))
        assert fetch.take() is not None
        assert fetch.take() is not None
        assert fetch.finished and fetch.take() is None
        assert client.traffic.stale == 1


def test_a_damaged_record_is_named_by_its_checksum(
    start_daemon: Callable[..., object], samples: Samples, tmp_path: Path
) -> None:
    out = convert(samples, tmp_path / "out", key="a")
    shard = next(out.glob("*.tfrecord"))
    content = bytearray(shard.read_bytes())
    content[len(content) // 2] ^= 1
    shard.write_bytes(content)
    daemon = start_daemon(out)
    with (
        StreamClient(daemon.endpoint, streams=1, timeout_s=5) as client,
        pytest.raises(StreamError, match=rf"{shard.name}: record \d+"),
    ):
        for _ in client.fetch(_plan(client), window=4, verify=True):
            pass


def test_descriptors_do_not_grow_over_clients(daemon) -> None:
    def use() -> int:
        with StreamClient(daemon.endpoint, streams=2, timeout_s=10) as client:
            next(iter(client.fetch(_plan(client), window=4)))
        return psutil.Process().num_fds()

    first = use()
    assert all(use() <= first for _ in range(5))


def test_a_client_that_is_dropped_unclosed_holds_nothing_up(daemon) -> None:
    """Collecting it must not wait for its sockets, in whichever order its parts go."""
    code = (
        "import gc, sys\n"
        "from loaders.streaming import StreamClient\n"
        "client = StreamClient([sys.argv[1]], streams=2, timeout_s=10)\n"
        "client.itself = client\n"
        "del client\n"
        "gc.collect()\n"
        "print('collected')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, daemon.endpoint], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stdout == "collected\n", done.stderr


def test_a_batch_of_more_slices_than_a_request_may_name_is_asked_for_in_parts(
    start_daemon: Callable[..., object], make_shards: Callable[..., Path], tmp_path: Path
) -> None:
    daemon = start_daemon(make_shards(tmp_path, shards=2, records=5000, size=40))
    with StreamClient(daemon.endpoint, streams=1, timeout_s=10) as client:  # type: ignore[attr-defined]
        batches = plan_epoch(client.catalog.shard_records, batch_size=9_999, seed=0, epoch=0, slice_records=1)
        assert len(batches[0].slices) > 2 * MAX_SLICES
        first, last = client.fetch(batches, window=2)
        assert sorted([*first.ids.tolist(), *last.ids.tolist()]) == list(range(10_000))
        assert client.traffic.answers >= 10
