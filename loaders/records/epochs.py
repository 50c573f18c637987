"""Raw batches of one or more epochs, decoded in a thread that keeps a few batches ready."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, Generic, NamedTuple, Protocol, TypeAlias, TypeVar

from loaders.base import Batch
from loaders.errors import SampleError
from loaders.pipeline import StageTimes
from loaders.records.decoding.decoder import LOOKAHEAD, Decoder
from loaders.records.raw_batch import RawBatch
from loaders.shared.device import DeviceTransfer, InTransfer
from loaders.shared.processor import Failed

_READY_BATCHES: Final = 2
"""Decoded batches that wait for the training step."""

Item = TypeVar("Item")


class Channel(Generic[Item]):
    """Holds at most `capacity` items; the end, or the error that ended it, comes after the last one."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._items: deque[Item] = deque()
        self._changed = threading.Condition()
        self._closed = False
        self._error: BaseException | None = None

    def put(self, item: Item) -> bool:
        """Add an item once there is room; return whether anyone still wants items."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or len(self._items) < self._capacity)
            if not self._closed:
                self._items.append(item)
                self._changed.notify_all()
            return not self._closed

    def get(self) -> Item | None:
        """Return the next item once there is one, None at the end; raise the error that the channel ended with."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or bool(self._items))
            if self._items:
                item = self._items.popleft()
                self._changed.notify_all()
                return item
            if self._error is not None:
                raise self._error
            return None

    def close(self, error: BaseException | None = None) -> None:
        """Take no more items; those in the channel can still be taken, then `error` is raised."""
        with self._changed:
            if not self._closed:
                self._closed, self._error = True, error
            self._changed.notify_all()


class Source(Protocol):
    """Raw batches as they arrive; used by one thread, except for `interrupt`."""

    def take(self, *, wait: bool) -> RawBatch | None:
        """Return the next batch, None where it has not arrived; with `wait`, None where none is planned for now."""
        ...

    def wait(self) -> bool:
        """Wait until more batches are planned; return False where there are no more."""
        ...

    def interrupt(self) -> None:
        """End a `take` or a `wait` that another thread is in; only `close` may follow."""
        ...

    def close(self) -> None:
        """Drop the requests under way; may be called twice."""
        ...


S = TypeVar("S", bound=Source)


class Numbered(NamedTuple):
    """A batch of an epoch."""

    planned: tuple[int, ...]
    """Numbers of the planned batches in whose place it is."""
    batch: Batch | RawBatch | None
    """None where every sample of it failed."""
    failed: Sequence[Failed] = ()
    """The samples that were left out of it."""
    is_repeat: bool = False
    """Whether every sample of it failed, and `batch` is another one once more."""


def repeat_for_failed(items: Iterable[Numbered]) -> Iterator[Numbered]:
    """Yield as many batches as there are items: where every sample of one failed, another batch once more.

    That is the batch before it, or the first one after it where there is none before. Every batch is yielded when the
    next one is there, so that its copy is made before the consumer may change it.

    Raises SampleError where every sample of every batch failed.
    """
    last: Numbered | None = None
    unfilled: list[Numbered] = []
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


class Raw(Generic[S]):
    """Returns batches as they came, without a thread."""

    def __init__(self, source: S) -> None:
        self.source = source

    def next(self) -> Numbered | None:
        """Return the next batch with its numbers, None once it was stopped or at the end."""
        raw = self.source.take(wait=True)
        return None if raw is None else Numbered(raw.planned, raw)

    def stop(self) -> None:
        """Drop the requests under way; may be called twice."""
        self.source.close()


class Decoded(Generic[S]):
    """Fetches and decodes in a thread that keeps a few batches ready.

    `times` gets `decode_wait`, in which the next decoded batch was waited for, and `consumer_wait`, in which decoded
    batches waited, and nothing else was done, because nobody took them.
    """

    def __init__(self, source: S, decoder: Decoder, transfer: DeviceTransfer, times: StageTimes) -> None:
        self.source = source
        self._decoder, self._transfer, self._times = decoder, transfer, times
        self._ready: Channel[tuple[tuple[int, ...], InTransfer[Batch] | None, Sequence[Failed]]] = Channel(
            _READY_BATCHES
        )
        self._thread = threading.Thread(target=self._run, name="decoded-epoch", daemon=True)
        self._thread.start()

    def next(self) -> Numbered | None:
        """Return the next batch with its numbers, None once it was stopped or at the end.

        Raises what went wrong in the thread.
        """
        item = self._ready.get()
        if item is None:
            return None
        numbers, batch, failed = item
        return Numbered(numbers, None if batch is None else batch.wait(), failed)

    def _run(self) -> None:
        error: BaseException | None = None
        try:
            self._pump()
        except BaseException as caught:  # noqa: BLE001 - raised again in the thread that consumes
            error = caught
        finally:
            self.source.close()
            self._decoder.reset()
            self._ready.close(error)

    def _pump(self) -> None:
        decoder, times = self._decoder, self._times
        numbers: deque[tuple[int, ...]] = deque()
        while True:
            while decoder.pending < LOOKAHEAD:
                # With a batch in decoding there is work to do, so a batch that has not arrived can wait.
                raw = self.source.take(wait=not decoder.pending)
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
            elif not self.source.wait():
                return

    def stop(self) -> None:
        """End the thread; may be called twice."""
        self._ready.close()
        if self._thread.is_alive():
            self.source.interrupt()
        self._thread.join()


Running: TypeAlias = Raw[S] | Decoded[S]
"""One or more epochs under way."""
