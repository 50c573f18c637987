"""The dataset of one epoch: a graph that the workers execute beside the shards, and what the client takes of it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Final, NamedTuple, Self

import numpy as np

from loaders.errors import StreamError
from loaders.records.shards.index import RECORD, ShardSet, index_path
from loaders.tfdata.options import TfDataOptions
from loaders.tfdata.tensorflow import Dataset, load_tensorflow

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


_READ_BYTES: Final = 2**20
"""Read buffer of a shard: the documentation of TFRecordDataset advises 1 to 100 MB."""


_AHEAD: Final = 2
"""Elements for each worker: one under way, and one that has arrived."""


class ShardPiece(NamedTuple):
    """Neighbouring records of a shard."""

    shard: int
    first: int
    records: int


def plan_pieces(records: Sequence[int], *, seed: int, epoch: int, start: int, count: int) -> list[ShardPiece]:
    """Return the pieces of `count` records from the `start`-th on, of all shards in the epoch's random order.

    All are whole shards but the first and the last.
    """
    pieces: list[ShardPiece] = []
    for shard in np.random.default_rng((seed, epoch)).permutation(len(records)).tolist():
        first = min(start, records[shard])
        taken = min(records[shard] - first, count)
        if taken:
            pieces.append(ShardPiece(shard, first, taken))
        start, count = start - first, count - taken
    return pieces


def open_catalog(endpoint: str) -> Dataset:
    """Return the dataset whose elements are the catalog, one from each worker."""
    tensorflow = load_tensorflow()
    service = tensorflow.data.experimental.service
    return service.from_dataset_id(
        processing_mode=service.ShardingPolicy.OFF,
        service=endpoint,
        dataset_id=CATALOG_ID,
        element_spec=tensorflow.TensorSpec((), tensorflow.string),
    )


def open_epoch(
    endpoint: str, catalog: TfDataCatalog, pieces: Sequence[ShardPiece], tuning: TfDataOptions, *, seed: int, job: str
) -> Dataset:
    """Return the dataset of an epoch: numbers, index rows and payloads of records, each of shape (at most batch_size,).

    A record's number is its place in all shards as the catalog lists them. The pieces are given to the workers one by
    one as they ask for them (dynamic sharding), so every record is read by one worker.
    """
    tensorflow = load_tensorflow()
    data, service = tensorflow.data, tensorflow.data.experimental.service
    shard = np.array([piece.shard for piece in pieces], np.int64)
    columns = (
        np.array(catalog.shards)[shard],
        np.array(catalog.indexes)[shard],
        np.array(catalog.index_headers, np.int64)[shard],
        (np.cumsum(catalog.records) - catalog.records).astype(np.int64)[shard],
        np.array([piece.first for piece in pieces], np.int64),
        np.array([piece.records for piece in pieces], np.int64),
    )

    def read_piece(
        path: object, index: object, header: object, number: object, first: object, count: object
    ) -> Dataset:
        rows = data.FixedLengthRecordDataset(index, RECORD.itemsize, header_bytes=header)
        records = data.TFRecordDataset(path, buffer_size=_READ_BYTES)
        numbers = data.Dataset.counter(number)
        return data.Dataset.zip((numbers, rows, records)).skip(first).take(count)

    cycle = max(1, min(tuning.interleave, len(pieces) // len(catalog.workers)))
    dataset = data.Dataset.from_tensor_slices(columns).interleave(read_piece, cycle_length=cycle)
    if tuning.shuffle_buffer > 1:
        dataset = dataset.shuffle(tuning.shuffle_buffer, seed=seed, reshuffle_each_iteration=False)
    dataset = dataset.batch(tuning.batch_size).prefetch(data.AUTOTUNE)
    options = data.Options()
    options.deterministic = True
    options.threading.private_threadpool_size = tuning.worker_threads
    return dataset.with_options(options).apply(
        service.distribute(
            processing_mode=service.ShardingPolicy.DYNAMIC,
            service=endpoint,
            job_name=job,
            max_outstanding_requests=tuning.max_outstanding_requests or _AHEAD * len(catalog.workers),
            # Encoded images do not become smaller.
            compression=None,
        )
    )
