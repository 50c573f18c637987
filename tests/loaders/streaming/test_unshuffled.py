"""Shards that were indexed are not known to be shuffled, and a loader says so once."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from loaders.records.shards.example import encode_example
from loaders.records.shards.indexer import index_folder
from loaders.records.shards.tfrecord import write_record
from loaders.streaming.loader import StreamingLoader

pytestmark = pytest.mark.process


def test_one_warning_says_that_indexed_shards_were_not_shuffled(
    tmp_path: Path, start_daemon: Callable[..., Any]
) -> None:
    for number in range(2):
        with (tmp_path / f"{number}.tfrecord").open("wb") as file:
            for label in range(20):
                write_record(file, encode_example({"image/encoded": [b"x"], "label": [label]}))
    index_folder(tmp_path)
    endpoint = start_daemon(tmp_path).endpoint
    options: dict[str, Any] = {"decode": "raw", "batch_size": 8, "seed": 0, "warm_bytes": 0}
    with pytest.warns(UserWarning, match="not shuffled .*shuffle_window") as said:
        StreamingLoader(endpoint=endpoint, **options).close()
    assert sum("not shuffled" in str(one.message) for one in said) == 1
    with warnings.catch_warnings(action="error", category=UserWarning):
        for order in ({"shuffle_window": 0}, {"shuffle_window": 16}, {"slice_records": 1}):
            StreamingLoader(endpoint=endpoint, **options, **order).close()


def test_shuffled_shards_bring_no_warning(shards: Path, start_daemon: Callable[..., Any]) -> None:
    endpoint = start_daemon(shards).endpoint
    with warnings.catch_warnings(action="error", category=UserWarning):
        StreamingLoader(endpoint=endpoint, decode="raw", batch_size=8, seed=0, warm_bytes=0).close()
