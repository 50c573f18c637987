"""Data of the same sizes and other bytes are other data, wherever that is found out."""

from __future__ import annotations

import io
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from loaders.base import Samples
from loaders.errors import LoaderConfigError, ShardError, StreamError
from loaders.records.shards.convert import convert
from loaders.records.shards.example import encode_example
from loaders.records.shards.index import ShardSet
from loaders.records.shards.indexer import index_folder
from loaders.records.shards.tfrecord import write_record
from loaders.streaming.daemon.store import ShardStore
from loaders.streaming.loader import StreamingLoader

Start = Callable[..., Any]
SAMPLES = 96


def _volumes(folder: Path, value: int) -> Samples:
    """Volumes of one shape, which are told apart by their elements alone."""
    folder.mkdir()
    paths = tuple(f"{number:03d}.npy" for number in range(SAMPLES))
    for number, path in enumerate(paths):
        np.save(folder / path, np.full((8, 8), 1000 * value + number))
    sizes = np.full(SAMPLES, (folder / paths[0]).stat().st_size)
    return Samples(folder, paths, np.zeros(SAMPLES, np.int64), sizes)


def _first(volume: memoryview) -> int:
    """Return the first element of a volume, as it was saved."""
    return int(np.load(io.BytesIO(volume)).flat[0])


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Two shard folders of the same sizes."""
    folder = tmp_path_factory.mktemp("pair")
    for value in (0, 1):
        source = _volumes(folder / f"source-{value}", value)
        convert(source, folder / f"shards-{value}", key="volumes", shard_bytes=20_000)
    return folder / "shards-0", folder / "shards-1"


@pytest.fixture
def served(pair: tuple[Path, Path], tmp_path: Path) -> Path:
    return shutil.copytree(pair[0], tmp_path / "served")


def _put(root: Path, other: Path) -> None:
    """Put the shards of another folder into one, in place."""
    for shard in other.glob("*.tfrecord"):
        with (root / shard.name).open("r+b") as file:
            file.write(shard.read_bytes())


def _loader(daemon: Any, **options: Any) -> StreamingLoader:
    arguments = {"decode": "raw", "batch_size": 8, "seed": 0, "prefetch_batches": 2, "warm_bytes": 0, "timeout_s": 10.0}
    return StreamingLoader(endpoint=daemon.endpoint, **arguments | options)


def test_a_fingerprint_covers_the_bytes(pair: tuple[Path, Path], tmp_path: Path) -> None:
    copied = shutil.copytree(pair[0], tmp_path / "copied")
    found = []
    for root in (*pair, copied):
        with ShardStore(root) as store:
            found.append(store.catalog.fingerprint)
    assert found[0] != found[1] and found[0] == found[2]


@pytest.mark.process
def test_an_epoch_ends_with_an_error_when_its_daemon_comes_back_with_other_bytes(
    start_daemon: Start, pair: tuple[Path, Path]
) -> None:
    daemon = start_daemon(pair[0])
    with _loader(daemon) as loader:
        epoch = loader.epoch(0)
        taken = [next(epoch) for _ in range(2)]
        daemon.kill()
        again = start_daemon(pair[1], port=daemon.port)
        with pytest.raises(StreamError, match=again.endpoint):
            taken += epoch
        for batch in taken:
            for sample_id, volume in zip(batch.ids.tolist(), batch.images(), strict=True):
                assert _first(volume) == sample_id, "a sample of the other data"
        state = loader.state_dict()
    with _loader(again) as loader, pytest.raises(LoaderConfigError, match="of other data"):
        loader.load_state_dict(state)


@pytest.mark.parametrize("in_place", [True, False])
def test_shards_that_are_not_those_that_were_indexed_are_not_served(
    served: Path, pair: tuple[Path, Path], in_place: bool
) -> None:
    if in_place:
        _put(served, pair[1])
    else:  # with the times that they had elsewhere
        for shard in pair[1].glob("*.tfrecord"):
            shutil.copy2(shard, served)
            os.utime(served / shard.name, (0, 0))
    with pytest.raises(ShardError, match=r"shard-00000\.tfrecord.*0"):
        ShardStore(served)


def test_one_record_that_was_changed_after_indexing_is_named(served: Path, pair: tuple[Path, Path]) -> None:
    shard = ShardSet.open(served).shards[1]
    start = int(shard.records["offset"][5])
    end = start + int(shard.records["size"][5])
    other = (pair[1] / shard.path.name).read_bytes()
    with shard.path.open("r+b") as file:
        file.seek(start)
        file.write(other[start:end])
    with pytest.raises(ShardError, match=f"{shard.path}: record 5"):
        ShardStore(served)


@pytest.mark.process
@pytest.mark.parametrize("verify", [True, False])
def test_shards_that_change_under_the_daemon_give_an_error_and_no_sample(
    start_daemon: Start, served: Path, pair: tuple[Path, Path], verify: bool
) -> None:
    with _loader(start_daemon(served), verify=verify) as loader:
        epoch, ids = loader.epoch(0), []
        ids += next(epoch).ids.tolist()
        _put(served, pair[1])
        with pytest.raises(StreamError, match=r"record \d+"):
            for batch in epoch:
                for sample_id, volume in zip(batch.ids.tolist(), batch.images(), strict=True):
                    assert _first(volume) == sample_id, "a sample of the other data"


@pytest.mark.process
def test_records_at_other_places_in_shards_that_change_under_the_daemon_give_an_error(
    start_daemon: Start, tmp_path: Path
) -> None:
    roots = []
    for name, sizes in (("one", (500, 700)), ("other", (700, 500))):
        (tmp_path / name).mkdir()
        with (tmp_path / name / "a.tfrecord").open("wb") as file:
            for number in range(40):
                write_record(file, encode_example({"data": [bytes([number]) * sizes[number % 2]], "id": [number]}))
        index_folder(tmp_path / name)
        roots.append(tmp_path / name)
    with _loader(start_daemon(roots[0]), slice_records=4) as loader:
        epoch = loader.epoch(0)
        next(epoch)
        _put(roots[0], roots[1])
        with pytest.raises(StreamError, match="is not the one that was indexed"):
            for batch in epoch:
                for sample_id, data in zip(batch.ids.tolist(), batch.images(), strict=True):
                    assert bytes(data) == bytes([sample_id]) * len(data), "a sample of the other data"
