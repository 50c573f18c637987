"""However many peers connect, and however they leave, the daemon lives and its client gets every sample once."""

from __future__ import annotations

import os
import socket
import struct
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import pytest
import zmq

from loaders.errors import LoaderConfigError
from loaders.streaming import StreamingLoader
from loaders.streaming.daemon.connections import Connection
from loaders.streaming.daemon.listener import Listener
from loaders.streaming.daemon.server_socket import ServerSocket
from loaders.streaming.daemon.store import ShardStore
from loaders.streaming.receiver.session import health

GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x01" + b"NULL".ljust(20, b"\0") + bytes(32)
PING = b"\x04\x07\x04PING\x00\x00"
SMALL = b"\x00\x01a"
"""A message of one byte; ZeroMQ stops to read a connection after a thousand that nobody takes."""


def _ready(identity: bytes) -> bytes:
    """A peer's side of the handshake."""
    properties = ((b"Socket-Type", b"DEALER"), (b"Identity", identity))
    body = b"\x05READY" + b"".join(
        bytes([len(name)]) + name + struct.pack(">I", len(value)) + value for name, value in properties
    )
    return b"\x04" + bytes([len(body)]) + body


def _peer(port: int, identity: bytes = b"") -> socket.socket:
    peer = socket.create_connection(("127.0.0.1", port), timeout=5)
    peer.sendall(GREETING)
    peer.recv(64, socket.MSG_WAITALL)
    peer.sendall(_ready(identity))
    peer.recv(2)
    peer.settimeout(0.3)
    return peer


def _reset(peer: socket.socket) -> None:
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    peer.close()


def _send_and_reset(peer: socket.socket, data: bytes) -> None:
    with suppress(TimeoutError, ConnectionError):
        peer.sendall(data)
    _reset(peer)


@contextmanager
def _client(endpoint: str) -> Iterator[StreamingLoader]:
    with StreamingLoader(endpoint=endpoint, batch_size=4, seed=1, decode="raw", timeout_s=20) as loader:
        yield loader


def _epoch_is_whole(loader: StreamingLoader, epoch: int) -> None:
    seen = Counter(one for batch in loader.epoch(epoch) for one in batch.ids.tolist())
    assert len(seen) == len(loader) and set(seen.values()) == {1}


@pytest.mark.process
def test_connections_that_are_reset_while_their_messages_wait_do_not_end_the_daemon(
    start_daemon: Callable[..., object], shards: Path
) -> None:
    daemon = start_daemon(shards)
    port: int = daemon.port  # type: ignore[attr-defined]
    with _client(daemon.endpoint) as loader:  # type: ignore[attr-defined]
        # A second connection of one name is never read from; what ends it is noticed when it is asked for a sign
        # of life, within 5 s.
        first = _peer(port, b"one name")
        _send_and_reset(_peer(port, b"one name"), SMALL * 100_000)
        end, epoch = time.monotonic() + 6, 0
        while time.monotonic() < end:
            # Of these, signs of life wait among the messages, and are answered once the connection is gone.
            _send_and_reset(_peer(port), (SMALL * 10 + PING) * 20_000)
            _epoch_is_whole(loader, epoch)
            epoch += 1
        first.close()
    assert daemon.stop() == 0  # type: ignore[attr-defined]


@pytest.mark.process
def test_connections_beyond_the_limit_of_descriptors_are_not_taken(
    start_daemon: Callable[..., object], shards: Path
) -> None:
    daemon = start_daemon(shards, descriptors=100)
    port: int = daemon.port  # type: ignore[attr-defined]
    endpoint: str = daemon.endpoint  # type: ignore[attr-defined]
    with _client(endpoint) as loader:
        peers = [socket.socket() for _ in range(400)]
        for peer in peers:
            peer.setblocking(False)
            with suppress(BlockingIOError):
                peer.connect(("127.0.0.1", port))
        for epoch in range(5):
            _epoch_is_whole(loader, epoch)
        for peer in peers:
            peer.close()
    with _client(endpoint) as loader:
        _epoch_is_whole(loader, 0)
    report = health(endpoint, timeout_s=20)
    assert int(str(report["full"])) >= 1 and int(str(report["max_clients"])) < 50
    assert daemon.stop() == 0  # type: ignore[attr-defined]


@pytest.mark.process
def test_a_daemon_without_descriptors_for_connections_says_so_and_ends(shards: Path) -> None:
    serve = [sys.executable, "-m", "loaders.streaming", "serve", "--root", str(shards), "--listen", "127.0.0.1:0"]
    done = subprocess.run(["prlimit", "--nofile=40", *serve], capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 2 and "40" in done.stderr


@pytest.mark.process
def test_a_keyed_client_is_served_under_more_idle_connections_and_shards_than_there_are_descriptors(
    start_daemon: Callable[..., object], make_shards: Callable[..., Path], keys: Path, tmp_path: Path
) -> None:
    root = make_shards(tmp_path, shards=300, records=1, size=2000)
    daemon = start_daemon(root, options=["--keys", str(keys / "daemon")], descriptors=256)
    endpoint: str = daemon.endpoint  # type: ignore[attr-defined]
    options = {"batch_size": 32, "seed": 1, "decode": "raw", "timeout_s": 30, "keys": keys / "client"}
    with StreamingLoader(endpoint=endpoint, **options) as loader:  # type: ignore[arg-type]
        peers = [socket.socket() for _ in range(500)]
        for peer in peers:
            peer.setblocking(False)
            with suppress(BlockingIOError):
                peer.connect(("127.0.0.1", daemon.port))  # type: ignore[attr-defined]
        deadline = time.monotonic() + 20
        epoch = 0
        while not (report := health(endpoint, timeout_s=30, keys=keys / "client"))["idle"]:
            assert time.monotonic() < deadline, report
            _epoch_is_whole(loader, epoch)
            epoch += 1
        # One that comes among them finds room as well, for those that never ask are closed.
        with StreamingLoader(endpoint=endpoint, **options) as other:  # type: ignore[arg-type]
            _epoch_is_whole(other, 0)
        for peer in peers:
            peer.close()
    assert int(str(report["full"])) >= 1
    assert daemon.stop() == 0  # type: ignore[attr-defined]


def _flood(peer: socket.socket, data: bytes, until: threading.Event) -> None:
    """Send on and on."""
    peer.settimeout(0.2)
    view = memoryview(data)
    at = 0
    while not until.is_set():
        try:
            at = (at + peer.send(view[at:])) % len(data)
        except TimeoutError:
            continue
        except ConnectionError:
            return


@pytest.mark.process
@pytest.mark.parametrize(
    "data",
    [
        SMALL * 20_000,
        # A list of lists, which is costly to unpack.
        b"\x02" + struct.pack(">Q", 30_000) + b"\x9f" + b"\x90" * 29_999,
        # More than a request may have.
        b"\x02" + struct.pack(">Q", 1_000_000) + bytes(1_000_000),
        # A message that does not end.
        b"\x03" + struct.pack(">Q", 30_000) + bytes(30_000),
    ],
    ids=["small", "nested", "long", "endless"],
)
def test_one_connection_that_fuzzes_costs_a_client_neither_samples_nor_its_connection(
    start_daemon: Callable[..., object], shards: Path, data: bytes
) -> None:
    daemon = start_daemon(shards)
    before: int = daemon.anonymous_bytes()  # type: ignore[attr-defined]
    done = threading.Event()
    with _client(daemon.endpoint) as loader:  # type: ignore[attr-defined]
        flood = threading.Thread(target=_flood, args=(_peer(daemon.port), data, done))  # type: ignore[attr-defined]
        flood.start()
        end, epoch, most = time.monotonic() + 1.5, 0, 0
        while time.monotonic() < end:
            _epoch_is_whole(loader, epoch)
            epoch += 1
            most = max(most, daemon.anonymous_bytes() - before)  # type: ignore[attr-defined]
        done.set()
        flood.join()
        assert loader.stats().details["asked_again"] == 0
    assert most < 128 * 2**20
    assert daemon.stop() == 0  # type: ignore[attr-defined]


def test_a_connection_that_is_paused_gives_nothing_and_takes_what_is_sent_to_it() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as peer:
        accepted, _ = server.accept()
        with accepted:
            connection = Connection(accepted.fileno())
            connection.pause(True)
            peer.sendall(b"later")
            accepted.settimeout(0.3)
            with pytest.raises(TimeoutError):
                accepted.recv(5)
            accepted.sendall(b"now")
            assert peer.recv(3, socket.MSG_WAITALL) == b"now"
            connection.pause(False)
            accepted.settimeout(20)
            assert accepted.recv(5, socket.MSG_WAITALL) == b"later"
            connection.close()
            assert peer.recv(1) == b""
    assert connection.unread(time.monotonic()) == 0, "it has ended"
    connection.close()


def test_a_socket_is_empty_as_soon_as_its_last_message_was_taken() -> None:
    """A busy daemon may stop reading after any message; a paused peer is closed where no message of it waits."""
    server = ServerSocket("127.0.0.1", Listener("127.0.0.1", 0), threads=1, keys=None, no_auth=False)
    try:
        with zmq.Context() as context, context.socket(zmq.DEALER) as peer:
            peer.linger = 0
            peer.connect(server.endpoint)
            peer.send(b"one")
            assert server.socket.poll(10_000) and not server.is_empty
            assert server.receive() is not None and server.is_empty
    finally:
        server.close(0)


def test_shards_keep_no_descriptor(make_shards: Callable[..., Path], tmp_path: Path) -> None:
    root = make_shards(tmp_path, shards=20, records=2, size=100)
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
    with ShardStore(root) as store:
        assert len(os.listdir("/proc/self/fd")) == before  # noqa: PTH208
        assert len(store.catalog.shards) == 20


def test_a_listener_that_refuses_takes_no_connection_until_it_takes_them_again() -> None:
    with closing(Listener("127.0.0.1", 0)) as listener:
        listener.refuse(True)
        with pytest.raises(TimeoutError):
            socket.create_connection(("127.0.0.1", listener.port), timeout=0.2)
        listener.refuse(False)
        socket.create_connection(("127.0.0.1", listener.port), timeout=5).close()


def test_a_congestion_control_is_that_of_every_connection_and_an_unknown_one_is_refused() -> None:
    with closing(Listener("127.0.0.1", 0, congestion="reno")) as listener:
        assert listener.congestion == "reno"
        with socket.create_connection(("127.0.0.1", listener.port), timeout=5):
            accepted = socket.socket(fileno=listener.descriptor()).accept()[0]
            with accepted:
                name = accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16)
        assert name.rstrip(b"\0") == b"reno"
    with pytest.raises(LoaderConfigError, match="--congestion nothing"):
        Listener("127.0.0.1", 0, congestion="nothing")


CONTROLS = """
import sys
from pathlib import Path
from loaders.streaming.daemon.listener import Listener
Path("/proc/sys/net/ipv4/tcp_congestion_control").write_text("reno")
for host, control in (("0.0.0.0", None), ("127.0.0.1", None), ("0.0.0.0", "kernel"), ("0.0.0.0", "reno")):
    listener = Listener(host, 0, congestion=control)
    print(listener.congestion)
    listener.close()
"""


@pytest.mark.process
@pytest.mark.root
@pytest.mark.skipif(
    os.geteuid() != 0 or "bbr" not in Path("/proc/sys/net/ipv4/tcp_available_congestion_control").read_text(),
    reason="needs root for a network namespace, and bbr in the kernel",
)
def test_bbr_is_chosen_for_clients_on_other_hosts_unless_another_one_is_named() -> None:
    done = subprocess.run(
        ["unshare", "--net", sys.executable, "-c", CONTROLS], check=True, capture_output=True, text=True, timeout=60
    )
    assert done.stdout.split() == ["bbr", "reno", "reno", "reno"]
