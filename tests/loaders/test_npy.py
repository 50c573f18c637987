"""NumPy's files are read in several threads at a time: CPython 3.11's parser alone cannot (its issue 106905)."""

from __future__ import annotations

import gc
import io
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from harness.datasets.kits19.tree import _numpy_shape
from joulefeed.npy import load_npy, map_npy
from loaders.pipeline.volumes import array_in, map_array
from loaders.records.shards.index import RECORD, index_path, load_index, save_index

ARRAY = np.zeros((1, 2, 3, 4), np.float32)


@pytest.fixture
def threads_change_within_the_parser() -> Iterator[None]:
    """Have the collector of garbage run often, and let other threads run while it does."""

    def give_way(phase: str, info: dict[str, int]) -> None:
        time.sleep(1e-4)

    before = gc.get_threshold()
    gc.callbacks.append(give_way)
    gc.set_threshold(20)
    gc.enable()
    try:
        yield
    finally:
        gc.callbacks.remove(give_way)
        gc.set_threshold(*before)


@pytest.fixture
def array_file(tmp_path: Path) -> Path:
    np.save(tmp_path / "array.npy", ARRAY)
    return tmp_path / "array.npy"


@pytest.fixture
def shard(tmp_path: Path) -> Path:
    path = tmp_path / "0.shard"
    path.write_bytes(bytes(100))
    records = np.zeros(1, RECORD)
    records["size"] = 100
    save_index(path, records)
    assert index_path(path).exists()
    return path


@pytest.mark.usefixtures("threads_change_within_the_parser")
@pytest.mark.parametrize(
    "read",
    [
        lambda path: load_npy(path.read_bytes()),
        lambda path: map_npy(path, "r"),
        lambda path: array_in(path.read_bytes(), path.name),
        map_array,
        lambda path: np.empty(_numpy_shape(path, np.float32)),
    ],
    ids=["load_npy", "map_npy", "array_in", "map_array", "kits19"],
)
def test_an_array_is_read_in_several_threads(read: Callable[[Path], np.ndarray], array_file: Path) -> None:
    with ThreadPoolExecutor(8) as threads:
        for array in threads.map(read, [array_file] * 40):
            assert array.shape == ARRAY.shape


@pytest.mark.usefixtures("threads_change_within_the_parser")
def test_indexes_of_shards_are_read_in_several_threads(shard: Path) -> None:
    with ThreadPoolExecutor(8) as threads:
        for found in threads.map(load_index, [shard] * 40):
            assert len(found.records) == 1


def test_what_is_no_array_is_an_error_of_numpy() -> None:
    with pytest.raises((ValueError, EOFError)):
        load_npy(b"garbage")
    damaged = io.BytesIO()
    np.save(damaged, ARRAY)
    with pytest.raises(ValueError, match=r"cannot reshape|read"):
        load_npy(damaged.getvalue()[:-8])
