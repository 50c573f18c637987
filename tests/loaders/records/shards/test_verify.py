"""The check of a whole folder of shards."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from loaders.base import Samples
from loaders.errors import ShardError
from loaders.records.shards.index import RECORD, ShardSet, index_path
from loaders.records.shards.indexer import verify_folder


@pytest.fixture
def copy(shards: Path, tmp_path: Path) -> Path:
    return shutil.copytree(shards, tmp_path / "copy")


def test_a_whole_folder_is_told_with_its_numbers(copy: Path, samples: Samples) -> None:
    seen: list[tuple[int, int]] = []
    whole = verify_folder(copy, workers=2, progress=lambda done, total: seen.append((done, total)))
    shards = ShardSet.open(copy).shards
    assert (whole.shards, whole.samples) == (len(shards), len(samples))
    assert whole.nbytes == sum(shard.path.stat().st_size for shard in shards)
    assert seen == [(done + 1, len(shards)) for done in range(len(shards))]


@pytest.mark.parametrize("workers", [1, 2])
def test_every_damaged_shard_is_named(copy: Path, workers: int) -> None:
    shards = ShardSet.open(copy).shards
    for shard, place in ((shards[0], 3), (shards[-1], -1)):
        at = int(shard.records["offset"][place] + shard.records["size"][place] // 2)
        data = bytearray(shard.path.read_bytes())
        data[at] ^= 4
        shard.path.write_bytes(data)
    with pytest.raises(ShardError) as raised:
        verify_folder(copy, workers=workers)
    lines = str(raised.value).splitlines()
    assert f"2 of {len(shards)} shards are damaged" in lines[0] and len(lines) == 3
    offset = shards[0].records["offset"][3]
    assert f"{shards[0].path} at byte {offset}: " in lines[1]
    assert str(shards[-1].path) in lines[2]


@pytest.mark.parametrize("column", ["label", "id", "image"])
def test_an_index_that_says_something_else_than_the_records_is_named(copy: Path, column: str) -> None:
    shard = ShardSet.open(copy).shards[1]
    records = np.load(index_path(shard.path))
    if column == "image":
        records["image"][2] -= 1
    else:
        records[column][2] = 1000
    np.save(index_path(shard.path), records)
    with pytest.raises(ShardError, match=f"{index_path(shard.path).name}: {column} of record 2 "):
        verify_folder(copy)


def test_an_index_of_other_record_bounds_is_named(copy: Path) -> None:
    shard = ShardSet.open(copy).shards[0]
    records = np.load(index_path(shard.path))
    records["size"][0] += 8
    records["offset"][1] += 8
    records["size"][1] -= 8
    records["image_size"][1] -= 8
    np.save(index_path(shard.path), records)
    with pytest.raises(ShardError, match="at byte 0"):
        verify_folder(copy)
    np.save(index_path(shard.path), np.array([(0, shard.nbytes, 0, 0, 0, 0, 0)], RECORD))
    with pytest.raises(ShardError, match="in its index"):
        verify_folder(copy)


def test_numbers_that_would_wrap_are_refused(copy: Path) -> None:
    shard = ShardSet.open(copy).shards[0]
    for column, value in (("image", 2**63 - 1), ("image_size", 2**63 - 1), ("size", 2**63 - 1), ("offset", -(2**63))):
        records = shard.records.copy()
        records[column][1] = value
        np.save(index_path(shard.path), records)
        with pytest.raises(ShardError, match="does not describe"):
            ShardSet.open(copy)


def test_a_shard_that_is_there_twice_is_refused(copy: Path) -> None:
    manifest = json.loads((copy / "manifest.json").read_text())
    manifest["shards"].append(manifest["shards"][0])
    (copy / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(ShardError, match="no shards, or one of them twice"):
        verify_folder(copy)
