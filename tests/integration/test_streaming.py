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
from harness.errors import TestbedError
from harness.testbed.link import COMPUTE_ADDRESS, STORAGE_ADDRESS, Link, open_link
from loaders.base import Samples
from loaders.records.shards.convert import convert

pytestmark = [
    pytest.mark.process,
    pytest.mark.root,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root for network namespaces"),
    pytest.mark.skipif(shutil.which("ip") is None, reason="needs iproute2"),
]

SAMPLES = 200
STORAGE, COMPUTE = (f"jf-test{os.getpid():x}-{role}" for role in ("storage", "compute"))

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


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("tree")
    random = np.random.default_rng(0)
    paths = tuple(f"{index}.bin" for index in range(SAMPLES))
    for path in paths:
        (root / path).write_bytes(random.bytes(50_000))
    samples = Samples(root, paths, np.zeros(SAMPLES, np.int64), np.full(SAMPLES, 50_000))
    return convert(samples, root / "shards", key="a", shard_bytes=3_000_000)


@pytest.fixture(scope="module")
def link() -> Iterator[Link]:
    for name in (STORAGE, COMPUTE):
        subprocess.run(["ip", "netns", "add", name], check=True)
    try:
        try:
            opened = open_link(f"/run/netns/{STORAGE}", f"/run/netns/{COMPUTE}")
        except TestbedError as error:
            pytest.skip(str(error))
        with opened:
            yield opened
    finally:
        for name in (STORAGE, COMPUTE):
            subprocess.run(["ip", "netns", "del", name], check=True)


@pytest.fixture
def endpoint(shards: Path, link: Link) -> Iterator[str]:
    link.set(Regime(name="wan_30ms", rtt_ms=30, rate_gbit=1))
    serve = [sys.executable, "-m", "loaders.streaming", "serve", "--root", str(shards), "--until-eof"]
    with subprocess.Popen(
        ["nsenter", f"--net=/run/netns/{STORAGE}", *serve, "--listen", f"{STORAGE_ADDRESS}:0", "--no-auth"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as daemon:
        assert daemon.stdout is not None
        yield json.loads(daemon.stdout.readline())["endpoint"]
        daemon.communicate(timeout=10)
    assert daemon.returncode == 0


@pytest.fixture
def epoch(endpoint: str) -> Iterator[subprocess.Popen[str]]:
    """A client that stops after forty samples until it is told to go on."""
    with subprocess.Popen(
        ["nsenter", f"--net=/run/netns/{COMPUTE}", sys.executable, "-c", EPOCH, endpoint],
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


def test_an_epoch_over_a_far_link_brings_every_sample_once(epoch: subprocess.Popen[str], link: Link) -> None:
    assert _hear(epoch) == "connected"
    before = link.counters().bytes
    assert _hear(epoch) == "forty"
    output, _ = epoch.communicate("go\n", timeout=60)
    assert json.loads(output) == list(range(SAMPLES))
    carried = link.counters().bytes - before
    assert SAMPLES * 50_000 < carried < 1.2 * SAMPLES * 50_000


def test_a_link_that_is_down_for_a_while_costs_no_sample(epoch: subprocess.Popen[str], link: Link) -> None:
    assert [_hear(epoch), _hear(epoch)] == ["connected", "forty"]
    assert epoch.stdin is not None
    unreachable = ["ip", "-n", STORAGE, "route"]
    subprocess.run([*unreachable, "add", "blackhole", f"{COMPUTE_ADDRESS}/32"], check=True)
    epoch.stdin.write("go\n")
    epoch.stdin.flush()
    up = threading.Timer(2, subprocess.run, [[*unreachable, "del", "blackhole", f"{COMPUTE_ADDRESS}/32"]])
    up.start()
    assert json.loads(_hear(epoch)) == list(range(SAMPLES))
    up.join()
