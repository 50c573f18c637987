"""What TensorFlow writes is read here, and what is written here TensorFlow reads."""

from __future__ import annotations

import hashlib
import io
import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from loaders.errors import ShardError
from loaders.records.raw_batch import RawBatch
from loaders.records.shards.convert import convert, image_tree
from loaders.records.shards.index import ShardSet
from loaders.records.shards.indexer import index_folder
from loaders.records.shards.tfrecord import read_records
from loaders.streaming import StreamingLoader
from tests.integration.runs import run

pytestmark = pytest.mark.process

REPO = Path(__file__).parents[2]
PICTURES = 9


@pytest.fixture(scope="module")
def tensorflow() -> Callable[[str, Path], list[dict[str, Any]]]:
    """Run tensorflow_records.py with a Python that has TensorFlow; it is made where there is none."""
    made = subprocess.run([REPO / "playbooks/tensorflow.sh"], capture_output=True, text=True, check=False)
    if made.returncode:
        raise RuntimeError(f"playbooks/tensorflow.sh could not make an environment:\n{made.stderr[-4000:]}")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}

    def run(command: str, folder: Path) -> list[dict[str, Any]]:
        script = Path(__file__).with_name("tensorflow_records.py")
        argv = [made.stdout.strip(), str(script), command, str(folder)]
        done = subprocess.run(argv, capture_output=True, text=True, check=False, env=environment)
        assert done.returncode == 0, done.stderr[-4000:]
        return list(json.loads(done.stdout))

    return run


def _hash(data: bytes) -> list[object]:
    return [len(data), hashlib.sha256(data).hexdigest()]


def _tree(root: Path) -> Path:
    for index in range(PICTURES):
        path = root / f"class_{index % 3}" / f"{index}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        pixels = np.random.default_rng(index).integers(0, 256, (20 + index, 30, 3), np.uint8)
        Image.fromarray(pixels).save(path)
    return root


@pytest.fixture(scope="module")
def written(tensorflow: Any, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[dict[str, Any]]]:
    """A folder that TensorFlow wrote and the command has indexed, and what TensorFlow says about its examples."""
    folder = tmp_path_factory.mktemp("written")
    told = tensorflow("write", folder)
    done = run([sys.executable, "-m", "loaders.streaming", "index", "--root", str(folder)])
    assert done.returncode == 0 and "21 samples in 3 shards" in done.stdout, done.stderr
    return folder, told


def test_tensorflow_reads_every_sample_of_an_image_tree(tensorflow: Any, tmp_path: Path) -> None:
    tree = image_tree(_tree(tmp_path / "tree"))
    source = replace(tree, labels=tree.labels - 7)  # protobuf writes what is below 0 in another way
    convert(source, tmp_path / "out", key="a", shard_bytes=5000)
    found = sorted(tensorflow("read", tmp_path / "out"), key=lambda example: example["id"])
    assert len(ShardSet.open(tmp_path / "out").shards) > 1 and len(found) == PICTURES
    for sample_id, (path, example) in enumerate(zip(source.paths, found, strict=True)):
        image = (tmp_path / "tree" / path).read_bytes()
        assert example["id"] == [sample_id]
        assert example["image/class/label"] == [source.labels[sample_id]] == [example["parsed label"]]
        assert example["image/path"] == [_hash(path.encode())]
        assert example["image/encoded"] == [_hash(image)]
        assert example["decoded shape"] == [*np.asarray(Image.open(io.BytesIO(image))).shape]


def test_what_tensorflow_wrote_is_read(written: tuple[Path, list[dict[str, Any]]]) -> None:
    folder, told = written
    found = []
    for shard in ShardSet.open(folder).shards:
        data = shard.path.read_bytes()
        for row, payload in zip(shard.records, read_records(shard.path), strict=True):
            start = int(row["offset"] + row["image"])
            image = data[start : start + row["image_size"]]
            assert Image.open(io.BytesIO(image)).size == (32, 24) and image in bytes(payload)
            found.append(
                {"shard": shard.path.name, "label": int(row["label"]), "image": hashlib.sha256(image).hexdigest()}
            )
    assert found == told
    assert [int(row) for shard in ShardSet.open(folder).shards for row in shard.records["id"]] == list(range(21))


def test_what_tensorflow_wrote_is_streamed(written: tuple[Path, list[dict[str, Any]]]) -> None:
    (folder, told), found = written, {}
    argv = [sys.executable, "-m", "loaders.streaming", "serve", "--until-eof", "--root", str(folder)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    with subprocess.Popen([*argv, "--listen", "127.0.0.1:0"], **pipes) as daemon:
        endpoint = json.loads(daemon.stdout.readline())["endpoint"]
        with StreamingLoader(endpoint=endpoint, batch_size=4, seed=1, decode="raw", shuffle_window=0) as loader:
            for batch in loader.epoch(0):
                assert isinstance(batch, RawBatch)
                for sample_id, label, image in zip(batch.ids, batch.labels, batch.images(), strict=True):
                    assert int(sample_id) not in found
                    found[int(sample_id)] = int(label), hashlib.sha256(image).hexdigest()
        daemon.stdin.close()
        assert daemon.wait(20) == 0
    assert [found[place] for place in range(21)] == [(entry["label"], entry["image"]) for entry in told]


def test_what_tensorflow_compressed_is_refused_by_name(written: tuple[Path, list[dict[str, Any]]]) -> None:
    folder, _ = written
    for name in ("GZIP", "ZLIB"):
        with pytest.raises(ShardError, match=rf"{name}\.tfrecord at byte 0"):
            index_folder(folder / "compressed", pattern=f"{name}.tfrecord")
