"""The daemon's config is refused before anything starts, in the words of its own command line."""

import signal
import stat
from pathlib import Path

import numpy as np
import psutil
import pytest
import yaml

from harness.config.specs import LoaderSpec
from harness.datasets import DatasetHandle
from harness.datasets.placement import open_shards
from harness.errors import CellError, ConfigError
from harness.run.check import tried_daemon
from harness.run.daemon import _arguments, check_daemon, make_keys, serving
from harness.testbed.base import Node
from loaders.base import Samples
from tests.integration.runs import wait_until

pytestmark = pytest.mark.process

MODULE = "loaders.streaming"


def loader(**daemon):
    options = {"module": MODULE, "threads": 1, "port": 0} | daemon
    return LoaderSpec(key="streaming", target="loaders.streaming.StreamingLoader", reads="stream", daemon=options)


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
        ({"treads": 2}, r"daemon\.treads: .*threads\?.*port"),
        ({"root": "/tmp"}, r"daemon\.root: "),
        ({"until_eof": True}, r"daemon\.until_eof: "),
        ({"keys": "/tmp"}, r"daemon\.keys: "),
        ({"port": "x"}, r"daemon\.port='x'"),
        ({"port": 70000}, r"daemon\.port=70000"),
        ({"threads": 0}, r"daemon\.threads=0"),
        ({"memory_mb": 0}, r"daemon\.memory_mb=0"),
        ({"threads": "many"}, r"daemon\.threads='many'"),
        ({"module": None}, r"daemon\.module=None"),
        ({"module": "loaders.tape"}, r"daemon\.module=loaders\.tape"),
        ({"module": "loaders.shared.fixed"}, r"daemon\.module=loaders\.shared\.fixed: .*DaemonOptions"),
    ],
)
def test_a_key_that_the_daemon_does_not_take_is_named(daemon, told):
    check_daemon(loader())
    with pytest.raises(ConfigError, match=told):
        check_daemon(loader(**daemon))


@pytest.fixture
def plain_daemon(tmp_path, monkeypatch):
    """A daemon of one's own, which takes fewer options."""
    (tmp_path / "plain_daemon.py").write_text(
        "from pathlib import Path\nfrom pydantic import BaseModel\n"
        "class DaemonOptions(BaseModel):\n    root: Path\n    depth: int = 1\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    return {"module": "plain_daemon", "depth": 3}


@pytest.mark.parametrize(
    ("daemon", "secure", "told"),
    [({"depth": "deep"}, False, r"daemon\.depth='deep'"), ({}, True, r"loaders\.streaming\.secure=true: plain_daemon")],
)
def test_a_daemon_of_one_s_own_is_checked_by_its_own_model(plain_daemon, daemon, secure, told):
    check_daemon(loader().model_copy(update={"daemon": plain_daemon}))
    with pytest.raises(ConfigError, match=told):
        check_daemon(loader().model_copy(update={"daemon": plain_daemon | daemon, "secure": secure}))


def test_what_only_the_daemon_can_know_is_told_in_its_words(shards):
    with (
        pytest.raises(ConfigError, match=r"loaders\.streaming\.daemon: .*storage node .*congestion none"),
        tried_daemon(loader(congestion="none"), shards),
    ):
        pass


def test_a_daemon_that_can_start_is_tried_and_gone(shards):
    with tried_daemon(loader().model_copy(update={"secure": True}), shards) as (endpoint, keys):
        assert endpoint and keys
        running = daemons()
    assert running and not daemons()


def test_a_daemon_whose_server_was_started_again_has_failed(shards, tmp_path):
    log = tmp_path / "log"
    with serving(Node("storage", "test"), "127.0.0.1", shards, loader().daemon, log) as daemon:
        assert daemon.failure() is None
        (server,) = [one for one in daemons() if not one.children()]
        server.send_signal(signal.SIGABRT)
        wait_until(lambda: '"restarted"' in log.read_text(), 10)
        assert "started its server again" in daemon.failure() and "SIGABRT" in daemon.failure()


def daemons():
    """Return the daemons that this process has started and that live."""
    return [child for child in psutil.Process().children(recursive=True) if "serve" in child.cmdline()]


def test_a_daemon_that_takes_too_long_names_the_limit_to_raise(shards, tmp_path):
    options = loader(start_s=0.001).daemon
    check_daemon(loader(start_s=0.001))
    with (
        pytest.raises(CellError, match=r"not ready within 0\.001 s.*; daemon\.start_s=0\.001 is its limit: raise it"),
        serving(Node("storage", "test"), "127.0.0.1", shards, options, tmp_path / "log"),
    ):
        pass
    assert daemons() == []


def test_the_database_gets_the_limit_and_names_the_cause_itself(tmp_path):
    given = _arguments("127.0.0.1", tmp_path, {"module": "loaders.nosql", "start_s": 300, "port": 0})
    assert "--start-s=300.0" in given or given[given.index("--start-s") + 1] == "300.0"


def test_keys_are_the_user_s_alone_and_each_side_has_its_own_half(tmp_path):
    keys = make_keys(MODULE, tmp_path / "keys")
    for path in (tmp_path / "keys", keys.daemon, keys.client):
        assert stat.S_IMODE(path.stat().st_mode) == 0o700
    files = [path for path in (tmp_path / "keys").rglob("*") if path.is_file()]
    assert files
    assert {stat.S_IMODE(path.stat().st_mode) for path in files} == {0o600}
    secrets = {path.read_bytes() for path in keys.daemon.iterdir() if "secret" in path.name}
    assert secrets.isdisjoint(path.read_bytes() for path in keys.client.iterdir())


@pytest.mark.parametrize("name", ["streaming", "streaming_emlio"])
def test_daemons_of_experiments_have_the_congestion_control_of_the_testbed(name, tmp_path):
    shipped = yaml.safe_load(Path(f"conf/loader/{name}.yaml").read_text())["daemon"]
    argv = _arguments("127.0.0.1", tmp_path, shipped)
    assert "--congestion=kernel" in argv or argv[argv.index("--congestion") + 1] == "kernel"
    off = _arguments("127.0.0.1", tmp_path, {**shipped, "congestion": None, "threads": 7})
    assert "None" not in off and "--congestion" not in off and "--threads" in " ".join(off)
