"""A dataset that is cut in half: every sample on one node, the same half for files and shards."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.datasets import DatasetHandle
from harness.datasets.placement import HALF_SHARDS, open_shards, place, split
from harness.errors import DatasetError
from loaders.base import Samples
from loaders.records.shards.index import RECORD, Shard, ShardSet


def quiet(*_):
    """Progress that nobody looks at."""


@pytest.fixture
def handle(tmp_path):
    root = tmp_path / "tree"
    random = np.random.default_rng(0)
    sizes = random.integers(1_000, 9_000, 90)
    paths = tuple(f"c{n % 3}/{n}.jpg" for n in range(len(sizes)))
    for path, size in zip(paths, sizes, strict=True):
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(random.bytes(int(size)))
    return DatasetHandle("tree", Samples(root, paths, np.arange(90) % 3, sizes), (), "abc", {})


@pytest.fixture
def shards(handle, tmp_path):
    return open_shards(handle, tmp_path / "cache", quiet, HALF_SHARDS)


def ids(folder):
    return sorted(int(i) for shard in ShardSet.open(folder).shards for i in shard.records["id"])


def test_every_sample_lies_on_one_node_and_halves_are_about_equal(handle, shards, tmp_path):
    placed = place("half", handle, shards, tmp_path / "cache", quiet)
    here, there = (ids(placed.shards[role]) for role in ("compute", "storage"))
    assert sorted(here + there) == list(range(90))
    assert here == np.flatnonzero(placed.on_compute).tolist()
    about = placed.describe()
    assert about["remote_samples"] == len(there)
    assert about["remote_bytes"] == int(handle.samples.sizes[there].sum())
    assert about["remote_bytes"] / handle.samples.sizes.sum() == pytest.approx(0.5, abs=0.08)


def test_the_same_dataset_is_cut_at_the_same_place_and_no_shard_name_is_on_both_nodes(handle, shards, tmp_path):
    before = sorted((p.name, p.stat().st_size) for p in shards.iterdir())
    first = place("half", handle, shards, tmp_path / "cache", quiet)
    made = {role: (folder / "manifest.json").stat().st_mtime_ns for role, folder in first.shards.items()}
    again = place("half", handle, shards, tmp_path / "cache", quiet)
    assert again.shards == first.shards
    assert (again.on_compute == first.on_compute).all()
    assert made == {role: (folder / "manifest.json").stat().st_mtime_ns for role, folder in again.shards.items()}
    paths = [shard.path for folder in first.shards.values() for shard in ShardSet.open(folder).shards]
    assert len(paths) == len({path.name for path in paths})
    # The halves share the bytes of the whole, and leave it as it was.
    assert all(path.samefile(shards / path.name) and not path.is_symlink() for path in paths)
    assert sorted((p.name, p.stat().st_size) for p in shards.iterdir()) == before


@pytest.mark.parametrize(("kind", "remote", "role"), [("remote", 90, "storage"), ("local", 0, "compute")])
def test_a_dataset_on_one_node_keeps_its_folder(handle, shards, tmp_path, kind, remote, role):
    placed = place(kind, handle, shards, tmp_path / "cache", quiet)
    assert placed.shards == {role: shards}
    assert placed.describe()["remote_samples"] == remote
    assert not placed.split
    assert place(kind, handle, None, tmp_path / "cache", quiet).shards == {}


@pytest.mark.parametrize(("storages", "needed"), [(1, 2), (2, 3)])
def test_a_single_shard_cannot_be_cut(handle, tmp_path, storages, needed):
    shards = open_shards(handle, tmp_path / "cache", quiet)
    with pytest.raises(DatasetError, match=f"one shard, expected at least {needed}"):
        place("half", handle, shards, tmp_path / "cache", quiet, storages=storages)


@given(st.lists(st.integers(1, 10**9), min_size=2, max_size=60))
def test_halves_differ_by_no_more_than_the_largest_shard(sizes):
    shards = [Shard(Path(f"shard-{n:05d}"), size, np.zeros(1, RECORD)) for n, size in enumerate(sizes)]
    parts = split(shards)
    held = [sum(shard.nbytes for shard in part) for part in parts.values()]
    assert sum(held) == sum(sizes)
    assert all(parts.values())
    assert abs(held[0] - held[1]) <= max(sizes)
    assert split(shards[::-1]) == parts


@pytest.mark.parametrize(("kind", "remote"), [("remote", 1.0), ("half", 0.5)])
def test_several_storage_nodes_share_what_is_remote(handle, tmp_path, kind, remote):
    shards = open_shards(handle, tmp_path / "cache", quiet, 2 * HALF_SHARDS)
    placed = place(kind, handle, shards, tmp_path / "cache", quiet, storages=2)
    held = {part: ids(folder) for part, folder in placed.shards.items()}
    assert sorted(number for part in held.values() for number in part) == list(range(90))
    assert set(held) - {"compute"} == {"storage", "storage-2"}
    total = handle.samples.sizes.sum()
    for part in ("storage", "storage-2"):
        assert handle.samples.sizes[held[part]].sum() / total == pytest.approx(remote / 2, abs=0.08)
    seen = placed.seen_from("compute", handle.samples)
    folders = {"compute": "local", "storage": "remote", "storage-2": "remote-2"}
    for part, held_ids in held.items():
        assert {seen.paths[number].partition("/")[0] for number in held_ids} == {folders[part]}
    assert placed.describe()["storages"] == 2
