"""MDS shards in a real object store, which tests may kill, stop and damage."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from obstore.store import S3Store

from harness.run.prepare import python_of
from loaders.mosaic import MosaicLoader
from loaders.mosaic.keys import load_keys, make_keys
from loaders.mosaic.object_store import ObjectServer
from loaders.mosaic.options import BUCKET, PREFIX, REGION
from loaders.records.shards.convert import convert
from tests.loaders.small_data import write_samples

COUNT, SIZE = 60, 400_000
"""Six shards, which have 4 MiB each at least."""


@dataclass
class Store:
    """A MinIO that can be killed and started again on what it had."""

    keys: Path
    folder: Path
    server: ObjectServer

    @property
    def endpoint(self) -> str:
        return f"s3://{BUCKET}/{PREFIX}?endpoint={self.server.endpoint}"

    @property
    def host(self) -> str:
        """As errors name it."""
        return f"object store 127.0.0.1:{self.server.port}"

    @property
    def objects(self) -> S3Store:
        """The objects below the prefix, to read and to damage."""
        keys = load_keys(self.keys)
        secret = {"access_key_id": keys.access_key, "secret_access_key": keys.secret_key}
        options = {"allow_http": True, "timeout": "10s"}
        return S3Store(
            BUCKET, prefix=PREFIX, endpoint=self.server.endpoint, region=REGION, client_options=options, **secret
        )

    def signal(self, number: int) -> None:
        os.killpg(self.server.pid, number)

    def kill(self) -> None:
        started = psutil.Process(self.server.pid).children(recursive=True)
        self.signal(signal.SIGKILL)
        self.server.close()
        psutil.wait_procs(started, timeout=30)

    def restart(self) -> None:
        self.server = ObjectServer(load_keys(self.keys), self.folder, port=self.server.port)

    def load(self, **options: Any) -> MosaicLoader:
        """Return a loader that reads shard after shard, and asks for one when it needs it."""
        given: dict[str, Any] = {
            "batch_size": 2,
            "seed": 0,
            "decode": "raw",
            "python": python_of("mosaic"),
            "keys": self.keys,
            "shuffle": False,
            "num_workers": 1,
            "predownload": 1,
        }
        return MosaicLoader(endpoint=self.endpoint, **(given | options))


@pytest.fixture(scope="session")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """COUNT samples of SIZE bytes, which are those of `numpy.random.default_rng(id)`."""
    files = [(f"{number:04d}.bin", np.random.default_rng(number).bytes(SIZE)) for number in range(COUNT)]
    samples = write_samples(tmp_path_factory.mktemp("files"), files, classes=7)
    return convert(samples, samples.root.with_name("shards"), key="a")


@pytest.fixture(scope="session")
def prepared(shards: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the daemon serves of them."""
    folder = tmp_path_factory.mktemp("mds")
    argv = [python_of("mosaic"), "-m", "loaders.mosaic", "prepare", "--root", shards, "--out", folder]
    subprocess.run(argv, stdout=subprocess.DEVNULL, check=True)
    return folder


def _start(prepared: Path, folder: Path) -> Store:
    keys, _ = make_keys(folder / "keys")
    objects = shutil.copytree(prepared, folder / "objects")
    return Store(keys, objects, ObjectServer(load_keys(keys), objects))


@pytest.fixture(scope="session")
def store(prepared: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    """A store that no test may harm."""
    made = _start(prepared, tmp_path_factory.mktemp("store"))
    yield made
    made.server.close()


@pytest.fixture
def own_store(prepared: Path, tmp_path: Path) -> Iterator[Store]:
    """A store of one test."""
    made = _start(prepared, tmp_path)
    yield made
    made.server.close()


@pytest.fixture
def traces(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[set[int]], list[Path]]]:
    """List the temporary folders of this test's readers, and the shared memory of those with these process ids."""

    def find(pids: set[int]) -> list[Path]:
        memory = [path for pid in pids for path in Path("/dev/shm").glob(f"*mosaic-{pid}-*")]
        return [*Path(folder).iterdir(), *memory]

    with tempfile.TemporaryDirectory() as folder:  # tmp_path is too long for the sockets of workers
        monkeypatch.setenv("TMPDIR", folder)
        monkeypatch.setattr(tempfile, "tempdir", folder)
        yield find
