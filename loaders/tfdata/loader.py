"""The loader over tf.data service: records from TensorFlow's workers on the storage node."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final
from uuid import uuid4

import numpy as np

from loaders.errors import StreamError
from loaders.pipeline.callables import AnyTransform
from loaders.records.record_loader import RecordLoader
from loaders.shared.options import takes_options
from loaders.tfdata.dataset import ShardPiece, TfDataCatalog, open_catalog, open_epoch, plan_pieces, worker_addresses
from loaders.tfdata.elements import Elements, find_fault, parse_endpoint
from loaders.tfdata.fetch import ADVICE, EpochFetch
from loaders.tfdata.options import TfDataOptions
from loaders.tfdata.tensorflow import load_tensorflow

_START: Final = "start `python -m loaders.tfdata serve` there, or give its endpoint"


class TfDataLoader(RecordLoader):
    """Takes batches of records from tf.data service and decodes them in the background.

    The workers read, shuffle and batch records on the storage node; they do not decode. One thread at a time uses it.
    """

    @takes_options(TfDataOptions)
    def __init__(self, *, endpoint: str, transform: AnyTransform | None = None, **keywords: Any) -> None:
        """Connect to the dispatcher at `endpoint`.

        Raises LoaderConfigError for an argument out of range, StreamError when nothing answers, or something else.

        Args:
            endpoint: Address of the daemon's dispatcher, such as grpc://10.77.0.1:5050.
            transform: A pipeline, or a callable on the decoded sample (default: ImageTransform()).
        """
        self._own = options = TfDataOptions(**keywords)
        super().__init__(options, transform=transform)
        self._timeout_s = options.timeout_s
        self._fetch: EpochFetch | None = None
        self._endpoint, self._address = endpoint, parse_endpoint(endpoint)
        self._catalog = self._read_catalog()
        self._job = uuid4().hex
        self._jobs = 0
        try:
            self._open(self._catalog.samples)
        except BaseException:
            self.close()
            raise
        self.notes = (self._describe(len(self._catalog.workers)), *self.notes)

    def close(self) -> None:
        """End the epoch under way, threads and processes; may be called twice."""
        super().close()
        if self._fetch is not None:
            self._fetch.end()
            self._fetch = None

    def _read_catalog(self) -> TfDataCatalog:
        if (fault := find_fault(self._address, self._timeout_s)) is not None:
            raise StreamError(f"{self._endpoint}: {fault}; {_START}")
        load_tensorflow()
        with Elements(
            self._endpoint, [self._address], lambda: open_catalog(self._endpoint), self._timeout_s, _START
        ) as elements:
            element = elements.next(wait=True)
        assert element is not None, "it was waited for"
        return TfDataCatalog.from_json(element[0])

    def _describe(self, workers: int) -> str:
        buffer = self._own.shuffle_buffer
        mixed = f"records within a buffer of {buffer}" if buffer > 1 else "no records"
        order = "in order of arrival, which is another one in every run" if workers > 1 else "in the order of the seed"
        return (
            f"shuffles shards, and {mixed} of each of {workers} tf.data workers; batches come {order}; an epoch "
            "cannot go on after a worker's death, since tf.data service loses the worker's shards of the epoch"
        )

    def _start(self, epoch: int) -> EpochFetch:
        if self._fetch is not None and self._fetch.failed:
            # A daemon that was started again has workers at other ports.
            self._take_catalog(self._read_catalog())
        pieces = self._plan(epoch)
        self._jobs += 1
        job = f"joulefeed-{self._job}-{self._jobs}-epoch-{epoch}"
        seed = int(np.random.SeedSequence((self._options.seed, epoch)).generate_state(1)[0])
        firsts = np.cumsum(self._catalog.records) - self._catalog.records
        expected = np.zeros(self._catalog.samples, np.int64)
        for piece in pieces:
            first = firsts[piece.shard] + piece.first
            expected[first : first + piece.records] += 1
        elements = Elements(
            self._endpoint,
            [self._address, *worker_addresses(self._catalog)],
            lambda: open_epoch(self._endpoint, self._catalog, pieces, self._own, seed=seed, job=job),
            self._timeout_s,
            ADVICE,
        )
        self._fetch = EpochFetch(elements, epoch, self._own.batch_size, expected)
        return self._fetch

    def _take_catalog(self, catalog: TfDataCatalog) -> None:
        if catalog.samples != self._catalog.samples:
            raise StreamError(
                f"{self._endpoint} serves {catalog.samples} records now, and {self._catalog.samples} before: make a "
                "new loader for another dataset"
            )
        self._catalog = catalog

    def _plan(self, epoch: int) -> list[ShardPiece]:
        """Return the rank's pieces: ranks have parts of the epoch one after the other, of the lengths of their shares.

        With a limit the epoch has the first samples of its order. Padding goes on with the epoch's first samples.
        """
        share, pieces = self._share, []
        lengths = [len(replace(share, rank=rank)) for rank in range(share.rank + 1)]
        start, left = sum(lengths[:-1]), lengths[-1]
        while left:
            start %= share.count
            taken = min(left, share.count - start)
            pieces += plan_pieces(self._catalog.records, seed=self._options.seed, epoch=epoch, start=start, count=taken)
            start, left = start + taken, left - taken
        return pieces
