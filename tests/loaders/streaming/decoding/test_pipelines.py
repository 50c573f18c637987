"""Whatever a pipeline reads and whatever it makes comes over the stream as it comes from files."""

from __future__ import annotations

import importlib
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch

from loaders.base import Batch, Samples
from loaders.errors import LoaderConfigError, LoaderError, SampleError, SampleTimeoutError, StreamError
from loaders.pipeline import Pipeline, load_item
from loaders.records.shards.convert import convert
from loaders.records.shards.index import ShardSet
from loaders.records.shards.tfrecord import HEADER_BYTES
from loaders.streaming.loader import StreamingLoader

pytestmark = pytest.mark.process

COUNT = 13
VICTIM = 5
engines = pytest.mark.parametrize("decode", ["torch", "torch-process"])


@pytest.fixture(scope="module")
def own() -> Iterator[ModuleType]:
    """The module of the pipeline of one's own, where processes find it too."""
    sys.path.insert(0, str(Path(__file__).parent))
    yield importlib.import_module("own_pipeline")
    sys.path.remove(str(Path(__file__).parent))


def _samples(root: Path) -> Samples:
    """Two files a sample, of other lengths each, and columns of every kind that a record holds."""
    rng = np.random.default_rng(0)
    paths, others = [f"a/{k}.bin" for k in range(COUNT)], [f"b/{k}.bin" for k in range(COUNT)]
    sizes = np.zeros(COUNT, np.int64)
    for k, pair in enumerate(zip(paths, others, strict=True)):
        for path, nbytes in zip(pair, (3 + k, 2000 - 7 * k), strict=True):
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).write_bytes(rng.bytes(nbytes))
            sizes[k] += nbytes
    columns = {
        "other_path": pa.array(others),
        "text": pa.array([None if k == 2 else "é" * k for k in range(COUNT)]),
        "raw": pa.array([bytes([k, 255]) for k in range(COUNT)]),
        "whole": pa.array([(-1) ** k * 3**k for k in range(COUNT)]),
        "seconds": pa.array([0.1 * k for k in range(COUNT)]),
        "short": pa.array([0.1 * k for k in range(COUNT)], pa.float32()),
        "flag": pa.array([k % 2 == 0 for k in range(COUNT)]),
        "kind": pa.array(["x", "y"] * 6 + ["x"]).dictionary_encode(),
        "numbers": pa.array([list(range(k % 4)) for k in range(COUNT)]),
        "boxes": pa.array([[[0.5 * j, 1.0] for j in range(k % 3)] for k in range(COUNT)]),
        "outlines": pa.array([[[[1.5, float(j)], []] for j in range(k % 3)] for k in range(COUNT)]),
        "names": pa.array([[["a"], ["b", ""]][: k % 3] for k in range(COUNT)]),
    }
    return Samples(root, tuple(paths), np.arange(COUNT) % 3, sizes, columns)


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Samples:
    """Samples of two files each."""
    return _samples(tmp_path_factory.mktemp("own"))


@pytest.fixture(scope="module")
def shards(dataset: Samples, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The samples in several shards, which the daemon of this module serves."""
    return convert(dataset, tmp_path_factory.mktemp("made") / "shards", key="own", shard_bytes=9000)


def _loader(endpoint: str, pipeline: Pipeline, **changed: Any) -> StreamingLoader:
    arguments = {"batch_size": 4, "seed": 5, "timeout_s": 20, "warm_bytes": 0, "slice_records": 2} | changed
    return StreamingLoader(endpoint=endpoint, transform=pipeline, **arguments)


def _check(batch: Batch, pipeline: Pipeline, samples: Samples, epoch: int) -> None:
    """Compare a batch with what the pipeline makes of the same samples' files."""
    items = [load_item(pipeline, samples, int(k), seed=5, epoch=epoch) for k in batch.ids]
    expected = pipeline.collate(items)
    assert torch.equal(batch.data, expected.data) and torch.equal(batch.labels, expected.labels)
    assert batch.extra.keys() == expected.extra.keys()
    for name, tensor in expected.extra.items():
        assert torch.equal(batch.extra[name], tensor), name
    assert batch.nbytes == samples.sizes[batch.ids].sum()
    assert batch.work_s is not None and (batch.work_s > 0).all()


@engines
def test_all_of_a_sample_comes_and_a_checkpoint_goes_on_with_the_rest(
    daemon, own: ModuleType, dataset: Samples, decode: str, capfd: pytest.CaptureFixture[str]
) -> None:
    pipeline = own.OwnPipeline()
    with _loader(daemon.endpoint, pipeline, decode=decode, verify=True, num_threads=2) as loader:
        epoch = loader.epoch(3)
        taken = [next(epoch) for _ in range(2)]
        state = loader.state_dict()
        epoch.close()
        loader.load_state_dict(state)
        batches = taken + list(loader.epoch(3))
        assert loader.stats().bytes == dataset.sizes.sum()
    assert Counter(int(k) for batch in batches for k in batch.ids) == Counter(range(COUNT))
    for batch in batches:
        _check(batch, pipeline, dataset, 3)
    assert "said by a pipeline" in "".join(capfd.readouterr())


@engines
def test_a_sample_that_fails_is_left_out_and_told_where_that_is_declared(daemon, own: ModuleType, decode: str) -> None:
    arguments: dict[str, Any] = {"decode": decode, "num_threads": 1, "on_error": "skip", "batch_size": 1}
    with _loader(daemon.endpoint, own.OwnPipeline("raises"), **arguments) as loader:
        ids = [int(k) for batch in loader.epoch(0) for k in batch.ids]
        assert sorted(ids) == sorted(set(range(COUNT)) - {VICTIM})
        assert loader.state_dict()["is_complete"]
        assert list(loader.stats().skipped) == [VICTIM] and "failed in Trip" in loader.stats().skipped[VICTIM]
        assert loader.stats().details["skipped_samples"] == 1


@pytest.mark.parametrize(("decode", "timeout_s"), [("torch", 0.4), ("torch-process", 4.0)])
def test_a_sample_that_hangs_is_named_in_time_and_the_loader_closes(
    daemon, own: ModuleType, decode: str, timeout_s: float
) -> None:
    began = time.monotonic()
    why = rf"sample {VICTIM} \(.*\) .*Trip .*(thread|worker) \d"
    arguments: dict[str, Any] = {"decode": decode, "num_threads": 1, "sample_timeout_s": timeout_s}
    with (
        _loader(daemon.endpoint, own.OwnPipeline("hangs"), **arguments) as loader,
        pytest.raises(SampleTimeoutError, match=why),
    ):
        list(loader.epoch(0))
    assert time.monotonic() - began < 50  # it hangs for 60


@engines
def test_close_does_not_wait_for_a_sample_that_hangs(daemon, own: ModuleType, decode: str) -> None:
    loader = _loader(daemon.endpoint, own.OwnPipeline("hangs"), decode=decode, num_threads=1)

    def consume() -> None:
        with suppress(LoaderError):
            list(loader.epoch(0))

    consumed = threading.Thread(target=consume)
    consumed.start()
    time.sleep(0.5)
    began = time.monotonic()
    loader.close()
    consumed.join(10)
    assert not consumed.is_alive() and time.monotonic() - began < 10


def _damage(content: bytearray, at: int, end: int, change: str) -> None:
    """Change one record of a shard, which lies from `at` to `end`."""
    match change:
        case "no message":
            content[at + HEADER_BYTES] = 0x0F
        case "type":
            place = content.index(b"list<list<double>>", at, end)
            content[place : place + 4] = b"last"
        case "file":
            place = content.index(b"column/other_path/encoded", at, end)
            content[place : place + 6] = b"COLUMN"
        case "values":
            place = content.index(b"column/whole", at, end)
            content[place : place + 6] = b"COLUMN"


def test_damaged_records_are_errors_that_name_their_samples_and_nothing_else_is_lost(
    start_daemon: Callable[..., Any], own: ModuleType, dataset: Samples, tmp_path: Path
) -> None:
    out = convert(dataset, tmp_path / "out", key="a")
    (shard,) = ShardSet.open(out).shards
    content = bytearray(shard.path.read_bytes())
    malformed = "cannot be decoded: its record is malformed: "
    says = {
        "no message": f"{malformed}tf.train.Example: unknown wire type",
        "type": f"{malformed}tf.train.Example: column 'boxes' is of the type 'last<list<double>>'",
        "file": "cannot be decoded: its record holds no file for the column other_path",
        "values": f"{malformed}tf.train.Example: there is no feature 'column/whole'",
    }
    rows = shard.records[: len(says)]
    for change, row in zip(says, rows, strict=True):
        _damage(content, int(row["offset"]), int(row["offset"] + row["size"]), change)
    shard.path.write_bytes(content)
    daemon = start_daemon(out)
    arguments: dict[str, Any] = {"decode": "torch", "slice_records": 1}
    with _loader(daemon.endpoint, own.OwnPipeline(), on_error="skip", verify=False, **arguments) as loader:
        left = {int(k) for batch in loader.epoch(0) for k in batch.ids}
        skipped = loader.stats().skipped
    assert left == set(range(COUNT)) - set(rows["id"].tolist())
    for what, sample_id in zip(says.values(), rows["id"].tolist(), strict=True):
        assert skipped[sample_id].startswith(f"sample {sample_id} (") and what in skipped[sample_id]
    with (
        _loader(daemon.endpoint, own.OwnPipeline(), verify=True, **arguments) as loader,
        pytest.raises(StreamError, match=r"record \d+"),
    ):
        list(loader.epoch(0))
    # Where one record's length is wrong, none after it in its frame is found: such a shard is refused in any case.
    at = int(rows["offset"][0])
    content[at : at + 8] = (2**63).to_bytes(8, "little")
    shard.path.write_bytes(content)
    with (
        _loader(daemon.endpoint, own.OwnPipeline(), on_error="skip", verify=False, **arguments) as loader,
        pytest.raises(StreamError, match="record 0"),
    ):
        list(loader.epoch(0))


def test_what_an_engine_cannot_do_is_refused_in_one_line(daemon, own: ModuleType) -> None:
    class Local(own.OwnPipeline):  # type: ignore[misc, name-defined]
        """A class that no other process can import."""

    for arguments, message in (
        ({"decode": "dali"}, "decode=dali: .*OwnPipeline .*decode=auto"),
        ({"decode": "raw", "on_error": "skip"}, "on_error=skip: .*decode=raw"),
        ({"decode": "raw", "sample_timeout_s": 1.0}, "sample_timeout_s: .*decode=raw"),
        ({"decode": "torch-process"}, "Local"),
    ):
        with pytest.raises(LoaderConfigError, match=message) as caught:
            _loader(daemon.endpoint, Local() if "Local" in message else own.OwnPipeline(), **arguments)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "column", [pa.array([{"a": 1}]), pa.array([[1, None]]), pa.array([0], pa.timestamp("s"))], ids=lambda c: str(c.type)
)
def test_a_column_that_no_record_holds_is_refused_by_name(tmp_path: Path, column: pa.Array) -> None:
    (tmp_path / "a.jpg").write_bytes(b"x")
    samples = Samples(tmp_path, ("a.jpg",), np.zeros(1, np.int64), np.ones(1, np.int64), {"odd": column})
    with pytest.raises(LoaderConfigError, match="'odd'"):
        convert(samples, tmp_path / "out", key="a")
    assert [path.name for path in tmp_path.iterdir()] == ["a.jpg"]


@pytest.mark.parametrize("wrong", ["grown", "gone", "outside"])
def test_a_further_file_that_is_not_as_it_was_is_named(tmp_path: Path, wrong: str) -> None:
    samples = _samples(tmp_path / "in")
    other = tmp_path / "in" / "b" / "3.bin"
    match wrong:
        case "grown":
            other.write_bytes(other.read_bytes() + b"x")
        case "gone":
            other.unlink()
        case "outside":
            samples.columns["other_path"] = pa.array(["../x"] * COUNT)  # type: ignore[index]
    says = r"\.\./x" if wrong == "outside" else r"3\.bin"
    with pytest.raises(SampleError, match=says):
        convert(samples, tmp_path / "out", key="a")
    assert not (tmp_path / "out").exists()
