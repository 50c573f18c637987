"""Shards that others wrote, indexed by the command and served by the daemon."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from loaders.records.decoding.received import ReceivedSamples, read_rows
from loaders.records.shards.example import Feature, encode_example
from loaders.records.shards.indexer import Features, index_folder
from loaders.records.shards.tfrecord import write_record
from loaders.streaming.receiver.client import StreamClient

pytestmark = pytest.mark.process

_IMAGE: dict[str, Feature] = {"image/encoded": [b"1"]}


def _shard(path: Path, *examples: dict[str, Feature]) -> None:
    with path.open("wb") as file:
        for example in examples:
            write_record(file, encode_example(example))


def _command(*arguments: object) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-m", "loaders.streaming", *map(str, arguments)]
    return subprocess.run(argv, capture_output=True, text=True, check=False)


def test_the_other_features_are_columns_that_a_pipeline_reads(tmp_path: Path, start_daemon: Callable[..., Any]) -> None:
    others: dict[str, Feature] = {
        "label": [1.5],
        "id": [b"a7"],
        "box": [1, 2, 3, 4],
        "caption": [b"a cat"],
        "empty": [],
    }
    _shard(tmp_path / "a.tfrecord", _IMAGE | others, {"image/encoded": [b"2"], "label": [0.5, 2.0]})
    index_folder(tmp_path, Features(label="", id=""))
    with StreamClient(start_daemon(tmp_path).endpoint, streams=1, timeout_s=10) as client:
        (raw,) = client.fetch(client.plan(epoch=0, batch_size=2, seed=0), window=1)
    samples = ReceivedSamples(dict(zip(raw.ids.tolist(), read_rows(raw), strict=True)))
    assert [bytes(samples.read(sample_id)) for sample_id in range(2)] == [b"1", b"2"]
    assert set(samples.columns) == set(others)
    assert {name: samples.columns[name][0].as_py() for name in others} == others
    assert samples.columns["label"][1].as_py() == [0.5, 2.0]


def test_a_folder_that_cannot_be_written_is_indexed_elsewhere_and_served_from_where_it_is(
    tmp_path: Path, start_daemon: Callable[..., Any]
) -> None:
    data, out = tmp_path / "data", tmp_path / "out"
    data.mkdir()
    for number in range(2):
        _shard(data / f"{number}.tfrecord", *(_IMAGE | {"id": [10 * number + record]} for record in range(3)))
    done = _command("index", "--root", data, "--out", out)
    assert done.returncode == 0, done.stderr
    assert f"serve --root {out} --links-into {data}" in done.stdout
    assert {path.name for path in data.iterdir()} == {"0.tfrecord", "1.tfrecord"}
    refused = _command("serve", "--root", out)
    assert refused.returncode == 2 and f"--links-into {data}" in refused.stderr
    daemon = start_daemon(out, options=["--links-into", str(data)])
    with StreamClient(daemon.endpoint, streams=1, timeout_s=10) as client:
        plan = client.plan(epoch=0, batch_size=2, seed=0)
        assert sorted(i for batch in client.fetch(plan, window=2) for i in batch.ids.tolist()) == [0, 1, 2, 10, 11, 12]
    _command("index", "--root", data, "--out", out)
    (out / "0.tfrecord").unlink()
    (out / "0.tfrecord").write_bytes(b"another")
    taken = _command("index", "--root", data, "--out", out)
    assert taken.returncode == 2 and "0.tfrecord: " in taken.stderr
