"""A real object store with shards in it, and daemons that serve them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from loaders.shared.objects.address import ObjectAddress
from loaders.shared.objects.bucket import Bucket
from loaders.shared.objects.keys import load_keys, make_keys
from loaders.shared.objects.server import ObjectServer
from loaders.streaming.loader import StreamingLoader
from loaders.streaming.objects.upload import upload
from loaders.streaming.receiver.session import health

RECORDS, SHARDS, SIZE = 40, 4, 100_000
BUCKET = "shards"


@dataclass
class Store:
    """A MinIO that can be killed and started again on what it had."""

    keys: Path
    folder: Path
    server: ObjectServer
    prefixes: int = 0

    def restart(self) -> None:
        self.server = ObjectServer(load_keys(self.keys), port=self.server.port, folder=self.folder)

    def kill(self) -> None:
        os.killpg(self.server.pid, signal.SIGKILL)
        self.server.close()

    def bucket(self, prefix: str) -> Bucket:
        address = ObjectAddress.parse(f"s3://{BUCKET}/{prefix}", self.server.endpoint)
        return Bucket(address, load_keys(self.keys), timeout_s=5)

    def add(self, shards: Path) -> str:
        """Upload a shard folder to a prefix of its own, and return that."""
        self.prefixes += 1
        prefix = f"set/{self.prefixes}"
        upload(shards, self.bucket(prefix))
        return prefix

    def options(self, cache: Path, *more: str) -> list[str]:
        """Return the options of a daemon, for a small cache."""
        given = {"--s3-endpoint": self.server.endpoint, "--s3-keys": self.keys, "--cache": cache}
        return [*(str(word) for pair in given.items() for word in pair), *more]


def _make_store(folder: Path) -> Store:
    keys, _ = make_keys(folder / "keys")
    server = ObjectServer(load_keys(keys), folder=folder / "objects")
    server.make_bucket(BUCKET)
    return Store(keys, folder / "objects", server)


@pytest.fixture(scope="session")
def shards(make_shards: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Noise, 16 MB of it."""
    return make_shards(tmp_path_factory.mktemp("noise"), shards=SHARDS, records=RECORDS, size=SIZE)


@pytest.fixture(scope="session")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    """A store that stays up."""
    made = _make_store(tmp_path_factory.mktemp("store"))
    yield made
    made.server.close()


@pytest.fixture
def own_store(tmp_path: Path) -> Iterator[Store]:
    """A store of one test, which may end it."""
    made = _make_store(tmp_path)
    yield made
    made.server.close()


@pytest.fixture
def start_serving(start_daemon: Callable[..., Any], tmp_path: Path) -> Callable[..., Any]:
    """Start a daemon that serves a prefix of a store."""

    def start(store: Store, prefix: str, *more: str, cache: Path = tmp_path / "cache") -> Any:
        root = f"s3://{BUCKET}/{prefix}"
        return start_daemon(root, options=store.options(cache, *more), log=tmp_path / "log")

    return start


@pytest.fixture
def fail_to_serve(tmp_path: Path) -> Callable[..., str]:
    """Run a daemon that does not start, and return the line that says why."""

    def fail(store: Store, prefix: str, *more: str) -> str:
        argv = ["serve", "--root", f"s3://{BUCKET}/{prefix}", "--listen", "127.0.0.1:0"]
        done = subprocess.run(
            [sys.executable, "-m", "loaders.streaming", *argv, *store.options(tmp_path / "cache", *more)],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 2, done.stderr
        return done.stderr.splitlines()[-1]

    return fail


@pytest.fixture
def open_loader() -> Callable[..., StreamingLoader]:
    """Open a loader of raw bytes that checks every record."""

    def opened(daemon: Any, **changed: Any) -> StreamingLoader:
        given = {"decode": "raw", "batch_size": 16, "seed": 0, "verify": True, "timeout_s": 20.0, "order": "strict"}
        return StreamingLoader(endpoint=daemon.endpoint, **given | changed)

    return opened


@pytest.fixture
def report() -> Callable[..., dict[str, Any]]:
    """Return a daemon's health."""
    return lambda daemon: json.loads(json.dumps(health(daemon.endpoint, timeout_s=10)))
