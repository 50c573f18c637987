"""Whatever becomes of the service, an epoch is whole or ends with an error in time.

tf.data's own client asks again for ever, and the service loses what a worker that dies had begun: known faults of it.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time

import pytest

from loaders import StreamError
from loaders.records.shards.index import ShardSet
from loaders.tfdata import TfDataLoader

pytestmark = pytest.mark.process

LIMIT_S = 4.0
OPTIONS = {"batch_size": 2, "seed": 0, "decode": "raw", "shuffle_buffer": 1, "interleave": 1, "timeout_s": LIMIT_S}


def test_a_dispatcher_that_is_down_at_the_start_is_named_at_once():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    began = time.monotonic()
    with pytest.raises(StreamError, match=f"grpc://127.0.0.1:{port}: Connection refused; start .*tfdata serve"):
        TfDataLoader(endpoint=f"grpc://127.0.0.1:{port}", **OPTIONS)
    assert time.monotonic() - began < LIMIT_S


@pytest.mark.parametrize(("answer", "reason"), [(b"", "no answer within 4 s"), (b"HTTP/1.1 400", "is no gRPC server")])
def test_an_endpoint_of_something_else_is_refused(answer, reason):
    with socket.create_server(("127.0.0.1", 0)) as other:
        other.settimeout(10)
        script = (
            "import socket, sys; connection, _ = socket.socket(fileno=int(sys.argv[1])).accept(); "
            "connection.send(sys.argv[2].encode()); sys.stdin.read()"
        )
        argv = [sys.executable, "-c", script, str(other.fileno()), answer.decode()]
        with subprocess.Popen(argv, stdin=subprocess.PIPE, pass_fds=[other.fileno()]) as process:
            with pytest.raises(StreamError, match=reason):
                TfDataLoader(endpoint=f"grpc://127.0.0.1:{other.getsockname()[1]}", **OPTIONS)
            process.kill()


def test_a_dispatcher_of_something_else_is_refused():
    script = (
        "import sys, tensorflow as tf\n"
        "server = tf.data.experimental.service.DispatchServer()\n"
        "print(server.target.rpartition(':')[2], flush=True); sys.stdin.read()"
    )
    with subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        port = int(process.stdout.readline())
        with pytest.raises(StreamError, match=r"tf.data service: NotFoundError: .*joulefeed-catalog"):
            TfDataLoader(endpoint=f"grpc://127.0.0.1:{port}", **OPTIONS)
        process.kill()


@pytest.mark.parametrize("when", ["before the epoch", "in the epoch"])
@pytest.mark.parametrize(
    ("how", "message"), [(signal.SIGKILL, "nothing listens at 127.0.0.1:"), (signal.SIGSTOP, "no batch within 4 s")]
)
def test_a_daemon_that_is_gone_or_silent_is_an_error_in_time(serve, shards, when, how, message):
    daemon = serve(shards, "--workers", "2")
    with TfDataLoader(endpoint=daemon.endpoint, **OPTIONS) as loader:
        epoch = loader.epoch(0)
        if when == "in the epoch":
            next(epoch)
        daemon.process.send_signal(how)
        began = time.monotonic()
        with pytest.raises(StreamError, match=f"{daemon.endpoint}: {message}"):
            list(epoch)
        loader.close()
        assert time.monotonic() - began < LIMIT_S + 8


def test_a_process_whose_daemon_is_silent_ends(serve, shards):
    daemon = serve(shards)
    script = (
        "import os, signal, sys\n"
        "from loaders.tfdata import TfDataLoader\n"
        f"epoch = TfDataLoader(endpoint={daemon.endpoint!r}, **{OPTIONS!r}).epoch(0)\n"
        f"next(epoch); os.kill({daemon.process.pid}, signal.SIGSTOP); list(epoch)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 1 and "no batch within 4 s" in done.stderr


def test_a_daemon_that_is_started_again_serves_the_epoch_again(serve, shards):
    daemon = serve(shards)
    with TfDataLoader(endpoint=daemon.endpoint, **OPTIONS) as loader:
        epoch = loader.epoch(0)
        next(epoch)
        daemon.process.kill()
        daemon.process.wait()
        with pytest.raises(StreamError, match=r"start `python -m loaders.tfdata serve` again"):
            list(epoch)
    again = serve(shards, "--listen", daemon.endpoint.removeprefix("grpc://"))
    with TfDataLoader(endpoint=again.endpoint, **OPTIONS) as loader:
        assert sum(map(len, loader.epoch(0))) == daemon.ready["samples"]


def test_a_killed_worker_loses_records_and_the_loader_says_so_in_time(serve, shards):
    """A known fault of tf.data service: what a dead worker had begun is read by no other."""
    daemon = serve(shards)
    script = (
        "import sys, tensorflow as tf\n"
        "service = tf.data.experimental.service\n"
        "worker = service.WorkerServer(service.WorkerConfig(sys.argv[1]))\n"
        "print('ready', flush=True); sys.stdin.read()"
    )
    argv = [sys.executable, "-c", script, daemon.endpoint.removeprefix("grpc://")]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as worker:
        assert worker.stdout.readline() == b"ready\n"
        with TfDataLoader(endpoint=daemon.endpoint, **OPTIONS) as loader:
            epoch = loader.epoch(0)
            seen = [len(next(epoch)) for _ in range(4)]
            os.kill(worker.pid, signal.SIGKILL)
            with pytest.raises(StreamError, match=r"no batch within 4 s .*; \d+ of 120 records are missing"):
                seen += map(len, epoch)
            assert sum(seen) < daemon.ready["samples"]


def test_a_damaged_record_is_named_by_its_shard(serve, shards, tmp_path):
    root = tmp_path / "copy"
    root.mkdir()
    for path in shards.iterdir():
        (root / path.name).write_bytes(path.read_bytes())
    victim = ShardSet.open(root).shards[3]
    daemon = serve(root)
    with victim.path.open("r+b") as file:
        file.seek(int(victim.records["offset"][2] + victim.records["image"][2]) + 99)
        file.write(b"damage")
    with (
        TfDataLoader(endpoint=daemon.endpoint, **OPTIONS) as loader,
        pytest.raises(StreamError, match=r"DataLossError: .*corrupted record"),
    ):
        list(loader.epoch(0))
