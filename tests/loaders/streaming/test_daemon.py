from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
import zmq

from loaders.base import Samples
from loaders.errors import LoaderConfigError
from loaders.records.planner import Slice
from loaders.records.shards.convert import convert
from loaders.records.shards.index import MANIFEST, index_path
from loaders.shared.daemon.flags import add_flags, flags, read_flags
from loaders.streaming.protocol import Get, Hello, Refusal, ShardCatalog, pack, unpack_answer
from loaders.streaming.receiver.fetch import BatchFetch
from loaders.streaming.receiver.remote_daemon import health
from loaders.streaming.settings import DaemonOptions

pytestmark = pytest.mark.process

SERVE = [sys.executable, "-m", "loaders.streaming", "serve"]


def _refused(*arguments: str, prefix: Sequence[str] = ()) -> str:
    done = subprocess.run([*prefix, *SERVE, *arguments], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2 and done.stdout == ""
    (line,) = done.stderr.splitlines()
    return line


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--root", "/gone"], "error: /gone "),
        *(
            (["--listen", listen], f"--listen {listen}")
            for listen in ("127.0.0.1", ":5000", "127.0.0.1:x", "127.0.0.1:70000", "no.such.host.invalid:0")
        ),
        (["--listen", "[127.0.0.1:0"], "--listen [127.0.0.1:0"),
        (["--listen", "127.0.0.1:\u0663"], "--listen 127.0.0.1:\u0663"),
        (["--keys", "missing"], "missing/daemon.secret cannot be read"),
        (["--rtt-ms", "30"], "--bandwidth-gbit and --rtt-ms belong together"),
        (["--rtt-ms", "0", "--bandwidth-gbit", "1"], "more than 0"),
        (["--rtt-ms", "inf", "--bandwidth-gbit", "1"], "expected less than"),
        (["--events", "/proc/none/events"], "events cannot be written to /proc/none/events"),
    ],
)
def test_arguments_that_do_not_fit_are_one_line_and_status_2(shards: Path, arguments: list[str], said: str) -> None:
    assert said in _refused("--root", str(shards), "--listen", "127.0.0.1:0", *arguments)


def test_a_taken_port_and_too_few_descriptors_are_one_line_and_status_2(shards: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        assert address in _refused("--root", str(shards), "--listen", address)
    few = _refused("--root", str(shards), "--listen", "127.0.0.1:0", prefix=["prlimit", "--nofile=40"])
    assert "descriptors" in few


def test_a_daemon_that_nobody_waits_for_any_more_ends_without_a_word(shards: Path) -> None:
    read_end, write_end = os.pipe()
    os.close(read_end)
    try:
        done = subprocess.run(
            [*SERVE, "--root", str(shards), "--listen", "127.0.0.1:0", "--until-eof"],
            stdin=subprocess.DEVNULL,
            stdout=write_end,
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
            check=False,
        )
    finally:
        os.close(write_end)
    assert done.returncode == 1 and "Traceback" not in done.stderr and "BrokenPipe" not in done.stderr


def test_it_listens_on_the_given_address_alone(daemon) -> None:
    listening = [c.laddr for c in psutil.Process(daemon.pid).net_connections() if c.status == "LISTEN"]
    assert listening == [("127.0.0.1", daemon.port)]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_with_status_0_and_a_log_of_what_it_did(
    start_daemon: Callable[..., Any],
    shards: Path,
    tmp_path: Path,
    number: int,
    connect: Callable[..., Any],
    planned: Callable[..., Any],
) -> None:
    daemon = start_daemon(shards, log=tmp_path / "log")
    with connect(daemon.endpoint) as connections:
        batches = planned(connections, 0)
        assert len(list(BatchFetch(connections, batches))) == len(batches)
    os.kill(daemon.pid, number)
    assert daemon.process.wait(10) == 0
    events = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]
    assert [event["event"] for event in events] == ["unauthenticated", "started", "stopping", "stopped"]
    assert events[1]["endpoint"] == daemon.endpoint
    assert events[2]["reason"] == "signal"
    assert events[3]["bytes"] == daemon.ready["bytes"] and events[3]["malformed"] == 0


def _raw(endpoint: str, *frames: bytes) -> bytes | None:
    """Send one message and return the header of its answer, None when there is none within half a second."""
    with zmq.Context() as context, context.socket(zmq.DEALER) as dealer:
        dealer.linger = 0
        dealer.connect(endpoint)
        dealer.send_multipart(frames)
        return dealer.recv_multipart()[0] if dealer.poll(500) else None


def test_garbage_gets_no_answer_and_harms_nobody(
    start_daemon: Callable[..., Any],
    shards: Path,
    tmp_path: Path,
    connect: Callable[..., Any],
    planned: Callable[..., Any],
) -> None:
    daemon = start_daemon(shards, log=tmp_path / "log")
    address = ("127.0.0.1", daemon.port)
    with connect(daemon.endpoint) as connections:
        for garbage in (b"GET / HTTP/1.1\r\n\r\n", os.urandom(100_000), b"\xff" * 64):
            with socket.create_connection(address) as peer:
                try:
                    peer.sendall(garbage)
                except ConnectionError:
                    continue
        assert _raw(daemon.endpoint, os.urandom(50)) is None
        assert _raw(daemon.endpoint, pack(Hello()), b"more") is None
        assert _raw(daemon.endpoint, b"\xc6" + b"\xff" * 8 * 2**20) is None
        batches = planned(connections, 0)
        assert len(list(BatchFetch(connections, batches))) == len(batches)
    assert daemon.stop() == 0
    stopped = json.loads((tmp_path / "log").read_text().splitlines()[-1])
    assert stopped["event"] == "stopped" and stopped["malformed"] >= 2


def test_slices_that_do_not_exist_are_refused_by_name(daemon, connect: Callable[..., Any]) -> None:
    with connect(daemon.endpoint) as connections:
        catalog = connections.shards.catalog
    last = catalog.shard_records[0]
    for part, said in (
        (Slice(99, 0, 1), "shard 99 does not exist"),
        (Slice(0, last, 1), f"no 1 from record {last} on"),
        (Slice(0, 0, last + 1), f"shard 0 has {last} records"),
        (Slice(0, 0, 0), "no 0 from record 0"),
        (Slice(0, 2**62, 2**62), "shard 0 has"),
    ):
        header = _raw(daemon.endpoint, pack(Get(7, catalog.fingerprint, 0, 0, (part,))))
        assert header is not None
        refusal = unpack_answer([header])[0]
        assert isinstance(refusal, Refusal) and refusal.sequence == 7
        assert said in refusal.reason


@pytest.mark.parametrize("host", ["0.0.0.0", "[::]", "*"])
def test_an_address_that_others_reach_needs_keys_or_a_word(
    start_daemon: Callable[..., Any], shards: Path, host: str
) -> None:
    line = _refused("--root", str(shards), "--listen", f"{host}:0")
    assert "--keys" in line and "--no-auth" in line
    serve = [*SERVE, "--root", str(shards), "--listen", f"{host}:0", "--no-auth", "--until-eof"]
    process = subprocess.Popen(serve, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert json.loads(process.stdout.readline())["endpoint"].startswith(f"tcp://{host.replace('*', '0.0.0.0')}:")
    _, log = process.communicate(timeout=20)
    assert json.loads(log.splitlines()[0]) | {"event": "unauthenticated"} == json.loads(log.splitlines()[0])
    assert "anyone who can reach the address" in log.splitlines()[0]


@pytest.mark.parametrize("what", ["shard", "index", "manifest"])
def test_a_link_out_of_the_folder_is_refused(samples: Samples, tmp_path: Path, what: str) -> None:
    root = convert(samples, tmp_path / "root", key="a")
    shard = next(root.glob("*.tfrecord"))
    path = {"shard": shard, "index": index_path(shard), "manifest": root / MANIFEST}[what]
    path.rename(tmp_path / path.name)
    path.symlink_to(tmp_path / path.name)
    line = _refused("--root", str(root), "--listen", "127.0.0.1:0")
    assert line.startswith(f"error: {path} ")


def _health(*arguments: str) -> tuple[int, dict[str, object]]:
    command = [sys.executable, "-m", "loaders.streaming", "health", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert done.stderr == ""
    return done.returncode, json.loads(done.stdout)


def test_health_tells_how_a_daemon_is(start_daemon: Callable[..., Any], shards: Path, keys: Path) -> None:
    daemon = start_daemon(shards, options=["--keys", str(keys / "daemon")])
    status, report = _health("--endpoint", daemon.endpoint, "--keys", str(keys / "client"))
    assert status == 0 and report["healthy"] is True
    assert 0 < float(str(report["uptime_s"])) < 60
    assert report["clients"] == 1 and report["requests"] == 1


def test_health_of_a_daemon_that_does_not_answer_is_status_1(
    start_daemon: Callable[..., Any], shards: Path, keys: Path
) -> None:
    daemon = start_daemon(shards, options=["--keys", str(keys / "daemon")])
    status, report = _health("--endpoint", daemon.endpoint, "--timeout-s", "3")
    assert status == 1 and report["healthy"] is False and "wants keys" in str(report["reason"])
    daemon.kill()
    status, report = _health("--endpoint", daemon.endpoint, "--timeout-s", "0.5", "--keys", str(keys / "client"))
    assert status == 1 and report["reason"]


@contextmanager
def _slow(endpoint: str, requests: int) -> Iterator[zmq.Socket[bytes]]:
    """A client that has asked for 64 MiB a request, of which some is under way, and reads nothing by itself."""
    with zmq.Context() as context, context.socket(zmq.DEALER) as slow:
        slow.linger = 0
        slow.rcvhwm = 1
        slow.rcvbuf = 65_536
        slow.connect(endpoint)
        slow.send(pack(Hello()))
        catalog = unpack_answer([slow.recv()])[0]
        assert isinstance(catalog, ShardCatalog)
        for sequence in range(requests):
            slices = tuple(Slice(shard, 0, 160) for shard in range(4))
            slow.send(pack(Get(sequence, catalog.fingerprint, 0, 0, slices)))
        assert slow.poll(5000)
        time.sleep(0.3)
        yield slow


def test_a_stop_finishes_what_is_being_sent(start_daemon: Callable[..., Any], large_shards: Path) -> None:
    daemon = start_daemon(large_shards)
    with _slow(daemon.endpoint, 3) as slow:
        os.kill(daemon.pid, signal.SIGTERM)
        time.sleep(0.5)
        for _ in range(2):  # the second was under way
            assert slow.poll(5000)
            _, *records = slow.recv_multipart()
            assert [len(record) for record in records] == [16_000_000] * 4
        assert daemon.process.wait(10) == 0


def test_events_tell_what_was_sent_when(
    start_daemon: Callable[..., Any],
    shards: Path,
    samples: Samples,
    tmp_path: Path,
    connect: Callable[..., Any],
    planned: Callable[..., Any],
) -> None:
    began = time.time_ns()
    daemon = start_daemon(shards, options=["--events", str(tmp_path / "events")])
    with connect(daemon.endpoint) as connections:
        for epoch in range(2):
            batches = planned(connections, epoch)
            assert len(list(BatchFetch(connections, batches))) == len(batches)
    assert daemon.stop() == 0
    events = [json.loads(line) for line in (tmp_path / "events").read_text().splitlines()]
    for epoch in range(2):
        own = [event for event in events if event["epoch"] == epoch]
        assert [own[0]["event"], own[-1]["event"]] == ["epoch_start", "epoch_end"]
        assert {event["event"] for event in own[1:-1]} == {"batch_sent"}
        assert {event["batch"] for event in own[1:-1]} == set(range(len(batches)))
        assert sum(event["bytes"] for event in own[1:-1]) == daemon.ready["bytes"]
    times = [event["t_ns"] for event in events]
    assert times == sorted(times) and began < times[0] and times[-1] < time.time_ns()
    assert {event["daemon"] for event in events} == {"127.0.0.1:0"}


def test_connections_beyond_the_limit_are_closed_and_let_in_when_there_is_room(
    start_daemon: Callable[..., Any],
    shards: Path,
    connect: Callable[..., Any],
    planned: Callable[..., Any],
    tmp_path: Path,
) -> None:
    daemon = start_daemon(shards, log=tmp_path / "log", descriptors=80)
    limit = int(str(health(daemon.endpoint, timeout_s=5)["max_clients"]))
    held = [socket.create_connection(("127.0.0.1", daemon.port)) for _ in range(limit)]
    for peer in held:
        peer.recv(1)  # the daemon's greeting: it has accepted the connection
    for _ in range(50):
        with socket.create_connection(("127.0.0.1", daemon.port), timeout=10) as peer, suppress(ConnectionError):
            while peer.recv(4096):
                pass
    for peer in held:
        peer.close()
    with connect(daemon.endpoint) as connections:
        assert list(BatchFetch(connections, planned(connections)))
    report = health(daemon.endpoint, timeout_s=5)
    assert int(str(report["full"])) >= 50
    assert daemon.stop() == 0
    full = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines() if '"full"' in line]
    assert full[0]["limit"] == limit


def test_a_port_is_free_for_the_next_daemon_once_one_was_killed(start_daemon: Callable[..., Any], shards: Path) -> None:
    daemon = start_daemon(shards)
    daemon.process.kill()
    assert start_daemon(shards, port=daemon.port).port == daemon.port


def test_frames_that_announce_a_lot_take_no_memory_and_close_the_connection(
    start_daemon: Callable[..., Any], shards: Path
) -> None:
    daemon = start_daemon(shards)
    greeting = b"\xff" + bytes(8) + b"\x7f\x03\x00" + b"NULL".ljust(20, b"\0") + bytes(32)
    ready = b"\x04\x1c\x05READY\x0bSocket-Type\x00\x00\x00\x06DEALER"
    before = daemon.anonymous_bytes()
    for size in (2**31, 2**63 - 1, 2**64 - 1, 2**21 + 1):
        with socket.create_connection(("127.0.0.1", daemon.port), timeout=10) as peer, suppress(ConnectionError):
            peer.sendall(greeting + ready + b"\x02" + struct.pack(">Q", size) + bytes(1000))
            while peer.recv(4096):
                pass
    assert daemon.anonymous_bytes() - before < 64 * 2**20
    assert health(daemon.endpoint, timeout_s=5)["uptime_s"]


def _read(*argv: str) -> DaemonOptions:
    parser = argparse.ArgumentParser()
    add_flags(parser, DaemonOptions)
    return read_flags(DaemonOptions, vars(parser.parse_args(argv)))


def test_what_is_given_as_flags_comes_back_as_the_same_options():
    options = DaemonOptions(root="shards", listen="[::1]:0", no_auth=True, threads=3, rtt_ms=30, until_eof=True)
    assert _read(*flags(options)) == options


def test_an_option_at_its_default_needs_no_flag():
    assert flags(DaemonOptions(root="shards", threads=1)) == ["--root", "shards"]


@pytest.mark.parametrize(
    ("argv", "named"),
    [
        (["--threads", "65"], "--threads 65"),
        (["--rtt-ms", "far"], "--rtt-ms far"),
        (["--keys", "k", "--no-auth"], "--keys and --no-auth"),
    ],
)
def test_a_wrong_value_is_refused_by_its_flag(argv, named):
    with pytest.raises(LoaderConfigError, match=named):
        _read("--root", "shards", *argv)


@pytest.mark.parametrize("host", ["127.0.0.1", "[::1]"])
def test_localhost_is_the_loopback_address_that_a_daemon_listens_on(
    shards: Path, start_daemon: Callable[..., Any], host: str
) -> None:
    daemon = start_daemon(shards, options=["--listen", f"{host}:0"])
    assert daemon.endpoint == f"tcp://{host}:{daemon.port}"
    assert "clients" in health(f"tcp://localhost:{daemon.port}", timeout_s=10)
