"""Whatever becomes of the service, an epoch is whole or ends with an error in time.

tf.data's own client asks again for ever, and the service loses what a worker that dies had begun: known faults of it.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter

import pytest

from loaders import StreamError
from loaders.records.shards.index import ShardSet
from loaders.tfdata import TfDataLoader, elements
from loaders.tfdata.elements import Elements
from loaders.tfdata.tensorflow import load_tensorflow

pytestmark = pytest.mark.process

LIMIT_S = 4.0
SLACK_S = 20.0
EACH_ONCE = Counter(range(120))
OPTIONS = {"batch_size": 2, "seed": 0, "decode": "raw", "shuffle_buffer": 1, "interleave": 1, "timeout_s": LIMIT_S}


def ids_of(batches):
    return Counter(int(sample_id) for batch in batches for sample_id in batch.ids)


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


@pytest.fixture
def stoppable(served):
    """The daemon, which goes on after the test."""
    yield served
    served.process.send_signal(signal.SIGCONT)


@pytest.mark.parametrize("when", ["before the epoch", "in the epoch"])
def test_a_daemon_that_is_silent_is_an_error_in_time_and_serves_again_when_it_goes_on(stoppable, when):
    with TfDataLoader(endpoint=stoppable.endpoint, **OPTIONS) as loader:
        epoch = loader.epoch(0)
        if when == "in the epoch":
            next(epoch)
        stoppable.process.send_signal(signal.SIGSTOP)
        began = time.monotonic()
        with pytest.raises(StreamError, match=f"{stoppable.endpoint}: no batch within 4 s"):
            list(epoch)
        assert time.monotonic() - began < LIMIT_S + 4
        with pytest.raises(StreamError, match="no answer within 4 s; start"):
            next(loader.epoch(0))
        stoppable.process.send_signal(signal.SIGCONT)
        assert ids_of(loader.epoch(0)) == EACH_ONCE


def test_a_daemon_that_stops_for_less_than_the_limit_costs_no_record(stoppable):
    with TfDataLoader(endpoint=stoppable.endpoint, **OPTIONS | {"timeout_s": 20}) as loader:
        epoch = loader.epoch(0)
        first = next(epoch)
        stoppable.process.send_signal(signal.SIGSTOP)
        goes_on = threading.Timer(2, stoppable.process.send_signal, [signal.SIGCONT])
        goes_on.start()
        assert ids_of([first, *epoch]) == EACH_ONCE
        goes_on.join()


def test_a_process_whose_daemon_is_silent_ends(stoppable):
    script = (
        "import os, signal, sys\n"
        "from loaders.tfdata import TfDataLoader\n"
        f"epoch = TfDataLoader(endpoint={stoppable.endpoint!r}, **{OPTIONS!r}).epoch(0)\n"
        f"next(epoch); os.kill({stoppable.process.pid}, signal.SIGSTOP); list(epoch)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 1 and "no batch within 4 s" in done.stderr


def test_a_killed_daemon_is_an_error_in_time_and_the_loaders_go_on_with_one_that_is_started_again(serve, shards):
    daemon = serve(shards, "--workers", "2")
    gone = f"{daemon.endpoint}: nothing listens at 127.0.0.1:.*start `python -m loaders.tfdata serve` again"
    with (
        TfDataLoader(endpoint=daemon.endpoint, **OPTIONS) as waiting,
        TfDataLoader(endpoint=daemon.endpoint, **OPTIONS) as reading,
    ):
        epoch = reading.epoch(0)
        next(epoch)
        daemon.process.kill()
        daemon.process.wait()
        for rest in (epoch, waiting.epoch(0)):
            began = time.monotonic()
            with pytest.raises(StreamError, match=gone):
                list(rest)
            assert time.monotonic() - began < LIMIT_S + 4
        with pytest.raises(StreamError, match=f"{daemon.endpoint}: Connection refused; start"):
            next(reading.epoch(0))
        serve(shards, "--listen", daemon.endpoint.removeprefix("grpc://"))
        for loader in (reading, waiting):
            assert ids_of(loader.epoch(0)) == EACH_ONCE


def test_an_element_that_arrives_while_servers_are_probed_is_handed_over(monkeypatch):
    probed, tensorflow = threading.Event(), load_tensorflow()

    def probe(_):
        probed.set()
        deadline = time.monotonic() + SLACK_S
        while not found._ready and time.monotonic() < deadline:
            time.sleep(0.01)
        return True

    def open_dataset():
        assert probed.wait(SLACK_S)
        return tensorflow.data.Dataset.from_tensors(7)

    monkeypatch.setattr(elements, "is_refused", probe)
    with Elements("grpc://here:1", [("here", 1)], open_dataset, 2 * SLACK_S, "") as found:
        assert found.next(wait=True) == [7]
        with pytest.raises(StopIteration):
            found.next(wait=True)


def test_a_killed_worker_loses_records_and_the_loader_says_so_in_time(serve, shards):
    """A known fault of tf.data service: what a dead worker had begun is read by no other."""
    found = enumerate(ShardSet.open(shards).shards)
    shard_of = {sample_id: number for number, shard in found for sample_id in shard.records["id"].tolist()}
    sizes = Counter(shard_of.values())
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
            epoch, seen = loader.epoch(0), Counter()
            # Each worker reads one shard at a time: of two that are not whole, the other worker has one.
            while sum(0 < seen[shard] < records for shard, records in sizes.items()) < 2:
                seen.update(shard_of[sample_id] for sample_id in next(epoch).ids.tolist())
                time.sleep(0.1)
            os.kill(worker.pid, signal.SIGKILL)
            with pytest.raises(StreamError, match=r"no batch within 4 s .*; \d+ of 120 records are missing"):
                list(epoch)
            assert ids_of(loader.epoch(1)) == EACH_ONCE
