"""The daemon listens on its address alone and ends when it is told to; its clients get every record once."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections import Counter

import numpy as np
import psutil
import pytest

from loaders import LoaderConfigError
from loaders.records.shards.index import ShardSet
from loaders.tfdata import TfDataLoader

pytestmark = pytest.mark.process


def test_every_server_listens_on_the_address_alone(serve, shards):
    daemon = serve(shards, "--listen", "127.0.0.7:0", "--no-auth", "--workers", "2")
    connections = psutil.Process(daemon.process.pid).net_connections("tcp")
    heard = [each.laddr for each in connections if each.status == psutil.CONN_LISTEN]
    assert len(heard) == 3
    assert {address.ip.removeprefix("::ffff:") for address in heard} == {"127.0.0.7"}
    assert all(worker.startswith("127.0.0.7:") for worker in daemon.ready["workers"])
    with TfDataLoader(endpoint=daemon.endpoint, batch_size=50, seed=0, decode="raw") as loader:
        assert sum(map(len, loader.epoch(0))) == daemon.ready["samples"]


def test_the_users_own_environment_neither_stops_a_daemon_nor_is_lost(serve, shards, monkeypatch):
    monkeypatch.setenv("TFDATA_LISTEN_HOST", "127.0.0.7")
    serve(shards, "--listen", "127.0.0.7:0", "--no-auth")
    shown = (
        "import os; from loaders.tfdata.server import confine; confine('127.0.0.7'); print(os.environ['LD_PRELOAD'])"
    )
    monkeypatch.setenv("LD_PRELOAD", "/proc/self/fd/9:/lib/own.so")
    done = subprocess.run([sys.executable, "-c", shown], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "/lib/own.so\n"


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--listen", "0.0.0.0:0"], "--listen 0.0.0.0:0: expected one address"),
        (["--listen", "192.0.2.1:0"], "--no-auth where the network is trusted"),
        (["--listen", "192.0.2.1:0", "--no-auth"], "192.0.2.1:0 cannot be listened on"),
        (["--listen", "127.0.0.1:0", "--workers", "0"], "--workers 0: expected greater than or equal to 1"),
        (["--listen", "127.0.0.1:0", "--root", "/nowhere"], "/nowhere is not a shard folder"),
    ],
)
def test_what_cannot_be_served_is_refused_in_one_line(shards, flags, message):
    argv = [sys.executable, "-m", "loaders.tfdata", "serve", "--root", str(shards), *flags]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=60)
    (said,) = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert done.returncode == 2 and message in said


def test_a_port_of_another_daemon_is_refused(served, shards):
    address = served.endpoint.removeprefix("grpc://")
    argv = [sys.executable, "-m", "loaders.tfdata", "serve", "--root", str(shards), "--listen", address]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 2 and f"{address} cannot be listened on" in done.stderr


@pytest.mark.parametrize("how", ["end of input", signal.SIGTERM, signal.SIGINT])
def test_a_daemon_ends_in_mid_epoch_when_it_is_told_to(serve, shards, how):
    daemon = serve(shards)
    with TfDataLoader(endpoint=daemon.endpoint, batch_size=4, seed=0, decode="raw") as loader:
        next(loader.epoch(0))
        if how == "end of input":
            daemon.process.stdin.close()
        else:
            daemon.process.send_signal(how)
        assert daemon.process.wait(10) == 0


@pytest.fixture
def single(serve, shards):
    return serve(shards)


@pytest.mark.parametrize("daemon", ["single", "served"])
def test_records_are_those_of_the_shards_and_an_epoch_has_each_once(request, daemon, shards):
    known = [int(sample_id) for shard in ShardSet.open(shards).shards for sample_id in shard.records["id"]]
    endpoint = request.getfixturevalue(daemon).endpoint
    orders = []
    with TfDataLoader(endpoint=endpoint, batch_size=9, seed=1, decode="raw", shuffle_buffer=16) as loader:
        for epoch in (0, 1, 0):
            orders.append([])
            for batch in loader.epoch(epoch):
                for sample_id, image in zip(batch.ids.tolist(), batch.images(), strict=True):
                    assert bytes(image) == np.random.default_rng(sample_id).bytes(20_000)
                    assert len(batch) == 9 or len(orders[-1]) >= len(known) // 9 * 9
                    orders[-1].append(sample_id)
            assert Counter(orders[-1]) == Counter(known)
    assert orders[0] != orders[1]
    if daemon == "single":
        assert orders[0] == orders[2]


def test_batches_of_several_workers_come_in_another_order_every_time(served):
    """A known fault of tf.data service: several workers are read in the order of their answers."""
    orders = set()
    with TfDataLoader(endpoint=served.endpoint, batch_size=2, seed=1, decode="raw") as loader:
        assert any("another one in every run" in note for note in loader.notes)
        while len(orders) < 2:
            orders.add(tuple(int(sample_id) for batch in loader.epoch(0) for sample_id in batch.ids))


def test_ranks_of_a_service_with_several_workers_share_an_epoch(served):
    seen = Counter()
    for rank in range(4):
        with TfDataLoader(
            endpoint=served.endpoint, batch_size=7, seed=3, decode="raw", rank=rank, world_size=4, remainder="uneven"
        ) as loader:
            seen.update(int(sample_id) for batch in loader.epoch(2) for sample_id in batch.ids)
    assert seen == Counter(range(served.ready["samples"]))


def test_a_limit_ends_an_epoch(served):
    with TfDataLoader(endpoint=served.endpoint, batch_size=8, seed=0, decode="raw", limit=21) as loader:
        assert sorted(map(len, loader.epoch(0))) == [5, 8, 8]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"endpoint": "tcp://127.0.0.1:5"}, "expected grpc://HOST:PORT"),
        ({"shuffle_buffer": 0}, "shuffle_buffer=0"),
        ({"max_outstanding_requests": 0}, "max_outstanding_requests=0"),
        ({"timeout_s": 0}, "timeout_s=0"),
    ],
)
def test_a_wrong_argument_is_refused_by_name(wrong, message):
    with pytest.raises(LoaderConfigError, match=message):
        TfDataLoader(**{"endpoint": "grpc://127.0.0.1:1", "batch_size": 4, "seed": 0, **wrong})
