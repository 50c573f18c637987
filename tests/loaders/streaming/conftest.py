from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import zmq

from loaders.records.planner import EpochPlan, plan_epoch
from loaders.records.shards.index import RECORD, save_index, save_manifest
from loaders.records.shards.tfrecord import write_record
from loaders.streaming.keys import make_keys
from loaders.streaming.protocol import Get, Health, HealthReport, Hello, ServedShard, ShardCatalog, pack, unpack_request
from loaders.streaming.receiver.connections import DaemonConnections
from loaders.streaming.settings import StreamSettings


class DaemonProcess:
    """A daemon as a process of its own, as it runs on a storage node."""

    def __init__(
        self,
        root: Path,
        *,
        port: int = 0,
        log: Path | None = None,
        options: Sequence[str] = (),
        descriptors: int | None = None,
    ) -> None:
        self._log = log.open("a") if log else subprocess.DEVNULL
        self.process = subprocess.Popen(
            [
                *(["prlimit", f"--nofile={descriptors}"] if descriptors else []),
                *(sys.executable, "-m", "loaders.streaming", "serve", "--until-eof"),
                *("--root", str(root), "--listen", f"127.0.0.1:{port}"),
                *options,
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
        )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, "the daemon ended before it was ready"
        self.ready = json.loads(line)
        self.endpoint: str = self.ready["endpoint"]
        self.port = int(self.endpoint.rpartition(":")[2])
        self.pid: int = self.ready["pid"]

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def anonymous_bytes(self) -> int:
        """Resident bytes that belong to no file."""
        status = Path(f"/proc/{self.pid}/status").read_text()
        return 1024 * int(next(line.split()[1] for line in status.splitlines() if line.startswith("RssAnon")))

    def stop(self) -> int:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.close()
        self.process.stdout.close()
        return self.process.wait(10)


@pytest.fixture
def start_daemon() -> Iterator[Callable[..., DaemonProcess]]:
    """Start daemons that end with the test."""
    started: list[DaemonProcess] = []

    def start(root: Path, **options: object) -> DaemonProcess:
        started.append(DaemonProcess(root, **options))  # type: ignore[arg-type]
        return started[-1]

    yield start
    for daemon in started:
        if daemon.process.poll() is None:
            daemon.kill()


@pytest.fixture(scope="session")
def connect() -> Callable[..., DaemonConnections]:
    """Connects to one daemon or several, with these settings."""

    def connect(endpoint: str | Sequence[str], **settings: object) -> DaemonConnections:
        where = {"endpoint": endpoint} if isinstance(endpoint, str) else {"endpoints": endpoint}
        given = {"batch_size": 8, "seed": 0, "streams": 2, "timeout_s": 10, "warm_bytes": 0} | where | settings
        return DaemonConnections(StreamSettings(**given))  # type: ignore[arg-type]

    return connect


@pytest.fixture(scope="session")
def planned() -> Callable[..., EpochPlan]:
    """Plans an epoch over the shards of some connections."""

    def plan(connections: DaemonConnections, epoch: int = 0, batch_size: int = 8, **arguments: object) -> EpochPlan:
        counts = connections.shards.catalog.shard_records
        made = plan_epoch(counts, epoch=epoch, batch_size=batch_size, seed=0, **arguments)  # type: ignore[arg-type]
        return made if connections.settings.order == "strict" else connections.group(made)

    return plan


@pytest.fixture
def false_daemon() -> Callable[..., object]:
    """Makes a daemon that greets rightly, with one shard of 8 records, and answers a Get as the test wants."""
    catalog = ShardCatalog("x", (ServedShard("a", 8, 8, "d"),))

    @contextmanager
    def serve(answer: Callable[[Get], list[bytes]], **greeting: list[bytes]) -> Iterator[str]:
        answers = {Hello: [pack(catalog)], Health: [pack(HealthReport({}))]}
        with zmq.Context() as context, context.socket(zmq.ROUTER) as router:
            router.linger = 0
            port = router.bind_to_random_port("tcp://127.0.0.1")
            stop = threading.Event()

            def run() -> None:
                while not stop.is_set():
                    if router.poll(20):
                        client, data = router.recv_multipart()
                        request = unpack_request(data)
                        said = greeting.get(type(request).__name__.lower()) or answers.get(type(request))
                        router.send_multipart([client, *(said or answer(request))])  # type: ignore[arg-type]

            thread = threading.Thread(target=run)
            thread.start()
            try:
                yield f"tcp://127.0.0.1:{port}"
            finally:
                stop.set()
                thread.join()

    return serve


@pytest.fixture(scope="session")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the keys of one daemon and its client."""
    folder = tmp_path_factory.mktemp("keys") / "made"
    make_keys(folder)
    return folder


@pytest.fixture(scope="session")
def large_shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """64 MiB of records of 100 kB, in four shards; what is in them is noise."""
    return _make_shards(tmp_path_factory.mktemp("large"), shards=4, records=160, size=100_000)


@pytest.fixture(scope="session")
def make_shards() -> Callable[..., Path]:
    """Makes shard folders: of a root, a number of shards, of records in each, and a record's size."""
    return _make_shards


def _make_shards(root: Path, *, shards: int, records: int, size: int) -> Path:
    """Make a shard folder of records that are noise, all of one size; the image begins at byte 20."""
    paths = []
    for number in range(shards):
        table = np.zeros(records, RECORD)
        table["offset"], table["size"] = np.arange(records) * size, size
        table["image"], table["image_size"] = 20, size - 24
        table["id"] = np.arange(records) + number * records
        paths.append(root / f"shard-{number}.tfrecord")
        random = np.random.default_rng(number)
        with paths[-1].open("wb") as file:
            table["checksum"] = [write_record(file, random.bytes(size - 16))[1] for _ in range(records)]
        save_index(paths[-1], table)
    save_manifest(root, key="noise", seed=0, shards=paths)
    return root


@pytest.fixture(scope="module")
def daemon(shards: Path) -> Iterator[DaemonProcess]:
    """One daemon for the tests that only read from it."""
    running = DaemonProcess(shards)
    yield running
    assert running.stop() == 0
