"""The raw batches of one epoch, decoded in a thread that keeps a few batches ready."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, Generic, NamedTuple, Protocol, TypeAlias, TypeVar

from loaders.base import Batch
from loaders.errors import SampleError, StreamError
from loaders.pipeline import StageTimes
from loaders.records.decoding.decoder import LOOKAHEAD, Decoder
from loaders.records.raw_batch import RawBatch
from loaders.shared.device import DeviceTransfer, InTransfer
from loaders.shared.processor import Failed
from loaders.shared.threads import Wakeup

_READY_BATCHES: Final = 2
"""Decoded batches that wait for the training step."""

Item = TypeVar("Item")


class BoundedQueue(Generic[Item]):
    """Keeps at most `capacity` items of one thread for another; the end, or its error, comes after the last one."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._items: deque[Item] = deque()
        self._has_items, self._has_room = Wakeup(), Wakeup()
        self._closed = False
        self._error: BaseException | None = None

    def put(self, item: Item) -> bool:
        """Add an item once there is room; return whether anyone still wants items."""
        while len(self._items) >= self._capacity and not self._closed:
            self._has_room.wait()
        if not self._closed:
            self._items.append(item)
            self._has_items.wake()
        return not self._closed

    def get(self) -> Item | None:
        """Return the next item once there is one, None at the end; raise the error that the queue ended with."""
        while not self._items and not self._closed:
            self._has_room.wake()  # a signal may have ended the last call before it did
            self._has_items.wait()
        if not self._items and self._error is not None:
            raise self._error
        item = self._items.popleft() if self._items else None
        self._has_room.wake()
        return item

    def close(self, error: BaseException | None = None) -> None:
        """Accept no more items; the items in the queue can still be taken, then `error` is raised."""
        if not self._closed:
            self._error, self._closed = error, True
        self._has_items.wake()
        self._has_room.wake()


class RecordFetch(Protocol):
    """The fetch of one epoch; used by one thread, except for `close`."""

    def next(self, wait: bool) -> RawBatch | None:
        """Return the epoch's next batch; None where `wait` is false and no batch has arrived.

        Raises StopIteration at the end of the epoch, or once it is closed; StreamError where the peer is gone or silent
        for longer than the loader's timeout.
        """
        ...

    def close(self) -> None:
        """Drop the requests under way and end a `next` that another thread is in; may be called twice."""
        ...


class FetchedEpoch:
    """The raw batches of one epoch, whose samples are counted."""

    def __init__(self, fetch: RecordFetch, epoch: int, samples: int, times: StageTimes) -> None:
        self._fetch, self._epoch, self._left, self._samples, self._times = fetch, epoch, samples, samples, times
        self._closed = False
        self.ended = False
        """Whether every sample of the epoch has arrived."""

    def take(self, *, wait: bool) -> RawBatch | None:
        """Return the next batch, None where it has not arrived, or with `wait` at the end of the epoch.

        Raises StreamError where the epoch ends with fewer samples, or more, than it has.
        """
        began = time.perf_counter_ns()
        try:
            raw = None if self.ended else self._fetch.next(wait)
        except StopIteration:
            raw = None
            self._end()
        if wait:
            self._times.add("network_wait", began)
        if raw is not None:
            self._left -= len(raw)
        return raw

    def _end(self) -> None:
        if self._left and not self._closed:
            raise StreamError(
                f"epoch {self._epoch} ended after {self._samples - self._left} samples, expected {self._samples}; "
                "what serves them has lost or repeated some: see its log, or ingest the data again"
            )
        self.ended = not self._left

    def next(self) -> DeliveredBatch | None:
        """Return the next batch, not decoded, with its numbers; None once it was stopped or at the end."""
        raw = self.take(wait=True)
        return None if raw is None else DeliveredBatch(raw.planned, raw)

    def stop(self) -> None:
        """Drop the requests under way, and end a `take` that another thread is in; may be called twice."""
        self._closed = True
        self._fetch.close()


class DeliveredBatch(NamedTuple):
    """A batch of an epoch."""

    planned: tuple[int, ...]
    """Numbers of the planned batches in whose place it is."""
    batch: Batch | RawBatch | None
    """None where every sample of it failed."""
    failed: Sequence[Failed] = ()
    """The samples that were left out of it."""
    is_repeat: bool = False
    """Whether every sample of it failed, and `batch` is another one once more."""


def repeat_for_failed(items: Iterable[DeliveredBatch]) -> Iterator[DeliveredBatch]:
    """Yield as many batches as there are items: where every sample of one failed, another batch once more.

    That is the batch before it, or the first one after it where there is none before. Every batch is yielded when the
    next one is there, so that its copy is made before the consumer may change it.

    Raises SampleError where every sample of every batch failed.
    """
    last: DeliveredBatch | None = None
    unfilled: list[DeliveredBatch] = []
    for item in items:
        if item.batch is not None:
            for each in unfilled:
                yield each._replace(batch=_copy(item.batch), is_repeat=True)
            unfilled.clear()
            if last is not None:
                yield last
            last = item
        elif last is not None:
            yield last._replace(batch=_copy(last.batch))
            last = item._replace(batch=last.batch, is_repeat=True)
        else:
            unfilled.append(item)
    if last is not None:
        yield last
    elif unfilled:
        failed = [one for each in unfilled for one in each.failed]
        raise SampleError(
            f"all {len(failed)} samples of this rank's epoch failed, the first of them: {failed[0].why}; on_error=skip "
            "has no batch for the other ranks' steps: repair the samples, or the transform"
        )


def _copy(batch: Batch | RawBatch | None) -> Batch:
    assert isinstance(batch, Batch), "samples fail where they are decoded"
    return batch.copy()


class DecodedEpoch:
    """Fetches and decodes in a thread that keeps a few batches ready.

    `times` gets `decode_wait`, in which the next decoded batch was waited for, and `consumer_wait`, in which decoded
    batches waited, and nothing else was done, because nobody took them.
    """

    def __init__(self, source: FetchedEpoch, decoder: Decoder, transfer: DeviceTransfer, times: StageTimes) -> None:
        self._source = source
        self._decoder, self._transfer, self._times = decoder, transfer, times
        self._ready = BoundedQueue[tuple[tuple[int, ...], InTransfer[Batch] | None, Sequence[Failed]]](_READY_BATCHES)
        self._thread = threading.Thread(target=self._run, name="decoded-epoch", daemon=True)
        self._thread.start()

    @property
    def ended(self) -> bool:
        """Whether every sample of the epoch has arrived."""
        return self._source.ended

    def next(self) -> DeliveredBatch | None:
        """Return the next batch with its numbers, None once it was stopped or at the end.

        Raises what went wrong in the thread.
        """
        item = self._ready.get()
        if item is None:
            return None
        numbers, batch, failed = item
        return DeliveredBatch(numbers, None if batch is None else batch.wait(), failed)

    def _run(self) -> None:
        error: BaseException | None = None
        try:
            self._pump()
        except BaseException as caught:  # noqa: BLE001 - raised again in the thread that consumes
            error = caught
        finally:
            self._source.stop()
            self._decoder.reset()
            self._ready.close(error)
            del error  # its traceback has this frame: the processes' descriptors would wait for the garbage collector

    def _pump(self) -> None:
        decoder, times = self._decoder, self._times
        numbers: deque[tuple[int, ...]] = deque()
        while True:
            while decoder.pending < LOOKAHEAD:
                # With a batch in decoding there is work to do, so a batch that has not arrived can wait.
                raw = self._source.take(wait=not decoder.pending)
                if raw is None:
                    break
                decoder.submit(raw)
                numbers.append(raw.planned)
            if decoder.pending:
                began = time.perf_counter_ns()
                batch, failed = decoder.collect()
                moving = None if batch is None else self._transfer.start(batch)
                decoded = times.add("decode_wait", began)
                wanted = self._ready.put((numbers.popleft(), moving, failed))
                times.add("consumer_wait", decoded)
                if not wanted:
                    return
            else:
                return

    def stop(self) -> None:
        """End the thread; may be called twice."""
        self._ready.close()
        if self._thread.is_alive():
            self._source.stop()
        self._thread.join()


RunningEpoch: TypeAlias = FetchedEpoch | DecodedEpoch
"""An epoch under way."""
