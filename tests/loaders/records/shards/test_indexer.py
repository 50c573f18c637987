"""Indexes of shards that others wrote."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from loaders.errors import LoaderConfigError, ShardError
from loaders.records.shards.example import Feature, encode_example
from loaders.records.shards.index import ShardSet
from loaders.records.shards.indexer import Features, index_folder
from loaders.records.shards.output import OutputError
from loaders.records.shards.tfrecord import write_record
from loaders.streaming.__main__ import main


def _shard(path: Path, *examples: dict[str, Feature]) -> Path:
    with path.open("wb") as file:
        for example in examples:
            write_record(file, encode_example(example))
    return path


def _payloads(root: Path) -> list[bytes]:
    found = []
    for shard in ShardSet.open(root).shards:
        data = shard.path.read_bytes()
        for row in shard.records:
            start = int(row["offset"] + row["image"])
            found.append(data[start : start + row["image_size"]])
    return found


def _column(root: Path, name: str) -> list[int]:
    return [int(value) for shard in ShardSet.open(root).shards for value in shard.records[name]]


def test_an_index_made_anew_is_that_of_the_converter(shards: Path, tmp_path: Path) -> None:
    root = shutil.copytree(shards, tmp_path / "shards")
    before = {path.name: path.read_bytes() for path in root.glob("*.npy")}
    (root / "manifest.json").unlink()
    for path in root.glob("*.npy"):
        path.unlink()
    index_folder(root, workers=2)
    assert {path.name: path.read_bytes() for path in root.glob("*.npy")} == before


def test_shards_named_as_others_name_them_are_indexed_and_counted_through(tmp_path: Path) -> None:
    for number in range(3):
        name = f"train-{number:05d}-of-00003"
        _shard(
            tmp_path / name,
            *({"label": [number], "image/encoded": [f"{number}.{record}".encode()]} for record in range(2)),
        )
    _shard(tmp_path / "empty.tfrecord")
    (tmp_path / "README").write_text("no shard")
    assert index_folder(tmp_path) == (3, 6)
    assert _payloads(tmp_path) == [b"0.0", b"0.1", b"1.0", b"1.1", b"2.0", b"2.1"]
    assert _column(tmp_path, "id") == list(range(6)) and _column(tmp_path, "label") == [0, 0, 1, 1, 2, 2]
    assert index_folder(tmp_path) == (3, 6), "its own indexes are taken for shards"


def test_features_are_found_by_name(tmp_path: Path) -> None:
    example: dict[str, Feature] = {
        "key": [9],
        "a": [b"first"],
        "class": [-4],
        "b": [b"second"],
        "label": [7],
        "id": [1],
    }
    _shard(tmp_path / "a.tfrecord", example)
    index_folder(tmp_path, Features("b", "class", "key"))
    assert (_payloads(tmp_path), _column(tmp_path, "label"), _column(tmp_path, "id")) == ([b"second"], [-4], [9])
    index_folder(tmp_path, Features("a"))
    assert (_payloads(tmp_path), _column(tmp_path, "label"), _column(tmp_path, "id")) == ([b"first"], [7], [1])


def test_the_only_feature_of_bytes_is_the_payload_and_no_label_is_minus_one(tmp_path: Path) -> None:
    _shard(tmp_path / "a.tfrecord", {"x": [b"this"], "y": [1.5]})
    index_folder(tmp_path)
    assert _payloads(tmp_path) == [b"this"] and _column(tmp_path, "label") == [-1]


@pytest.mark.parametrize(
    ("example", "features", "says"),
    [
        ({"a": [b"1"], "b": [b"2"]}, Features(), " a, b;"),
        ({}, Features(), "--payload-feature"),
        ({"a": [b"1"]}, Features("b"), "'b' .*has a; .*--payload-feature"),
        ({"a": [b"1", b"2"]}, Features("a"), "'a' .*--payload-feature"),
        ({"a": [1]}, Features("a"), "'a' .*--payload-feature"),
        ({"a": [b"1"]}, Features(label="l"), "'l' is missing.*--label-feature"),
        ({"a": [b"1"], "l": [1, 2]}, Features(label="l"), "'l' .*--label-feature"),
        ({"a": [b"1"], "l": [1.5]}, Features(id="l"), "'l' .*--id-feature"),
    ],
)
def test_a_feature_that_is_not_there_is_named(
    tmp_path: Path, example: dict[str, Feature], features: Features, says: str
) -> None:
    _shard(tmp_path / "a.tfrecord", example)
    with pytest.raises(ShardError, match=rf"a\.tfrecord at byte 0: .*{says}"):
        index_folder(tmp_path, features)
    assert not (tmp_path / "manifest.json").exists()


def test_ids_that_are_there_twice_are_refused(tmp_path: Path) -> None:
    _shard(tmp_path / "a.tfrecord", {"id": [3], "a": [b"1"]})
    _shard(tmp_path / "b.tfrecord", {"id": [3], "a": [b"1"]})
    with pytest.raises(ShardError, match=r"3.*--id-feature"):
        index_folder(tmp_path)
    index_folder(tmp_path, Features(id=""))
    assert _column(tmp_path, "id") == [0, 1]


_IMAGE: dict[str, Feature] = {"image/encoded": [b"1"]}


@pytest.mark.parametrize(
    ("first", "second", "says"),
    [
        ({"label": [1.5]}, {}, "'label' .*--label-feature ''"),
        ({}, {"label": [1, 2]}, "'label' .*--label-feature ''"),
        ({}, {"label": [b"cat"]}, "'label' .*--label-feature ''"),
        ({"id": [b"a7"]}, {}, "'id' .*--id-feature ''"),
        ({"id": [3]}, {}, "its id is in no feature, .*feature id; .*--id-feature"),
        ({}, {"id": [3]}, "its id is in feature id, .*no feature; .*--id-feature"),
        ({"label": [1]}, {}, "its label is in no feature, .*feature label; .*--label-feature"),
        ({"label": [1]}, {"image/class/label": [2]}, "in feature image/class/label, .* feature label; "),
        ({}, {"image/encoded": [], "image": [b"2"]}, "in feature image, .* feature image/encoded; "),
    ],
)
@pytest.mark.parametrize("shards", [1, 2])
def test_what_would_change_the_data_is_refused_and_the_folder_stays_as_it_was(
    tmp_path: Path, first: dict[str, Feature], second: dict[str, Feature], says: str, shards: int
) -> None:
    _shard(tmp_path / "a.tfrecord", _IMAGE)
    index_folder(tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.glob("*.[jn]*")}
    if shards == 1:
        _shard(tmp_path / "a.tfrecord", _IMAGE | first, _IMAGE | second)
    else:
        _shard(tmp_path / "a.tfrecord", _IMAGE | first)
        _shard(tmp_path / "b.tfrecord", _IMAGE | second)
    with pytest.raises(ShardError, match=says):
        index_folder(tmp_path)
    assert {path.name: path.read_bytes() for path in tmp_path.glob("*.[jn]*")} == before


def test_a_folder_that_cannot_be_written_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _shard(tmp_path / "a.tfrecord", _IMAGE)

    def refused(path: object, *_: object) -> int:
        raise OSError(errno.EROFS, "Read-only file system", str(path))

    monkeypatch.setattr("loaders.records.shards.output.os.open", refused)
    assert main(["index", "--root", str(tmp_path)]) == 2
    assert str(tmp_path) in capsys.readouterr().err


def test_what_cannot_be_indexed_is_named(tmp_path: Path) -> None:
    with pytest.raises(LoaderConfigError, match="gone"):
        index_folder(tmp_path / "gone")
    with pytest.raises(ShardError, match="--pattern"):
        index_folder(tmp_path)
    _shard(tmp_path / "a.tfrecord")
    with pytest.raises(ShardError, match="none of its 1 TFRecord files has a record"):
        index_folder(tmp_path)
    (tmp_path / "a.tfrecord").write_bytes(b"some other file of bytes")
    with pytest.raises(ShardError, match=r"a\.tfrecord at byte 0"):
        index_folder(tmp_path)
    _shard(tmp_path / "odd name", {"a": [b"1"]})
    assert index_folder(tmp_path, pattern="odd*") == (1, 1)
    with pytest.raises(ShardError, match="no TFRecord file"):
        index_folder(tmp_path / "..", pattern=f"{tmp_path.name}/*")


@settings(deadline=None, max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_a_malformed_record_is_indexed_rightly_or_named(tmp_path: Path, data: st.DataObject) -> None:
    example: dict[str, Feature] = {"label": [7, 8], "image/encoded": [b"payload"], "id": [300], "x": [1.5]}
    message = bytearray(encode_example(example))
    for _ in range(data.draw(st.integers(0, 3))):
        message[data.draw(st.integers(0, len(message) - 1))] = data.draw(st.integers(0, 255))
    with (tmp_path / "a.tfrecord").open("wb") as file:
        write_record(file, encode_example({"image/encoded": [b"whole"]}))
        write_record(file, message)
    try:
        index_folder(tmp_path)
    except ShardError as error:
        assert "a.tfrecord at byte " in str(error)
    else:
        assert _payloads(tmp_path)[0] == b"whole" and len(_payloads(tmp_path)) == 2


def test_of_two_that_index_at_once_one_is_told(tmp_path: Path) -> None:
    _shard(tmp_path / "a.tfrecord", {"a": [b"1"]})

    def again(done: int, total: int) -> None:
        with pytest.raises(OutputError, match=f"process {os.getpid()}"):
            index_folder(tmp_path)

    assert index_folder(tmp_path, progress=again) == (1, 1)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.index.npy", "a.tfrecord", "manifest.json"]


def _command(*arguments: object) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-m", "loaders.streaming", *map(str, arguments)]
    return subprocess.run(argv, capture_output=True, text=True, check=False)


@pytest.mark.process
def test_the_command_indexes_and_names_what_is_wrong(tmp_path: Path) -> None:
    _shard(tmp_path / "a.tfrecord", {"picture": [b"1"], "other": [b"2"], "class": [3]})
    failed = _command("index", "--root", tmp_path)
    assert failed.returncode == 2
    assert f"error: {tmp_path}/a.tfrecord at byte 0: " in failed.stderr
    done = _command("index", "--root", tmp_path, "--payload-feature", "picture", "--label-feature", "class")
    assert done.returncode == 0 and "1 samples in 1 shards" in done.stdout
    assert _payloads(tmp_path) == [b"1"] and _column(tmp_path, "label") == [3]


@pytest.mark.process
def test_the_commands_import_nothing_heavy_before_they_run() -> None:
    code = "import loaders.records.shards.commands, sys; print([m for m in sys.modules])"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert not any(f"'{name}'" in loaded for name in ("torch", "nvidia", "rich", "pyarrow", "numpy", "PIL"))


@pytest.mark.process
def test_the_converter_imports_no_engine() -> None:
    code = "import sys, loaders.records.shards.convert, loaders.records.shards.indexer;print([m for m in sys.modules])"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert "'numpy'" in loaded
    assert not any(f"'{name}'" in loaded for name in ("torch", "nvidia", "pyarrow", "PIL", "zmq"))
