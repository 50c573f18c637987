"""Epochs of the loader: whole, decoded, resumable by another call, and ended cleanly."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from loaders.base import Batch, Samples
from loaders.errors import LoaderConfigError, LoaderError, SampleError
from loaders.pipeline.image import ImageTransform
from loaders.records.planner import plan_epoch
from loaders.records.shards.example import encode_example
from loaders.records.shards.indexer import index_folder
from loaders.records.shards.tfrecord import write_record
from loaders.streaming.daemon.store import ShardStore
from loaders.streaming.loader import StreamingLoader
from loaders.streaming.protocol import Get
from loaders.streaming.receiver.remote_daemon import RemoteDaemon

pytestmark = pytest.mark.process

SMALL = ImageTransform(size=16)
ALL = list(range(61))
engines = pytest.mark.parametrize("decode", ["torch", "raw"])


def _loader(endpoint: str, **changed: object) -> StreamingLoader:
    arguments = {"transform": SMALL, "batch_size": 8, "seed": 5, "timeout_s": 10, "decode": "torch"} | changed
    return StreamingLoader(endpoint=endpoint, **arguments)


def _ids(batches: list[Batch]) -> list[int]:
    return sorted(sample_id for batch in batches for sample_id in batch.ids.tolist())


@pytest.fixture
def requests(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of records of every request that is sent."""
    sent: list[int] = []
    ask = RemoteDaemon.ask

    def noted(self: RemoteDaemon, sequence: int, epoch: int, batch: int, slices: Any, *args: Any, **rest: Any) -> None:
        sent.append(sum(part.records for part in slices))
        ask(self, sequence, epoch, batch, slices, *args, **rest)

    monkeypatch.setattr(RemoteDaemon, "ask", noted)
    return sent


def _check_pixels(batch: Batch, samples: Samples, epoch: int, *, decode: str) -> None:
    """Compare a batch with what the shared transform makes of its samples; DALI has another decoder and resizer."""
    for sample_id, image in zip(batch.ids.tolist(), batch.data.cpu(), strict=True):
        encoded = samples.path(sample_id).read_bytes()
        expected = SMALL.apply(encoded, seed=5, epoch=epoch, sample_id=sample_id)
        assert (image - expected).abs().mean() < (0.1 if decode == "dali" else 1e-6)


@pytest.mark.parametrize("decode", ["dali", "torch"])
@pytest.mark.parametrize("batch_size", [1, 8, 61, 100])
def test_every_epoch_yields_every_sample_once(daemon, samples: Samples, decode: str, batch_size: int) -> None:
    with _loader(daemon.endpoint, decode=decode, batch_size=batch_size) as loader:
        for epoch in range(3):
            batches = list(loader.epoch(epoch))
            assert len(batches) == -(-len(samples) // batch_size)
            assert _ids(batches) == list(range(len(samples)))
            for batch in batches:
                assert batch.data.shape == (len(batch), 3, 16, 16) and batch.data.dtype == torch.float32
                assert batch.labels.tolist() == samples.labels[batch.ids].tolist()
                assert batch.nbytes == samples.sizes[batch.ids].sum()
                _check_pixels(batch, samples, epoch, decode=decode)
        stats = loader.stats()
        assert stats.samples == 3 * len(samples) == 3 * len(loader)
        assert stats.bytes == 3 * samples.sizes.sum()
        assert stats.details["wire_bytes"] > stats.bytes and stats.details["verify_s"] > 0


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
@pytest.mark.parametrize("decode", ["dali", "torch", "torch-process"])
def test_batches_arrive_on_the_gpu_with_the_same_pixels(daemon, samples: Samples, decode: str) -> None:
    with _loader(daemon.endpoint, decode=decode, device="cuda") as loader:
        for batch in loader.epoch(0):
            assert batch.data.is_cuda and batch.labels.is_cuda
            assert batch.labels.tolist() == samples.labels[batch.ids].tolist()
            _check_pixels(batch, samples, 0, decode=decode)


def test_a_limit_ends_the_epoch_early(daemon) -> None:
    with _loader(daemon.endpoint, limit=20, decode="torch") as loader:
        batches = list(loader.epoch(0))
        assert [len(batch) for batch in batches].count(8) == 2 and len(set(_ids(batches))) == len(loader) == 20


@engines
@pytest.mark.parametrize("order", ["arrival", "sample", "strict"])
def test_another_epoch_than_the_next_discards_what_was_asked_for(daemon, decode: str, order: str) -> None:
    with _loader(daemon.endpoint, decode=decode, order=order) as loader:
        for epoch in (0, 1, 5, 6, 6, 0):
            assert _ids(list(loader.epoch(epoch))) == ALL
        next(loader.epoch(1))
        assert _ids(list(loader.epoch(2))) == ALL


@engines
def test_an_epoch_that_another_one_ended_says_so(daemon, decode: str) -> None:
    with _loader(daemon.endpoint, decode=decode) as loader:
        first = loader.epoch(0)
        next(first)
        assert _ids(list(loader.epoch(1))) == ALL
        with pytest.raises(LoaderError, match="another epoch was started"):
            list(first)
        # Its end did not disturb what is under way.
        assert _ids(list(loader.epoch(2))) == ALL
        last = loader.epoch(3)
        next(last)
        loader.close()
        with pytest.raises(LoaderError, match="closed"):
            next(last)


@engines
def test_batches_that_are_filled_by_sample_are_full_and_resume(daemon, decode: str, requests: list[int]) -> None:
    arguments = {"decode": decode, "order": "sample", "slice_records": 3, "batch_size": 8}
    with _loader(daemon.endpoint, **arguments) as loader:
        for epoch in range(2):
            batches = list(loader.epoch(epoch))
            assert _ids(batches) == ALL
            assert [len(batch.ids) for batch in batches] == [8] * 7 + [5]
        assert set(requests) == {1, 2}
        last = loader.epoch(2)
        first = [next(last) for _ in range(3)]
        state = loader.state_dict()
    with _loader(daemon.endpoint, **arguments | {"batch_size": 12}) as loader:
        loader.load_state_dict(state)
        rest = list(loader.epoch(2))
        assert _ids(first + rest) == ALL and [len(batch.ids) for batch in rest] == [12, 12, 12, 1]


def test_in_strict_order_batches_come_as_planned(daemon, shards: Path) -> None:
    def order(**changed: object) -> list[list[int]]:
        with _loader(daemon.endpoint, batch_size=3, order="strict", decode="raw", **changed) as loader:
            return [batch.ids.tolist() for epoch in range(2) for batch in loader.epoch(epoch)]

    with ShardStore(shards) as store:
        expected = [
            store.answer(Get(0, "", epoch, batch.batch, batch.slices)).header.ids.tolist()
            for epoch in range(2)
            for batch in plan_epoch(store.catalog.shard_records, batch_size=3, seed=5, epoch=epoch)
        ]
    assert order(streams=1, prefetch_batches=1) == order(streams=4, prefetch_batches=20) == expected


def test_stages_are_timed(daemon) -> None:
    with _loader(daemon.endpoint, batch_size=4) as loader:
        for _ in loader.epoch(0):
            time.sleep(0.1)
        details = loader.stats().details
        # The consumer is the slow one here, and the figures say so.
        assert details["consumer_wait_s"] > max(0.1, details["wait_s"])
        assert details["decode_wait_s"] > 0


def test_events_tell_of_batches_and_epochs(daemon, tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    with _loader(daemon.endpoint, events=path) as loader:
        for epoch in range(2):
            list(loader.epoch(epoch))
    events = [json.loads(line) for line in path.read_text().splitlines()]
    for epoch in range(2):
        mine = [event for event in events if event["epoch"] == epoch]
        assert sorted(event["batch"] for event in mine if event["event"] == "batch_received") == list(range(8))
        assert [event["event"] for event in mine if event["event"] != "batch_received"] == ["epoch_start", "epoch_end"]
        assert {event["rank"] for event in mine} == {0}


def test_after_a_fork_the_child_is_told_and_the_parent_goes_on(daemon) -> None:
    with _loader(daemon.endpoint) as loader:
        epoch = loader.epoch(0)
        batches = [next(epoch)]
        child = os.fork()
        if not child:
            said = 1
            try:
                next(loader.epoch(1))
            except LoaderError as error:
                said = 0 if "fork" in str(error) else 2
            loader.close()
            os._exit(said)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert _ids(batches + list(epoch)) == ALL
        assert _ids(list(loader.epoch(1))) == ALL


INTERRUPTED = """
import sys
from joulefeed.signals import Interrupted, signals_raise  # Python loses a signal that comes in a destructor
from loaders.pipeline.image import ImageTransform
from loaders.streaming import StreamingLoader
for decode in sys.argv[2:]:
    with StreamingLoader(endpoint=sys.argv[1], transform=ImageTransform(size=16), batch_size=2, seed=0, decode=decode,
                         timeout_s=20) as loader:
        try:
            with signals_raise():
                for epoch in range(10**9):
                    for number, batch in enumerate(loader.epoch(epoch)):
                        if epoch == 1 and number == 3:
                            print("running", flush=True)
        except Interrupted:
            ids = [i for batch in loader.epoch(7) for i in batch.ids.tolist()]
            print(decode, sorted(ids) == list(range(61)), flush=True)
"""


def test_ctrl_c_in_the_middle_leaves_a_loader_that_works(daemon) -> None:
    engines = ["torch", "raw", "torch-process", "dali"]
    process = subprocess.Popen(
        [sys.executable, "-c", INTERRUPTED, daemon.endpoint, *engines], stdout=subprocess.PIPE, text=True
    )
    try:
        for decode in engines:
            assert process.stdout is not None and process.stdout.readline() == "running\n", decode
            process.send_signal(signal.SIGINT)
            assert process.stdout.readline() == f"{decode} True\n"
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("decode", ["dali", "torch", "torch-process"])
def test_a_sample_that_cannot_be_decoded_is_named_and_the_loader_is_of_use_afterwards(
    start_daemon: Callable[..., Any], make_shards: Callable[..., Path], tmp_path: Path, decode: str
) -> None:
    noise = start_daemon(make_shards(tmp_path, shards=1, records=9, size=1000))
    with _loader(noise.endpoint, batch_size=3, decode=decode) as loader:
        for _ in range(2):
            with pytest.raises(SampleError, match=r"sample \d \("):
                list(loader.epoch(0))


@engines
def test_a_consumer_that_stops_holds_a_bounded_number_of_batches(daemon, decode: str, requests: list[int]) -> None:
    with _loader(daemon.endpoint, decode=decode, batch_size=1, prefetch_batches=4) as loader:
        epoch = loader.epoch(0)
        batches = [next(epoch)]
        time.sleep(0.5)
        # In the window, in decoding, ready and in hand.
        assert len(requests) <= 4 + 2 + 2 + 2
        assert _ids(batches + list(epoch)) == ALL


def test_close_does_not_wait_for_a_daemon_that_is_gone(start_daemon: Callable[..., Any], shards: Path) -> None:
    daemon = start_daemon(shards)
    loader = _loader(daemon.endpoint, decode="torch", batch_size=2, prefetch_batches=2, timeout_s=120)
    threads = threading.active_count()
    next(loader.epoch(0))
    daemon.kill()
    time.sleep(0.2)
    loader.close()  # or the test's own limit of time is reached
    assert threading.active_count() <= threads


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"decode": "other"}, "decode='other'"),
        ({"num_threads": 0}, "num_threads=0"),
        ({"prefetch_batches": 0}, "prefetch_batches=0"),
        ({"prefetch_batches": "none"}, "prefetch_batches='none'"),
        ({"streams": 0}, "streams=0"),
        ({"batch_size": 0}, "batch_size=0"),
        ({"device": "tpu?"}, "device='tpu\\?'"),
        *(
            ({name: value}, f"{name}={value!r}")
            for name in (
                *("batch_size", "seed", "num_threads", "slice_records", "shuffle_window", "limit"),
                *("prefetch_batches", "rank", "world_size", "warm_bytes"),
            )
            for value in (2.5, "2", True)
        ),
        ({"order": "random"}, "order='random'"),
        ({"wire": "json"}, "wire='json'"),
        ({"world_size": 2}, "remainder"),
        ({"imbalance": 0.5, "world_size": 2, "remainder": "uneven"}, "imbalance=0.5"),
        ({"endpoints": ["tcp://127.0.0.1:1"]}, "endpoint or endpoints"),
        ({"timeout_s": float("nan")}, "timeout_s=nan"),
        ({"warm_bytes": 10**12}, "warm_bytes=1000000000000"),
        ({"verify": "no"}, "verify='no'"),
        ({"keys": 5}, "keys=5"),
        ({"events": 5}, "events=5"),
        ({"decode": "torch", "sample_timeout_s": "1"}, "sample_timeout_s='1'"),
    ],
)
def test_an_argument_out_of_range_is_named(daemon, arguments: dict[str, object], said: str) -> None:
    with pytest.raises(LoaderConfigError, match=said):
        _loader(daemon.endpoint, **arguments)


@pytest.mark.parametrize("epoch", [-1, 1.5, "0", None, True])
def test_an_epoch_that_is_none_is_named(daemon, epoch: object) -> None:
    with _loader(daemon.endpoint) as loader, pytest.raises(LoaderConfigError, match=f"epoch={epoch!r}"):
        next(loader.epoch(epoch))  # type: ignore[arg-type]


def test_one_warning_says_that_indexed_shards_were_not_shuffled(
    tmp_path: Path, start_daemon: Callable[..., Any], daemon: Any
) -> None:
    for number in range(2):
        with (tmp_path / f"{number}.tfrecord").open("wb") as file:
            for label in range(20):
                write_record(file, encode_example({"image/encoded": [b"x"], "label": [label]}))
    index_folder(tmp_path)
    endpoint = start_daemon(tmp_path).endpoint
    options: dict[str, Any] = {"decode": "raw", "batch_size": 8, "seed": 0, "warm_bytes": 0}
    with pytest.warns(UserWarning, match="not shuffled .*shuffle_window") as said:
        StreamingLoader(endpoint=endpoint, **options).close()
    assert sum("not shuffled" in str(one.message) for one in said) == 1
    with warnings.catch_warnings(action="error", category=UserWarning):
        for order in ({"shuffle_window": 0}, {"shuffle_window": 16}, {"slice_records": 1}):
            StreamingLoader(endpoint=endpoint, **options, **order).close()
        StreamingLoader(endpoint=daemon.endpoint, **options).close()  # whose shards were shuffled
