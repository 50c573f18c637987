"""One epoch as the coordinator sees it: keys and samples that no worker has, and batches that are made."""

from __future__ import annotations

from collections.abc import Sequence

from loaders.sample_aware.coordinator.output_queue import OutputQueue, ReadyBatch
from loaders.sample_aware.coordinator.tasks import StoredSample
from loaders.sample_aware.ipc.arena import ArenaBlock
from loaders.sample_aware.ipc.messages import ArenaPlace, Value
from loaders.sample_aware.policy.balancer import Balancer, Work


class EpochState:
    """The samples of one epoch from the sampler to the consumer; belongs to the coordinator's thread."""

    def __init__(self, output: OutputQueue, balancer: Balancer, *, is_strict: bool) -> None:
        self.output, self.balancer = output, balancer
        self.number = output.number
        """Of the epoch, counted by the engine."""
        self.slow: set[int] = set()
        """Samples that are over their time and not done."""
        self.opened = self.shipped = self.taken = 0
        """Batches that were taken up, that are on their way to the consumer, and that the consumer has."""
        self.batch_size = 0
        """Of the latest one."""
        self.is_over = False
        """Whether the consumer was promised its end."""
        self._is_strict = is_strict
        self._batch_keys: dict[int, Sequence[Value]] = {}
        """Of batches of which no sample was started, by the first one."""
        self._keys: dict[int, Value] = {}
        """Of the other samples that were not started."""
        self.stored: dict[int, StoredSample] = {}
        """Samples that were started and that no worker has."""
        self._made: dict[int, tuple[ReadyBatch, ArenaPlace]] = {}
        """Batches that were not sent to the consumer, with where they lie."""
        self._next = 0
        """Number of the batch that is sent next, in strict order."""

    @property
    def finished(self) -> bool:
        """Whether every batch was sent to the consumer."""
        return self.balancer.over and not self._made

    def open_batch(self, keys: Sequence[Value]) -> None:
        """Take up a batch of keys that the sampler has put together."""
        self._batch_keys[self.balancer.open_batch(len(keys)).start] = keys
        self.batch_size = len(keys)
        self.opened += 1

    def take_for(self, work: Work) -> tuple[Sequence[Value], list[StoredSample]]:
        """Return the keys of a task's samples, and their stored parts, none where the samples are new.

        The memory is the task's from now on.
        """
        first = work.samples[0]
        if first in self.stored:
            stored = [self.stored.pop(sample) for sample in work.samples]
            return [each.key for each in stored], stored
        if first in self._batch_keys:
            keys = self._batch_keys.pop(first)
            if len(keys) == len(work.samples):
                return keys, []
            self._keys.update(enumerate(keys, first))
        return [self._keys.pop(sample) for sample in work.samples], []

    def give_back(self, sample: int, key: Value) -> None:
        """Have another worker start a sample than the one that has left it."""
        self._keys[sample] = key
        self.balancer.give_back(sample)

    def add_batch(self, work: Work, batch: ReadyBatch, place: ArenaPlace) -> None:
        """Add a batch that is made, or that has failed."""
        self.balancer.complete(work.batch)
        self.slow.difference_update(work.samples)
        self._made[work.batch] = batch, place

    def ship(self) -> list[tuple[ReadyBatch, ArenaPlace]]:
        """Return the batches that the consumer gets now, in the order in which they are made, or in the sampler's."""
        if not self._is_strict:
            shipped, self._made = list(self._made.values()), {}
        else:
            shipped = []
            while self._next < self.opened and not self.balancer.is_pending(self._next):
                # Of one whose samples have all failed nothing is made.
                if self._next in self._made:
                    shipped.append(self._made.pop(self._next))
                self._next += 1
        self.shipped += len(shipped)
        return shipped

    def blocks(self) -> list[ArenaBlock]:
        """Return all memory that is the epoch's."""
        held = [*(each.block for each in self.stored.values()), *(batch.block for batch, _ in self._made.values())]
        return [block for block in held if block is not None]
