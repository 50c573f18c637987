from __future__ import annotations

import json
import os
import socket
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import zmq

from loaders.errors import LoaderConfigError, StreamError
from loaders.records.planner import Slice
from loaders.streaming.keys import load_client_keys, load_daemon_keys, make_keys
from loaders.streaming.protocol import BatchHeader, Get, Health, Hello, Warm, pack
from loaders.streaming.receiver.remote_daemon import RemoteDaemon, health, unpack
from loaders.streaming.settings import StreamSettings
from tests.loaders.streaming.relay import Relay, Stream

pytestmark = pytest.mark.process


@contextmanager
def _session(endpoint: str, keys: Path | None, **options: object) -> Iterator[RemoteDaemon]:
    given = {"batch_size": 8, "seed": 0, "streams": 2, "timeout_s": 5, "warm_bytes": 0} | options
    settings = StreamSettings(endpoint=endpoint, keys=keys, **given)  # type: ignore[arg-type]
    with zmq.Context() as context, RemoteDaemon(context, zmq.Poller(), endpoint, settings) as session:
        yield session


def _first_batch(session: RemoteDaemon) -> tuple[BatchHeader, list[memoryview]]:
    session.ask(0, 0, 0, (Slice(0, 0, 3),), 1)
    assert session.streams[0].socket.poll(5000)
    frames = session.streams[0].receive()
    assert frames is not None
    header, records = unpack(session.endpoint, frames)
    assert isinstance(header, BatchHeader)
    session.streams[0].done(0)
    return header, records


@pytest.fixture
def locked(start_daemon: Callable[..., object], shards: Path, keys: Path, tmp_path: Path) -> object:
    """A daemon with keys; its log is in tmp_path/log."""
    options = ["--keys", str(keys / "daemon")]
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
    with pytest.raises(LoaderConfigError, match=f"{tmp_path}/daemon"):
        make_keys(tmp_path)
    assert (tmp_path / "daemon" / "daemon.secret").read_text() == before


def test_a_key_file_that_is_missing_open_or_no_key_is_named(tmp_path: Path) -> None:
    daemon, client = make_keys(tmp_path)
    with pytest.raises(LoaderConfigError, match=r"client/daemon.secret"):
        load_daemon_keys(client)
    (daemon / "daemon.secret").chmod(0o640)
    with pytest.raises(LoaderConfigError, match=r"daemon.secret.*640\)"):
        load_daemon_keys(daemon)
    for garbage in (b"", b"x", b"\xff" * 40, b"~" * 40):
        (client / "client.secret").write_bytes(garbage)
        with pytest.raises(LoaderConfigError, match=r"client\.secret"):
            load_client_keys(client)


def test_with_its_key_a_client_gets_what_it_asks_for(locked: object, keys: Path, shards: Path) -> None:
    with _session(locked.endpoint, keys / "client", warm_bytes=2**20) as session:  # type: ignore[attr-defined]
        header, records = _first_batch(session)
    shard = (shards / session.catalog.shards[0].name).read_bytes()
    assert shard.startswith(records[0])
    assert len(header.ids) == 3
    report = health(locked.endpoint, timeout_s=5, keys=keys / "client")  # type: ignore[attr-defined]
    assert report["batches"] == 1 and report["malformed"] == report["rejected"] == 0


def test_without_the_key_nothing_is_answered_not_even_the_catalog(locked: object, keys: Path, tmp_path: Path) -> None:
    make_keys(tmp_path / "other")
    stranger = load_client_keys(tmp_path / "other" / "client")
    known = load_client_keys(keys / "client")
    impostor = type(known)(stranger.public, stranger.secret, known.peer)

    def say_plain(dealer: zmq.Socket[bytes]) -> None:
        dealer.plain_username, dealer.plain_password = os.urandom(16).hex().encode(), b"0" * 32

    requests = [pack(Hello()), pack(Health()), pack(Warm(0, 10)), pack(Get(0, "", 0, 0, (Slice(0, 0, 1),)))]
    for set_up in (None, say_plain, stranger.secure_client, impostor.secure_client):
        with zmq.Context() as context, context.socket(zmq.DEALER) as dealer:
            dealer.linger = 0
            if set_up is not None:
                set_up(dealer)
            dealer.connect(locked.endpoint)  # type: ignore[attr-defined]
            for request in requests:
                dealer.send(request)
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
        pytest.raises(
            StreamError,
            match=r"no answer within timeout_s=1, at 0 kB/s; it broke the connection off|it was never reached",
        ),
        _session(false.endpoint, keys / "client", timeout_s=1),
    ):
        pass


def test_with_keys_nothing_can_be_read_on_the_way_nor_sent_once_more(
    start_daemon: Callable[..., object], shards: Path, keys: Path
) -> None:
    options = ["--keys", str(keys / "daemon")]
    daemon = start_daemon(shards, options=options)
    passed: dict[Stream, bytearray] = {}
    pair = load_client_keys(keys / "client")
    with (
        Relay(daemon.port, on_piece=lambda stream, data: passed.setdefault(stream, bytearray()).extend(data)) as relay,
        _session(relay.endpoint, keys / "client", streams=1) as session,
    ):
        _, records = _first_batch(session)
        catalog = session.catalog
    seen = b"".join(passed.values())
    assert len(seen) > sum(len(record) for record in records)
    for secret in (catalog.shards[0].name.encode(), catalog.fingerprint.encode(), pair.secret):
        assert secret not in seen
    assert bytes(records[0][:64]) not in seen

    # What the client sent is no good a second time, to this daemon or to one that was started again.
    before = health(daemon.endpoint, timeout_s=5, keys=keys / "client")["requests"]
    for restarted in (False, True):
        if restarted:
            daemon.kill()
            start_daemon(shards, port=daemon.port, options=options)
            before = 0
        for sent in [data for (_, side), data in passed.items() if side == "client"]:
            with socket.create_connection(("127.0.0.1", daemon.port), timeout=1) as peer:
                try:
                    peer.sendall(sent)
                    while peer.recv(65_536):
                        pass
                except OSError:
                    pass
        assert health(daemon.endpoint, timeout_s=5, keys=keys / "client")["requests"] == before + 1


def test_the_log_says_what_is_protected_and_has_no_key_nor_has_a_command_line(
    locked: object, keys: Path, tmp_path: Path
) -> None:
    with _session(locked.endpoint, keys / "client") as session:  # type: ignore[attr-defined]
        _first_batch(session)
    command = Path(f"/proc/{locked.pid}/cmdline").read_bytes()  # type: ignore[attr-defined]
    assert locked.stop() == 0  # type: ignore[attr-defined]
    told = (tmp_path / "log").read_bytes() + command
    first = json.loads(told.splitlines()[0])
    assert first["event"] == "encrypted" and first["protection"].startswith("CURVE")
    for path in keys.rglob("*.*"):
        assert path.read_bytes().strip() not in told


def test_keygen_says_which_half_is_for_whom(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "loaders.streaming", "keygen", str(tmp_path / "k")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0 and done.stderr == ""
    assert [line.split()[0] for line in done.stdout.splitlines()] == [f"{tmp_path}/k/daemon", f"{tmp_path}/k/client"]
    again = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert again.returncode == 2 and again.stderr.startswith(f"error: {tmp_path}/k/daemon ")
