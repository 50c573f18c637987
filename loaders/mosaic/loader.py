"""The loader: MosaicML Streaming reads shards from an object store, and its records are decoded as everywhere."""

from __future__ import annotations

import socket
import sys
from pathlib import Path
from typing import Final, Unpack

import numpy as np

from loaders.arguments import check_seconds, check_whole
from loaders.errors import LoaderConfigError, StreamError
from loaders.mosaic.options import Remote
from loaders.mosaic.process import ReaderProcess
from loaders.options import LoaderKeywords, LoaderOptions, takes_options
from loaders.pipelines.callables import AnyTransform
from loaders.records.decoding import Engine
from loaders.records.raw_batch import RawBatch
from loaders.records.record_loader import RecordLoader
from loaders.records.shards.tfrecord import FOOTER_BYTES
from loaders.shared.objects.keys import load_keys

_ALGORITHMS: Final = ("py1e", "py1br", "py1s", "py2s", "naive")
_AHEAD: Final = 2
"""Batches that are on their way from the reader, beside those that its workers hold."""
_COLUMNS: Final = 5
_BLOCK_SHARDS: Final = 10
"""Shards in a block of the shuffle, as the documentation asks for at least (Shuffling, shuffle-block-based)."""


class MosaicLoader(RecordLoader):
    """Reads MDS shards with MosaicML Streaming's own dataset and workers, in a process of its own.

    Every epoch downloads every shard again.
    """

    @takes_options(LoaderOptions)
    def __init__(
        self,
        *,
        endpoint: str,
        keys: Path | str | None = None,
        transform: AnyTransform | None = None,
        num_workers: int = 8,
        prefetch_factor: int = 2,
        predownload: int | None = None,
        shuffle: bool = True,
        shuffle_algo: str = "py1e",
        shuffle_block_size: int | None = None,
        num_canonical_nodes: int | None = None,
        cache_limit: str | None = None,
        download_retry: int = 2,
        verify: bool = True,
        decode: Engine = "auto",
        num_threads: int = 2,
        timeout_s: float = 30.0,
        limit: int | None = None,
        python: Path | str | None = None,
        **keywords: Unpack[LoaderKeywords],
    ) -> None:
        """Start the process and read the index of the shards.

        Raises LoaderConfigError for an argument out of range, StreamError where the object store cannot be reached,
        does not know the keys, or has no such shards.

        Args:
            endpoint: Where the shards are, such as s3://joulefeed/mds?endpoint=http://10.77.0.1:9000;
                requests are signed for the region AWS_REGION, else us-east-1.
            keys: Folder or file of the access key (default: AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY).
            transform: A pipeline, or a callable that takes a decoded image or array (default: ImageTransform()).
            num_workers: Worker processes, each of which downloads one shard at a time (default: 8).
            prefetch_factor: Batches that each worker has ready (default: 2).
            predownload: Samples that each worker downloads shards for ahead (default: the library's, 8 batches).
            shuffle: Whether samples are shuffled (default: true).
            shuffle_algo: The library's algorithm (default: "py1e").
            shuffle_block_size: Samples within which py1e shuffles (default: those of 10 shards).
            num_canonical_nodes: The library's number of sample buckets (default: its own, 1).
            cache_limit: Most bytes of downloaded shards on disk, such as 2gb (default: those of the dataset).
            download_retry: Times that the library tries a download (default: 2).
            verify: Whether the checksum of every record is computed (default: True).
            decode: "dali" decodes images alone, "torch" and "torch-process" run any pipeline, "auto" takes the
                fitting one, and "raw" yields RawBatch, not decoded (default: "auto").
            num_threads: Threads that decode, or processes of "torch-process" (default: 2).
            timeout_s: Seconds of silence after which the object store is given up (default: 30).
            limit: An epoch has so many samples, the first ones of the shards (default: all).
            python: A Python that has mosaicml-streaming (default: this one).
        """
        options = LoaderOptions(**keywords)
        remote = Remote.parse(endpoint)
        if options.imbalance:
            raise LoaderConfigError(f"imbalance={options.imbalance}: mosaic makes equal shares; leave it out")
        for name, number in (("predownload", predownload), ("shuffle_block_size", shuffle_block_size)):
            if number is not None:
                check_whole(name, number, 1)
        if shuffle_algo not in _ALGORITHMS:
            raise LoaderConfigError(f"shuffle_algo={shuffle_algo!r}: expected one of {', '.join(_ALGORITHMS)}")
        if num_canonical_nodes is not None:
            check_whole("num_canonical_nodes", num_canonical_nodes, 1)
        for name, flag in (("shuffle", shuffle), ("verify", verify)):
            if not isinstance(flag, bool):
                raise LoaderConfigError(f"{name}={flag!r}: expected true or false")
        super().__init__(options, transform=transform, decode=decode, num_threads=num_threads, limit=limit)
        self._remote, self._timeout_s = remote, check_seconds("timeout_s", timeout_s)
        self._keys = load_keys(keys)
        self._python = sys.executable if python is None else str(python)
        self._settings = {
            "batch_size": options.batch_size,
            "num_workers": check_whole("num_workers", num_workers, 1),
            "prefetch_factor": check_whole("prefetch_factor", prefetch_factor, 1),
            "rank": self._ranks[0],
            "world_size": self._ranks[1],
            "remainder": options.remainder,
            "limit": limit,
            "verify": verify,
            "block_shards": _BLOCK_SHARDS if shuffle_block_size is None else None,
            "dataset": {
                "shuffle": shuffle,
                "shuffle_algo": shuffle_algo,
                "shuffle_seed": options.seed,
                "shuffle_block_size": shuffle_block_size,
                "num_canonical_nodes": num_canonical_nodes,
                "predownload": predownload,
                "cache_limit": cache_limit,
                "download_retry": check_whole("download_retry", download_retry, 1),
                "download_timeout": self._timeout_s,
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

    def _start(self, epoch: int) -> _Fetch:
        if self._reader is None:
            self._reach()
            self._reader = self._start_reader()
        return _Fetch(self, self._reader, epoch)

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


class _Fetch:
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
