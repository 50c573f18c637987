"""Which blocks a cache keeps, and which make room."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from loaders.streaming.objects.block_cache import BLOCK, BlockCache

SIZES = (10 * BLOCK, 5 * BLOCK + 1)


@pytest.fixture
def paths(tmp_path: Path) -> list[Path]:
    paths = [tmp_path / "a", tmp_path / "b"]
    for path, size in zip(paths, SIZES, strict=True):
        with path.open("wb") as file:
            file.truncate(size)
    return paths


def make_cache(paths: list[Path], blocks: int, log=lambda *_, **__: None) -> BlockCache:
    return BlockCache(paths, SIZES, np.zeros(16, np.uint8), blocks * BLOCK, log)


def fill(cache: BlockCache, shard: int, block: int) -> bool:
    """Bring one block of a shard in, if there is room."""
    wanted = cache.blocks(shard, block * BLOCK, block * BLOCK + 1)
    claimed = cache.claim(wanted)
    if claimed is None:
        return False
    for each in claimed:
        data = bytes([1 + each]) * min(BLOCK, SIZES[shard] - block * BLOCK)
        assert cache.write(shard, each, memoryview(data))
    return True


def kept(cache: BlockCache, shard: int, blocks: int) -> list[int]:
    return [block for block in range(blocks) if cache.has(cache.blocks(shard, block * BLOCK, block * BLOCK + 1))]


def test_blocks_that_were_asked_for_the_longest_ago_make_room(paths):
    cache = make_cache(paths, 4)
    for block in range(4):
        assert fill(cache, 0, block)
    cache.pin(cache.blocks(0, 0, 1))  # used again, and not kept
    for block in (0, 5):  # the last one is a byte
        assert fill(cache, 1, block)
    assert (kept(cache, 0, 10), kept(cache, 1, 6)) == ([0, 3], [0, 5])
    assert cache.nbytes == 4 * BLOCK
    assert sum(512 * path.stat().st_blocks for path in paths) <= 4 * BLOCK
    assert [path.stat().st_size for path in paths] == list(SIZES)


def test_a_block_that_is_in_use_stays_and_the_cache_says_that_it_has_no_room(paths):
    cache = make_cache(paths, 2)
    fill(cache, 0, 0)
    pins = [cache.pin(cache.blocks(0, 0, 1)) for _ in range(2)]
    assert fill(cache, 0, 1)
    assert fill(cache, 0, 2)
    assert kept(cache, 0, 10) == [0, 2]
    pins.append(cache.pin(cache.blocks(0, 2 * BLOCK, 2 * BLOCK + 1)))
    assert not fill(cache, 0, 3)
    assert paths[0].read_bytes()[:BLOCK] == b"\x01" * BLOCK
    del pins[1:]
    assert fill(cache, 0, 3)
    assert kept(cache, 0, 10) == [0, 3]


def test_a_block_on_its_way_counts_and_is_claimed_once(paths):
    cache = make_cache(paths, 2)
    both = cache.blocks(0, 0, 2 * BLOCK)
    assert cache.claim(both) == [0, 1]
    assert cache.claim(both) == []
    assert not fill(cache, 1, 0)
    cache.give_back(both)
    assert cache.nbytes == 0
    assert fill(cache, 1, 0)


def test_a_file_that_cannot_be_written_leaves_the_cache_as_large_as_it_is(paths):
    events = []
    cache = make_cache(paths, 8, lambda event, **fields: events.append((event, fields)))
    fill(cache, 0, 0)
    wanted = cache.blocks(1, 0, 1)
    (block,) = cache.claim(wanted)
    paths[1].unlink()
    assert not cache.write(1, block, memoryview(bytes(BLOCK)))
    cache.give_back(wanted)
    ((event, fields),) = events
    assert (event, fields["cached_bytes"]) == ("cache_full", BLOCK)
    assert "b cannot be written: No such file" in fields["reason"]
    assert fill(cache, 0, 1)
    assert kept(cache, 0, 10) == [1]


def test_a_cache_that_cannot_free_its_blocks_keeps_no_more(paths):
    events = []
    cache = make_cache(paths, 1, lambda event, **fields: events.append((event, fields)))
    fill(cache, 0, 0)
    paths[0].unlink()
    fill(cache, 1, 0)
    assert not fill(cache, 1, 1)
    assert [fields["cached_bytes"] for _, fields in events] == [0]


def test_a_lower_limit_holds_from_the_start(paths):
    present = np.ones(16, np.uint8)
    cache = BlockCache(paths, SIZES, present, 3 * BLOCK, lambda *_, **__: None)
    assert cache.nbytes == 3 * BLOCK
    assert present.sum() == 3
