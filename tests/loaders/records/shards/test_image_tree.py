"""A tree of images as it is listed and stored, and the command that converts it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import pytest

from loaders.errors import LoaderConfigError, SampleError
from loaders.records.shards.convert import convert, hash_files, image_tree
from loaders.records.shards.example import ExampleView
from loaders.records.shards.index import ShardSet
from loaders.records.shards.tfrecord import read_records
from loaders.streaming.__main__ import main


def _write(root: Path, files: Mapping[str, bytes]) -> Path:
    for name, content in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(content)
    return root


def test_labels_are_the_positions_of_the_class_folders(tmp_path: Path) -> None:
    files = {"b/2.png": b"two", "a/deep/1.JPG": b"one", "c/3.jpeg": b"three", "c/notes.txt": b"", ".hid/4.jpg": b""}
    samples = image_tree(_write(tmp_path / "tree", files | {"a/.5.jpg": b""}))
    assert samples.paths == ("a/deep/1.JPG", "b/2.png", "c/3.jpeg")
    assert samples.labels.tolist() == [0, 1, 2] and samples.sizes.tolist() == [3, 3, 5]
    convert(samples, tmp_path / "out", key="a")
    (shard,) = ShardSet.open(tmp_path / "out").shards
    for example in map(ExampleView, read_records(shard.path)):
        (sample_id,) = example["id"]
        path = samples.paths[int(sample_id)]
        assert example["image/class/label"] == [sample_id] and example["image/path"] == [path.encode()]
        assert example["image/encoded"] == [files[path]]


def test_images_in_the_root_have_no_label(tmp_path: Path) -> None:
    assert image_tree(_write(tmp_path, {"1.jpg": b"x"})).labels.tolist() == [-1]


def test_links_are_followed_but_not_in_circles(tmp_path: Path) -> None:
    tree = _write(tmp_path / "tree", {"a/1.jpg": b"x"})
    (tree / "a/again").symlink_to(tree)
    (tree / "b").symlink_to(_write(tmp_path / "elsewhere", {"2.jpg": b"x"}))
    assert image_tree(tree).paths == ("a/1.jpg", "b/2.jpg")


def test_names_that_are_no_text_are_kept(tmp_path: Path) -> None:
    samples = image_tree(_write(tmp_path / "tree", {"a/" + os.fsdecode(b"caf\xe9.jpg"): b"x"}))
    (shard,) = ShardSet.open(convert(samples, tmp_path / "out", key=hash_files(samples))).shards
    (payload,) = read_records(shard.path)
    assert ExampleView(payload)["image/path"] == [b"a/caf\xe9.jpg"]


@pytest.mark.parametrize(
    ("files", "error", "message"),
    [
        ({}, LoaderConfigError, r"tree: there is no such folder"),
        ({"notes.txt": b""}, LoaderConfigError, r"tree: no image below it"),
        ({"a/1.jpg": b"x", "2.jpg": b"x"}, LoaderConfigError, r"tree/2\.jpg: it lies beside class folders such as a"),
    ],
)
def test_a_tree_that_is_none_is_refused(
    tmp_path: Path, files: dict[str, bytes], error: type[Exception], message: str
) -> None:
    _write(tmp_path / "tree", files)
    with pytest.raises(error, match=message):
        image_tree(tmp_path / "tree")


@pytest.mark.parametrize("kind", ["fifo", "gone"])
def test_a_file_that_cannot_be_read_is_one_error_that_names_it(
    tmp_path: Path, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    tree = _write(tmp_path / "tree", {"a/1.jpg": b"x"})
    bad = tree / "a/2.jpg"
    if kind == "fifo":
        os.mkfifo(bad)
    else:
        bad.symlink_to(tree / "nowhere")
    with pytest.raises(SampleError, match=rf"^{bad}: "):
        image_tree(tree)
    assert main(["convert", "--from", "image-tree", str(tree), "--out", str(tmp_path / "out")]) == 2
    assert f"error: {bad}: " in capsys.readouterr().err and not (tmp_path / "out").exists()
