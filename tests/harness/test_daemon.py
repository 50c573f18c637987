"""The daemon's config is refused before anything starts, in the words of its own command line."""

import os
import stat
from dataclasses import replace
from pathlib import Path

import numpy as np
import psutil
import pytest

from harness.config.specs import LoaderSpec
from harness.datasets import DatasetHandle
from harness.datasets.placement import open_shards
from harness.errors import CellError, ConfigError
from harness.run.daemon import check_daemon, daemon_flags, make_keys, serving
from harness.run.rehearsal import rehearsed_daemon
from harness.testbed.base import Node
from loaders.base import Samples

MODULE = "loaders.streaming"
SECURE = "--keys" in daemon_flags(MODULE)


def loader(**daemon):
    options = {"module": MODULE, "threads": 1, "port": 0} | daemon
    return LoaderSpec("streaming", "loaders.streaming.StreamingLoader", {}, "stream", options)


@pytest.fixture(scope="module")
def shards(tmp_path_factory):
    root = tmp_path_factory.mktemp("tree")
    for n in range(8):
        (root / f"{n}.jpg").write_bytes(bytes(100))
    samples = Samples(root, tuple(f"{n}.jpg" for n in range(8)), np.zeros(8, np.int64), np.full(8, 100))
    return open_shards(DatasetHandle("tree", samples, (), "abc", {}), root / "cache", lambda *_: None)


@pytest.mark.parametrize(
    ("daemon", "told"),
    [
        (
            {"treads": 2},
            r"daemon\.treads: loaders\.streaming takes no such key \(did you mean threads\?\); it takes .*port",
        ),
        ({"thread": 2}, r"daemon\.thread: loaders\.streaming takes no such key"),
        ({"root": "/tmp"}, r"daemon\.root: is given by the harness"),
        ({"until_eof": True}, r"daemon\.until_eof: is given by the harness"),
        ({"keys": "/tmp"}, r"daemon\.keys: is given by the harness"),
        ({"no_auth": True}, r"daemon\.no_auth: is given by the harness"),
        ({"port": "x"}, r"daemon\.port='x'"),
        ({"port": 70000}, r"daemon\.port=70000"),
        ({"module": None}, r"daemon\.module=None: expected the module"),
        ({"module": "loaders.tape"}, r"daemon\.module=loaders\.tape: .*No module named"),
    ],
)
def test_a_key_that_the_daemon_does_not_take_is_named(daemon, told):
    with pytest.raises(ConfigError, match=told):
        check_daemon(loader(**daemon))


def test_every_key_of_the_shipped_config_passes():
    check_daemon(loader())


def test_a_daemon_that_knows_no_keys_cannot_be_secure(tmp_path, monkeypatch):
    (tmp_path / "plain_daemon.py").write_text(
        "import argparse\np = argparse.ArgumentParser()\n"
        "s = p.add_subparsers().add_parser('serve')\ns.add_argument('--root')\np.parse_args()\n"
    )
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    with pytest.raises(ConfigError, match=r"loaders\.streaming\.secure=true: plain_daemon takes no --keys"):
        check_daemon(replace(loader(), daemon={"module": "plain_daemon"}, secure=True))


@pytest.mark.parametrize(("secure", "encrypt"), [(True, False), (False, True)])
def test_a_config_that_chose_sealing_or_encryption_by_itself_is_told_what_replaced_it(secure, encrypt):
    told = rf"daemon\.encrypt={encrypt}: secure alone decides now: loaders\.streaming\.secure=true encrypts"
    with pytest.raises(ConfigError, match=told):
        check_daemon(replace(loader(encrypt=encrypt), secure=secure))
    check_daemon(replace(loader(encrypt=encrypt), secure=encrypt))
    check_daemon(replace(loader(encrypt=None), secure=secure))


@pytest.mark.parametrize("value", [0, "many"])
def test_a_value_that_the_daemon_refuses_is_told_in_its_words(shards, value):
    with (
        pytest.raises(ConfigError, match=r"loaders\.streaming\.daemon: the daemon .* did not start: .*threads"),
        rehearsed_daemon(loader(threads=value), shards),
    ):
        pass


def test_a_daemon_that_can_start_is_rehearsed_and_gone(shards):
    with rehearsed_daemon(replace(loader(), secure=SECURE), shards) as reached:
        assert len(reached["endpoints"]) == 1
        running = daemons()
    assert running and not daemons()


def daemons():
    """Return the daemons that this process has started and that live."""
    return [child for child in psutil.Process().children(recursive=True) if "serve" in child.cmdline()]


def test_a_daemon_that_does_not_start_fails_with_what_it_said(shards, tmp_path):
    node = Node("storage", "test")
    with (
        pytest.raises(CellError, match=r"storage node did not start: .*threads"),
        serving(node, "127.0.0.1", shards, loader(threads=0).daemon, tmp_path / "log"),
    ):
        pass


@pytest.mark.skipif(not SECURE, reason="the daemon knows no keys")
def test_keys_are_the_user_s_alone_and_each_side_has_its_own_half(tmp_path):
    keys = make_keys(MODULE, tmp_path / "keys")
    for path in (tmp_path / "keys", keys.daemon, keys.client):
        assert stat.S_IMODE(path.stat().st_mode) == 0o700
    files = [path for path in (tmp_path / "keys").rglob("*") if path.is_file()]
    assert files
    assert {stat.S_IMODE(path.stat().st_mode) for path in files} == {0o600}
    secrets = {path.read_bytes() for path in keys.daemon.iterdir() if "secret" in path.name}
    assert secrets.isdisjoint(path.read_bytes() for path in keys.client.iterdir())


def test_options_are_flags_and_what_is_off_is_left_out(shards, tmp_path):
    flag = next((name for name in ("encrypt",) if f"--{name}" in daemon_flags(MODULE)), None)
    options = loader(**({flag: False} if flag else {})).daemon
    with serving(Node("storage", "test"), "127.0.0.1", shards, options, tmp_path / "log") as daemon:
        argv = Path(f"/proc/{daemon.child.pid}/cmdline").read_bytes().split(b"\0")
        assert b"False" not in argv and b"--threads" in argv
        assert daemon.failure() is None
    assert not daemon.child.is_alive
