"""In which order batches that are complete are handed out: as they arrive, or as they were planned."""

from __future__ import annotations

from collections import deque
from typing import Literal, Protocol, TypeAlias

from loaders.streaming.planner import BatchPlan
from loaders.streaming.receiver.batch import RawBatch

__all__ = ["Arrivals", "AsArrived", "AsPlanned", "Order"]

Order: TypeAlias = Literal["arrival", "strict"]


class Arrivals(Protocol):
    """Takes batches that are complete, in any order, and gives those whose turn it is."""

    def expect(self, plan: BatchPlan) -> None:
        """Note that a batch is going to come; batches are expected in the order of the plan."""
        ...

    def add(self, batch: RawBatch) -> None:
        """Take a batch that is complete."""
        ...

    def take(self) -> RawBatch | None:
        """Return the next batch, None where it has not come yet."""
        ...

    def __len__(self) -> int:
        """Return the number of batches expected and not yet given, come or not."""
        ...


class AsArrived:
    """First come, first given, but no batch of an epoch before all of the epochs before it were given."""

    def __init__(self) -> None:
        self._expected: dict[int, int] = {}
        self._come: dict[int, deque[RawBatch]] = {}

    def expect(self, plan: BatchPlan) -> None:
        """Note that a batch is going to come."""
        self._expected[plan.epoch] = self._expected.get(plan.epoch, 0) + 1

    def add(self, batch: RawBatch) -> None:
        """Take a batch that is complete."""
        self._come.setdefault(batch.epoch, deque()).append(batch)

    def take(self) -> RawBatch | None:
        """Return the next batch, None where it has not come yet."""
        epoch = next(iter(self._expected), None)
        if epoch is None or not (come := self._come.get(epoch)):
            return None
        batch = come.popleft()
        self._expected[epoch] -= 1
        if not self._expected[epoch]:
            del self._expected[epoch], self._come[epoch]
        return batch

    def __len__(self) -> int:
        return sum(self._expected.values())


class AsPlanned:
    """Given in the order in which they were planned, whichever comes first."""

    def __init__(self) -> None:
        self._expected: deque[tuple[int, int]] = deque()
        self._come: dict[tuple[int, int], RawBatch] = {}

    def expect(self, plan: BatchPlan) -> None:
        """Note that a batch is going to come."""
        self._expected.append((plan.epoch, plan.batch))

    def add(self, batch: RawBatch) -> None:
        """Take a batch that is complete."""
        self._come[batch.epoch, batch.batch] = batch

    def take(self) -> RawBatch | None:
        """Return the next batch, None where it has not come yet."""
        if not self._expected or self._expected[0] not in self._come:
            return None
        return self._come.pop(self._expected.popleft())

    def __len__(self) -> int:
        return len(self._expected)
