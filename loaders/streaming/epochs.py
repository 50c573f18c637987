"""The batches of epoch after epoch, as far ahead of the consumer as is allowed."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeAlias, TypeVar

from loaders.base import Batch
from loaders.pipeline import StageTimes
from loaders.records.decoding.decoder import LOOKAHEAD, Decoder
from loaders.records.planner import BatchPlan, EpochPlan
from loaders.records.raw_batch import RawBatch
from loaders.shared.device import DeviceTransfer, InTransfer
from loaders.shared.processor import Failed
from loaders.streaming.receiver.batch import BatchOrder
from loaders.streaming.receiver.client import StreamClient
from loaders.streaming.receiver.fetch import Fetch
from loaders.streaming.receiver.growth import Prefetch
from loaders.streaming.timestamps import TimestampLogger


class Schedule:
    """Plans one epoch after the other; the thread that fetches pulls from it, the one that consumes moves its end."""

    def __init__(self, first: EpochPlan, make: Callable[[int], EpochPlan], *, last: int) -> None:
        """Begin with `first`; epochs up to `last` may be made."""
        self._make, self._last = make, last
        self._plans = {first.epoch: first}
        self._epoch = first.epoch
        self._left: Iterator[BatchPlan] = iter(first)
        self._changed = threading.Condition()
        self._closed = False

    def plan(self, epoch: int) -> EpochPlan:
        """Return the plan of an epoch from the first one on, made when it is first asked for."""
        with self._changed:
            if epoch not in self._plans:
                self._plans[epoch] = self._make(epoch)
            return self._plans[epoch]

    def pull(self) -> BatchPlan | None:
        """Return the next batch, None where none may be planned for now."""
        while (batch := next(self._left, None)) is None:
            with self._changed:
                if self._closed or self._epoch >= self._last:
                    return None
            self._left = iter(self.plan(self._epoch + 1))
            self._epoch += 1
        return batch

    def go_on(self, epoch: int, *, last: int) -> None:
        """Forget the epochs before `epoch`, which is consumed now; those up to `last` may be made."""
        with self._changed:
            for past in [known for known in self._plans if known < epoch]:
                del self._plans[past]
            self._last = max(last, self._last)
            self._changed.notify_all()

    def wait(self) -> bool:
        """Wait until more may be planned; return False once it is closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self._epoch < self._last)
            return not self._closed

    def close(self) -> None:
        """Plan no more."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()


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


_READY_BATCHES = 2
"""Decoded batches that wait for the training step."""


@dataclass(frozen=True, slots=True)
class Fetching:
    """How batches are fetched."""

    client: StreamClient
    window: Prefetch
    order: BatchOrder
    step: float
    pieces: int
    verify: bool
    events: TimestampLogger | None
    times: StageTimes
    """`decode_wait`, in which the next decoded batch was waited for, and `consumer_wait`, in which decoded batches
    waited, and nothing else was done, because nobody took them."""

    def start(self, schedule: Schedule) -> Fetch:
        """Start to fetch the planned batches."""
        return self.client.fetch_from(
            schedule.pull,
            window=self.window,
            order=self.order,
            step=self.step,
            pieces=self.pieces,
            verify=self.verify,
        )

    def take(self, fetch: Fetch, *, wait: bool) -> RawBatch | None:
        """Return the next batch, noted where that is asked for."""
        raw = fetch.take(wait=wait)
        if raw is None:
            return None
        if self.events is not None:
            nbytes = sum(map(len, raw.frames))
            self.events.log("batch_received", epoch=raw.epoch, batch=raw.batch, nbytes=nbytes)
        return raw


class Numbered(NamedTuple):
    """A batch of an epoch."""

    planned: tuple[int, ...]
    """Numbers of the planned batches that it is."""
    batch: Batch | RawBatch | None
    """None where every sample of it failed."""
    failed: Sequence[Failed] = ()
    """The samples that were left out of it."""


class Raw:
    """Hands batches on as they came, without a thread."""

    def __init__(self, fetching: Fetching, schedule: Schedule) -> None:
        self.schedule = schedule
        self._fetching = fetching
        self._fetch = fetching.start(schedule)

    def next(self) -> Numbered | None:
        """Return the next batch with its numbers, None once it was stopped."""
        raw = self._fetching.take(self._fetch, wait=True)
        return None if raw is None else Numbered(raw.planned, raw)

    def stop(self) -> None:
        """Drop the requests under way; may be called twice."""
        self.schedule.close()
        self._fetch.close()


class Decoded:
    """Fetches and decodes in a thread that keeps a few batches ready."""

    def __init__(self, fetching: Fetching, schedule: Schedule, decoder: Decoder, transfer: DeviceTransfer) -> None:
        self.schedule = schedule
        self._fetching, self._decoder, self._transfer = fetching, decoder, transfer
        self._ready: Channel[tuple[tuple[int, ...], InTransfer[Batch] | None, Sequence[Failed]]] = Channel(
            _READY_BATCHES
        )
        self._fetch = fetching.start(schedule)
        self._thread = threading.Thread(target=self._run, name="streaming-epoch", daemon=True)
        self._thread.start()

    def next(self) -> Numbered | None:
        """Return the next batch with its numbers, None once it was stopped; raise what went wrong in the thread."""
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
            self._fetch.close()
            self._decoder.reset()
            self._ready.close(error)

    def _pump(self) -> None:
        decoder, times = self._decoder, self._fetching.times
        numbers: deque[tuple[int, ...]] = deque()
        while True:
            while decoder.pending < LOOKAHEAD:
                # With a batch in decoding there is work to do, so a batch that has not arrived can wait.
                raw = self._fetching.take(self._fetch, wait=not decoder.pending)
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
            elif not self.schedule.wait():
                return

    def stop(self) -> None:
        """End the thread; may be called twice."""
        self.schedule.close()
        self._ready.close()
        if self._thread.is_alive():
            self._fetching.client.interrupt()
        self._thread.join()


Running: TypeAlias = Raw | Decoded
"""One or more epochs under way."""
