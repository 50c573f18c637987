"""Shards that are gone or damaged while they are served are errors that say where and what to do."""

from __future__ import annotations

import shutil

import pytest

from loaders import StreamError
from loaders.records.shards.index import ShardSet, index_path
from loaders.tfdata import TfDataLoader

pytestmark = pytest.mark.process


@pytest.fixture(scope="module")
def copy(shards, tmp_path_factory):
    return shutil.copytree(shards, tmp_path_factory.mktemp("copy") / "shards")


@pytest.fixture(scope="module")
def endpoint(copy, serving):
    with serving(copy) as daemon:
        yield daemon.endpoint


def remove(path, shard):
    path.unlink()


def empty(path, shard):
    path.write_bytes(b"")


def cut(path, shard):
    path.write_bytes(path.read_bytes()[:50_000])


def damage(path, shard):
    with path.open("r+b") as file:
        file.seek(int(shard.records["offset"][2] + shard.records["image"][2]) + 99)
        file.write(b"damage")


def cut_index(path, shard):
    index_path(path).write_bytes(index_path(path).read_bytes()[:-30])


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (remove, "NotFoundError: .*shard-00003.*No such file"),
        (empty, "has ended the epoch early: .*a shard has fewer records than its index"),
        (cut, "DataLossError: .*truncated record"),
        # A known fault of tf.data service: it tells the offset of the record, and not of which shard.
        (damage, "DataLossError: .*corrupted record at [0-9]+"),
        (cut_index, "InvalidArgumentError: .*shard-00003.index.npy"),
    ],
)
def test_an_epoch_over_a_broken_shard_ends_with_an_error(copy, endpoint, fault, message):
    shard = ShardSet.open(copy).shards[3]
    whole = {path: path.read_bytes() for path in (shard.path, index_path(shard.path))}
    fault(shard.path, shard)
    try:
        with TfDataLoader(endpoint=endpoint, batch_size=2, seed=0, decode="raw", timeout_s=20) as loader:
            with pytest.raises(StreamError, match=message) as caught:
                list(loader.epoch(0))
            said = str(caught.value)
            assert said.startswith(f"{endpoint}: tf.data service") and "of 120 records are missing of epoch 0" in said
            assert "copy or convert the shards again" in said and "{{" not in said
    finally:
        for path, content in whole.items():
            path.write_bytes(content)
