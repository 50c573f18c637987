"""Epochs under way: raw batches in the consumer's own thread, or decoded ones from a thread beside it."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from loaders.base import Batch
from loaders.pipeline import StageTimes
from loaders.shared.device import DeviceTransfer, InTransfer
from loaders.shared.processor import Failed
from loaders.streaming.channel import Channel
from loaders.streaming.decoding.decoder import LOOKAHEAD, Decoder
from loaders.streaming.receiver.arrivals import Order
from loaders.streaming.receiver.batch import RawBatch
from loaders.streaming.receiver.client import StreamClient
from loaders.streaming.receiver.fetch import Fetch
from loaders.streaming.schedule import Schedule
from loaders.streaming.timestamps import TimestampLogger

__all__ = ["Decoded", "Fetching", "Numbered", "Raw", "Running"]

_READY_BATCHES = 2
"""Decoded batches that wait for the training step."""


@dataclass(frozen=True, slots=True)
class Fetching:
    """How batches are fetched."""

    client: StreamClient
    window: int
    order: Order
    step: int
    verify: bool
    events: TimestampLogger | None
    times: StageTimes
    """`decode_wait`, in which the next decoded batch was waited for, and `consumer_wait`, in which decoded batches
    waited, and nothing else was done, because nobody took them."""

    def start(self, schedule: Schedule) -> Fetch:
        """Start to fetch what is planned."""
        return self.client.fetch_from(
            schedule.pull, window=self.window, order=self.order, step=self.step, verify=self.verify
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

    number: int
    batch: Batch | RawBatch | None
    """None where every sample of it failed."""
    failed: Sequence[Failed] = ()
    """The samples that were left out of it."""


class Running(Protocol):
    """One or more epochs under way."""

    schedule: Schedule

    def next(self) -> Numbered | None:
        """Return the next batch with its number, None once it was stopped."""
        ...

    def stop(self) -> None:
        """End it, with all that is under way; may be called twice."""
        ...


class Raw:
    """Hands batches on as they came, without a thread."""

    def __init__(self, fetching: Fetching, schedule: Schedule) -> None:
        self.schedule = schedule
        self._fetching = fetching
        self._fetch = fetching.start(schedule)

    def next(self) -> Numbered | None:
        """Return the next batch with its number, None once it was stopped."""
        raw = self._fetching.take(self._fetch, wait=True)
        return None if raw is None else Numbered(raw.batch, raw)

    def stop(self) -> None:
        """Drop what is under way; may be called twice."""
        self.schedule.close()
        self._fetch.close()


class Decoded:
    """Fetches and decodes in a thread that keeps a few batches ready."""

    def __init__(self, fetching: Fetching, schedule: Schedule, decoder: Decoder, side: DeviceTransfer) -> None:
        self.schedule = schedule
        self._fetching, self._decoder, self._side = fetching, decoder, side
        self._ready: Channel[tuple[int, InTransfer[Batch] | None, Sequence[Failed]]] = Channel(_READY_BATCHES)
        self._fetch = fetching.start(schedule)
        self._thread = threading.Thread(target=self._run, name="streaming-epoch", daemon=True)
        self._thread.start()

    def next(self) -> Numbered | None:
        """Return the next batch with its number, None once it was stopped; raise what went wrong in the thread."""
        item = self._ready.get()
        if item is None:
            return None
        number, batch, failed = item
        return Numbered(number, None if batch is None else batch.wait(), failed)

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
        numbers: deque[int] = deque()
        while True:
            while decoder.pending < LOOKAHEAD:
                # With a batch in decoding there is something to hand over, so what is not here yet can wait.
                raw = self._fetching.take(self._fetch, wait=not decoder.pending)
                if raw is None:
                    break
                decoder.submit(raw)
                numbers.append(raw.batch)
            if decoder.pending:
                began = time.perf_counter_ns()
                batch, failed = decoder.collect()
                moving = None if batch is None else self._side.start(batch)
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
