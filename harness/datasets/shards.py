"""The TFRecord shards of a dataset, written once and kept in the cache."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Final

from harness.datasets.cache import check_room, only_builder, storage_errors
from harness.datasets.handle import DatasetHandle, Progress
from harness.errors import DatasetError
from loaders.streaming.shards.convert import convert
from loaders.streaming.shards.index import stored_key

__all__ = ["open_shards"]

_SEED: Final = 0
_SHARD_BYTES: Final = 64 * 2**20
_RECORD_SLACK: Final = 512
"""Bytes of a record and its index beside the image."""


def open_shards(handle: DatasetHandle, cache: Path, progress: Progress, least: int = 1) -> Path:
    """Return the folder of a dataset's shards, at least about `least` of them, converted unless the same are there.

    Raises DatasetError when the cache cannot be written or lacks room, or for samples of several files, SampleError
    when a file changed.
    """
    if more := [name for name in handle.samples.columns if name.endswith("_path")]:
        raise DatasetError(
            f"{handle.name}: a sample is several files ({', '.join(more)} beside its own), and a record of a shard "
            "holds one; leave out the loaders that stream (~loaders.streaming) and placement=half"
        )
    total = int(handle.samples.sizes.sum())
    shard_bytes = min(_SHARD_BYTES, -(-total // least)) if least > 1 else _SHARD_BYTES
    text = f"{handle.content_hash}:{_SEED}:{shard_bytes}"
    key = hashlib.sha256(text.encode()).hexdigest()[:16]
    out = cache / "shards" / f"{handle.name}-{key}"
    needed = total + _RECORD_SLACK * len(handle.samples)
    with only_builder(out, progress):
        if stored_key(out) != key:
            check_room(out.parent, needed)
        with storage_errors(out, needed):
            return convert(
                handle.samples,
                out,
                key=key,
                seed=_SEED,
                shard_bytes=shard_bytes,
                progress=lambda done, total: progress(f"converting {handle.name} to shards", done, total),
            )
