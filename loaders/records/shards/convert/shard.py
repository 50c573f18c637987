"""One shard: its samples read, written as TFRecord, and indexed."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from loaders.errors import LoaderConfigError, SampleError, ShardError
from loaders.records.shards.convert.listing import Broken, Content, Item, SampleListing
from loaders.records.shards.example import Feature, encode_head
from loaders.records.shards.index import RECORD, save_index, write_atomically
from loaders.records.shards.tfrecord import HEADER_BYTES, write_record

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, slots=True)
class ShardTask:
    """All that a process needs to write one shard."""

    path: Path
    root: Path
    ids: tuple[int, ...]
    items: tuple[Item, ...]
    """The samples with these ids, in the shard's order."""
    label_feature: str
    path_feature: str
    read: Callable[[Path, Item, int], Content]
    columns: Mapping[str, pa.Array]
    """Of these samples, in the shard's order."""
    skip: bool = False
    """Whether samples that are broken are left out."""


class Written(NamedTuple):
    """What became of a shard."""

    samples: int
    """Of the task, broken ones among them."""
    broken: tuple[Broken, ...] = ()


class _UnwrittenError(Exception):
    """There is no shard to be written."""


def skipped_path(shard: Path) -> Path:
    """Return where the list of the samples lies that a shard lacks, until the folder is whole."""
    return shard.with_suffix(".skipped.json")


def write_shard(task: ShardTask, progress: Callable[[int], None] | None = None) -> Written:
    """Write a shard and then its index, each whole or not at all; return what became of its samples.

    A sample that is broken is left out where the task says `skip`; else the shard is not written, and its other samples
    are looked at nevertheless. `progress` is called with the samples done.

    Raises OSError naming the file that cannot be written.
    """
    records: list[tuple[int, int, int, int, int, int, int]] = []
    broken: list[Broken] = []
    offset = 0
    skipped_path(task.path).unlink(missing_ok=True)
    with suppress(_UnwrittenError), write_atomically(task.path) as file:
        for row, (sample_id, item) in enumerate(zip(task.ids, task.items, strict=True)):
            try:
                content = task.read(task.root, item, sample_id)
                head = _head(task, row, item, sample_id, content)
            except SampleError as error:
                broken.append(Broken(item.name, str(error), sample_id))
            else:
                if task.skip or not broken:
                    size, checksum = write_record(file, head, content.payload)
                    image = HEADER_BYTES + len(head)
                    records.append((offset, size, image, len(content.payload), item.label, sample_id, checksum))
                    offset += size
            if progress is not None:
                progress(row + 1)
        if not records or (broken and not task.skip):
            raise _UnwrittenError
    if broken and task.skip:
        with write_atomically(skipped_path(task.path)) as file:
            file.write(json.dumps([asdict(one) for one in broken]).encode())
    if records and (task.skip or not broken):
        save_index(task.path, np.array(records, RECORD))
    return Written(len(task.ids), tuple(broken))


def _head(task: ShardTask, row: int, item: Item, sample_id: int, content: Content) -> bytes:
    features: dict[str, Feature] = {
        "id": [sample_id],
        task.label_feature: [item.label],
        task.path_feature: [os.fsencode(item.name)],
        **_columns(task, row),
        **content.features,
    }
    try:
        return encode_head(features, content.payload_name, len(content.payload))
    except ShardError as error:
        raise SampleError(f"sample {sample_id}, {task.root / item.name}: {error}") from error


def _columns(task: ShardTask, row: int) -> dict[str, Feature]:
    if not task.columns:
        return {}
    from loaders.records.shards.columns import encode_row

    return encode_row(task.columns, row)


_VERSION = 1
"""Raised when the same source would make other shards."""
_OVERHEAD_BYTES = 180
"""More than a record, an Example and its id and label take beside names and values."""
_FEATURE_BYTES = 32
"""More than a feature takes beside its name and values."""


def hash_content(source: SampleListing, *, seed: int, shard_bytes: int) -> str:
    """Return 16 hex digits that differ for another source or other options."""
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
    # Their content follows from the files above.
    for name in source.columns:
        digest.update(f"column {name}\0".encode())
    return digest.hexdigest()[:16]


def hash_listing(source: SampleListing, key: str) -> str:
    """Return a hash of the key and of the files' times of change, by which half-made shards are still good."""
    digest = hashlib.sha256(f"{key} {source.root.resolve()}\n".encode(errors="replace"))
    digest.update(np.array([item.mtime_ns for item in source.items], np.int64).tobytes())
    return digest.hexdigest()[:16]


def plan_shards(
    source: SampleListing, folder: Path, *, seed: int, shard_bytes: int, skip: bool = False
) -> list[ShardTask]:
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
        for number, ids in enumerate(_divide(source, order, shard_bytes))
    ]


def _divide(source: SampleListing, order: list[int], shard_bytes: int) -> Iterator[list[int]]:
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


def _largest_record(source: SampleListing, sample_id: int) -> int:
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


def _largest_columns(source: SampleListing) -> npt.NDArray[np.int64]:
    """Return how many bytes the columns of each sample's record have at most, shape (samples,)."""
    nbytes = np.zeros(len(source.items), np.int64)
    if not source.columns:
        return nbytes
    from loaders.records.shards.columns import bound_value_bytes

    for name, column in source.columns.items():
        # Its name stands in the list of columns, at its values, its lengths and its file.
        nbytes += (4 + str(column.type).count("<")) * (_FEATURE_BYTES + len(name.encode()))
        nbytes += bound_value_bytes(column)
    return nbytes
