from __future__ import annotations

import os
import socket
import stat
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import zmq

from loaders.errors import LoaderConfigError, StreamError
from loaders.streaming.keys import load_client_keys, load_daemon_keys, make_keys
from loaders.streaming.planner import Slice
from loaders.streaming.protocol.messages import BatchHeader, Catalog, Get, Grant, Health, Hello, Warm
from loaders.streaming.protocol.seal import Sealer, Seals, password
from loaders.streaming.protocol.wire import pack, unpack_reply
from loaders.streaming.receiver.session import Session, health


@contextmanager
def _session(endpoint: str, keys: Path | None, **options: object) -> Iterator[Session]:
    options = {"streams": 2, "timeout_s": 5} | options
    with zmq.Context() as context, Session(context, zmq.Poller(), endpoint, keys=keys, **options) as session:  # type: ignore[arg-type]
        yield session


def _first_batch(session: Session) -> tuple[BatchHeader, list[memoryview]]:
    session.streams[0].ask(0, session.request(0, 0, 0, (Slice(0, 0, 3),)))
    assert session.streams[0].socket.poll(5000)
    frames = session.streams[0].receive()
    assert frames is not None
    header, records = session.unpack(frames)
    assert isinstance(header, BatchHeader)
    return header, records


def _endpoint(daemon: object, door: int) -> str:
    return f"tcp://127.0.0.1:{daemon.port + door}"  # type: ignore[attr-defined]


@pytest.fixture(params=[(), ("--encrypt",)], ids=["sealed", "encrypted"])
def locked(
    request: pytest.FixtureRequest, start_daemon: Callable[..., object], shards: Path, keys: Path, tmp_path: Path
) -> object:
    """A daemon with keys; its log is in tmp_path/log."""
    options = ["--keys", str(keys / "daemon"), *request.param]
    return start_daemon(shards, options=options, log=tmp_path / "log")


def test_keys_are_for_their_owner_alone_and_each_side_has_its_own_secret(tmp_path: Path) -> None:
    old = os.umask(0)
    try:
        daemon, client = make_keys(tmp_path / "new")
    finally:
        os.umask(old)
    found = {path.relative_to(tmp_path): stat.S_IMODE(path.stat().st_mode) for path in tmp_path.rglob("*")}
    assert {str(path): mode for path, mode in found.items()} == {
        "new": 0o700,
        "new/daemon": 0o700,
        "new/daemon/daemon.secret": 0o600,
        "new/daemon/client.public": 0o600,
        "new/client": 0o700,
        "new/client/client.secret": 0o600,
        "new/client/daemon.public": 0o600,
    }
    ours, theirs = load_daemon_keys(daemon), load_client_keys(client)
    assert (ours.public, theirs.public) == (theirs.peer, ours.peer)
    assert ours.secret != theirs.secret
    assert ours.secret.decode() not in repr(ours)


def test_keys_that_are_there_are_not_replaced(tmp_path: Path) -> None:
    make_keys(tmp_path)
    before = (tmp_path / "daemon" / "daemon.secret").read_text()
    with pytest.raises(LoaderConfigError, match=rf"{tmp_path}/daemon is there already"):
        make_keys(tmp_path)
    assert (tmp_path / "daemon" / "daemon.secret").read_text() == before


def test_a_key_file_that_is_missing_open_or_no_key_is_named(tmp_path: Path) -> None:
    daemon, client = make_keys(tmp_path)
    with pytest.raises(LoaderConfigError, match=r"client/daemon.secret cannot be read .*the daemon's half"):
        load_daemon_keys(client)
    (daemon / "daemon.secret").chmod(0o640)
    with pytest.raises(LoaderConfigError, match=r"daemon.secret is open to others \(mode 640\)"):
        load_daemon_keys(daemon)
    for garbage in (b"", b"x", b"\xff" * 40, b"~" * 40):
        (client / "client.secret").write_bytes(garbage)
        with pytest.raises(LoaderConfigError, match=r"client\.secret holds no key"):
            load_client_keys(client)


def test_with_its_key_a_client_gets_what_it_asks_for(locked: object, keys: Path, shards: Path) -> None:
    with _session(locked.endpoint, keys / "client", warm_bytes=2**20) as session:  # type: ignore[attr-defined]
        header, records = _first_batch(session)
    shard = (shards / session.catalog.shards[0].name).read_bytes()
    assert shard.startswith(records[0])
    assert len(header.ids) == 3
    report = health(locked.endpoint, timeout_s=5, keys=keys / "client")  # type: ignore[attr-defined]
    assert report["batches"] == 1 and report["unsealed"] == report["malformed"] == report["rejected"] == 0


def _answer(endpoint: str, *frames: bytes, set_up: Callable[[zmq.Socket[bytes]], None] | None = None) -> object:
    """Return what a connection gets for a message within half a second."""
    with zmq.Context() as context, context.socket(zmq.DEALER) as dealer:
        dealer.linger = 0
        if set_up is not None:
            set_up(dealer)
        dealer.connect(endpoint)
        dealer.send_multipart(frames)
        return dealer.recv_multipart() if dealer.poll(500) else None


def test_without_the_key_nothing_is_answered_not_even_the_catalog(locked: object, keys: Path, tmp_path: Path) -> None:
    make_keys(tmp_path / "other")
    stranger = load_client_keys(tmp_path / "other" / "client")
    known = load_client_keys(keys / "client")
    impostor = type(known)(stranger.public, stranger.secret, known.peer)

    def say_plain(dealer: zmq.Socket[bytes]) -> None:
        dealer.plain_username, dealer.plain_password = os.urandom(16).hex().encode(), b"0" * 32

    requests = [pack(Hello()), pack(Health()), pack(Warm(0, 10)), pack(Get(0, "", 0, 0, (Slice(0, 0, 1),)))]
    for door in (0, 1):
        for set_up in (None, say_plain, stranger.secure_client, impostor.secure_client):
            with zmq.Context() as context, context.socket(zmq.DEALER) as dealer:
                dealer.linger = 0
                if set_up is not None:
                    set_up(dealer)
                dealer.connect(_endpoint(locked, door))
                for request in requests:
                    dealer.send(request)
                    dealer.send_multipart([request, bytes(48)])
                assert not dealer.poll(700)
    report = health(locked.endpoint, timeout_s=5, keys=keys / "client")  # type: ignore[attr-defined]
    assert report["requests"] == 1, "the health request itself"
    assert int(report["rejected"]) > 0  # type: ignore[call-overload]


def test_a_client_with_a_key_that_is_not_known_is_told_so_at_once(locked: object, keys: Path, tmp_path: Path) -> None:
    _, client = make_keys(tmp_path / "other")
    (client / "daemon.public").write_bytes((keys / "client" / "daemon.public").read_bytes())
    with (
        pytest.raises(StreamError, match=rf"{locked.endpoint} refused: it does not know this client's key"),  # type: ignore[attr-defined]
        _session(locked.endpoint, client, timeout_s=60),  # type: ignore[attr-defined]
    ):
        pass


@pytest.mark.parametrize("with_keys", [True, False])
def test_a_client_and_a_daemon_that_differ_about_keys_say_so(
    start_daemon: Callable[..., object], shards: Path, keys: Path, with_keys: bool
) -> None:
    daemon = start_daemon(shards, options=[] if with_keys else ["--keys", str(keys / "daemon")])
    said = "serves without keys" if with_keys else "wants keys"
    with (
        pytest.raises(StreamError, match=said),
        _session(daemon.endpoint, keys / "client" if with_keys else None, timeout_s=1),
    ):
        pass


def test_a_daemon_with_another_key_is_not_trusted(
    start_daemon: Callable[..., object], shards: Path, keys: Path, tmp_path: Path
) -> None:
    make_keys(tmp_path / "false")
    false = start_daemon(shards, options=["--keys", str(tmp_path / "false" / "daemon")])
    with (
        pytest.raises(StreamError, match=r"no answer within 1 s; it broke the connection off|it was never reached"),
        _session(false.endpoint, keys / "client", timeout_s=1),
    ):
        pass


def _granted(daemon: object, keys: Path) -> tuple[Catalog, Grant]:
    frames = _answer(daemon.endpoint, pack(Hello()), set_up=load_client_keys(keys / "client").secure_client)  # type: ignore[attr-defined]
    assert isinstance(frames, list)
    catalog, grant = (unpack_reply(frame) for frame in frames)
    assert isinstance(catalog, Catalog) and isinstance(grant, Grant)
    return catalog, grant


def test_a_request_without_a_new_and_good_seal_is_counted_and_not_answered(
    start_daemon: Callable[..., object], shards: Path, keys: Path
) -> None:
    daemon = start_daemon(shards, options=["--keys", str(keys / "daemon")])
    catalog, grant = _granted(daemon, keys)
    request = pack(Get(7, catalog.fingerprint, 0, 0, (Slice(0, 0, 1),)))

    def enter(dealer: zmq.Socket[bytes]) -> None:
        dealer.plain_username, dealer.plain_password = grant.session.hex().encode(), password(grant.key)

    sealer = Sealer(grant.session, grant.key)
    good = sealer.seal(request)
    data = f"tcp://127.0.0.1:{grant.port}"
    assert _answer(data, request, good, set_up=enter)
    other = pack(Get(8, catalog.fingerprint, 0, 0, (Slice(0, 0, 1),)))
    bad = [
        (request, good),  # once more
        (other, good),
        (request, b""),
        (request, bytes(len(good))),
        (request, good[:-1] + bytes([good[-1] ^ 1])),
        (request, sealer.seal(other)),
        (request, Sealer(grant.session, bytes(32)).seal(request)),
        (request, Sealer(bytes(16), grant.key).seal(request)),
    ]
    for frames in bad:
        assert _answer(data, *frames, set_up=enter) is None
    assert _answer(data, request, set_up=enter) is None  # malformed: no seal at all
    assert _answer(data, request, sealer.seal(request), set_up=enter)
    report = health(daemon.endpoint, timeout_s=5, keys=keys / "client")
    assert report["unsealed"] == len(bad) and report["malformed"] == 1 and report["batches"] == 2


def test_a_session_outlives_the_daemon(start_daemon: Callable[..., object], shards: Path, keys: Path) -> None:
    options = ["--keys", str(keys / "daemon")]
    daemon = start_daemon(shards, options=options)
    with _session(daemon.endpoint, keys / "client", timeout_s=20) as session:
        _first_batch(session)
        daemon.kill()
        start_daemon(shards, port=daemon.port, options=options)
        while not session.streams[0].lost():
            assert session.streams[0].monitor.poll(5000)
        _first_batch(session)


def test_seals_of_another_daemon_are_no_good() -> None:
    ours, theirs = Seals(b"a" * 40), Seals(b"b" * 40)
    session, key = theirs.session()
    assert theirs.good(b"x", Sealer(session, key).seal(b"x"))
    assert not ours.good(b"x", Sealer(session, key).seal(b"x"))
    assert theirs.lets_in(session.hex().encode(), password(key))
    assert not ours.lets_in(session.hex().encode(), password(key))
    assert not ours.lets_in(b"\xff", b"") and not ours.lets_in(b"ab", b"ab")


class _Tap:
    """A relay that keeps what passes through it."""

    def __init__(self, port: int) -> None:
        self.seen = bytearray()
        self._port = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            far = socket.create_connection(("127.0.0.1", self._port))
            for pair in ((near, far), (far, near)):
                threading.Thread(target=self._copy, args=pair, daemon=True).start()

    def _copy(self, source: socket.socket, target: socket.socket) -> None:
        try:
            while data := source.recv(65_536):
                self.seen += data
                target.sendall(data)
        except OSError:
            return

    def close(self) -> None:
        self._listener.close()


@pytest.mark.parametrize("encrypt", [False, True])
def test_the_greeting_is_never_to_be_read_and_records_are_not_with_encrypt(
    start_daemon: Callable[..., object], shards: Path, keys: Path, encrypt: bool
) -> None:
    options = ["--keys", str(keys / "daemon"), *(["--encrypt"] if encrypt else [])]
    daemon = start_daemon(shards, options=options)
    control, data = _Tap(daemon.port), _Tap(daemon.port + 1)
    pair = load_client_keys(keys / "client")
    try:
        frames = _answer(f"tcp://127.0.0.1:{control.port}", pack(Hello()), set_up=pair.secure_client)
        assert isinstance(frames, list)
        catalog, grant = (unpack_reply(frame) for frame in frames)
        assert isinstance(catalog, Catalog) and isinstance(grant, Grant)
        request = pack(Get(0, catalog.fingerprint, 0, 0, (Slice(0, 0, 2),)))

        def enter(dealer: zmq.Socket[bytes]) -> None:
            if encrypt:
                pair.secure_client(dealer)
            else:
                dealer.plain_username, dealer.plain_password = grant.session.hex().encode(), password(grant.key)

        seal = Sealer(grant.session, grant.key).seal(request)
        assert _answer(f"tcp://127.0.0.1:{data.port}", request, seal, set_up=enter)
    finally:
        control.close()
        data.close()
    record = (shards / catalog.shards[0].name).read_bytes()[:500]
    for secret in (catalog.shards[0].name.encode(), catalog.fingerprint.encode(), grant.key, pair.secret):
        assert secret not in control.seen
    assert grant.key not in data.seen
    assert (record in data.seen) is not encrypt


def test_keys_are_in_no_log_and_on_no_command_line(locked: object, keys: Path, tmp_path: Path) -> None:
    with _session(locked.endpoint, keys / "client") as session:  # type: ignore[attr-defined]
        _first_batch(session)
    command = Path(f"/proc/{locked.process.pid}/cmdline").read_bytes()  # type: ignore[attr-defined]
    assert locked.stop() == 0  # type: ignore[attr-defined]
    told = (tmp_path / "log").read_bytes() + command
    assert b"started" in told
    for path in keys.rglob("*.*"):
        assert path.read_bytes().strip() not in told


def test_keygen_says_which_half_is_for_whom(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "loaders.streaming", "keygen", str(tmp_path / "k")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0 and done.stderr == ""
    assert [line.split()[0] for line in done.stdout.splitlines()] == [f"{tmp_path}/k/daemon", f"{tmp_path}/k/client"]
    again = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert again.returncode == 2 and again.stderr.startswith(f"error: {tmp_path}/k/daemon is there already")


def test_an_endless_handshake_takes_no_memory(locked: object) -> None:
    """Before the gate has said yes, nothing that a connection sends is kept."""
    before = locked.anonymous_bytes()  # type: ignore[attr-defined]
    greeting = b"\xff" + bytes(8) + b"\x7f\x03\x00" + b"PLAIN".ljust(20, b"\0") + bytes(32)
    frame = b"\x03" + struct.pack(">Q", 2**20) + bytes(2**20)
    for door in (0, 1):
        with socket.create_connection(("127.0.0.1", locked.port + door)) as peer:  # type: ignore[attr-defined]
            try:
                peer.sendall(greeting)
                for _ in range(100):
                    peer.sendall(frame)
            except OSError:
                pass
    assert locked.anonymous_bytes() - before < 16 * 2**20  # type: ignore[attr-defined]
