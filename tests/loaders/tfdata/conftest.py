"""A real tf.data service over real shards. These tests run in the environment that has TensorFlow.

tests/integration/test_environments.py runs them there.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from loaders.records.shards.convert import convert
from tests.loaders.small_data import write_samples

if find_spec("tensorflow") is None:
    collect_ignore_glob = ["test_*.py"]

COUNT = 120


class Daemon(NamedTuple):
    process: subprocess.Popen[bytes]
    endpoint: str
    ready: dict[str, Any]


@pytest.fixture(scope="session")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """COUNT samples of 20 kB in a dozen shards."""
    files = [(f"{number:04d}.bin", np.random.default_rng(number).bytes(20_000)) for number in range(COUNT)]
    samples = write_samples(tmp_path_factory.mktemp("files"), files, classes=7)
    return convert(samples, samples.root.with_name("shards"), key="a", shard_bytes=200_000)


@contextmanager
def running(root: Path, *flags: str, inside: Sequence[str] = ()) -> Iterator[Daemon]:
    argv = [*inside, sys.executable, "-m", "loaders.tfdata", "serve", "--until-eof", "--root", str(root)]
    listen = () if "--listen" in flags else ("--listen", "127.0.0.1:0")
    with subprocess.Popen([*argv, *listen, *flags], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None and process.stdout is not None
        try:
            ready = json.loads(process.stdout.readline())
            yield Daemon(process, ready["endpoint"], ready)
        finally:
            process.kill()


@pytest.fixture(scope="session")
def serving() -> Callable[..., AbstractContextManager[Daemon]]:
    """Runs a daemon as long as a `with` statement."""
    return running


@pytest.fixture
def serve() -> Iterator[Callable[..., Daemon]]:
    """Starts a daemon, which ends with the test."""
    with ExitStack() as stack:
        yield lambda root, *flags, **options: stack.enter_context(running(root, *flags, **options))


@pytest.fixture(scope="session")
def served(shards: Path) -> Iterator[Daemon]:
    """A daemon with three workers, which no test may harm; one that stops it has it go on."""
    with running(shards, "--workers", "3") as daemon:
        yield daemon
