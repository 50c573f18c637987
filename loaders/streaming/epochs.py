"""The batches of epoch after epoch, as far ahead of the consumer as is allowed."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from loaders.records.planner import BatchPlan, EpochPlan
from loaders.records.raw_batch import RawBatch
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


class Planned:
    """The batches of a schedule, as they arrive."""

    def __init__(self, fetching: Fetching, schedule: Schedule) -> None:
        self.schedule = schedule
        self._fetching = fetching
        self._fetch = fetching.start(schedule)

    def take(self, *, wait: bool) -> RawBatch | None:
        """Return the next batch, None where it has not arrived; with `wait`, None where none is planned for now."""
        return self._fetching.take(self._fetch, wait=wait)

    def wait(self) -> bool:
        """Wait until more may be planned; return False once the schedule is closed."""
        return self.schedule.wait()

    def interrupt(self) -> None:
        """End a `take` or a `wait` that another thread is in."""
        self.schedule.close()
        self._fetching.client.interrupt()

    def close(self) -> None:
        """Plan no more and drop the requests under way; may be called twice."""
        self.schedule.close()
        self._fetch.close()
