"""Files that are broken are all named in one run, or left out and listed."""

from __future__ import annotations

import io
import json
import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from loaders.base import Samples
from loaders.errors import SampleError
from loaders.records.shards.convert import convert, convert_source, image_tree, job, numpy_volumes
from loaders.records.shards.convert.shard import ShardTask, Written, write_shard
from loaders.records.shards.index import ShardSet
from loaders.records.shards.indexer import verify_folder
from loaders.streaming.__main__ import main

BROKEN = ("a/03.jpg", "b/11.jpg", "b/19.jpg")


def _jpeg(seed: int) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(np.random.default_rng(seed).integers(0, 256, (16, 16, 3), np.uint8)).save(buffer, "JPEG")
    return buffer.getvalue()


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Twenty images, three of them cut short, and a link to nowhere."""
    root = tmp_path / "tree"
    for index in range(20):
        path = root / "ab"[index // 10] / f"{index:02d}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(_jpeg(index))
    for name in BROKEN:
        (root / name).write_bytes((root / name).read_bytes()[:-100])
    (root / "b" / "20.jpg").symlink_to(root / "nowhere")
    return root


def _convert(tree: Path, out: Path, *options: object) -> int:
    command = ["convert", "--from", "image-tree", tree, "--out", out, *options]
    return main([str(word) for word in command])


def _ids(out: Path) -> list[int]:
    return sorted(int(i) for shard in ShardSet.open(out).shards for i in shard.records["id"])


@pytest.mark.parametrize("kind", ["image-tree", "numpy", "audio"])
def test_a_fifo_among_the_files_is_named_and_not_waited_for(
    tmp_path: Path, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    name = {"image-tree": "00.jpg", "numpy": "00.npy", "audio": "00.trans.txt"}[kind]
    (tmp_path / "source").mkdir()
    (tmp_path / "source/01.wav").write_bytes(b"RIFF")
    os.mkfifo(tmp_path / "source" / name)
    command = ["convert", "--from", kind, str(tmp_path / "source"), "--out", str(tmp_path / "out"), "--workers", "1"]
    assert main(command) == 2
    assert f"{tmp_path}/source/{name}: " in (said := capsys.readouterr().err) and "is a FIFO" in said


def test_a_fifo_among_the_files_of_a_dataset_is_named(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "00.jpg")
    samples = Samples(tmp_path, ("00.jpg",), np.zeros(1, np.int64), np.zeros(1, np.int64))
    with pytest.raises(SampleError, match=rf"sample 0, {tmp_path}/00\.jpg"):
        convert(samples, tmp_path / "out", key="a")


@pytest.mark.parametrize("workers", [1, 2])
def test_all_broken_files_are_named_in_one_run(tree: Path, tmp_path: Path, workers: int) -> None:
    source = image_tree(tree, broken=[])
    with pytest.raises(SampleError, match=r"^4 of 21 .*--on-error skip") as raised:
        convert_source(source, tmp_path / "out", shard_bytes=2000, workers=workers)
    lines = str(raised.value).splitlines()
    assert len(lines) == 5
    for name in (*BROKEN, "b/20.jpg"):
        assert sum(f"{tree}/{name}: " in line for line in lines) == 1
    assert not (tmp_path / "out").exists()


def test_the_command_names_all_or_leaves_them_out_with_a_list(tree: Path, tmp_path: Path, capsys) -> None:
    out = tmp_path / "out"
    assert _convert(tree, out, "--workers", 1) == 2
    assert "4 of 21 " in capsys.readouterr().err
    assert _convert(tree, out, "--workers", 1, "--on-error", "skip") == 0
    said = capsys.readouterr().out
    assert re.search(rf"out: 17 samples, [\d.]+ s; 4 left out, listed in {re.escape(str(out))}/skipped\.json\n", said)
    assert not list(out.glob("shard-*.json"))
    listed = json.loads((out / "skipped.json").read_text())
    assert {one["name"]: one["sample_id"] for one in listed} == {
        "b/20.jpg": None,
        "a/03.jpg": 3,
        "b/11.jpg": 11,
        "b/19.jpg": 19,
    }
    assert all("restore it or take it away" in one["why"] for one in listed)
    assert _ids(out) == [sample_id for sample_id in range(20) if sample_id not in (3, 11, 19)]
    verify_folder(out)
    made = (out / "manifest.json").read_bytes()
    assert _convert(tree, out, "--workers", 1, "--on-error", "skip") == 0  # it is left as it is
    assert "17 samples, 17 of them from before" in capsys.readouterr().out
    assert _convert(tree, out, "--workers", 1) == 2
    assert f"{out}/skipped.json; " in capsys.readouterr().err
    assert (out / "manifest.json").read_bytes() == made
    for name in (*BROKEN, "b/20.jpg"):
        (tree / name).unlink()
        (tree / name).write_bytes(_jpeg(1))
    assert _convert(tree, out, "--workers", 1, "--replace") == 0
    assert _ids(out) == list(range(21)) and not (out / "skipped.json").exists()


@pytest.mark.parametrize("workers", [1, 2])
def test_a_shard_without_a_whole_sample_is_left_out(tree: Path, tmp_path: Path, workers: int) -> None:
    source = image_tree(tree, broken=[])
    done = convert_source(source, tmp_path / "out", shard_bytes=1, workers=workers, on_error="skip")
    assert done.samples == 17 and {one.name for one in done.skipped} == {*BROKEN, "b/20.jpg"}
    assert len(ShardSet.open(tmp_path / "out").shards) == 17
    verify_folder(tmp_path / "out")


def test_one_that_was_stopped_goes_on_with_what_it_left_out(tree: Path, tmp_path: Path, monkeypatch) -> None:
    source, out = image_tree(tree, broken=[]), tmp_path / "out"

    def stopped(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(job, "save_manifest", stopped)
        with pytest.raises(KeyboardInterrupt):
            convert_source(source, out, shard_bytes=2500, on_error="skip")
    written: list[str] = []

    def noted(task: ShardTask, progress: Any = None) -> Written:
        written.append(task.path.name)
        return write_shard(task, progress)

    monkeypatch.setattr(job, "write_shard", noted)
    done = convert_source(source, out, shard_bytes=2500, on_error="skip")
    assert not written  # every shard was whole, or known to lack what it lacks
    with pytest.raises(SampleError, match="4 of 21"):
        convert_source(source, tmp_path / "other", shard_bytes=2500)
    assert done.taken_over and len(done.skipped) == 4 and len(_ids(out)) == 17


def test_nothing_but_broken_files_is_an_error(tmp_path: Path) -> None:
    for name in ("1.jpg", "2.jpg"):
        (tmp_path / "in").mkdir(exist_ok=True)
        (tmp_path / "in" / name).write_bytes(b"no image")
    with pytest.raises(SampleError, match="2 of 2 "):
        convert_source(image_tree(tmp_path / "in"), tmp_path / "out", on_error="skip")


def test_what_the_listing_finds_and_what_reading_finds_are_told_together(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    np.save(folder / "good.npy", np.zeros(9))
    (folder / "listed.npy").write_bytes(b"no array")
    np.savez(folder / "read.npz", x=np.zeros(1000))
    content = bytearray((folder / "read.npz").read_bytes())
    content[4000] ^= 1
    (folder / "read.npz").write_bytes(content)
    with pytest.raises(SampleError, match=r"(?s)2 of 3 .*listed\.npy.*read\.npz"):
        convert_source(numpy_volumes(folder, broken=[]), tmp_path / "out")
    done = convert_source(numpy_volumes(folder, broken=[]), tmp_path / "out", on_error="skip")
    assert done.samples == 1 and [one.name for one in done.skipped] == ["listed.npy", "read.npz"]
