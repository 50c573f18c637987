"""A storage node that can be reached no more, in a network namespace of its own."""

from __future__ import annotations

import os
import shutil
import subprocess
import threading
import time
from collections import Counter

import pytest

from loaders import StreamError
from loaders.tfdata import TfDataLoader

pytestmark = [
    pytest.mark.process,
    pytest.mark.root,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root for network namespaces"),
    pytest.mark.skipif(shutil.which("ip") is None, reason="needs iproute2"),
]

NODE, LINK = f"jf-tfdata{os.getpid():x}", f"jft{os.getpid():x}"
HERE, THERE = (f"10.213.{os.getpid() % 256}.{host}" for host in (1, 2))
LIMIT_S = 8.0


def ip(*words):
    subprocess.run(["ip", *words], check=True)


@pytest.fixture
def node():
    """A network namespace that a link of 0 ms joins with this one."""
    ip("netns", "add", NODE)
    try:
        ip("link", "add", LINK, "type", "veth", "peer", "name", "data", "netns", NODE)
        ip("address", "add", f"{HERE}/30", "dev", LINK)
        ip("link", "set", LINK, "up")
        ip("-n", NODE, "address", "add", f"{THERE}/30", "dev", "data")
        for name in ("lo", "data"):
            ip("-n", NODE, "link", "set", name, "up")
        yield ["nsenter", f"--net=/run/netns/{NODE}"]
    finally:
        ip("netns", "delete", NODE)


def test_a_node_that_is_away_for_a_while_costs_no_record_and_one_that_stays_away_is_an_error_in_time(
    serve, shards, node
):
    daemon = serve(shards, "--listen", f"{THERE}:0", "--no-auth", "--workers", "4", inside=node)
    answers = ["-n", NODE, "route"]
    options = {"batch_size": 2, "seed": 0, "decode": "raw", "timeout_s": LIMIT_S}
    with TfDataLoader(endpoint=daemon.endpoint, **options) as loader:
        epoch = loader.epoch(0)
        seen = Counter(next(epoch).ids.tolist())
        ip(*answers, "add", "blackhole", f"{HERE}/32")
        back = threading.Timer(1, ip, [*answers, "delete", "blackhole", f"{HERE}/32"])
        back.start()
        seen.update(sample_id for batch in epoch for sample_id in batch.ids.tolist())
        assert seen == Counter(range(daemon.ready["samples"]))
        back.join()
        epoch = loader.epoch(1)
        next(epoch)
        ip(*answers, "add", "blackhole", f"{HERE}/32")
        began = time.monotonic()
        with pytest.raises(StreamError, match=f"{daemon.endpoint}: no batch within 8 s .*the link is down"):
            list(epoch)
        loader.close()
        assert time.monotonic() - began < LIMIT_S + 8
