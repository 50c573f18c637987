"""What a daemon serves: it is a dataset of the service as well, of one element, so that clients need no other port."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Final, Self

from loaders.errors import StreamError
from loaders.records.shards.index import ShardSet, index_path

CATALOG_ID: Final = "joulefeed-catalog-1"
"""Under which the daemon registers the dataset whose element is the catalog; its number is that of this format."""


@dataclass(frozen=True, slots=True)
class TfDataCatalog:
    """The shards of a daemon, by their paths on the storage node, and its workers."""

    shards: Sequence[str]
    indexes: Sequence[str]
    """The index of each shard, an array of RECORD in a .npy file."""
    index_headers: Sequence[int]
    """Bytes of each index before its array."""
    records: Sequence[int]
    """Number of records of each shard."""
    workers: Sequence[str]
    """HOST:PORT of every worker."""

    @classmethod
    def of(cls, shards: ShardSet, workers: Sequence[str]) -> Self:
        """Return the catalog of a shard folder."""
        paths = [shard.path.resolve() for shard in shards.shards]
        indexes = [index_path(path) for path in paths]
        headers = [
            path.stat().st_size - shard.records.nbytes for path, shard in zip(indexes, shards.shards, strict=True)
        ]
        records = [len(shard.records) for shard in shards.shards]
        return cls([str(path) for path in paths], [str(path) for path in indexes], headers, records, workers)

    @property
    def samples(self) -> int:
        """Number of records of all shards."""
        return sum(self.records)

    def to_json(self) -> str:
        """Return the element."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: bytes) -> Self:
        """Return what an element says; raises StreamError where it is no catalog."""
        try:
            return cls(**json.loads(text))
        except (TypeError, ValueError) as error:
            raise StreamError(f"the catalog of the shards cannot be read: {error}") from error


def worker_addresses(catalog: TfDataCatalog) -> list[tuple[str, int]]:
    """Return host and port of every worker."""
    split = [worker.rpartition(":") for worker in catalog.workers]
    return [(host.strip("[]"), int(port)) for host, _, port in split]
