"""The splits of a dataset have the same labels, or one of them is refused."""

from __future__ import annotations

import io
import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from loaders.errors import LoaderConfigError
from loaders.records.shards.classes import load_classes
from loaders.records.shards.convert import audio_folder, coco, convert_source, numpy_volumes
from loaders.records.shards.example import decode_example
from loaders.records.shards.index import ShardSet
from loaders.records.shards.tfrecord import read_records
from loaders.streaming.__main__ import main


def _tree(root: Path, classes: str) -> Path:
    buffer = io.BytesIO()
    Image.fromarray(np.zeros((8, 8, 3), np.uint8)).save(buffer, "JPEG")
    for name in classes:
        (root / name).mkdir(parents=True)
        (root / name / "1.jpg").write_bytes(buffer.getvalue())
    return root


def _convert(source: Path, out: Path, *options: object) -> int:
    command = ["convert", "--from", "image-tree", source, "--out", out, "--workers", 1, *options]
    return main([str(word) for word in command])


def _labels(out: Path) -> dict[str, int]:
    """The label of every sample's class folder, as both the index and the records have it."""
    found = {}
    for shard in ShardSet.open(out).shards:
        for row, payload in zip(shard.records, read_records(shard.path), strict=True):
            example = decode_example(payload)
            assert example["image/class/label"] == [row["label"]]
            (path,) = example["image/path"]
            found[bytes(path).decode().partition("/")[0]] = int(row["label"])  # type: ignore[arg-type]
    return found


def test_a_split_that_lacks_a_class_is_refused_and_takes_the_labels_of_the_other(tmp_path: Path, capsys) -> None:
    train, val, out = _tree(tmp_path / "train", "abc"), _tree(tmp_path / "val", "ac"), tmp_path / "shards"
    assert _convert(train, out / "train") == 0
    assert json.loads((out / "train/classes.json").read_text()) == {"a": 0, "b": 1, "c": 2}
    assert _convert(val, out / "val") == 2
    assert not (out / "val").exists()
    (said,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error: ")]
    assert f"{val}: class c would get label 1, and in {out}/train it has 2;" in said
    assert f"--classes {out}/train" in said
    for given in (out / "train", out / "train/classes.json"):
        assert _convert(val, out / "val", "--classes", given, "--replace") == 0
        assert _labels(out / "val") == {"a": 0, "c": 2}
        assert json.loads((out / "val/classes.json").read_text()) == {"a": 0, "b": 1, "c": 2}
    assert _convert(val, out / "other", "--own-classes") == 0
    assert _labels(out / "other") == {"a": 0, "c": 1}
    assert _convert(_tree(tmp_path / "more", "ad"), out / "more", "--classes", out / "train") == 2
    assert "class d " in capsys.readouterr().err


def test_a_class_between_others_is_refused_and_datasets_without_a_common_class_are_not(tmp_path: Path, capsys) -> None:
    assert _convert(_tree(tmp_path / "one", "ac"), tmp_path / "shards/one") == 0
    assert _convert(_tree(tmp_path / "two", "ab"), tmp_path / "shards/two") == 2
    assert "class b " in capsys.readouterr().err
    assert _convert(_tree(tmp_path / "three", "xyz"), tmp_path / "shards/three") == 0
    assert _convert(_tree(tmp_path / "four", "acd"), tmp_path / "shards/four") == 0


def test_shards_without_a_file_of_classes_are_known_by_their_manifest(tmp_path: Path, capsys) -> None:
    train, out = _tree(tmp_path / "train", "abc"), tmp_path / "shards"
    assert _convert(train, out / "train") == 0
    (out / "train/classes.json").unlink()
    assert _convert(_tree(tmp_path / "val", "ac"), out / "val") == 2
    assert "it has 2" in capsys.readouterr().err
    assert load_classes(out / "train").labels == {"a": 0, "b": 1, "c": 2}


def test_labels_may_be_any_numbers_and_two_classes_may_share_one(tmp_path: Path) -> None:
    (tmp_path / "mine.json").write_text('{"a": 7, "c": 7, "z": 1000}')
    tree = _tree(tmp_path / "tree", "ac")
    assert _convert(tree, tmp_path / "out", "--classes", tmp_path / "mine.json") == 0
    assert _labels(tmp_path / "out") == {"a": 7, "c": 7}
    assert load_classes(tmp_path / "out").labels == {"a": 7, "c": 7, "z": 1000}
    assert _convert(tree, tmp_path / "out") == 2  # other labels are other shards


def test_every_kind_of_source_takes_labels(tmp_path: Path) -> None:
    (tmp_path / "classes.json").write_text('["car", "cat", "dog"]')
    given = load_classes(tmp_path / "classes.json")
    for kind, name in ((audio_folder, "1.mp3"), (numpy_volumes, "1.npy")):
        (tmp_path / kind.__name__ / "dog").mkdir(parents=True)
        np.save(tmp_path / kind.__name__ / "dog" / "1.npy", np.zeros(3))
        (tmp_path / kind.__name__ / "dog/1.mp3").write_bytes(b"ID3" + bytes(40))
        source = kind(tmp_path / kind.__name__, classes=given)
        assert [(item.name, item.label) for item in source.items] == [(f"dog/{name}", 2)]
    _tree(tmp_path / "coco", "a")
    box = {"id": 1, "image_id": 7, "category_id": 18, "bbox": [0, 0, 5, 5]}
    annotations = {
        "images": [{"id": 7, "file_name": "a/1.jpg", "width": 8, "height": 8}],
        "annotations": [box],
        "categories": [{"id": 18, "name": "dog"}],
    }
    (tmp_path / "coco.json").write_text(json.dumps(annotations))
    source = coco(tmp_path / "coco", tmp_path / "coco.json", tmp_path / "coco", classes=given)
    assert source.items[0].label == 2 and source.items[0].features["image/object/class/label"] == [2]
    convert_source(source, tmp_path / "out")
    assert load_classes(tmp_path / "out").labels == {"car": 0, "cat": 1, "dog": 2}


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("{", "not JSON"),
        ("{}", "JSON object"),
        ('{"a": -1}', "expected a JSON object"),
        ('{"a": true}', "expected a JSON object"),
        ('{"a": "0"}', "expected a JSON object"),
        (None, "No such file"),
    ],
)
def test_a_file_of_classes_that_is_none_is_named(tmp_path: Path, content: str | None, says: str) -> None:
    path = tmp_path / "classes.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(LoaderConfigError, match=f"classes.json: .*{says}"):
        load_classes(path)


def test_labels_for_samples_without_classes_are_refused(tmp_path: Path, capsys) -> None:
    _tree(tmp_path, "a")
    (tmp_path / "classes.json").write_text('["a"]')
    assert _convert(tmp_path / "a", tmp_path / "out", "--classes", tmp_path / "classes.json") == 2
    assert "its samples have no classes" in capsys.readouterr().err
    assert _convert(tmp_path / "a", tmp_path / "out", "--classes", tmp_path, "--own-classes") == 2
