"""Shards mapped into memory, and the slices of a request as views of them."""

from __future__ import annotations

import hashlib
import mmap
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np

from loaders.streaming.errors import WireError
from loaders.streaming.index import ShardSet
from loaders.streaming.planner import Slice
from loaders.streaming.wire import MAX_RECORDS, BatchHeader, Catalog, Get

__all__ = ["ShardStore"]


class ShardStore:
    """The mapped shards of one folder."""

    def __init__(self, root: Path) -> None:
        """Map every shard; raises ShardError naming what is missing or does not fit."""
        self._shards = ShardSet.open(root).shards
        self._maps: list[mmap.mmap] = []
        digest = hashlib.blake2b(digest_size=16)
        for shard in self._shards:
            with shard.path.open("rb") as file:
                self._maps.append(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
            digest.update(shard.records.tobytes())
        self.catalog = Catalog(digest.hexdigest(), tuple(len(shard.records) for shard in self._shards))
        """What is served."""
        self.nbytes = sum(shard.nbytes for shard in self._shards)
        """Bytes of all shards."""

    def batch(self, request: Get) -> tuple[BatchHeader, list[memoryview]]:
        """Return the header and the records of a request, one view of a mapped shard per slice.

        The kernel is told to read the slices ahead. Raises WireError naming the slice that does not exist.
        """
        for part in request.slices:
            self._check(part)
        if sum(part.records for part in request.slices) > MAX_RECORDS:
            raise WireError(f"batch {request.batch}: more than {MAX_RECORDS} records")
        frames, columns = [], []
        for part in request.slices:
            rows = self._shards[part.shard].records[part.first : part.first + part.records]
            start, end = int(rows["offset"][0]), int(rows["offset"][-1] + rows["size"][-1])
            mapped = self._maps[part.shard]
            aligned = start - start % mmap.PAGESIZE
            mapped.madvise(mmap.MADV_WILLNEED, aligned, end - aligned)
            frames.append(memoryview(mapped)[start:end])
            columns.append((rows["id"], rows["label"], rows["offset"] - start + rows["image"], rows["image_size"]))
        ids, labels, offsets, sizes = (np.concatenate(column) for column in zip(*columns, strict=True))
        header = BatchHeader(request.sequence, request.epoch, request.batch, ids, labels, offsets, sizes)
        return header, frames

    def _check(self, part: Slice) -> None:
        counts = self.catalog.shard_records
        if part.shard >= len(counts):
            raise WireError(f"shard {part.shard} does not exist: there are {len(counts)}")
        if part.records < 1 or part.first + part.records > counts[part.shard]:
            raise WireError(
                f"shard {part.shard} has {counts[part.shard]} records: there are no {part.records} "
                f"from record {part.first} on"
            )

    def close(self) -> None:
        """Unmap the shards."""
        while self._maps:
            self._maps.pop().close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
