import os
import shutil

import numpy as np
import pyarrow as pa
import pytest

from harness.datasets import DatasetHandle
from harness.datasets.placement import open_shards, place
from harness.datasets.tree import ImageTree
from harness.errors import DiskError
from loaders.base import Samples
from loaders.errors import SampleError
from loaders.records.shards.index import RECORD, ShardSet, index_path


@pytest.fixture
def handle(tree, tmp_path, heard):
    return ImageTree("tree", str(tree)).open(tmp_path / "cache", heard)


def test_shards_are_converted_once(handle, tmp_path, heard):
    first = open_shards(handle, tmp_path / "cache", heard)
    assert heard[-1] == ("converting tree to shards", 4, 4)
    heard.clear()
    assert open_shards(handle, tmp_path / "cache", heard) == first
    assert heard == [(f"checking the shards of {first.name}", 1, 1)]


def flip(path, at):
    """Change one byte of a file, which keeps its size and its times."""
    before = path.stat()
    with path.open("r+b") as file:
        file.seek(at)
        (byte,) = file.read(1)
        file.seek(at)
        file.write(bytes([byte ^ 1]))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert path.stat().st_mtime_ns == before.st_mtime_ns


@pytest.mark.parametrize("place", ["payload", "label"])
def test_shards_of_which_a_byte_has_changed_are_converted_again(place, handle, tmp_path, heard):
    out = open_shards(handle, tmp_path / "cache", heard)
    (shard,) = ShardSet.open(out).shards
    whole = shard.path.read_bytes()
    if place == "payload":
        flip(shard.path, int(shard.records["offset"][2] + shard.records["image"][2]) + 7)
    else:
        index = index_path(shard.path)
        row = index.stat().st_size - len(shard.records) * RECORD.itemsize
        flip(index, row + RECORD.fields["label"][1])
    heard.clear()
    assert open_shards(handle, tmp_path / "cache", heard) == out
    assert ("shards of tree have changed in the cache: converting it again", 1, 1) in heard
    assert shard.path.read_bytes() == whole
    heard.clear()
    open_shards(handle, tmp_path / "cache", heard)
    assert [what for what, _, _ in heard] == [f"checking the shards of {out.name}"]


def test_a_sample_that_changed_is_named_and_nothing_is_left(handle, tmp_path, heard):
    handle.samples.path(2).write_bytes(b"cut")
    with pytest.raises(SampleError, match=r"n01443537_0\.JPEG"):
        open_shards(handle, tmp_path / "cache", heard)
    assert not [path for path in (tmp_path / "cache" / "shards").iterdir() if path.suffix != ".lock"]


def test_too_small_a_disk_is_refused_with_what_is_needed(handle, tmp_path, heard, monkeypatch):
    usage = shutil.disk_usage("/")._replace(free=10)
    monkeypatch.setattr("harness.system.disk.disk_usage", lambda folder: usage)
    with pytest.raises(DiskError, match="10 B"):
        open_shards(handle, tmp_path / "cache", heard)


def test_a_conversion_that_died_is_cleared_up(handle, tmp_path, heard):
    out = open_shards(handle, tmp_path / "cache", heard)
    stale = out.with_name(f".{out.name}.abcd1234.partial")
    stale.mkdir()
    (stale / "shard").write_bytes(b"x")
    open_shards(handle, tmp_path / "cache", heard)
    assert not stale.exists()


@pytest.fixture
def cases(tmp_path):
    """A dataset of two files a sample."""
    root = tmp_path / "cases"
    root.mkdir()
    paths, others = [f"{k}_x.npy" for k in range(9)], [f"{k}_y.npy" for k in range(9)]
    for k in range(9):
        (root / paths[k]).write_bytes(bytes(5000 + k))
        (root / others[k]).write_bytes(bytes(1000))
    columns = {"label_path": pa.array(others)}
    samples = Samples(root, tuple(paths), np.zeros(9, np.int64), np.arange(6000, 6009), columns)
    return DatasetHandle("cases", samples, (), "abc", {})


def test_samples_of_several_files_are_stored_whole_and_cut_in_half(cases, tmp_path, heard):
    shards = open_shards(cases, tmp_path / "cache", heard, 4)
    whole = ShardSet.open(shards)
    assert whole.samples == 9 and len(whole.shards) >= 4
    assert whole.nbytes > cases.samples.sizes.sum()
    placed = place("half", cases, shards, tmp_path / "cache", heard)
    held = [ShardSet.open(folder) for folder in placed.shards.values()]
    assert sum(each.samples for each in held) == 9 and all(each.samples for each in held)
    seen = placed.seen_from("compute", cases.samples)
    nodes = [path.partition("/")[0] for path in seen.columns["label_path"].to_pylist()]
    assert nodes == [path.partition("/")[0] for path in seen.paths]
