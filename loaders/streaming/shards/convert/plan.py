"""Which sample goes into which shard, from the listing alone, so that any number of processes makes the same shards."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt

from loaders.errors import LoaderConfigError
from loaders.streaming.shards.convert.shard import ShardTask
from loaders.streaming.shards.convert.source import Source

__all__ = ["content_key", "listing_key", "shard_tasks"]

_VERSION = 1
"""Raised when the same source would make other shards."""
_OVERHEAD_BYTES = 180
"""More than a record, an Example and its id and label take beside names and values."""
_FEATURE_BYTES = 32
"""More than a feature takes beside its name and values."""


def content_key(source: Source, *, seed: int, shard_bytes: int) -> str:
    """Return 16 hex digits that tell these shards from those of another source or other options."""
    digest = hashlib.sha256(
        f"{_VERSION} {source.kind} {seed} {shard_bytes} {source.classes}\n".encode(errors="surrogateescape")
    )
    if not source.is_enumerated:
        digest.update(repr(sorted(source.labels.values())).encode())
    for item in source.items:
        digest.update(os.fsencode(item.name))
        digest.update(
            f"\0{item.label} {item.size} {item.payload_size} {item.companion} {item.companion_size}\0".encode(
                errors="replace"
            )
        )
        if item.features:
            digest.update(repr(item.features).encode())
    # What is in them follows from what was digested already.
    for name in source.columns:
        digest.update(f"column {name}\0".encode())
    return digest.hexdigest()[:16]


def listing_key(source: Source, key: str) -> str:
    """Return a hash of the key and of the files' times of change, by which half-made shards are still good."""
    digest = hashlib.sha256(f"{key} {source.root.resolve()}\n".encode(errors="replace"))
    digest.update(np.array([item.mtime_ns for item in source.items], np.int64).tobytes())
    return digest.hexdigest()[:16]


def shard_tasks(source: Source, folder: Path, *, seed: int, shard_bytes: int, skip: bool = False) -> list[ShardTask]:
    """Divide the samples, shuffled by `seed`, into shards of at most `shard_bytes`, or of one sample each.

    Raises LoaderConfigError when there are no samples.
    """
    if not source.items:
        raise LoaderConfigError(f"nothing to convert: {source.root} has no samples")
    if shard_bytes < 1:
        raise LoaderConfigError(f"shard_bytes={shard_bytes}: expected 1 or more")
    order = np.random.default_rng(seed).permutation(len(source.items)).tolist()
    return [
        ShardTask(
            folder / f"shard-{number:05d}.tfrecord",
            source.root,
            tuple(ids),
            tuple(source.items[sample_id] for sample_id in ids),
            source.label_feature,
            source.path_feature,
            source.read,
            {name: column.take(ids) for name, column in source.columns.items()},
            skip,
        )
        for number, ids in enumerate(_divided(source, order, shard_bytes))
    ]


def _divided(source: Source, order: list[int], shard_bytes: int) -> Iterator[list[int]]:
    ids: list[int] = []
    total = 0
    of_columns = _largest_columns(source)
    for sample_id in order:
        nbytes = _largest_record(source, sample_id) + int(of_columns[sample_id])
        if ids and total + nbytes > shard_bytes:
            yield ids
            ids, total = [], 0
        ids.append(sample_id)
        total += nbytes
    yield ids


def _largest_record(source: Source, sample_id: int) -> int:
    """Return how many bytes a sample's record has at most."""
    item = source.items[sample_id]
    names = len(os.fsencode(item.name)) + len(source.label_feature) + len(source.path_feature)
    nbytes = _OVERHEAD_BYTES + names + item.payload_size
    for name, values in item.features.items():
        # No number takes more than 10 bytes; a string of bytes has its length before it.
        nbytes += (
            _FEATURE_BYTES + len(name) + sum(10 + len(value) if isinstance(value, bytes) else 10 for value in values)
        )
    return nbytes


def _largest_columns(source: Source) -> npt.NDArray[np.int64]:
    """Return how many bytes the columns of each sample's record have at most, shape (samples,)."""
    nbytes = np.zeros(len(source.items), np.int64)
    if not source.columns:
        return nbytes
    from loaders.streaming.shards.columns import value_bytes

    for name, column in source.columns.items():
        # Its name stands in the list of columns, at its values, its lengths and its file.
        nbytes += (4 + str(column.type).count("<")) * (_FEATURE_BYTES + len(name.encode()))
        nbytes += value_bytes(column)
    return nbytes
