import pytest

from harness.datasets import shards as sharding
from harness.datasets.shards import open_shards
from harness.datasets.tree import ImageTree
from harness.errors import DatasetError
from loaders.errors import SampleError


@pytest.fixture
def handle(tree, tmp_path, heard):
    return ImageTree("tree", str(tree)).open(tmp_path / "cache", heard)


def test_shards_are_converted_once(handle, tmp_path, heard):
    first = open_shards(handle, tmp_path / "cache", heard)
    assert heard[-1] == ("converting tree to shards", 4, 4)
    heard.clear()
    assert open_shards(handle, tmp_path / "cache", heard) == first
    assert heard == []


def test_other_samples_get_shards_of_their_own(handle, tree, tmp_path, heard):
    whole = open_shards(handle, tmp_path / "cache", heard)
    part = ImageTree("tree", str(tree), limit=2).open(tmp_path / "cache", heard)
    assert open_shards(part, tmp_path / "cache", heard) != whole


def test_a_sample_that_changed_is_named_and_nothing_is_left(handle, tmp_path, heard):
    handle.samples.path(2).write_bytes(b"cut")
    with pytest.raises(SampleError, match=r"n01443537_0\.JPEG"):
        open_shards(handle, tmp_path / "cache", heard)
    assert not [path for path in (tmp_path / "cache" / "shards").iterdir() if path.suffix != ".lock"]


def test_too_small_a_disk_is_refused_with_what_is_needed(handle, tmp_path, heard, monkeypatch):
    usage = sharding.check_room.__globals__["shutil"].disk_usage("/")._replace(free=10)
    monkeypatch.setattr("harness.datasets.cache.shutil.disk_usage", lambda folder: usage)
    with pytest.raises(DatasetError, match="are needed and 0 MB are free"):
        open_shards(handle, tmp_path / "cache", heard)


def test_a_conversion_that_died_is_cleared_up(handle, tmp_path, heard):
    out = open_shards(handle, tmp_path / "cache", heard)
    stale = out.with_name(f".{out.name}.abcd1234.partial")
    stale.mkdir()
    (stale / "shard").write_bytes(b"x")
    open_shards(handle, tmp_path / "cache", heard)
    assert not stale.exists()
