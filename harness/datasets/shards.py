"""The TFRecord shards of a dataset, written once and kept in the cache."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Final

from harness.datasets.cache import check_room, only_builder, storage_errors
from harness.datasets.handle import DatasetHandle, Progress
from loaders.streaming.convert import convert
from loaders.streaming.index import stored_key

__all__ = ["open_shards"]

_SEED: Final = 0
_SHARD_BYTES: Final = 64 * 2**20
_RECORD_SLACK: Final = 512
"""Bytes of a record and its index beside the image."""


def open_shards(handle: DatasetHandle, cache: Path, progress: Progress) -> Path:
    """Return the folder of a dataset's shards, converted unless the same ones are there.

    Raises DatasetError when the cache cannot be written or lacks room, SampleError when a file changed.
    """
    text = f"{handle.content_hash}:{_SEED}:{_SHARD_BYTES}"
    key = hashlib.sha256(text.encode()).hexdigest()[:16]
    out = cache / "shards" / f"{handle.name}-{key}"
    needed = int(handle.samples.sizes.sum()) + _RECORD_SLACK * len(handle.samples)
    with only_builder(out, progress):
        if stored_key(out) != key:
            check_room(out.parent, needed)
        with storage_errors(out, needed):
            return convert(
                handle.samples,
                out,
                key=key,
                seed=_SEED,
                shard_bytes=_SHARD_BYTES,
                progress=lambda done, total: progress(f"converting {handle.name} to shards", done, total),
            )
