"""A server program is started on a free port, waited for, and gone at its end, with all that it has made."""

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil
import pytest

from joulefeed import server as module
from joulefeed.server import ServerError, ServerProcess, check_free, find_free_port, join_address

pytestmark = pytest.mark.process


class Web(ServerProcess):
    _name = "Web"
    _taken_words = ("Address already in use",)
    _ready_words = "listening"
    before = "pass"

    def _command(self):
        code = (
            f"{self.before}\nimport socket, sys; listener = socket.create_server(({self.host!r}, {self.port}))\n"
            "print('listening', file=sys.stderr, flush=True)\nwhile True: listener.accept()[0].close()"
        )
        return [sys.executable, "-c", code]

    def _is_ready(self):
        try:
            socket.create_connection((self.host, self.port), 1).close()
        except OSError:
            return False
        return True


class Broken(Web):
    before = "raise SystemExit('no memory card')"


class Silent(Web):
    before = "import time, sys; print('thinking', file=sys.stderr, flush=True); time.sleep(99)"


class Stubborn(Web):
    before = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Where temporary files lie."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_it_listens_on_its_address_alone_and_leaves_nothing(folder):
    removed = folder / "data"
    removed.mkdir()
    with Web(removes=[removed]) as server:
        process = psutil.Process(server.pid)
        listening = [one.laddr for one in process.net_connections("tcp") if one.status == psutil.CONN_LISTEN]
        assert listening == [("127.0.0.1", server.port)]
        assert server.address == f"127.0.0.1:{server.port}"
        assert server.failure() is None
        assert server.temporary.parent == folder
    assert not process.is_running()
    assert list(folder.iterdir()) == []
    server.close()


@pytest.mark.parametrize("number", [signal.SIGCONT, signal.SIGSTOP], ids=["running", "stopped"])
@pytest.mark.parametrize("kind", ["Web", "Stubborn"])
def test_it_ends_with_a_parent_that_is_killed_and_its_folders_are_removed(folder, kind, number):
    code = (
        f"import pathlib, time; from tests.joulefeed.test_server import {kind}\n"
        f"server = {kind}(removes=[pathlib.Path({str(folder / 'data')!r})], end_s=0.5)\n"
        "print(server.pid, flush=True); time.sleep(60)"
    )
    (folder / "data").mkdir()
    environment = {**os.environ, "TMPDIR": str(folder)}
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, env=environment) as parent:
        process = psutil.Process(int(parent.stdout.readline()))
        process.send_signal(number)
        parent.kill()
    deadline = time.monotonic() + 20
    while list(folder.iterdir()) or (process.is_running() and process.status() != psutil.STATUS_ZOMBIE):
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_free_port_that_is_taken_meanwhile_is_given_up_for_another_one(folder, monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        ports = iter([port, find_free_port()])
        monkeypatch.setattr(module, "find_free_port", lambda *_: next(ports))
        with Web() as server:
            assert server.port != port


def test_an_address_that_cannot_be_listened_on_is_named_with_what_to_do():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        for refuse in (lambda: check_free("127.0.0.1", port), lambda: Web(port=port)):
            with pytest.raises(ServerError, match=rf"127\.0\.0\.1:{port} .*choose another port"):
                refuse()
    with pytest.raises(ServerError, match=r"192\.0\.2\.1"):
        Web("192.0.2.1")
    with pytest.raises(KeyError, match="a name"):
        find_free_port("a name", KeyError)
    assert join_address("::1", 80) == "[::1]:80"


@pytest.mark.parametrize(("kind", "words"), [(Broken, "no memory card"), (Silent, "0.5 s: thinking")])
def test_one_that_does_not_start_says_why_and_leaves_nothing(folder, kind, words):
    with pytest.raises(ServerError, match=words):
        kind(timeout_s=0.5 if kind is Silent else 20)
    assert list(folder.iterdir()) == []


def test_its_own_end_is_noticed_and_so_is_the_end_of_an_input():
    with Web() as server:
        reader, writer = os.pipe()
        os.close(writer)
        assert server.wait(reader) is None
        os.close(reader)
        os.kill(server.pid, signal.SIGKILL)
        assert "SIGKILL" in server.wait()
        assert server.address in server.failure()


def test_the_log_is_appended_to(tmp_path):
    log = Path(tmp_path / "log")
    log.write_text("before\n")
    with Web(log=log) as server:
        assert server.log_lines() == "listening"
    assert log.read_text() == "before\nlistening\n"
