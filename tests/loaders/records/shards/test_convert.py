from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from loaders.base import Samples
from loaders.errors import LoaderConfigError, SampleError, ShardError
from loaders.records.shards.convert import convert
from loaders.records.shards.example import ExampleView
from loaders.records.shards.index import RECORD, ShardSet, index_path
from loaders.records.shards.tfrecord import check_record, read_records


def _ids(root: Path) -> list[int]:
    return [int(sample_id) for shard in ShardSet.open(root).shards for sample_id in shard.records["id"]]


def test_every_sample_is_in_the_shards_once_with_its_bytes(samples: Samples, shards: Path) -> None:
    opened = ShardSet.open(shards)
    assert opened.samples == len(samples) and len(opened.shards) > 1
    assert sorted(_ids(shards)) == list(range(len(samples)))
    for shard in opened.shards:
        whole = shard.path.read_bytes()
        for payload, row in zip(read_records(shard.path), shard.records, strict=True):
            record = whole[row["offset"] : row["offset"] + row["size"]]
            assert check_record(record, "here") == payload
            image = record[row["image"] : row["image"] + row["image_size"]]
            example = ExampleView(payload)
            assert image == example["image/encoded"][0] == samples.path(int(row["id"])).read_bytes()
            assert example["id"] == [row["id"]]
            assert example["image/class/label"] == [row["label"]] == [samples.labels[row["id"]]]
            assert example["image/path"] == [samples.paths[row["id"]].encode()]


def test_shards_keep_to_their_size(samples: Samples, tmp_path: Path) -> None:
    largest = int(samples.sizes.max()) + 300
    opened = ShardSet.open(convert(samples, tmp_path / "out", key="a", shard_bytes=largest))
    assert all(shard.nbytes <= largest for shard in opened.shards)
    one_each = ShardSet.open(convert(samples, tmp_path / "tiny", key="a", shard_bytes=1))
    assert len(one_each.shards) == len(samples)


def test_the_order_is_drawn_from_the_seed(samples: Samples, tmp_path: Path) -> None:
    orders = [_ids(convert(samples, tmp_path / str(run), key="a", seed=seed)) for run, seed in enumerate((0, 0, 1))]
    assert orders[0] == orders[1] != orders[2]
    assert orders[0] != sorted(orders[0])


def test_an_equal_key_is_reused_and_another_replaces(samples: Samples, tmp_path: Path) -> None:
    out = tmp_path / "out"
    calls: list[tuple[int, int]] = []
    convert(samples, out, key="a", progress=lambda done, total: calls.append((done, total)))
    assert calls == [(done + 1, len(samples)) for done in range(len(samples))]
    before = (out / "manifest.json").stat().st_mtime_ns
    convert(samples, out, key="a", progress=lambda *_: pytest.fail("converted again"))
    assert (out / "manifest.json").stat().st_mtime_ns == before
    convert(samples.first(5), out, key="b")
    assert sorted(_ids(out)) == [0, 1, 2, 3, 4] and ShardSet.open(out).key == "b"
    assert [entry.name for entry in tmp_path.iterdir()] == ["out"]


def test_a_damaged_folder_is_made_again(samples: Samples, tmp_path: Path) -> None:
    out = convert(samples, tmp_path / "out", key="a")
    next(out.glob("*.tfrecord")).write_bytes(b"cut short")
    convert(samples, out, key="a")
    assert sorted(_ids(out)) == list(range(len(samples)))


def test_a_missing_sample_is_named_and_nothing_is_left(samples: Samples, tmp_path: Path) -> None:
    gone = replace(samples, paths=(*samples.paths[:-1], "class_0/gone.jpg"))
    with pytest.raises(SampleError, match=r"sample 60, .*class_0/gone\.jpg"):
        convert(gone, tmp_path / "out", key="a")
    grown = replace(samples, sizes=samples.sizes + np.eye(1, len(samples), 4, dtype=np.int64)[0])
    with pytest.raises(SampleError, match="sample 4, "):
        convert(grown, tmp_path / "out", key="a")
    assert list(tmp_path.iterdir()) == []


def test_a_fifo_is_named_and_not_waited_for(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    os.mkfifo(tmp_path / "in/00.jpg")
    samples = Samples(tmp_path / "in", ("00.jpg",), np.zeros(1, np.int64), np.zeros(1, np.int64))
    with pytest.raises(SampleError, match=rf"sample 0, {tmp_path}/in/00\.jpg"):
        convert(samples, tmp_path / "out", key="a")


def test_nothing_to_convert_is_refused(samples: Samples, tmp_path: Path) -> None:
    with pytest.raises(LoaderConfigError, match="no samples"):
        convert(samples.first(0), tmp_path / "out", key="a")
    with pytest.raises(LoaderConfigError, match="shard_bytes=0"):
        convert(samples, tmp_path / "out", key="a", shard_bytes=0)


def test_the_remains_of_a_killed_conversion_are_no_shard_folder(samples: Samples, tmp_path: Path) -> None:
    out = convert(samples, tmp_path / "out", key="a")
    (out / "manifest.json").unlink()
    with pytest.raises(ShardError, match=r"manifest.json"):
        ShardSet.open(out)


@pytest.mark.parametrize("name", ["../shard-00000.tfrecord", "/etc/passwd", "..", ""])
def test_a_manifest_cannot_point_out_of_its_folder(samples: Samples, tmp_path: Path, name: str) -> None:
    out = convert(samples, tmp_path / "out", key="a")
    manifest = json.loads((out / "manifest.json").read_text())
    manifest["shards"][0]["name"] = name
    (out / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(ShardError, match="is not a file name in the folder"):
        ShardSet.open(out)


@pytest.mark.parametrize(
    "manifest", ["", "[]", '{"format": 1}', '{"format": 2}', '{"format": 1, "key": "a", "shards": 5}']
)
def test_a_malformed_manifest_is_named(tmp_path: Path, manifest: str) -> None:
    (tmp_path / "manifest.json").write_text(manifest)
    with pytest.raises(ShardError, match=r"manifest\.json"):
        ShardSet.open(tmp_path)


@pytest.mark.parametrize("change", ["missing", "garbage", "dtype", "beyond", "gap", "outside"])
def test_an_index_that_does_not_fit_is_named(samples: Samples, tmp_path: Path, change: str) -> None:
    out = convert(samples, tmp_path / "out", key="a")
    path = index_path(ShardSet.open(out).shards[0].path)
    records = np.load(path)
    match change:
        case "missing":
            path.unlink()
        case "garbage":
            path.write_bytes(b"garbage")
        case "dtype":
            np.save(path, np.arange(3))
        case "beyond":
            records["size"][-1] += 1
        case "gap":
            records["offset"][1:] += 1
        case "outside":
            records["image"][0] = records["size"][0]
    if change in ("beyond", "gap", "outside"):
        np.save(path, records.astype(RECORD))
    with pytest.raises(ShardError, match=path.name):
        ShardSet.open(out)
