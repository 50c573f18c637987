from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from loaders.base import Batch, Samples
from loaders.errors import LoaderConfigError, LoaderError
from loaders.pipeline.image import ImageTransform
from loaders.records.planner import BatchPlan, Slice
from loaders.records.raw_batch import RawBatch
from loaders.streaming.loader import StreamingLoader
from loaders.streaming.receiver.batch import ArrivalOrder
from loaders.streaming.receiver.client import StreamClient
from loaders.streaming.receiver.remote_daemon import RemoteDaemon

pytestmark = pytest.mark.process

engines = pytest.mark.parametrize("decode", ["torch", "raw"])
ALL = list(range(61))


def _loader(endpoint: str, **changed: object) -> StreamingLoader:
    arguments = {"transform": ImageTransform(size=8), "batch_size": 8, "seed": 5, "timeout_s": 10, "decode": "torch"}
    return StreamingLoader(endpoint=endpoint, **(arguments | changed))  # type: ignore[arg-type]


def _ids(batches: list[Batch]) -> list[int]:
    return sorted(sample_id for batch in batches for sample_id in batch.ids.tolist())


@pytest.fixture
def requests(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int, tuple[Slice, ...]]]:
    """Every request that is sent: epoch, batch and slices."""
    sent: list[tuple[int, int, tuple[Slice, ...]]] = []
    ask = RemoteDaemon.ask

    def noted(
        self: RemoteDaemon,
        sequence: int,
        epoch: int,
        batch: int,
        slices: tuple[Slice, ...],
        nbytes: int,
        *,
        check: bool = False,
    ) -> None:
        sent.append((epoch, batch, slices))
        ask(self, sequence, epoch, batch, slices, nbytes, check=check)

    monkeypatch.setattr(RemoteDaemon, "ask", noted)
    return sent


@engines
@pytest.mark.parametrize("batch_size", [8, 100])
@pytest.mark.parametrize("ahead", [0, 1, 2])
def test_every_epoch_is_whole_however_far_requests_run_ahead(
    daemon, decode: str, batch_size: int, ahead: int, requests: list[tuple[int, int, tuple[Slice, ...]]]
) -> None:
    with _loader(daemon.endpoint, decode=decode, batch_size=batch_size, epochs_ahead=ahead) as loader:
        for epoch in range(4):
            batches = list(loader.epoch(epoch))
            assert _ids(batches) == ALL
            assert max(asked for asked, _, _ in requests) <= epoch + ahead
    # What was asked for ahead was used: no batch was asked for twice.
    keys = [(epoch, batch, slices) for epoch, batch, slices in requests]
    assert len(set(keys)) == len(keys)


@engines
def test_the_next_epoch_is_asked_for_before_the_last_batch_is_taken(
    daemon, decode: str, requests: list[tuple[int, int, tuple[Slice, ...]]]
) -> None:
    with _loader(daemon.endpoint, decode=decode, prefetch_batches=3) as loader:
        epoch = loader.epoch(0)
        for _ in range(7):
            next(epoch)
        deadline = time.monotonic() + 10
        while not any(asked == 1 for asked, _, _ in requests):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        assert len(list(epoch)) == 1


@engines
def test_nothing_is_asked_for_beyond_the_last_epoch(
    daemon, decode: str, requests: list[tuple[int, int, tuple[Slice, ...]]]
) -> None:
    with _loader(daemon.endpoint, decode=decode, epochs=2) as loader:
        for epoch in range(2):
            assert _ids(list(loader.epoch(epoch))) == ALL
        time.sleep(0.2)
        assert max(epoch for epoch, _, _ in requests) == 1


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
def test_batches_that_are_filled_by_sample_are_full_and_resume(
    daemon, decode: str, requests: list[tuple[int, int, tuple[Slice, ...]]]
) -> None:
    arguments = {"decode": decode, "order": "sample", "slice_records": 3, "batch_size": 8, "prefetch_step": 0.25}
    with _loader(daemon.endpoint, **arguments) as loader:
        for epoch in range(2):
            batches = list(loader.epoch(epoch))
            assert _ids(batches) == ALL
            assert [len(batch.ids) for batch in batches] == [8] * 7 + [5]
        assert {sum(part.records for part in slices) for _, _, slices in requests} == {1, 2}
        last = loader.epoch(2)
        first = [next(last) for _ in range(3)]
        state = loader.state_dict()
    with _loader(daemon.endpoint, **arguments | {"batch_size": 12}) as loader:
        loader.load_state_dict(state)
        rest = list(loader.epoch(2))
        assert _ids(first + rest) == ALL and [len(batch.ids) for batch in rest] == [12, 12, 12, 1]


def test_a_batch_takes_the_pieces_that_came_first_whichever_batch_they_were_planned_for() -> None:
    def piece(epoch: int, number: int, records: int = 2) -> RawBatch:
        ids = 10 * number + np.arange(records)
        frame = memoryview(bytes(ids.astype(np.uint8)))
        return RawBatch(epoch, number, ids, ids, (frame,), 0 * ids, np.arange(records), 0 * ids + 1, ids)

    order = ArrivalOrder(pieces=3)
    for number in range(8):
        order.expect(BatchPlan(0, number, (Slice(0, 2 * number, 1 if number == 7 else 2),)))
    order.expect(BatchPlan(1, 0, (Slice(0, 0, 2),)))
    taken: list[RawBatch] = []
    for epoch, number in ((0, 7), (1, 0), (0, 5), (0, 0), (0, 3), (0, 4), (0, 1), (0, 6), (0, 2)):
        order.add(piece(epoch, number, 1 if number == 7 else 2))
        while (batch := order.take()) is not None:
            taken.append(batch)
    assert [batch.planned for batch in taken] == [(5, 0, 3), (4, 1, 6), (2, 7), (0,)]
    assert [batch.ids.tolist() for batch in taken[:3]] == [
        [50, 51, 0, 1, 30, 31],
        [40, 41, 10, 11, 60, 61],
        [20, 21, 70],
    ]
    assert all([image[0] for image in batch.images()] == batch.ids.tolist() for batch in taken)
    assert len(order) == 0


def test_in_strict_order_batches_come_as_planned(daemon) -> None:
    def order(**changed: object) -> list[list[int]]:
        with _loader(daemon.endpoint, batch_size=3, order="strict", decode="raw", **changed) as loader:
            return [batch.ids.tolist() for epoch in range(2) for batch in loader.epoch(epoch)]

    with StreamClient(daemon.endpoint, streams=1, timeout_s=10) as client:
        planned = [client.plan(epoch=epoch, batch_size=3, seed=5) for epoch in range(2)]
        expected = [batch.ids.tolist() for plan in planned for one in plan for batch in client.fetch([one], window=1)]
    assert order(streams=1, prefetch_batches=1) == order(streams=4, prefetch_batches=20) == expected


@pytest.mark.parametrize(
    ("step", "expected"),
    [(2, [2, 4, 6, 7, 7]), (0.25, [1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3, 4, 4]), (1.5, [1, 3, 4, 6, 7])],
)
def test_prefetch_grows_by_its_step(
    daemon, requests: list[tuple[int, int, tuple[Slice, ...]]], step: float, expected: list[int]
) -> None:
    with StreamClient(daemon.endpoint, streams=1, timeout_s=10) as client:
        fetch = client.fetch(client.plan(epoch=0, batch_size=2, seed=0), window=7, step=step)
        under_way = []
        taken = 0
        while not fetch.finished:
            under_way.append(len(requests) - taken)
            assert fetch.take() is not None
            taken += 1
    assert under_way[: len(expected)] == expected
    assert taken == 31


@pytest.mark.parametrize("remainder", ["uneven", "drop", "pad"])
@pytest.mark.parametrize("world_size", [1, 2, 3, 70])
def test_ranks_share_an_epoch(daemon, remainder: str, world_size: int) -> None:
    seen: list[int] = []
    sizes = []
    for rank in range(world_size) if world_size < 10 else (0, 30, 69):
        with _loader(
            daemon.endpoint, decode="raw", rank=rank, world_size=world_size, remainder=remainder, epochs_ahead=rank % 3
        ) as loader:
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


@engines
@pytest.mark.parametrize("wire", ["raw", "msgpack"])
def test_both_wire_formats_bring_the_same(daemon, decode: str, wire: str) -> None:
    with _loader(daemon.endpoint, decode=decode, wire=wire, verify=True) as loader:
        for epoch in range(2):
            assert _ids(list(loader.epoch(epoch))) == ALL


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
    with _loader(daemon.endpoint, events=path, epochs=2) as loader:
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
    with StreamingLoader(endpoint=sys.argv[1], transform=ImageTransform(size=8), batch_size=2, seed=0, decode=decode,
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
def test_a_consumer_that_stops_holds_a_bounded_number_of_batches(
    daemon, decode: str, requests: list[tuple[int, int, tuple[Slice, ...]]]
) -> None:
    with _loader(daemon.endpoint, decode=decode, batch_size=1, prefetch_batches=4, epochs_ahead=3) as loader:
        epoch = loader.epoch(0)
        batches = [next(epoch)]
        time.sleep(0.5)
        # In the window, in decoding, ready and in hand.
        assert len(requests) <= 4 + 2 + 2 + 2
        assert _ids(batches + list(epoch)) == ALL


def test_close_from_the_middle_leaves_no_thread(daemon) -> None:
    before = threading.active_count()
    loader = _loader(daemon.endpoint, epochs_ahead=2)
    list(loader.epoch(0))
    loader.close()
    assert threading.active_count() <= before


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"order": "random"}, "order='random'"),
        ({"prefetch_step": -1}, "prefetch_step=-1"),
        ({"epochs_ahead": -1}, "epochs_ahead=-1"),
        ({"world_size": 2}, "remainder"),
        ({"wire": "json"}, "wire='json'"),
        ({"endpoints": ["tcp://127.0.0.1:1"]}, "endpoint or endpoints"),
    ],
)
def test_an_argument_out_of_range_is_named_before_anything_is_fetched(
    daemon, arguments: dict[str, object], said: str
) -> None:
    with pytest.raises(LoaderConfigError, match=said):
        _loader(daemon.endpoint, **arguments)


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
