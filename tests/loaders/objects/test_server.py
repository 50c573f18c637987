"""A real MinIO: where it listens, with whose keys, and how it ends."""

import os
import signal
import subprocess
import sys
import tempfile
import time

import psutil
import pytest

from loaders.errors import LoaderConfigError
from loaders.shared.objects.keys import CREDENTIALS, load_keys, make_keys
from loaders.shared.objects.server import ObjectServer, ObjectServerError

pytestmark = pytest.mark.process

PARENT = """
import sys, time
from pathlib import Path
from loaders.shared.objects.keys import load_keys
from loaders.shared.objects.server import ObjectServer
server = ObjectServer(load_keys(Path(sys.argv[1])))
print(server.pid, server.endpoint, flush=True)
time.sleep(60)
"""


@pytest.fixture
def keys(tmp_path):
    return load_keys(make_keys(tmp_path / "keys")[0])


def members(group):
    """Return the processes of a group that still run."""
    found = []
    for process in psutil.process_iter(["status"]):
        try:
            if os.getpgid(process.pid) == group and process.info["status"] != psutil.STATUS_ZOMBIE:
                found.append(process)
        except ProcessLookupError:
            continue
    return found


def until(condition, timeout_s=20):
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_it_listens_on_its_port_of_loopback_alone_and_has_no_console(keys):
    with ObjectServer(keys) as server:
        group = members(server.pid)
        listening = [one.laddr for each in group for one in each.net_connections("tcp") if one.status == "LISTEN"]
        assert {one.port for one in listening} == {server.port}
        assert {one.ip for one in listening} <= {"127.0.0.1", "::1"}


def test_its_keys_are_on_no_command_line(keys):
    with ObjectServer(keys) as server:
        words = " ".join(" ".join(each.cmdline()) for each in members(server.pid))
    assert "minio" in words
    assert keys.secret_key not in words
    assert keys.access_key not in words


def test_nothing_is_left_when_it_is_closed(keys, tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with ObjectServer(keys) as server:
        assert list(tmp_path.glob("joulefeed-objects-*"))
        assert server.failure() is None
    assert not members(server.pid)
    assert not list(tmp_path.glob("joulefeed-objects-*"))


def test_it_ends_with_a_parent_that_is_killed_and_removes_its_objects(tmp_path):
    folder, _ = make_keys(tmp_path / "keys")
    own = {**os.environ, "TMPDIR": str(tmp_path)}
    parent = subprocess.Popen([sys.executable, "-c", PARENT, folder], stdout=subprocess.PIPE, text=True, env=own)
    group = int(parent.stdout.readline().split()[0])
    assert members(group)
    parent.kill()
    parent.wait(10)
    parent.stdout.close()
    until(lambda: not members(group))
    assert not list(tmp_path.glob("joulefeed-objects-*"))


def test_its_own_end_is_noticed(keys):
    with ObjectServer(keys) as server:
        (minio,) = (each for each in members(server.pid) if "minio" in each.name())
        minio.send_signal(signal.SIGKILL)
        until(lambda: server.failure() is not None)
        assert server.endpoint in server.failure()


def test_a_folder_keeps_its_objects_for_a_server_with_other_keys(keys, tmp_path):
    with ObjectServer(keys, folder=tmp_path / "objects"):
        pass
    other = load_keys(make_keys(tmp_path / "others")[0])
    with ObjectServer(other, folder=tmp_path / "objects"):
        pass
    assert (tmp_path / "objects").exists()


def test_a_port_that_is_taken_is_an_error_that_names_it(keys):
    with ObjectServer(keys) as server, pytest.raises(ObjectServerError, match=rf"{server.port}.*in use"):
        ObjectServer(keys, port=server.port)


def test_an_address_of_another_host_is_an_error(keys):
    with pytest.raises(ObjectServerError, match=r"192\.0\.2\.1 is no address of this host"):
        ObjectServer(keys, "192.0.2.1")


def test_keys_come_from_a_file_that_only_its_owner_reads_or_from_the_environment(tmp_path):
    daemon, client = make_keys(tmp_path / "keys")
    keys = load_keys(daemon)
    assert keys == load_keys(client / CREDENTIALS)
    assert keys.secret_key not in repr(keys)
    names = {"AWS_ACCESS_KEY_ID": keys.access_key, "AWS_SECRET_ACCESS_KEY": keys.secret_key}
    assert load_keys(None, names) == keys
    with pytest.raises(LoaderConfigError, match="AWS_SECRET_ACCESS_KEY is not set"):
        load_keys(None, {"AWS_ACCESS_KEY_ID": "one"})
    (client / CREDENTIALS).chmod(0o644)
    with pytest.raises(LoaderConfigError, match="chmod 600"):
        load_keys(client)
    (daemon / CREDENTIALS).write_text("no section = secret-word\n")
    with pytest.raises(LoaderConfigError, match="expected a section") as raised:
        load_keys(daemon)
    assert "secret-word" not in str(raised.value)
    with pytest.raises(LoaderConfigError, match="there already"):
        make_keys(tmp_path / "keys")
