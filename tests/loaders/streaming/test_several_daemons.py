from __future__ import annotations

import os
import shutil
import signal
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from loaders.base import Samples
from loaders.errors import LoaderConfigError, StreamError
from loaders.pipeline.image import ImageTransform
from loaders.records.raw_batch import RawBatch
from loaders.records.shards.convert import convert
from loaders.records.shards.index import index_path, save_manifest
from loaders.streaming.loader import StreamingLoader
from loaders.streaming.receiver.client import StreamClient
from loaders.streaming.receiver.fetch import Fetch

pytestmark = pytest.mark.process

Start = Callable[..., Any]
ARGUMENTS = {"epoch": 0, "batch_size": 4, "seed": 2, "slice_records": 3}


def _part(shards: Path, root: Path, which: Sequence[int]) -> Path:
    """A shard folder with some of the shards of another."""
    paths = sorted(shards.glob("*.tfrecord"))
    root.mkdir()
    chosen = []
    for place in which:
        chosen.append(Path(shutil.copy(paths[place], root)))
        shutil.copy(index_path(paths[place]), root)
    save_manifest(root, key="part", seed=None, shards=chosen)
    return root


@pytest.fixture
def halves(shards: Path, tmp_path: Path) -> tuple[Path, Path]:
    count = len(list(shards.glob("*.tfrecord")))
    assert count >= 4
    return _part(shards, tmp_path / "even", range(0, count, 2)), _part(shards, tmp_path / "odd", range(1, count, 2))


def _ids(batches: Sequence[RawBatch]) -> list[int]:
    return sorted(sample_id for batch in batches for sample_id in batch.ids.tolist())


def _fetched(client: StreamClient, order: str, **changed: object) -> list[RawBatch]:
    plan = client.plan(order=order, **(ARGUMENTS | changed))
    return list(client.fetch(plan, window=3, order=order))


@pytest.mark.parametrize("order", ["arrival", "strict"])
def test_daemons_with_halves_bring_every_sample_once(
    start_daemon: Start, halves: tuple[Path, Path], samples: Samples, order: str
) -> None:
    endpoints = [start_daemon(half).endpoint for half in halves]
    with StreamClient(endpoints, streams=2, timeout_s=10) as client:
        for epoch in range(3):
            batches = _fetched(client, order, epoch=epoch)
            assert _ids(batches) == list(range(len(samples)))
            for batch in batches:
                for sample_id, image in zip(batch.ids.tolist(), batch.images(), strict=True):
                    assert image == samples.path(sample_id).read_bytes()


@pytest.mark.parametrize("order", ["arrival", "strict"])
@pytest.mark.parametrize("window", [1, 2, 8])
def test_epochs_in_one_fetch_are_all_whole(
    start_daemon: Start, halves: tuple[Path, Path], samples: Samples, order: str, window: int
) -> None:
    # The mixed batch at an epoch's end needs room at both daemons, which the next epoch's must not take from it.
    with StreamClient([start_daemon(half).endpoint for half in halves], streams=2, timeout_s=10) as client:
        plans = [client.plan(order=order, **(ARGUMENTS | {"epoch": epoch})) for epoch in range(6)]
        batches = list(client.fetch(chain.from_iterable(plans), window=window, order=order))
        assert [batch.epoch for batch in batches] == sorted(batch.epoch for batch in batches)
        for epoch in range(6):
            assert _ids([batch for batch in batches if batch.epoch == epoch]) == list(range(len(samples)))


def test_in_strict_order_batches_do_not_depend_on_who_holds_what(
    start_daemon: Start, shards: Path, halves: tuple[Path, Path]
) -> None:
    def ordered(*roots: Path) -> list[list[int]]:
        with StreamClient([start_daemon(root).endpoint for root in roots], streams=2, timeout_s=10) as client:
            return [batch.ids.tolist() for batch in _fetched(client, "strict")]

    assert ordered(shards) == ordered(*halves) == ordered(halves[1], halves[0]) == ordered(shards, halves[1])


def test_replicas_share_the_work(start_daemon: Start, shards: Path, samples: Samples) -> None:
    daemons = [start_daemon(shards) for _ in range(2)]
    with StreamClient([daemon.endpoint for daemon in daemons], streams=1, timeout_s=10) as client:
        asked: list[int] = []
        for place, source in enumerate(client.daemons):
            stream = source.session.streams[0]

            def counted(sequence: int, request: bytes, place: int = place, ask: Any = stream.ask) -> None:
                asked.append(place)
                ask(sequence, request)

            stream.ask = counted  # type: ignore[method-assign]
        assert _ids(_fetched(client, "arrival")) == list(range(len(samples)))
    # The first window is asked for before any answer; then whichever has answered is asked.
    assert Counter(asked[:6]) == {0: 3, 1: 3}


def _until(fetch: Fetch, batches: list[RawBatch], enough: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not enough():
        assert time.monotonic() < deadline, f"{len(batches)} batches"
        if (batch := fetch.take(wait=False)) is not None:
            batches.append(batch)
        time.sleep(0.001)


def test_a_slow_daemon_holds_up_no_batch_that_it_has_no_part_in(
    start_daemon: Start, halves: tuple[Path, Path], samples: Samples
) -> None:
    fast, slow = (start_daemon(half) for half in halves)
    with StreamClient([fast.endpoint, slow.endpoint], streams=2, timeout_s=30) as client:
        of_fast = {shard for shard, holders in enumerate(client.placement.holders) if holders == (0,)}
        plan = client.plan(**ARGUMENTS)
        alone = sum(all(piece.shard in of_fast for piece in batch.slices) for batch in plan)
        assert alone >= 5
        os.kill(slow.pid, signal.SIGSTOP)
        fetch = client.fetch(plan, window=2)
        batches: list[RawBatch] = []
        try:
            _until(fetch, batches, lambda: len(batches) == alone)
        finally:
            os.kill(slow.pid, signal.SIGCONT)
        while (batch := fetch.take()) is not None:
            batches.append(batch)
        assert fetch.finished and _ids(batches) == list(range(len(samples)))


def test_a_daemon_that_stays_away_is_named_while_the_other_goes_on(
    start_daemon: Start, halves: tuple[Path, Path]
) -> None:
    here, gone = (start_daemon(half) for half in halves)
    with StreamClient([here.endpoint, gone.endpoint], streams=2, timeout_s=1.5) as client:
        fetch = client.fetch(client.plan(**ARGUMENTS), window=2)
        assert fetch.take() is not None
        gone.kill()
        began = time.monotonic()
        with pytest.raises(StreamError, match=gone.endpoint):
            while fetch.take() is not None:
                time.sleep(0.1)  # a training step
        assert time.monotonic() - began < 8


@pytest.mark.parametrize("order", ["arrival", "strict"])
def test_a_daemon_that_comes_back_costs_no_sample(
    start_daemon: Start, halves: tuple[Path, Path], samples: Samples, order: str
) -> None:
    daemons = [start_daemon(half) for half in halves]
    with StreamClient([daemon.endpoint for daemon in daemons], streams=2, timeout_s=20) as client:
        fetch = iter(client.fetch(client.plan(order=order, **ARGUMENTS), window=2, order=order))
        batches = [next(fetch) for _ in range(3)]
        daemons[1].kill()
        restart = threading.Timer(0.5, lambda: start_daemon(halves[1], port=daemons[1].port))
        restart.start()
        batches += fetch
        restart.join()
        assert _ids(batches) == list(range(len(samples)))


@pytest.mark.parametrize("way", ["killed", "stopped"])
def test_a_replica_takes_over(start_daemon: Start, shards: Path, samples: Samples, way: str) -> None:
    daemons = [start_daemon(shards) for _ in range(2)]
    with StreamClient([daemon.endpoint for daemon in daemons], streams=2, timeout_s=6) as client:
        fetch = client.fetch(client.plan(**ARGUMENTS), window=2)
        batches = [fetch.take()]
        # Stopped first, so that what it was asked for is certainly not answered.
        os.kill(daemons[0].pid, signal.SIGSTOP)
        batches += [batch for _ in range(2) if (batch := fetch.take()) is not None]
        if way == "killed":
            daemons[0].kill()
        while (batch := fetch.take()) is not None:
            batches.append(batch)
        assert _ids([batch for batch in batches if batch]) == list(range(len(samples)))
        assert client.traffic.moved > 0


def _closed_port() -> str:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        return f"tcp://127.0.0.1:{closed.getsockname()[1]}"


def _raw(endpoints: object, **changed: object) -> StreamingLoader:
    arguments = {"batch_size": 4, "seed": 2, "decode": "raw", "warm_bytes": 0, "timeout_s": 10.0}
    return StreamingLoader(endpoints=endpoints, **arguments | changed)  # type: ignore[arg-type]


def test_a_replica_that_is_down_at_the_start_and_another_one_at_the_resume_cost_no_sample(
    start_daemon: Start, shards: Path, samples: Samples, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("loaders.streaming.receiver.connections._REPLICA_PATIENCE_S", 0.3)
    one, down = start_daemon(shards), _closed_port()
    with _raw([[down, one.endpoint]]) as loader:
        assert any(f"for no answer came: {down};" in note for note in loader.notes)
        epoch = loader.epoch(0)
        ids = next(epoch).ids.tolist() + next(epoch).ids.tolist()
        state = loader.state_dict()
    other = start_daemon(shards)
    one.kill()
    with _raw([[one.endpoint, other.endpoint]]) as loader:
        loader.load_state_dict(state)
        ids += [sample_id for batch in loader.epoch(0) for sample_id in batch.ids.tolist()]
    assert sorted(ids) == list(range(len(samples)))


def test_halves_with_replicas_need_one_of_each(
    start_daemon: Start, halves: tuple[Path, Path], samples: Samples, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("loaders.streaming.receiver.connections._REPLICA_PATIENCE_S", 0.3)
    even, odd, down = start_daemon(halves[0]), start_daemon(halves[1]), _closed_port()
    with _raw([[even.endpoint, down], odd.endpoint]) as loader:
        assert len(loader) == len(samples)
        assert sorted(i for batch in loader.epoch(0) for i in batch.ids.tolist()) == list(range(len(samples)))
    with pytest.raises(StreamError, match=r"none of the replicas answers: .*no answer within timeout_s=0.5"):
        _raw([[down, _closed_port()], even.endpoint], timeout_s=0.5)
    with pytest.raises(StreamError, match=rf"{down}: .*endpoints=\[\[A, B\]\]"):
        _raw([down, even.endpoint], timeout_s=0.5)
    with pytest.raises(StreamError, match="are listed as replicas and serve different data"):
        _raw([[even.endpoint, odd.endpoint]])
    with pytest.raises(LoaderConfigError, match="expected one or more, each once"):
        _raw([[], even.endpoint])


def test_different_shards_of_one_name_are_refused(
    start_daemon: Start, shards: Path, samples: Samples, tmp_path: Path
) -> None:
    other = convert(samples, tmp_path / "other", key="other", seed=4, shard_bytes=sum(samples.sizes.tolist()) // 4)
    endpoints = [start_daemon(root).endpoint for root in (shards, other)]
    with pytest.raises(StreamError, match="serve different shards of the name") as raised:
        StreamClient(endpoints, streams=1, timeout_s=10)
    assert all(endpoint in str(raised.value) for endpoint in endpoints)


def test_the_same_daemon_twice_is_refused() -> None:
    with pytest.raises(LoaderConfigError, match="each once"):
        StreamClient(["tcp://127.0.0.1:1"] * 2, streams=1, timeout_s=1)


@pytest.mark.parametrize("order", ["arrival", "strict"])
def test_the_loader_streams_from_several_daemons(
    start_daemon: Start, halves: tuple[Path, Path], samples: Samples, order: str
) -> None:
    endpoints = [start_daemon(half).endpoint for half in halves]
    with StreamingLoader(
        endpoints=endpoints,
        transform=ImageTransform(size=8),
        batch_size=8,
        seed=1,
        decode="torch",
        order=order,  # type: ignore[arg-type]
        timeout_s=10,
    ) as loader:
        for epoch in range(3):
            ids = [sample_id for batch in loader.epoch(epoch) for sample_id in batch.ids.tolist()]
            assert sorted(ids) == list(range(len(samples)))
