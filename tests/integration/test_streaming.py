"""The streaming service between two namespaces, over an emulated link."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from harness.config.regime import Regime
from harness.testbed.link import COMPUTE_ADDRESS, STORAGE_ADDRESS, Link, open_link
from loaders.base import Samples
from loaders.records.shards.convert import convert
from tests.integration.runs import two_namespaces

pytestmark = [
    pytest.mark.process,
    pytest.mark.root,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root for network namespaces"),
    pytest.mark.skipif(shutil.which("ip") is None, reason="needs iproute2"),
]

SAMPLES = 200

EPOCH = """
import sys, json
from loaders.streaming import StreamingLoader
with StreamingLoader(endpoint=sys.argv[1], batch_size=4, seed=0, decode="raw", timeout_s=20, prefetch_batches=4,
                     warm_bytes=2**20) as loader:
    print("connected", flush=True)
    ids = []
    for batch in loader.epoch(0):
        ids += batch.ids.tolist()
        if len(ids) == 40:
            print("forty", flush=True)
            sys.stdin.readline()
    print(json.dumps(sorted(ids)))
"""


@pytest.fixture
def shards(tmp_path: Path) -> Path:
    random = np.random.default_rng(0)
    paths = tuple(f"{index}.bin" for index in range(SAMPLES))
    for path in paths:
        (tmp_path / path).write_bytes(random.bytes(50_000))
    samples = Samples(tmp_path, paths, np.zeros(SAMPLES, np.int64), np.full(SAMPLES, 50_000))
    return convert(samples, tmp_path / "shards", key="a", shard_bytes=3_000_000)


@pytest.fixture
def namespaces() -> Iterator[tuple[str, str]]:
    with two_namespaces() as made:
        yield made


@pytest.fixture
def link(namespaces: tuple[str, str]) -> Iterator[Link]:
    with open_link(*namespaces) as opened:
        opened.set(Regime(name="wan_30ms", rtt_ms=30, rate_gbit=1))
        yield opened


@pytest.fixture
def endpoint(shards: Path, namespaces: tuple[str, str], link: Link) -> Iterator[str]:
    serve = [sys.executable, "-m", "loaders.streaming", "serve", "--root", str(shards), "--until-eof"]
    with subprocess.Popen(
        ["nsenter", f"--net={namespaces[0]}", *serve, "--listen", f"{STORAGE_ADDRESS}:0", "--no-auth"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as daemon:
        assert daemon.stdout is not None
        yield json.loads(daemon.stdout.readline())["endpoint"]
        daemon.communicate(timeout=10)
    assert daemon.returncode == 0


@pytest.fixture
def epoch(endpoint: str, namespaces: tuple[str, str]) -> Iterator[subprocess.Popen[str]]:
    """A client that stops after forty samples until it is told to go on."""
    with subprocess.Popen(
        ["nsenter", f"--net={namespaces[1]}", sys.executable, "-c", EPOCH, endpoint],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as client:
        try:
            yield client
        finally:
            client.kill()


def _hear(client: subprocess.Popen[str]) -> str:
    assert client.stdout is not None
    return client.stdout.readline().strip()


def test_an_epoch_over_a_far_link_that_is_down_for_a_while_brings_every_sample_once(
    epoch: subprocess.Popen[str], namespaces: tuple[str, str], link: Link
) -> None:
    assert _hear(epoch) == "connected"
    before = link.counters().bytes
    assert _hear(epoch) == "forty"
    unreachable = ["ip", "-n", Path(namespaces[0]).name, "route"]
    subprocess.run([*unreachable, "add", "blackhole", f"{COMPUTE_ADDRESS}/32"], check=True)
    assert epoch.stdin is not None
    epoch.stdin.write("go\n")
    epoch.stdin.flush()
    up = threading.Timer(1, subprocess.run, [[*unreachable, "del", "blackhole", f"{COMPUTE_ADDRESS}/32"]])
    up.start()
    assert json.loads(_hear(epoch)) == list(range(SAMPLES))
    up.join()
    # What was under way when the link went down may come twice.
    assert SAMPLES * 50_000 < link.counters().bytes - before < 1.5 * SAMPLES * 50_000
