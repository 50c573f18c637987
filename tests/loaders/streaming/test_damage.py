"""What is damaged on the way is asked for again; what is damaged on a disk is named; neither reaches training."""

from __future__ import annotations

import random
import shutil
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from loaders.base import Samples
from loaders.errors import StreamError
from loaders.records.shards.index import ShardSet
from loaders.streaming import StreamingLoader

pytestmark = pytest.mark.process

Start = Callable[..., Any]


class _Relay:
    """Passes connections on to a daemon, and flips a bit of what a side sends now and then."""

    def __init__(self, port: int, *, every: int, side: str, most: int | None = None) -> None:
        """Flip one bit of every `every` bytes, about, at most `most` times."""
        self.flips = 0
        self._port, self._every, self._side, self._most = port, every, side, most
        self._draw = random.Random(1)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.endpoint = f"tcp://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            far = socket.create_connection(("127.0.0.1", self._port))
            for source, target, side in ((near, far, "client"), (far, near, "daemon")):
                threading.Thread(target=self._copy, args=(source, target, side), daemon=True).start()

    def _copy(self, source: socket.socket, target: socket.socket, side: str) -> None:
        # The greeting of ZeroMQ, by which the two sides agree on the protocol, is left alone.
        until = 200 + self._draw.randrange(self._every)
        try:
            while data := bytearray(source.recv(65_536)):
                while side == self._side and until < len(data) and self.flips != self._most:
                    data[until] ^= 1 << self._draw.randrange(8)
                    self.flips += 1
                    until += self._every
                until -= len(data)
                target.sendall(data)
        except OSError:
            pass
        for end in (source, target):
            end.close()

    def close(self) -> None:
        self._listener.close()


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
    every = {"daemon": 150_003, "client": 1_501}[side]
    relay = _Relay(daemon.port, every=every, side=side)
    read = _content(samples)
    try:
        # One stream, so that what is asked for again is not damaged once more.
        with _loader(relay.endpoint, wire=wire, streams=1) as loader:
            ids = []
            for sample_id, image, label in _epochs(loader, 20):
                ids.append(sample_id)
                assert image == read(sample_id) and label == sample_id % 7
            assert sorted(ids) == sorted([*range(61)] * 20)
            details = loader.stats().details
            assert relay.flips > 5 and details["damaged"] + details["asked_again"] > 0
    finally:
        relay.close()


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
