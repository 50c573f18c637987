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
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch

from loaders.base import Batch, Samples
from loaders.errors import LoaderConfigError, LoaderError, SampleError, StreamError
from loaders.pipeline.image import ImageTransform
from loaders.records.planner import plan_epoch
from loaders.records.raw_batch import RawBatch
from loaders.records.shards.convert import convert
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
decoders = pytest.mark.parametrize("decode", ["dali", "torch"])
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


@decoders
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
        stats = loader.stats()
        assert stats.samples == 3 * len(samples) == 3 * len(loader)
        assert stats.bytes == 3 * samples.sizes.sum()
        assert stats.details["wire_bytes"] > stats.bytes


@decoders
def test_pixels_are_those_of_the_shared_transform(daemon, samples: Samples, decode: str) -> None:
    with _loader(daemon.endpoint, decode=decode) as loader:
        for batch in loader.epoch(2):
            for sample_id, image in zip(batch.ids.tolist(), batch.data, strict=True):
                encoded = samples.path(sample_id).read_bytes()
                expected = SMALL.apply(encoded, seed=5, epoch=2, sample_id=sample_id)
                if decode == "torch":
                    assert torch.equal(image, expected)
                else:  # another decoder and resizer
                    assert (image - expected).abs().mean() < 0.1


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


@pytest.mark.parametrize("remainder", ["uneven", "drop", "pad"])
@pytest.mark.parametrize("world_size", [1, 2, 3, 70])
def test_ranks_share_an_epoch(daemon, remainder: str, world_size: int) -> None:
    if (world_size, remainder) == (70, "drop"):
        with pytest.raises(LoaderConfigError, match="world_size=70"):
            _loader(daemon.endpoint, rank=0, world_size=world_size, remainder=remainder)
        return
    seen: list[int] = []
    sizes = []
    for rank in range(world_size) if world_size < 10 else (0, 30, 69):
        with _loader(daemon.endpoint, decode="raw", rank=rank, world_size=world_size, remainder=remainder) as loader:
            for epoch in range(2):
                ids = _ids(list(loader.epoch(epoch)))
                assert len(ids) == len(loader)
            seen += ids
            sizes.append(len(ids))
    if world_size < 10:
        copies = np.bincount(seen, minlength=61)
        assert copies.max() <= {"uneven": 1, "drop": 1, "pad": 2}[remainder]
        assert remainder == "drop" or copies.min() == 1
    if remainder != "uneven":
        assert set(sizes) == {61 // world_size if remainder == "drop" else -(-61 // world_size)}


def test_raw_batches_hold_the_encoded_images(daemon, samples: Samples) -> None:
    with _loader(daemon.endpoint, decode="raw", verify=True) as loader:
        for batch in loader.epoch(0):
            assert isinstance(batch, RawBatch)
            for sample_id, image in zip(batch.ids.tolist(), batch.images(), strict=True):
                assert image == samples.path(sample_id).read_bytes()
        stats = loader.stats()
        assert stats.samples == 61 and stats.bytes == samples.sizes.sum() and stats.details["verify_s"] > 0


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
import sys, time
from loaders.pipeline.image import ImageTransform
from loaders.streaming import StreamingLoader
for decode in sys.argv[2:]:
    with StreamingLoader(endpoint=sys.argv[1], transform=ImageTransform(size=16), batch_size=2, seed=0, decode=decode,
                         timeout_s=20) as loader:
        try:
            for epoch in range(10**9):
                for number, batch in enumerate(loader.epoch(epoch)):
                    if epoch == 1 and number == 3:
                        print("running", flush=True)
        except KeyboardInterrupt:
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


@engines
def test_a_consumer_that_stops_holds_a_bounded_number_of_batches(daemon, decode: str, requests: list[int]) -> None:
    with _loader(daemon.endpoint, decode=decode, batch_size=1, prefetch_batches=4) as loader:
        epoch = loader.epoch(0)
        batches = [next(epoch)]
        time.sleep(0.5)
        # In the window, in decoding, ready and in hand.
        assert len(requests) <= 4 + 2 + 2 + 2
        assert _ids(batches + list(epoch)) == ALL


@decoders
def test_close_in_the_middle_of_an_epoch_ends_every_thread(daemon, decode: str) -> None:
    before = {thread.name for thread in threading.enumerate()}
    loader = _loader(daemon.endpoint, decode=decode)
    batches = loader.epoch(0)
    next(batches)
    loader.close()
    loader.close()
    assert {thread.name for thread in threading.enumerate()} <= before
    with pytest.raises(LoaderError, match="closed"):
        next(loader.epoch(1))


@decoders
def test_a_daemon_that_comes_back_costs_no_sample(
    start_daemon: Callable[..., Any], shards: Path, samples: Samples, decode: str
) -> None:
    daemon = start_daemon(shards)
    with _loader(daemon.endpoint, decode=decode, batch_size=2, prefetch_batches=4, timeout_s=20) as loader:
        epoch = loader.epoch(0)
        batches = [next(epoch) for _ in range(4)]
        daemon.kill()
        start_daemon(shards, port=daemon.port)
        batches += epoch
        assert _ids(batches) == list(range(len(samples)))


@decoders
def test_a_daemon_that_stays_away_is_named(start_daemon: Callable[..., Any], shards: Path, decode: str) -> None:
    daemon = start_daemon(shards)
    with _loader(daemon.endpoint, decode=decode, batch_size=2, prefetch_batches=4, timeout_s=1) as loader:
        epoch = loader.epoch(0)
        next(epoch)
        daemon.kill()
        with pytest.raises(StreamError, match=daemon.endpoint):
            list(epoch)


def test_close_does_not_wait_for_a_daemon_that_is_gone(start_daemon: Callable[..., Any], shards: Path) -> None:
    daemon = start_daemon(shards)
    loader = _loader(daemon.endpoint, decode="torch", batch_size=2, prefetch_batches=2, timeout_s=120)
    threads = threading.active_count()
    next(loader.epoch(0))
    daemon.kill()
    time.sleep(0.2)
    loader.close()  # or the test's own limit of time is reached
    assert threading.active_count() <= threads


@pytest.fixture
def damaged(samples: Samples, tmp_path: Path) -> Iterator[Path]:
    """Shards in which sample 17 was cut short before it was converted."""
    root = tmp_path / "tree"
    for path in samples.paths:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        os.link(samples.root / path, root / path)
    whole = (root / samples.paths[17]).read_bytes()
    (root / samples.paths[17]).unlink()
    (root / samples.paths[17]).write_bytes(whole[:30])
    sizes = samples.sizes.copy()
    sizes[17] = 30
    yield convert(replace(samples, root=root, sizes=sizes), tmp_path / "shards", key="damaged")


@decoders
def test_a_sample_that_cannot_be_decoded_is_named(
    start_daemon: Callable[..., Any], damaged: Path, samples: Samples, decode: str
) -> None:
    daemon = start_daemon(damaged)
    with _loader(daemon.endpoint, decode=decode) as loader:
        for _ in range(2):  # and the loader is of use afterwards
            with pytest.raises(SampleError, match=rf"sample 17 \({samples.paths[17]}\)"):
                list(loader.epoch(0))


def test_threads_and_descriptors_do_not_grow_over_epochs(daemon) -> None:
    with _loader(daemon.endpoint, decode="dali") as loader:

        def use(epoch: int) -> tuple[int, int]:
            list(loader.epoch(epoch))
            return threading.active_count(), psutil.Process().num_fds()

        use(0)
        first = use(1)
        last = [use(epoch) for epoch in range(2, 12)][-1]
        # A leak is one an epoch; a helper's thread of torch's or DALI's may come or go meanwhile.
        assert last[0] < first[0] + 5
        assert last[1] < first[1] + 5


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
        ({"streams": True}, "streams=True"),
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


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
@pytest.mark.parametrize("decode", ["dali", "torch", "torch-process"])
def test_batches_arrive_on_the_gpu_with_the_same_pixels(daemon, samples: Samples, decode: str) -> None:
    transform = ImageTransform(size=16)
    with _loader(daemon.endpoint, decode=decode, device="cuda", transform=transform) as loader:
        for batch in loader.epoch(0):
            assert batch.data.is_cuda and batch.labels.is_cuda
            assert batch.labels.tolist() == samples.labels[batch.ids].tolist()
            for sample_id, image in zip(batch.ids.tolist(), batch.data.cpu(), strict=True):
                encoded = samples.path(sample_id).read_bytes()
                expected = transform.apply(encoded, seed=5, epoch=0, sample_id=sample_id)
                assert (image - expected).abs().mean() < (0.1 if decode == "dali" else 1e-6)


def test_one_warning_says_that_indexed_shards_were_not_shuffled(
    tmp_path: Path, start_daemon: Callable[..., Any]
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


def test_shuffled_shards_bring_no_warning(shards: Path, start_daemon: Callable[..., Any]) -> None:
    endpoint = start_daemon(shards).endpoint
    with warnings.catch_warnings(action="error", category=UserWarning):
        StreamingLoader(endpoint=endpoint, decode="raw", batch_size=8, seed=0, warm_bytes=0).close()
