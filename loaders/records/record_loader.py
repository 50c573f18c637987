"""The common part of the loaders that fetch records over a network: arguments, ranks, decoding, counts, an end."""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Iterator
from functools import partial
from typing import cast

from joulefeed.closing import Closing
from loaders.base import Batch, LoaderStats
from loaders.errors import LoaderConfigError, LoaderError
from loaders.pipeline import StageTimes
from loaders.pipeline.callables import AnyTransform, as_pipeline
from loaders.pipeline.image import ImageTransform
from loaders.records.decoding import Engine, ErrorPolicy, check_engine, make_decoder
from loaders.records.decoding.decoder import Decoder
from loaders.records.epochs import (
    DecodedEpoch,
    DeliveredBatch,
    FetchedEpoch,
    RecordFetch,
    RunningEpoch,
    repeat_for_failed,
)
from loaders.shared.device import DeviceTransfer, usable_device
from loaders.shared.options import OnError, RecordOptions, check_ranks, check_whole
from loaders.shared.shares import Share, place_among_ranks
from loaders.shared.threads import close_at_exit


class RecordLoader(Closing):
    """Decodes in the background the raw batches that a subclass fetches, and counts them.

    A subclass calls this constructor, connects, and calls `_open` with the number of samples. It has one method that
    starts the fetch of an epoch, and it closes its connections in a `close` that calls this one first.
    """

    notes: tuple[str, ...] = ()
    """The properties of this loader, for the report."""

    def __init__(self, options: RecordOptions, *, transform: AnyTransform | None) -> None:
        """Check the arguments, before anything is connected.

        `transform` is a pipeline, or a callable that takes a decoded image or array (None: ImageTransform()).

        Raises LoaderConfigError for an argument out of range.
        """
        self._closed = False
        check_whole("seed", options.seed, 0)
        self._options, self._device = options, usable_device(options.device)
        self._ranks = place_among_ranks(options.rank, options.world_size)
        check_ranks(*self._ranks, options.remainder)
        self._pipeline = ImageTransform() if transform is None else as_pipeline(transform)
        self._policy = ErrorPolicy(options.on_error, options.sample_timeout_s)
        self._repeats = self._policy.on_error == "skip" and self._ranks[1] > 1
        self._engine: Engine = check_engine(options.decode, self._pipeline, self._policy)
        self._stats = LoaderStats(details={"wait_s": 0.0})
        self._times = StageTimes()
        self._decoder: Decoder | None = None
        self._running: RunningEpoch | None = None

    def _open(self, samples: int) -> None:
        """Make the decoder and the rank's share of so many samples, which is `self._share` from now on.

        Raises LoaderConfigError for a share that cannot be made, and where an engine is missing; the subclass closes
        itself then.
        """
        options = self._options
        count = samples if options.limit is None else min(samples, options.limit)
        self._share = Share(count, options.seed, *self._ranks, options.remainder, options.imbalance)
        self._transfer = DeviceTransfer(self._device)
        self._decoder = make_decoder(
            self._engine,
            self._pipeline,
            seed=options.seed,
            device=self._device,
            num_threads=options.num_threads,
            batch_size=options.batch_size,
            policy=self._policy,
        )
        self.notes = self._decoder.notes if self._decoder else ("yields encoded samples, not decoded",)
        close_at_exit(self)

    @abstractmethod
    def _start(self, epoch: int) -> RecordFetch:
        """Start to fetch this rank's batches of an epoch, `self._share.order(epoch)` or in the peer's own order.

        The fetch of the epoch before was closed.
        """

    def _count(self, epoch: int) -> int:
        """Return how many samples the fetch of an epoch brings, of an epoch that is resumed the rest."""
        return len(self)

    def _note(self, item: DeliveredBatch) -> None:
        """Record that a batch is delivered now."""

    @staticmethod
    def check_transform(
        transform: AnyTransform,
        decode: str = "auto",
        on_error: OnError = "raise",
        sample_timeout_s: float | None = None,
        **_: object,
    ) -> None:
        """Raise LoaderConfigError for a pipeline that cannot be trained on with these arguments."""
        if check_engine(decode, as_pipeline(transform), ErrorPolicy(on_error, sample_timeout_s)) == "raw":
            raise LoaderConfigError("decode=raw: nothing is trained on encoded samples; use decode=auto")

    def __len__(self) -> int:
        """Return the number of this rank's samples in an epoch."""
        return len(self._share)

    def epoch(self, epoch: int) -> Iterator[Batch]:
        """Yield the epoch's batches, every sample of this rank exactly once, and end the epoch before it.

        Batches of decode="raw" are RawBatch. With on_error "skip" and several ranks, a batch of which every sample
        failed is replaced by another one once more, so that all ranks take as many steps as planned.

        Raises StreamError naming the peer that is gone, silent or short of samples, SampleError naming a sample that
        failed and its stage, SampleTimeoutError naming one that is late, WorkerError naming a process that died,
        LoaderError when the loader is closed or another epoch was started.
        """
        if self._closed:
            raise LoaderError("the loader is closed: make a new one")
        epoch = check_whole("epoch", epoch, 0)
        self._stop()
        source = FetchedEpoch(self._start(epoch), epoch, self._count(epoch), self._times)
        running = self._running = (
            source if self._decoder is None else DecodedEpoch(source, self._decoder, self._transfer, self._times)
        )
        try:
            items = iter(partial(self._next, running), None)
            for item in repeat_for_failed(items) if self._repeats else items:
                self._note(item)
                for one in item.failed:
                    self._stats.skip(*one)
                if item.batch is not None:
                    # A RawBatch counts like a Batch.
                    self._stats.count(cast(Batch, item.batch), is_repeat=item.is_repeat)
                    yield cast(Batch, item.batch)
                # While the next one is made, its memory is the consumer's to keep or to give back.
                del item
        finally:
            running.stop()
            self._running = None if self._running is running else self._running

    def _next(self, running: RunningEpoch) -> DeliveredBatch | None:
        began = time.perf_counter_ns()
        item = running.next() if running is self._running else None
        self._stats.details["wait_s"] += (time.perf_counter_ns() - began) * 1e-9
        if item is None and not (running is self._running and running.ended):
            raise LoaderError(
                "the loader was closed or another epoch was started: there are no more batches of this one"
            )
        return item

    def stats(self) -> LoaderStats:
        """Return the counts so far.

        Seconds: `wait_s` of the caller for a batch; `network_wait_s`, `decode_wait_s` and `consumer_wait_s` in which
        the loader could only wait for the network, the decoder or the caller.
        """
        waits = self._times.seconds()
        self._stats.details |= {
            f"{name}_s": waits.get(name, 0.0) for name in ("network_wait", "decode_wait", "consumer_wait")
        }
        return self._stats

    def close(self) -> None:
        """End the epoch under way, threads and processes; may be called twice."""
        if self._closed:
            return
        self._closed = True
        if self._decoder is not None:
            self._decoder.interrupt()
        self._stop()
        if self._decoder is not None:
            self._decoder.close()

    def _stop(self) -> None:
        if self._running is not None:
            self._running.stop()
            self._running = None
