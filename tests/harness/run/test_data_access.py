"""A cell reaches its data on whichever node it lies, and what was made for it is gone afterwards."""

from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest

from harness.config.regime import Regime
from harness.config.specs import LoaderSpec
from harness.datasets import DatasetHandle
from harness.datasets.placement import HALF_SHARDS, open_shards, place
from harness.run.cells.data_access import open_access
from harness.run.datasets import OpenData, StoredData
from harness.testbed.local import LocalTestbed
from harness.testbed.state import RunNames, state_root
from loaders.base import Samples

pytestmark = pytest.mark.process

LOCAL = Regime(name="local")
FILES = LoaderSpec(key="pytorch", target="loaders.pytorch.PyTorchLoader")
STREAM = LoaderSpec(
    key="streaming",
    target="loaders.streaming.StreamingLoader",
    reads="stream",
    daemon={"module": "loaders.streaming", "threads": 1},
)


@pytest.fixture
def testbed():
    with LocalTestbed("reachtest", [LOCAL]) as opened:
        yield opened


@pytest.fixture
def data(tmp_path):
    def make(kind, storages=1):
        root = tmp_path / "tree"
        root.mkdir()
        for n in range(40):
            (root / f"{n}.jpg").write_bytes(n.to_bytes(1, "big") * 1000)
        samples = Samples(root, tuple(f"{n}.jpg" for n in range(40)), np.zeros(40, np.int64), np.full(40, 1000))
        handle = DatasetHandle("tree", samples, (), "abc", {})
        shards = open_shards(handle, tmp_path / "cache", lambda *_: None, HALF_SHARDS)
        placed = place(kind, handle, shards, tmp_path / "cache", lambda *_: None, storages)
        samples.save(tmp_path / "samples.parquet")
        split = {"compute": tmp_path / "placement.parquet"} if placed.split else {}
        for role, path in split.items():
            placed.seen_from(role, samples).save(path)
        return StoredData(OpenData(handle, placed, shards), tmp_path / "samples.parquet", split, {})

    return make


@pytest.mark.parametrize(
    ("kind", "storages", "folders"),
    [
        ("remote", 1, None),
        ("half", 1, {"local", "remote"}),
        ("local", 1, None),
        ("remote", 2, {"remote", "remote-2"}),
        ("half", 2, {"local", "remote", "remote-2"}),
    ],
)
def test_every_file_is_read_below_one_root_and_the_root_is_gone_afterwards(
    kind, storages, folders, data, testbed, tmp_path
):
    testbed.storages *= storages
    before = set(RunNames("reachtest", state_root()).folder.iterdir())
    with ExitStack() as stack:
        (access,) = open_access(data(kind, storages), testbed, FILES, LOCAL, stack, tmp_path).values()
        seen = Samples.load(access.samples_file).at(access.root)
        assert [seen.path(n).read_bytes()[0] for n in range(40)] == list(range(40))
        if folders:
            assert {path.parts[-2] for path in map(Path, seen.paths)} == folders
    assert set(RunNames("reachtest", state_root()).folder.iterdir()) <= before | {
        RunNames("reachtest", state_root()).folder / "tmp"
    }
    assert (tmp_path / "tree" / "39.jpg").exists()


@pytest.mark.parametrize(
    ("kind", "storages", "daemons"), [("remote", 1, 1), ("half", 1, 2), ("local", 1, 1), ("half", 2, 3)]
)
def test_every_node_that_has_samples_has_a_daemon_while_the_cell_lasts(
    kind, storages, daemons, data, testbed, tmp_path
):
    testbed.storages *= storages
    with ExitStack() as stack:
        (access,) = open_access(data(kind, storages), testbed, STREAM, LOCAL, stack, tmp_path).values()
        assert len({daemon.endpoint for daemon in access.daemons}) == daemons
        assert [daemon.failure() for daemon in access.daemons] == [None] * daemons
        assert access.root is None
    assert all(daemon.failure() for daemon in access.daemons)
