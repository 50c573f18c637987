"""The loader of samples in a Cassandra-compatible database: one query a sample, many under way."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from loaders.base import LoaderStats
from loaders.errors import LoaderConfigError
from loaders.nosql.keys import load_client_keys
from loaders.nosql.options import NoSQLOptions
from loaders.nosql.schema import DatabaseTable
from loaders.nosql.session import missing_driver
from loaders.pipeline.callables import AnyTransform
from loaders.records.epochs import RecordFetch
from loaders.records.record_loader import RecordLoader
from loaders.shared.arrivals import ArrivalLog
from loaders.shared.options import takes_options

if TYPE_CHECKING:
    from loaders.nosql.client.database import Database
    from loaders.nosql.client.fetch import RowFetch

_ACROSS_NOTE: Final = (
    "asks for rows of the next epoch before it begins: an epoch has the bytes, time and joules of the next one's first "
    "rows, and not of its own"
)


class NoSQLLoader(RecordLoader):
    """Asks for samples over several connections and puts them into batches as they arrive.

    It follows the loader of the Cassandra-DALI paper (section 3.3). One thread at a time uses it.
    """

    @takes_options(NoSQLOptions)
    def __init__(
        self,
        *,
        endpoint: str,
        transform: AnyTransform | None = None,
        split: npt.ArrayLike | None = None,
        **keywords: Any,
    ) -> None:
        """Connect to the database and find the dataset.

        Raises LoaderConfigError for an argument out of range or a missing driver, StreamError when the database does
        not answer or refuses, and for a dataset that is missing or of other types.

        Args:
            endpoint: Address of the dataset, such as cassandra://10.77.0.1:9042/joulefeed.imagenet.
            transform: A pipeline, or a callable on the decoded sample (default: ImageTransform()).
            split: Ids of the samples of an epoch, such as `load_split` of loaders.nosql.splits returns (default: all).
        """
        options = NoSQLOptions(**keywords)
        super().__init__(options, transform=transform)
        table = DatabaseTable.parse(endpoint)
        try:
            from loaders.nosql.client.database import Database
            from loaders.nosql.client.fetch import RowTraffic
        except ImportError as error:
            raise missing_driver(error) from error

        self._own, self._traffic = options, RowTraffic()
        self._arrivals: ArrivalLog | None = None
        self._fetch: RowFetch | None = None
        self._database: Database | None = Database(
            table,
            login=None if options.keys is None else load_client_keys(options.keys),
            connections=options.connections,
            timeout_s=options.timeout_s,
        )
        try:
            if options.events is not None:
                self._arrivals = ArrivalLog(options.events, rank=options.rank)
            self._ids = None if split is None else _check_split(split, self._database.samples, options.limit)
            self._open(self._database.samples if self._ids is None else len(self._ids))
            if options.across_epochs:
                self.notes += (_ACROSS_NOTE,)
        except BaseException:
            self.close()
            raise

    def _start(self, epoch: int) -> RecordFetch:
        assert self._database is not None
        self._database.check_process()
        before, ahead = self._fetch, self._fetch.following if self._fetch else None
        if ahead is not None and ahead.epoch == epoch:
            self._fetch = ahead
            ahead.begin(before)
            return ahead
        self._drop_ahead()
        self._fetch = self._make_fetch(epoch)
        self._fetch.begin()
        return self._fetch

    def _make_fetch(self, epoch: int) -> RowFetch:
        from loaders.nosql.client.fetch import RowFetch

        assert self._database is not None
        order = self._share.order(epoch)
        ids = order if self._ids is None else self._ids[order]
        make_next = partial(self._make_fetch, epoch + 1) if self._own.across_epochs else None
        return RowFetch(self._database, ids, epoch, self._own, self._traffic, self._arrivals, make_next)

    def _drop_ahead(self) -> None:
        """Drop the rows that were asked for of an epoch that does not come."""
        if self._fetch is not None and self._fetch.following is not None:
            self._fetch.following.close()

    def stats(self) -> LoaderStats:
        """Return the counts so far, those of RecordLoader and these.

        `connections`; `wire_bytes` of all records that arrived; `early_bytes` of those that arrived before their epoch
        began; `asked_again` (rows); `late` (rows of an epoch that was broken off, which were dropped);
        `connection_bytes_max` and `connection_bytes_min` (of the connections).
        """
        traffic, stats = self._traffic, super().stats()
        stats.details |= {
            "wire_bytes": traffic.nbytes,
            "early_bytes": traffic.early_nbytes,
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
        self._drop_ahead()
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
