"""The loader: MosaicML Streaming reads shards from an object store, and its records are decoded as everywhere."""

from __future__ import annotations

import socket
import sys
from pathlib import Path
from typing import Any, Final

import numpy as np

from loaders.errors import LoaderConfigError, StreamError
from loaders.mosaic.keys import load_keys
from loaders.mosaic.options import MosaicOptions, Remote
from loaders.mosaic.process import ReaderProcess
from loaders.pipeline.callables import AnyTransform
from loaders.records.raw_batch import RawBatch
from loaders.records.record_loader import RecordLoader
from loaders.records.shards.tfrecord import FOOTER_BYTES
from loaders.shared.options import takes_options

_AHEAD: Final = 2
"""Batches that are on their way from the reader, beside those that its workers hold."""
_COLUMNS: Final = 5
_OWN_SETTINGS: Final = {"batch_size", "num_workers", "prefetch_factor", "remainder", "limit", "verify"}
_LIBRARY_SETTINGS: Final = {
    "shuffle", "shuffle_algo", "shuffle_block_size", "num_canonical_nodes", "predownload", "cache_limit",
    "download_retry",
}  # fmt: skip
"""Arguments of StreamingDataset that have the same names here."""
_BLOCK_SHARDS: Final = 10
"""Shards in a block of the shuffle, as the documentation asks for at least (Shuffling, shuffle-block-based)."""


class MosaicLoader(RecordLoader):
    """Reads MDS shards with MosaicML Streaming's own dataset and workers, in a process of its own.

    Every epoch downloads every shard again.
    """

    @takes_options(MosaicOptions)
    def __init__(
        self, *, endpoint: str, transform: AnyTransform | None = None, python: Path | str | None = None, **keywords: Any
    ) -> None:
        """Start the process and read the index of the shards.

        Raises LoaderConfigError for an argument out of range, StreamError where the object store cannot be reached,
        does not know the keys, or has no such shards.

        Args:
            endpoint: Where the shards are, such as s3://joulefeed/mds?endpoint=http://10.77.0.1:9000;
                requests are signed for the region AWS_REGION, else us-east-1.
            transform: A pipeline, or a callable on the decoded sample (default: ImageTransform()).
            python: A Python that has mosaicml-streaming (default: this one).
        """
        options = MosaicOptions(**keywords)
        remote = Remote.parse(endpoint)
        if options.imbalance:
            raise LoaderConfigError(f"imbalance={options.imbalance}: mosaic makes equal shares; leave it out")
        super().__init__(options, transform=transform)
        self._remote, self._timeout_s = remote, options.timeout_s
        self._keys = load_keys(options.keys)
        self._python = sys.executable if python is None else str(python)
        self._settings: dict[str, Any] = {
            **options.model_dump(include=_OWN_SETTINGS),
            "rank": self._ranks[0],
            "world_size": self._ranks[1],
            "block_shards": _BLOCK_SHARDS if options.shuffle_block_size is None else None,
            "dataset": {
                **options.model_dump(include=_LIBRARY_SETTINGS),
                "shuffle_seed": options.seed,
                "download_timeout": options.timeout_s,
            },
        }
        self._reader: ReaderProcess | None = None
        self._reach()
        try:
            self._reader = self._start_reader()
            self._open(int(self._reader.found["samples"]))
        except BaseException:
            self.close()
            raise
        self.notes = (*self._describe(), *self.notes)

    def _reach(self) -> None:
        """Connect to the object store and hang up: the S3 client would try for minutes."""
        host, port = self._remote.address
        try:
            socket.create_connection((host, port), self._timeout_s).close()
        except OSError as error:
            raise StreamError(
                f"object store {host}:{port} cannot be reached for {self._remote.url}: {error}; see whether the daemon "
                "runs and the address is right"
            ) from error

    def _start_reader(self) -> ReaderProcess:
        return ReaderProcess(self._python, self._remote, self._keys, self._settings, self._timeout_s)

    def _describe(self) -> tuple[str, ...]:
        assert self._reader is not None
        found, workers = self._reader.found, self._settings["num_workers"]
        return (
            f"MosaicML Streaming {self._reader.version}: {found['shards']} MDS shards, which {workers} workers "
            "download again in every epoch",
            "mixes samples within "
            f"{found['block']} of them; batches come in the order of the workers, so that a late shard holds all back",
        )

    def _start(self, epoch: int) -> ShardFetch:
        if self._reader is None:
            self._reach()
            self._reader = self._start_reader()
        return ShardFetch(self, self._reader, epoch)

    def _drop(self, reader: ReaderProcess) -> None:
        """End a reader whose epoch was broken off; the next epoch has another one."""
        if self._reader is reader:
            self._reader = None
        reader.close()

    def close(self) -> None:
        """End the epoch under way, threads and processes; may be called twice."""
        super().close()
        if self._reader is not None:
            self._drop(self._reader)


class ShardFetch:
    """An epoch's batches from a reader."""

    def __init__(self, loader: MosaicLoader, reader: ReaderProcess, epoch: int) -> None:
        self._loader, self._reader, self._epoch, self._batch = loader, reader, epoch, 0
        self._ended = False
        reader.start_epoch(epoch, _AHEAD)

    def next(self, wait: bool) -> RawBatch | None:
        """Return the next batch, as RecordFetch has it."""
        if self._ended:
            raise StopIteration
        try:
            packed = self._reader.receive(wait)
        except StopIteration:
            self._ended = True
            raise
        if packed is None:
            return None
        self._reader.ask()
        self._batch += 1
        return _unpack(packed, self._epoch, self._batch - 1)

    def close(self) -> None:
        """End the reader where its epoch is under way; may be called twice."""
        if not self._ended:
            self._loader._drop(self._reader)


def _unpack(packed: memoryview, epoch: int, batch: int) -> RawBatch:
    """Return the raw batch of what `loaders.mosaic.reader.join_batch` has packed."""
    count = int(np.frombuffer(packed, np.int64, 1)[0])
    numbers = np.frombuffer(packed, np.int64, _COLUMNS * count, 8).reshape(_COLUMNS, count).copy()
    ids, labels, images, image_sizes, sizes = numbers
    frame = packed[8 + numbers.nbytes :].toreadonly()
    ends = np.cumsum(sizes)
    footers = [bytes(frame[end - FOOTER_BYTES : end]) for end in ends.tolist()]
    return RawBatch(
        epoch,
        batch,
        ids,
        labels,
        (frame,),
        np.zeros(count, np.int64),
        ends - sizes + images,
        image_sizes,
        np.frombuffer(b"".join(footers), "<u4").astype(np.int64),
    )
