"""The batches of epoch after epoch, as far ahead of the consumer as is allowed."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

from loaders.streaming.planner import BatchPlan, EpochPlan

__all__ = ["Schedule"]


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
