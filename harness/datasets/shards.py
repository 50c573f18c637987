"""The TFRecord shards of a dataset, written once and kept in the cache."""

from __future__ import annotations

import hashlib
import shutil
from mmap import PROT_READ, mmap
from pathlib import Path
from typing import Final

import numpy as np

from harness.datasets import DatasetHandle, Progress
from harness.datasets.cache import check_room, only_builder, storage_errors
from harness.datasets.scan import in_threads
from loaders.base import Samples
from loaders.streaming.shards.convert import convert
from loaders.streaming.shards.index import Shard, ShardSet, stored_key
from loaders.streaming.shards.tfrecord import intact_records

__all__ = ["intact", "open_shards"]

_SEED: Final = 0
_SHARD_BYTES: Final = 64 * 2**20
_RECORD_SLACK: Final = 512
"""Bytes of a record and its index beside the sample's files and columns."""
_COLUMN_SLACK: Final = 3
"""Bytes of a column's features for one of its own, at most about."""
_COLUMNS: Final = ":columns 1"
"""Raised when columns are stored in another way, so that no older shards are taken for newer ones."""


def open_shards(handle: DatasetHandle, cache: Path, progress: Progress, least: int = 1) -> Path:
    """Return the folder of a dataset's shards, at least about `least` of them, converted unless they are there whole.

    Raises DatasetError when the cache cannot be written or lacks room, LoaderConfigError for a column that a record
    cannot hold, SampleError when a file changed.
    """
    total = int(handle.samples.sizes.sum())
    shard_bytes = min(_SHARD_BYTES, -(-total // least)) if least > 1 else _SHARD_BYTES
    text = f"{handle.content_hash}:{_SEED}:{shard_bytes}{_COLUMNS if handle.samples.columns else ''}"
    key = hashlib.sha256(text.encode()).hexdigest()[:16]
    out = cache / "shards" / f"{handle.name}-{key}"
    columns = sum(column.nbytes for column in handle.samples.columns.values())
    needed = total + _RECORD_SLACK * len(handle.samples) + _COLUMN_SLACK * columns
    with only_builder(out, progress):
        if stored_key(out) != key:
            check_room(out.parent, needed)
        elif not intact(out, handle.samples, progress):
            progress(f"shards of {handle.name} have changed in the cache: converting it again", 1, 1)
            with storage_errors(out):
                shutil.rmtree(out)
        with storage_errors(out, needed):
            return convert(
                handle.samples,
                out,
                key=key,
                seed=_SEED,
                shard_bytes=shard_bytes,
                progress=lambda done, total: progress(f"converting {handle.name} to shards", done, total),
            )


def intact(folder: Path, samples: Samples, progress: Progress) -> bool:
    """Return whether every record of a shard folder has the bytes with which it was written, and its sample's label."""
    shards = ShardSet.open(folder).shards
    records = np.concatenate([shard.records for shard in shards])
    if not ((records["id"] >= 0) & (records["id"] < len(samples))).all():
        return False
    if not np.array_equal(records["label"], samples.labels[records["id"]]):
        return False
    what = f"checking the shards of {folder.name}"
    return all(in_threads(_has_its_records, shards, lambda done: progress(what, done, len(shards))))


def _has_its_records(shard: Shard) -> bool:
    with shard.path.open("rb") as file, mmap(file.fileno(), 0, prot=PROT_READ) as mapped, memoryview(mapped) as view:
        return intact_records(view, shard.records["checksum"].tolist()) == len(shard.records)
