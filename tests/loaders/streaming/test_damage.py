"""What is damaged on the way is asked for again; what is damaged on a disk is named; neither reaches training."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import zmq

from loaders.base import Samples
from loaders.errors import StreamError
from loaders.records.planner import BatchPlan, Slice
from loaders.records.shards.index import ShardSet
from loaders.streaming import StreamingLoader
from loaders.streaming.keys import load_client_keys
from loaders.streaming.protocol import Get, pack
from loaders.streaming.receiver.fetch import BatchFetch
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
    with Relay(daemon.port, on_piece=flips) as relay, _loader(relay.endpoint, wire=wire, streams=1) as loader:
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
    with _loader(daemon.endpoint, decode=decode) as loader, pytest.raises(StreamError, match=f"{name}: record 1"):
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


def _count_restarts(log: Path) -> int:
    return sum('"restarted"' in line for line in log.read_text().splitlines())


@pytest.mark.parametrize(
    ("cuts", "with_keys"), [(3, False), (2, True), pytest.param(40, False, marks=pytest.mark.slow)]
)
def test_a_shard_that_is_cut_while_it_is_sent_fails_its_own_batches_alone(
    start_daemon: Start,
    make_shards: Callable[..., Path],
    connect: Callable[..., Any],
    keys: Path,
    tmp_path: Path,
    cuts: int,
    with_keys: bool,
) -> None:
    root = make_shards(tmp_path, shards=2, records=400, size=100_000)
    log, own = tmp_path / "log", keys / "client" if with_keys else None
    daemon = start_daemon(root, log=log, options=["--keys", str(keys / "daemon")] if with_keys else [])
    victim, whole = root / "shard-0.tfrecord", (root / "shard-0.tfrecord").read_bytes()
    first = [BatchPlan(0, 0, (Slice(0, 0, 2),))]
    with connect(daemon.endpoint, keys=own) as others, connect(daemon.endpoint, keys=own) as connections:
        other_shard = BatchFetch(others, [BatchPlan(0, number, (Slice(1, number, 1),)) for number in range(400)])
        received = []
        for cut in range(cuts):
            received += other_shard.next().ids.tolist()  # type: ignore[union-attr]
            with zmq.Context() as context, context.socket(zmq.DEALER) as slow:
                # It takes an answer or two, and the others are under way.
                slow.linger, slow.rcvhwm, slow.rcvbuf = 0, 1, 65_536
                if own is not None:
                    load_client_keys(own).secure_client(slow)
                slow.connect(daemon.endpoint)
                for number in range(4):
                    slow.send(pack(Get(number, connections.shards.catalog.fingerprint, 0, 0, (Slice(0, 0, 400),))))
                assert slow.poll(5000)
                os.truncate(victim, 5_000)
                deadline = time.monotonic() + 20
                while _count_restarts(log) == cut:
                    assert time.monotonic() < deadline, "nothing of the shard was under way"
                    if slow.poll(20):
                        slow.recv_multipart()
            with pytest.raises(StreamError, match=victim.name):
                list(BatchFetch(connections, first))
            victim.write_bytes(whole)
            assert [batch.ids.tolist() for batch in BatchFetch(connections, first)] == [[0, 1]]
        received += [sample_id for batch in other_shard for sample_id in batch.ids.tolist()]
        assert sorted(received) == [*range(400, 800)]
        # Another file of the name does not make the mapped one whole.
        os.truncate(victim, 5_000)
        (tmp_path / "other").write_bytes(whole)
        (tmp_path / "other").rename(victim)
        with pytest.raises(StreamError, match=victim.name):
            list(BatchFetch(connections, first))
    assert daemon.process.poll() is None and _count_restarts(log) == cuts
    assert daemon.stop() == 0


def _server_of(daemon: Any) -> int:
    """Return the process that serves, once there is one."""
    deadline = time.monotonic() + 5
    while not (servers := psutil.Process(daemon.process.pid).children()):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return servers[0].pid


def test_a_server_that_is_killed_ends_the_daemon(start_daemon: Start, shards: Path, tmp_path: Path) -> None:
    daemon = start_daemon(shards, log=tmp_path / "log")
    os.kill(_server_of(daemon), signal.SIGKILL)
    assert daemon.process.wait(10) == 2
    assert "SIGKILL" in (tmp_path / "log").read_text().splitlines()[-1]


@pytest.mark.parametrize(("serves", "ends"), [(False, 1), (True, 3)])
def test_a_server_that_aborts_before_it_serves_or_too_often_is_not_started_again(serves: bool, ends: int) -> None:
    program = f"""
import os
from loaders.errors import StreamError
from loaders.streaming.daemon import supervisor
supervisor._MOST = 3

def serve(is_first, ready):
    os.write(1, b"+")
    if {serves}:
        ready()
    os.abort()

try:
    supervisor.supervise(serve, log=lambda *event, **fields: None)
except StreamError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.startswith("+" * ends + "the process") and "SIGABRT" in done.stdout


def test_a_stop_is_not_forgotten_where_the_server_aborts_meanwhile(
    start_daemon: Start, shards: Path, tmp_path: Path
) -> None:
    daemon = start_daemon(shards, log=tmp_path / "log")
    server = _server_of(daemon)
    os.kill(server, signal.SIGSTOP)
    daemon.process.terminate()
    time.sleep(0.3)
    os.kill(server, signal.SIGABRT)
    os.kill(server, signal.SIGCONT)
    assert daemon.process.wait(10) == 0
    assert _count_restarts(tmp_path / "log") == 0
