"""Shards that are sorted by class are mixed by an order that was chosen when they were indexed."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from loaders.records.shards.example import encode_example
from loaders.records.shards.index import MANIFEST, ShardSet
from loaders.records.shards.tfrecord import write_record
from loaders.streaming.__main__ import main
from loaders.streaming.loader import StreamingLoader

CLASSES, RECORDS = 100, 6000
FULL = 27.57
"""Mean number of classes in 32 of 6000 records of 100 classes: 100 * (1 - C(5940, 32) / C(6000, 32))."""


def _sorted(*, shards: int = 5) -> list[Any]:
    return np.array_split(np.repeat(np.arange(CLASSES), RECORDS // CLASSES), shards)


@pytest.fixture(scope="module")
def indexed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """TFRecord files whose records are sorted by class, indexed by the command."""
    root = tmp_path_factory.mktemp("sorted")
    for number, labels in enumerate(_sorted()):
        with (root / f"{number}.tfrecord").open("wb") as file:
            for label in labels.tolist():
                write_record(file, encode_example({"image/encoded": [b"x"], "image/class/label": [label]}))
    assert main(["index", "--root", str(root), "--workers", "1"]) == 0
    return root


def _classes(endpoint: str, **arguments: Any) -> Iterator[Any]:
    """Yield the mean number of classes in a batch of 32 of two epochs, then the loader's note."""
    quick = {"decode": "raw", "streams": 1, "warm_bytes": 0}
    with StreamingLoader(endpoint=endpoint, batch_size=32, seed=3, **quick, **arguments) as loader:
        for epoch in range(2):
            batches = [batch for batch in loader.epoch(epoch) if len(batch) == 32]
            assert len({i for batch in batches for i in batch.ids.tolist()}) == RECORDS // 32 * 32
            yield float(np.mean([len(np.unique(batch.labels)) for batch in batches]))
        yield loader.notes[0]


@pytest.mark.process
def test_a_batch_of_sorted_shards_has_nearly_the_classes_of_a_full_shuffle(
    indexed: Path, start_daemon: Callable[..., Any]
) -> None:
    daemon = start_daemon(indexed)
    *chosen, note = _classes(daemon.endpoint)
    assert min(chosen) >= 0.9 * FULL
    mixing = ShardSet.open(indexed).mixing
    assert mixing is not None
    assert note == (
        f"shuffles records within windows of {mixing.shuffle_window} of them, after runs of 8 samples that are "
        f"neighbours in the shards; a batch of 32 has {mixing.chosen:.3g} classes where a full shuffle has 27.6"
    )
    with pytest.warns(UserWarning, match=r"5\.\d* .*27\.6"):
        *usual, note = _classes(daemon.endpoint, slice_records=8)
    assert max(usual) < 6 and "has 5" in note
    *single, note = _classes(daemon.endpoint, slice_records=1)
    assert abs(np.mean(single) - FULL) < 0.5 and "has 27.6 classes" in note
    with warnings.catch_warnings(action="error", category=UserWarning):
        *_, note = _classes(daemon.endpoint, slice_records=3)
    assert note.endswith("how well that mixes classes was not measured")


def test_indexing_says_that_shards_are_sorted(indexed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["index", "--root", str(indexed), "--workers", "1"]) == 0
    mixing = ShardSet.open(indexed).mixing
    assert mixing is not None
    assert f"slices of 8 a batch of 32 has {mixing.usual:.3g} classes where a full" in (said := capsys.readouterr().out)
    assert f"slice_records=8 and shuffle_window={mixing.shuffle_window}, and have {mixing.chosen:.3g}" in said


@pytest.mark.process
def test_shards_without_a_measure_are_measured_when_they_are_served(
    indexed: Path, start_daemon: Callable[..., Any]
) -> None:
    whole = (indexed / MANIFEST).read_text()
    old = json.loads(whole)
    del old["mixing"]
    (indexed / MANIFEST).write_text(json.dumps(old))
    try:
        assert ShardSet.open(indexed).mixing is None
        *chosen, _ = _classes(start_daemon(indexed).endpoint)
        assert min(chosen) >= 0.9 * FULL
    finally:
        (indexed / MANIFEST).write_text(whole)
