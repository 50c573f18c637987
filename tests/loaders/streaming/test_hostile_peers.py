"""Whatever a peer sends, the daemon goes on to serve, and keeps nothing of it."""

from __future__ import annotations

import importlib.util
import os
import random
import socket
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from types import ModuleType

import psutil
import pytest
import zmq

from loaders.records.planner import Slice
from loaders.streaming.protocol import BatchHeader, Hello, pack
from loaders.streaming.receiver.session import DaemonSession, health

pytestmark = pytest.mark.process

MIB = 2**20
GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x00" + b"NULL".ljust(20, b"\0") + bytes(32)
READY = b"\x04\x1c\x05READY\x0bSocket-Type\x00\x00\x00\x06DEALER"


def _frames() -> ModuleType:
    path = Path(__file__).with_name("test_wire.py")
    spec = importlib.util.spec_from_file_location("wire_frames", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(params=[False, True], ids=["open", "locked"])
def guarded(
    request: pytest.FixtureRequest, start_daemon: Callable[..., object], shards: Path, keys: Path
) -> Iterator[object]:
    """A daemon which, after the test, has neither grown nor stopped to serve."""
    options = ["--keys", str(keys / "daemon")] if request.param else []
    daemon = start_daemon(shards, options=options)
    daemon.client_keys = keys / "client" if request.param else None
    _serves(daemon)
    process = psutil.Process(daemon.pid)
    memory, descriptors, threads = daemon.anonymous_bytes(), process.num_fds(), process.num_threads()
    yield daemon
    _serves(daemon)
    deadline = time.monotonic() + 15
    while process.num_fds() > descriptors and time.monotonic() < deadline:
        time.sleep(0.1)
    assert process.num_fds() <= descriptors
    assert process.num_threads() <= threads + 8, "the threads that read from disk begin when they are needed"
    assert daemon.anonymous_bytes() - memory < 32 * MIB


def _serves(daemon: object) -> None:
    with (
        zmq.Context() as context,
        DaemonSession(
            context,
            zmq.Poller(),
            daemon.endpoint,
            streams=2,
            timeout_s=10,
            keys=daemon.client_keys,  # type: ignore[attr-defined]
        ) as session,
    ):
        for stream in session.streams:
            stream.ask(1, session.request(1, 0, 0, (Slice(0, 0, 2),)))
        for stream in session.streams:
            assert stream.socket.poll(10_000)
            frames = stream.receive()
            assert frames is not None and isinstance(session.unpack(frames)[0], BatchHeader)


def _report(daemon: object) -> dict[str, int]:
    return health(daemon.endpoint, timeout_s=5, keys=daemon.client_keys)  # type: ignore


@pytest.mark.parametrize("kind", ["mutated", "rubbish"])
def test_frames_that_are_wrong_are_counted_and_dropped(guarded: object, kind: str) -> None:
    frames = list(getattr(_frames(), kind)(3000, seed=5))
    with zmq.Context() as context, context.socket(zmq.DEALER) as dealer:
        dealer.linger = 0
        dealer.sndhwm = 0
        dealer.connect(guarded.endpoint)  # type: ignore[attr-defined]
        if guarded.client_keys:  # type: ignore[attr-defined]
            # It is not let in, and none of its frames arrives.
            dealer.setsockopt(zmq.SNDTIMEO, 500)
            with suppress(zmq.Again):
                for frame in frames:
                    dealer.send(frame)
            time.sleep(0.5)
            assert _report(guarded)["malformed"] == 0
            return
        for index, frame in enumerate(frames):
            dealer.send_multipart([frame] * (1 + (index % 50 == 0)))
        deadline = time.monotonic() + 20
        while (report := _report(guarded))["requests"] < len(frames):
            assert time.monotonic() < deadline, report
            time.sleep(0.05)
        assert report["malformed"] > 2000


def test_garbage_on_the_wire_is_dropped(guarded: object) -> None:
    draw = random.Random(3)
    heads = (b"", GREETING, GREETING[:11], GREETING + READY, b"GET / HTTP/1.1\r\n\r\n", b"\xff" * 10, b"\x00" * 64)
    for index in range(600):
        with socket.create_connection(("127.0.0.1", guarded.port)) as peer:
            try:
                peer.sendall(draw.choice(heads) + draw.randbytes(draw.choice((0, 3, 100, 3000))))
                if index % 50 == 0:
                    peer.sendall(os.urandom(MIB))
            except ConnectionError:
                continue
    _serves(guarded)


def _anonymous(process: psutil.Process) -> int:
    found = process.memory_info()
    return int(found.rss - found.shared)


def test_frames_that_announce_a_lot_take_no_memory(guarded: object) -> None:
    for size in (2**31, 2**40, 2**63 - 1, 2**64 - 1, 2**21 + 1):
        with socket.create_connection(("127.0.0.1", guarded.port)) as peer:  # type: ignore[attr-defined]
            try:
                peer.sendall(GREETING + READY)
                time.sleep(0.02)
                peer.sendall(b"\x02" + struct.pack(">Q", size) + bytes(1000))
                time.sleep(0.02)
            except ConnectionError:
                continue
    memory = psutil.Process(guarded.pid)  # type: ignore[attr-defined]
    assert _anonymous(memory) < 400 * MIB
    _serves(guarded)


def test_a_message_without_end_does_not_fill_the_memory(guarded: object) -> None:
    """ZeroMQ keeps the frames of a message until its last one has come; the daemon sheds such a peer."""
    memory = psutil.Process(guarded.pid)  # type: ignore[attr-defined]
    before = _anonymous(memory)
    most = 0
    frame = (b"\x03" + struct.pack(">Q", 30_000) + bytes(30_000)) * 30
    with socket.create_connection(("127.0.0.1", guarded.port), timeout=60) as peer:  # type: ignore[attr-defined]
        try:
            peer.sendall(GREETING)
            peer.recv(64, socket.MSG_WAITALL)
            peer.sendall(READY)
            # ZeroMQ ends a connection that sends a message before it has had the other's READY.
            if head := peer.recv(2, socket.MSG_WAITALL):
                peer.recv(head[1], socket.MSG_WAITALL)
            for _ in range(600):
                peer.sendall(frame)
                most = max(most, _anonymous(memory) - before)
        except ConnectionError:
            pass
        except TimeoutError:
            pytest.fail(f"the daemon neither reads nor ends the connection: {_report(guarded)}")
    assert most < 200 * MIB
    if not guarded.client_keys:  # type: ignore[attr-defined]
        deadline = time.monotonic() + 20
        while _report(guarded)["shed"] < 1:
            assert time.monotonic() < deadline, "the peer is not shed"
            time.sleep(0.05)


def test_connections_that_come_and_go_or_stay_silent_are_forgotten(guarded: object) -> None:
    held = []
    for index in range(300):
        peer = socket.create_connection(("127.0.0.1", guarded.port))
        held.append(peer) if index % 3 == 0 else peer.close()
    for peer in held:
        peer.settimeout(30)
        # The daemon ends what does not shake hands in time.
        with suppress(ConnectionError):
            while peer.recv(4096):
                pass
        peer.close()
    _serves(guarded)


@pytest.mark.parametrize("guarded", [False], ids=["open"], indirect=True)
def test_greetings_without_end_are_answered_one_after_the_other(guarded: object) -> None:
    with zmq.Context() as context, context.socket(zmq.DEALER) as dealer:
        dealer.linger = 0
        dealer.rcvhwm = 1
        dealer.connect(guarded.endpoint)  # type: ignore[attr-defined]
        for _ in range(20_000):
            dealer.send(pack(Hello()))
        time.sleep(1)
        assert guarded.anonymous_bytes() < 300 * MIB  # type: ignore[attr-defined]
