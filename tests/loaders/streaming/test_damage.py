"""What is damaged on the way is asked for again; what is damaged on a disk is named; neither reaches training."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from loaders.base import Samples
from loaders.errors import StreamError
from loaders.records.shards.index import ShardSet
from loaders.streaming import StreamingLoader
from tests.loaders.streaming.relay import Relay, Stream

pytestmark = pytest.mark.process

Start = Callable[..., Any]


class _Flips:
    """Flips one bit of every `every` bytes, about, of what one side sends."""

    def __init__(self, side: str, every: int) -> None:
        self.count = 0
        self._side, self._every = side, every
        self._draw = random.Random(1)
        self._until: dict[Stream, int] = {}

    def __call__(self, stream: Stream, data: bytearray) -> None:
        # The greeting of ZeroMQ, by which the two sides agree on the protocol, is left alone.
        until = self._until.setdefault(stream, 200 + self._draw.randrange(self._every))
        while stream[1] == self._side and until < len(data):
            data[until] ^= 1 << self._draw.randrange(8)
            self.count += 1
            until += self._every
        self._until[stream] = until - len(data)


def _loader(endpoint: str, **options: Any) -> StreamingLoader:
    arguments = {"decode": "raw", "batch_size": 8, "seed": 0, "prefetch_batches": 2, "warm_bytes": 0, "timeout_s": 5.0}
    return StreamingLoader(endpoint=endpoint, **arguments | options)


def _content(samples: Samples) -> Callable[[int], bytes]:
    return lambda sample_id: (samples.root / samples.paths[sample_id]).read_bytes()


def _epochs(loader: StreamingLoader, count: int) -> Iterator[tuple[int, bytes, int]]:
    for epoch in range(count):
        for batch in loader.epoch(epoch):
            for number, image in enumerate(batch.images()):  # type: ignore[attr-defined]
                yield int(batch.ids[number]), bytes(image), int(batch.labels[number])


@pytest.mark.parametrize("side", ["daemon", "client"])
@pytest.mark.parametrize("wire", ["raw", "msgpack"])
def test_bits_that_flip_on_the_way_reach_no_sample_and_end_no_epoch(
    daemon: Any, samples: Samples, side: str, wire: str
) -> None:
    flips = _Flips(side, {"daemon": 150_003, "client": 1_501}[side])
    read = _content(samples)
    # One stream, so that what is asked for again is not damaged once more.
    with (
        Relay(daemon.port, on_piece=flips) as relay,
        _loader(relay.endpoint, wire=wire, streams=1) as loader,
    ):
        ids = []
        for sample_id, image, label in _epochs(loader, 20):
            ids.append(sample_id)
            assert image == read(sample_id) and label == sample_id % 7
        assert sorted(ids) == sorted([*range(61)] * 20)
        details = loader.stats().details
        assert flips.count > 5 and details["damaged"] + details["asked_again"] > 0


def _flip_on_disk(root: Path) -> str:
    """Flip a bit in the middle of a record's payload; return the shard's name."""
    shard = ShardSet.open(root).shards[0]
    record = shard.records[1]
    with shard.path.open("r+b") as file:
        file.seek(int(record["offset"] + record["image"] + record["image_size"] // 2))
        byte = file.read(1)[0]
        file.seek(-1, 1)
        file.write(bytes([byte ^ 4]))
    return shard.path.name


@pytest.mark.parametrize("decode", ["raw", "torch"])
def test_a_bit_that_flips_on_disk_is_told_with_the_shard(
    start_daemon: Start, shards: Path, tmp_path: Path, decode: str
) -> None:
    root = Path(shutil.copytree(shards, tmp_path / "copy"))
    daemon = start_daemon(root)
    name = _flip_on_disk(root)
    with (
        _loader(daemon.endpoint, decode=decode) as loader,
        pytest.raises(StreamError, match=f"{name}: record 1"),
    ):
        for _ in loader.epoch(0):
            pass


def test_without_verify_a_flipped_payload_is_not_looked_for(
    start_daemon: Start, shards: Path, samples: Samples, tmp_path: Path
) -> None:
    root = Path(shutil.copytree(shards, tmp_path / "copy"))
    daemon = start_daemon(root)
    _flip_on_disk(root)
    read = _content(samples)
    with _loader(daemon.endpoint, verify=False) as loader:
        differ = [sample_id for sample_id, image, _ in _epochs(loader, 1) if image != read(sample_id)]
    assert len(differ) == 1
