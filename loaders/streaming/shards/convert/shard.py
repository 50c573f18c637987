"""One shard: its samples read, written as TFRecord, and indexed."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from loaders.errors import SampleError
from loaders.streaming.errors import ShardError
from loaders.streaming.shards.convert.source import Broken, Content, Item
from loaders.streaming.shards.example import Feature, example_head
from loaders.streaming.shards.index import RECORD, save_index, written_whole
from loaders.streaming.shards.tfrecord import HEADER_BYTES, write_record

if TYPE_CHECKING:  # only a source with columns needs it
    import pyarrow as pa

__all__ = ["ShardTask", "Written", "skipped_path", "write_shard"]


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
    with suppress(_UnwrittenError), written_whole(task.path) as file:
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
        with written_whole(skipped_path(task.path)) as file:
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
        return example_head(features, content.payload_name, len(content.payload))
    except ShardError as error:
        raise SampleError(f"sample {sample_id}, {task.root / item.name}: {error}") from error


def _columns(task: ShardTask, row: int) -> dict[str, Feature]:
    if not task.columns:
        return {}
    from loaders.streaming.shards.columns import row_features

    return row_features(task.columns, row)
