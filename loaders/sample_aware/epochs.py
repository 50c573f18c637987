"""The epoch that is under way, and those that were ended while workers held samples of theirs."""

from __future__ import annotations

from typing import Any

from loaders.sample_aware.control import Control
from loaders.sample_aware.delivery import Built, Delivery
from loaders.sample_aware.pool import Pool
from loaders.sample_aware.run import Run
from loaders.sample_aware.shared import Arena

__all__ = ["Epochs"]


class Epochs:
    """Begins and ends epochs; memory of one that was ended is kept until no worker writes to it any more."""

    def __init__(self, pool: Pool, arena: Arena, control: Control) -> None:
        self._pool, self._arena, self._control = pool, arena, control
        self.current: Run | None = None
        self._ended: dict[int, Run] = {}

    def begin(self, run: Run) -> None:
        """Take up an epoch."""
        self.current = run
        self._control.run = run.number

    def of(self, number: int) -> Run | None:
        """Return the epoch under way if it has this number."""
        current = self.current
        return current if current is not None and current.number == number else None

    def end(self, error: BaseException | None, delivery: Delivery | None = None) -> None:
        """End the epoch that is under way, or only the one of a delivery; tasks that no worker has taken are undone."""
        run = self.current
        if run is None or (delivery is not None and run.delivery is not delivery):
            return
        self.current, self._control.run = None, 0
        for task in self._pool.recall():
            run.outstanding.difference_update(range(task.sample, task.sample + task.samples))
        self._pool.recall_rows()
        run.outstanding.difference_update(run.without_row)
        run.delivery.end(error)
        if run.outstanding:
            self._ended[run.number] = run
        else:
            run.release()

    def left(self, number: int, sample: int, samples: int = 1) -> None:
        """Note that a worker holds a sample of an ended epoch no more, or so many from that one on."""
        run = self._ended.get(number)
        if run is not None:
            run.outstanding.difference_update(range(sample, sample + samples))
            if not run.outstanding:
                self._ended.pop(number).release()

    def offer(self, delivery: Delivery, keys: list[Any] | None) -> None:
        """Take up a batch of keys from the sampler; None is its end."""
        run = self.of(delivery.number)
        if run is not None and keys is None:
            run.balancer.no_more()
        elif run is not None and keys is not None:
            run.open_batch(keys)

    def taken(self, delivery: Delivery, built: Built) -> None:
        """Note that the consumer has taken a batch."""
        for block in built.blocks:
            self._arena.hand_out(block)
        run = self.of(delivery.number)
        if run is not None:
            run.taken += 1
