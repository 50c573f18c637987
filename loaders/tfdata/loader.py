"""The loader over tf.data service: records from TensorFlow's workers on the storage node."""

from __future__ import annotations

from dataclasses import replace
from typing import Final, Unpack
from uuid import uuid4

import numpy as np

from loaders.arguments import check_seconds, check_whole
from loaders.errors import StreamError
from loaders.options import LoaderKeywords, LoaderOptions, takes_options
from loaders.pipelines.callables import AnyTransform
from loaders.records.decoding import Engine
from loaders.records.record_loader import RecordLoader
from loaders.tfdata.catalog import Catalog, worker_addresses
from loaders.tfdata.dataset import Piece, Tuning, open_catalog, open_epoch, plan_pieces
from loaders.tfdata.elements import Elements
from loaders.tfdata.fetch import ADVICE, EpochFetch
from loaders.tfdata.probe import find_fault, parse_endpoint
from loaders.tfdata.tensorflow import load_tensorflow

_START: Final = "start `python -m loaders.tfdata serve` there, or give its endpoint"
_AHEAD: Final = 2
"""Elements for each worker: one under way, and one that has arrived."""


class TfDataLoader(RecordLoader):
    """Takes batches of records from tf.data service and decodes them in the background.

    The workers read, shuffle and batch records on the storage node; they do not decode. One thread at a time uses it.
    """

    @takes_options(LoaderOptions)
    def __init__(
        self,
        *,
        endpoint: str,
        transform: AnyTransform | None = None,
        decode: Engine = "auto",
        num_threads: int = 2,
        shuffle_buffer: int = 1024,
        interleave: int = 4,
        max_outstanding_requests: int | None = None,
        worker_threads: int = 2,
        timeout_s: float = 30.0,
        limit: int | None = None,
        **keywords: Unpack[LoaderKeywords],
    ) -> None:
        """Connect to the dispatcher at `endpoint`.

        Raises LoaderConfigError for an argument out of range, StreamError when nothing answers, or something else.

        Args:
            endpoint: Address of the daemon's dispatcher, such as grpc://10.77.0.1:5050.
            transform: A pipeline, or a callable that takes a decoded image (PIL, RGB) or array and returns a tensor,
                array or number, such as torchvision's Compose (default: ImageTransform()).
            decode: "dali" decodes images alone, "torch" and "torch-process" run any pipeline, "auto" takes the
                fitting one, and "raw" yields RawBatch, not decoded (default: "auto").
            num_threads: Threads that decode, or processes of "torch-process" (default: 2).
            shuffle_buffer: Records of a worker from which it draws the next one at random; an epoch begins when it is
                full (default: 1024).
            interleave: Shards that a worker reads in turn, at most (default: 4).
            max_outstanding_requests: Batches that are asked for or wait in the client; the service has one under way
                at each worker (default: two for each worker).
            worker_threads: Threads of each worker for an epoch (default: 2).
            timeout_s: Seconds without a batch after which the service is given up (default: 30).
            limit: Samples after which an epoch ends (default: no limit).
        """
        options = LoaderOptions(**keywords)
        super().__init__(options, transform=transform, decode=decode, num_threads=num_threads, limit=limit)
        check_whole("shuffle_buffer", shuffle_buffer, 1)
        check_whole("interleave", interleave, 1)
        check_whole("worker_threads", worker_threads, 1)
        if max_outstanding_requests is not None:
            check_whole("max_outstanding_requests", max_outstanding_requests, 1)
        self._timeout_s = check_seconds("timeout_s", timeout_s)
        self._fetch: EpochFetch | None = None
        self._endpoint, self._address = endpoint, parse_endpoint(endpoint)
        self._catalog = self._read_catalog()
        workers = len(self._catalog.workers)
        self._tuning = Tuning(shuffle_buffer, interleave, max_outstanding_requests or _AHEAD * workers, worker_threads)
        self._job = uuid4().hex
        self._jobs = 0
        try:
            self._open(self._catalog.samples)
        except BaseException:
            self.close()
            raise
        self.notes = (self._describe(workers), *self.notes)

    def close(self) -> None:
        """End the epoch under way, threads and processes; may be called twice."""
        super().close()
        if self._fetch is not None:
            self._fetch.end()
            self._fetch = None

    def _read_catalog(self) -> Catalog:
        if (fault := find_fault(self._address, self._timeout_s)) is not None:
            raise StreamError(f"{self._endpoint}: {fault}; {_START}")
        load_tensorflow()
        with Elements(
            self._endpoint, [self._address], lambda: open_catalog(self._endpoint), self._timeout_s, _START
        ) as elements:
            element = elements.next(wait=True)
        assert element is not None, "it was waited for"
        return Catalog.from_json(element[0])

    def _describe(self, workers: int) -> str:
        buffer = self._tuning.shuffle_buffer
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
        batch_size = self._options.batch_size
        elements = Elements(
            self._endpoint,
            [self._address, *worker_addresses(self._catalog)],
            lambda: open_epoch(
                self._endpoint, self._catalog, pieces, self._tuning, batch_size=batch_size, seed=seed, job=job
            ),
            self._timeout_s,
            ADVICE,
        )
        self._fetch = EpochFetch(elements, epoch, batch_size, expected)
        return self._fetch

    def _take_catalog(self, catalog: Catalog) -> None:
        if catalog.samples != self._catalog.samples:
            raise StreamError(
                f"{self._endpoint} serves {catalog.samples} records now, and {self._catalog.samples} before: make a "
                "new loader for another dataset"
            )
        self._catalog = catalog

    def _plan(self, epoch: int) -> list[Piece]:
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
