"""The loader of samples in a Cassandra-compatible database: one query a sample, many under way."""

from __future__ import annotations

from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Final, Unpack

import numpy as np
import numpy.typing as npt

from loaders.arguments import check_seconds, check_whole
from loaders.base import LoaderStats
from loaders.errors import LoaderConfigError
from loaders.nosql.keys import USER, load_client_keys
from loaders.nosql.schema import Table
from loaders.nosql.session import Login, missing_driver
from loaders.options import LoaderKeywords, LoaderOptions, takes_options
from loaders.pipelines.callables import AnyTransform
from loaders.records.decoding import Engine
from loaders.records.epochs import RecordFetch
from loaders.records.record_loader import RecordLoader
from loaders.shared.arrivals import ArrivalLog

if TYPE_CHECKING:
    from loaders.nosql.client.database import Database

_MAX_CONNECTIONS: Final = 256
_MAX_IN_FLIGHT: Final = 32_000
"""The protocol numbers the requests of a connection with 15 bits."""


class NoSQLLoader(RecordLoader):
    """Asks for samples over several connections and puts them into batches as they arrive.

    It follows the loader of the Cassandra-DALI paper (section 3.3). One thread at a time uses it.
    """

    @takes_options(LoaderOptions)
    def __init__(
        self,
        *,
        endpoint: str,
        transform: AnyTransform | None = None,
        keys: Path | str | None = None,
        connections: int = 4,
        io_threads: int = 1,
        in_flight: int = 1024,
        prefetch_batches: int = 16,
        out_of_order: bool = True,
        slow_start: int = 4,
        retries: int = 5,
        timeout_s: float = 30.0,
        verify: bool = True,
        decode: Engine = "auto",
        num_threads: int = 2,
        split: npt.ArrayLike | None = None,
        limit: int | None = None,
        events: Path | str | None = None,
        **keywords: Unpack[LoaderKeywords],
    ) -> None:
        """Connect to the database and find the dataset.

        Raises LoaderConfigError for an argument out of range or a missing driver, StreamError when the database does
        not answer or refuses, and for a dataset that is missing, half ingested or of other types.

        Args:
            endpoint: Address of the dataset, such as cassandra://10.77.0.1:9042/joulefeed.imagenet.
            transform: A pipeline, or a callable that takes a decoded image (PIL, RGB) or array and returns a tensor,
                array or number, such as torchvision's Compose (default: ImageTransform()).
            keys: The client's folder of keys, for a server with keys (default: none).
            connections: Connections to each host (default: 4).
            io_threads: Threads that send and receive; the connections are theirs in turn (default: 1).
            in_flight: Requests under way of each connection (default: 1024).
            prefetch_batches: Batches that are under way or wait for the consumer; together with `batch_size` it has to
                cover the bandwidth-delay product (default: 16).
            out_of_order: Whether each row that arrives takes the next slot of the oldest open batch, so that a slow
                connection delays no batch; false keeps the order of the epoch (default: True).
            slow_start: Samples taken for each one that is asked for besides, so that 4 asks for 5 with 4 taken, from
                as many batches up to `prefetch_batches`; 0 asks for all at once (default: 4).
            retries: How often a row is asked for again after the database answered with an error; after the loss of a
                connection it is asked for again until `timeout_s` (default: 5).
            timeout_s: Seconds without any row after which the epoch ends with an error (default: 30).
            verify: Whether the checksum of every record is computed (default: True).
            decode: "dali" decodes images alone, "torch" and "torch-process" run any pipeline, "auto" takes the
                fitting one, and "raw" yields RawBatch, not decoded (default: "auto").
            num_threads: Threads that decode, or processes of "torch-process" (default: 2).
            split: Ids of the samples of an epoch, such as `load_split` of loaders.nosql.splits returns (default: all).
            limit: An epoch has the samples whose ids are below it (default: no limit).
            events: File to which ArrivalLog's lines of each connection are appended (default: none).
        """
        options = LoaderOptions(**keywords)
        super().__init__(options, transform=transform, decode=decode, num_threads=num_threads, limit=limit)
        table = Table.parse(endpoint)
        for name, flag in (("out_of_order", out_of_order), ("verify", verify)):
            if not isinstance(flag, bool):
                raise LoaderConfigError(f"{name}={flag!r}: expected true or false")
        for name, path in (("keys", keys), ("events", events)):
            if not isinstance(path, str | PathLike | None):
                raise LoaderConfigError(f"{name}={path!r}: expected a path, or none")
        check_whole("connections", connections, 1, _MAX_CONNECTIONS)
        try:
            from loaders.nosql.client.database import Database
            from loaders.nosql.client.fetch import Prefetch, Traffic
        except ImportError as error:
            raise missing_driver(error) from error

        self._prefetch = Prefetch(
            options.batch_size,
            check_whole("prefetch_batches", prefetch_batches, 1),
            check_whole("in_flight", in_flight, 1, _MAX_IN_FLIGHT),
            check_whole("slow_start", slow_start, 0),
            out_of_order,
            check_whole("retries", retries, 0),
            verify,
        )
        login = None
        if keys is not None:
            found = load_client_keys(keys)
            login = Login(USER, found.password, found.context())
        self._traffic = Traffic()
        self._arrivals: ArrivalLog | None = None
        self._database: Database | None = Database(
            table,
            login=login,
            connections=connections,
            io_threads=check_whole("io_threads", io_threads, 1, _MAX_CONNECTIONS),
            timeout_s=check_seconds("timeout_s", timeout_s),
        )
        try:
            if events is not None:
                self._arrivals = ArrivalLog(events, rank=options.rank)
            self._ids = None if split is None else _check_split(split, self._database.samples, limit)
            self._open(self._database.samples if self._ids is None else len(self._ids))
        except BaseException:
            self.close()
            raise

    def _start(self, epoch: int) -> RecordFetch:
        from loaders.nosql.client.fetch import RowFetch

        assert self._database is not None
        self._database.check_process()
        order = self._share.order(epoch)
        ids = order if self._ids is None else self._ids[order]
        return RowFetch(self._database, ids, epoch, self._prefetch, self._traffic, self._arrivals)

    def stats(self) -> LoaderStats:
        """Return the counts so far, those of RecordLoader and these.

        `connections`; `wire_bytes` of all records that arrived; `asked_again` (rows); `late` (rows of an epoch that was
        broken off, which were dropped); `connection_bytes_max` and `connection_bytes_min` (of the connections).
        """
        traffic, stats = self._traffic, super().stats()
        stats.details |= {
            "wire_bytes": traffic.nbytes,
            "asked_again": traffic.asked_again,
            "late": traffic.late,
            "connection_bytes_max": max(traffic.by_connection.values(), default=0),
            "connection_bytes_min": min(traffic.by_connection.values(), default=0),
        }
        if self._database is not None:
            stats.details["connections"] = self._database.connections
        return stats

    def close(self) -> None:
        """End the epoch under way, threads, processes and connections; may be called twice."""
        super().close()
        database, self._database = self._database, None
        if database is not None:
            database.close()
        if self._arrivals is not None:
            self._arrivals.close()


def _check_split(split: npt.ArrayLike, samples: int, limit: int | None) -> npt.NDArray[np.int64]:
    """Return the ids of a split that are below the limit; raises LoaderConfigError for ids of no samples."""
    ids = np.asarray(split)
    if ids.ndim != 1 or not ids.size or ids.dtype.kind not in "iu" or len(np.unique(ids)) < len(ids):
        raise LoaderConfigError(
            "split: expected the ids of samples, whole numbers, each once; make splits with the column sample_id as id"
        )
    if ids.min() < 0 or ids.max() >= samples:
        raise LoaderConfigError(
            f"split: it has ids from {ids.min()} to {ids.max()}, the dataset from 0 to {samples - 1}: name a split of "
            "this dataset"
        )
    found: npt.NDArray[np.int64] = ids.astype(np.int64)
    found = found if limit is None else found[found < limit]
    if not len(found):
        raise LoaderConfigError(f"limit={limit}: the split has no id below it")
    return found
