"""What the workers do next, and which samples form the next batch (pure).

A sample is known by its number in the epoch, 0 to n-1 in the sampler's order. A sample is taken from there once
and for all: it is running, parked (a partial sample of the temp queue), done or failed, and never begins again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, NamedTuple, TypeAlias

Order: TypeAlias = Literal["arrival", "strict"]
"""Which samples share a batch: those that are done first, or those that the sampler put together."""
NO_BATCH: Final = -1


class Work(NamedTuple):
    """What a worker is to do."""

    samples: Sequence[int]
    batch: int = NO_BATCH
    """The batch that the samples are as a whole, for the worker to collate; -1 for samples of any batch."""


@dataclass(slots=True)
class _OpenBatch:
    """A batch that is not whole."""

    size: int
    done: list[int] = field(default_factory=list)
    """Its samples that are done, where it is known which those are: in strict order."""


class Balancer:
    """Spreads samples over workers and batches; its owner reports every event to it."""

    def __init__(self, *, order: Order = "arrival", background: int = 1, max_wait: int = 4) -> None:
        """Keep `background` workers for parked samples while there are new ones, at most.

        A sample that was parked `max_wait` batches ago is resumed before anything else.
        """
        self._order, self._background, self._max_wait = order, background, max_wait
        self._new: deque[range] = deque()
        """Samples that were not started: batches, parts of them, and single samples."""
        self._untouched: dict[int, int] = {}
        """Batches of which no sample was started, by their first sample."""
        self._running: dict[int, bool] = {}
        """Samples that workers have one by one, and whether they were resumed."""
        self._whole: dict[int, range] = {}
        """Batches all of whose samples one worker has."""
        self._collating: set[int] = set()
        """Batches all of whose samples are done."""
        self._parked: deque[tuple[int, int]] = deque()
        """With the number of batches that were complete by then."""
        self._loose: deque[int] = deque()
        """Samples that are done and in no batch, in order of arrival."""
        self._homes: dict[int, int] = {}
        """Batches by sample that was started, in strict order."""
        self._open: dict[int, _OpenBatch] = {}
        self._samples = self._batches = self._largest = self._resumed = self.completed = 0
        self.is_ending = False
        """Whether the sampler has ended; the owner sets it."""

    def open_batch(self, size: int) -> range:
        """Add the next `size` samples of the sampler; return their numbers."""
        number, samples = self._batches, range(self._samples, self._samples + size)
        self._open[number] = _OpenBatch(size)
        self._untouched[samples.start] = number
        self._new.append(samples)
        self._batches += 1
        self._samples += size
        self._largest = max(self._largest, size)
        return samples

    @property
    def parked(self) -> int:
        """Samples in the temp queue."""
        return len(self._parked)

    @property
    def running(self) -> int:
        """Samples that workers have."""
        return len(self._running) + sum(map(len, self._whole.values()))

    @property
    def is_idle(self) -> bool:
        """Whether no worker has or can be given a sample."""
        return not (self._new or self._parked or self._running or self._whole)

    @property
    def over(self) -> bool:
        """Whether every batch is complete."""
        return self.is_ending and self.is_idle and not (self._open or self._collating)

    @property
    def starving(self) -> bool:
        """Whether the workers have nothing to do until the sampler gives more."""
        return self.is_idle and not (self.is_ending or self._collating)

    def is_pending(self, batch: int) -> bool:
        """Return whether a batch is not made yet."""
        return batch in self._open or batch in self._whole or batch in self._collating

    def next_work(self, *, may_start: bool = True, whole: bool = False, part: int = 1) -> Work | None:
        """Return what the next idle worker does, None where there is nothing.

        `may_start` allows new samples; with `whole` one worker gets all samples of a batch where that is possible, else
        at most `part` of them.
        """
        start = bool(self._new) and may_start
        if self._parked:
            _, since = self._parked[0]
            overdue = self.completed - since >= self._max_wait
            if overdue or not start or self._resumed < self._background:
                sample, _ = self._parked.popleft()
                self._running[sample] = True
                self._resumed += 1
                return Work((sample,))
        if not start:
            return None
        samples = self._new.popleft()
        number = self._untouched.pop(samples.start, NO_BATCH)
        whole = (whole and not self._parked) or len(samples) == 1
        # In order of arrival a short batch, the last one, is of the samples that are left over.
        if number != NO_BATCH and whole and (self._order == "strict" or len(samples) == self._largest):
            del self._open[number]
            self._whole[number] = samples
            return Work(samples, number)
        if number != NO_BATCH and self._order == "strict":
            self._homes.update(dict.fromkeys(samples, number))
        if len(samples) > part:
            self._new.appendleft(samples[part:])
        self._running.update(dict.fromkeys(samples[:part], False))
        return Work(samples[:part])

    def next_batch(self) -> Work | None:
        """Return a batch whose samples are all done, for a worker to collate; None where there is none.

        A batch is short where samples have failed, and left out where nothing is left of it.
        """
        if self._order == "strict":
            found = map(self._collate_whole, list(self._open))
            return next((work for work in found if work is not None), None)
        # Nothing more comes: the samples left are the last batch.
        ended = self.is_ending and self.is_idle
        for number in sorted(self._open):
            size = self._open[number].size
            if len(self._loose) < size and not ended:
                return None
            work = self._collate(number, [self._loose.popleft() for _ in range(min(size, len(self._loose)))])
            if work is not None:
                return work
        return None

    def park(self, sample: int) -> None:
        """Put a slow sample that its worker has handed over in the temp queue."""
        self._leave(sample)
        self._parked.append((sample, self.completed))

    def finish(self, sample: int) -> None:
        """Note that a sample is done, or that its failure is to be the batch's."""
        self._leave(sample)
        if self._order == "strict":
            self._open[self._homes.pop(sample)].done.append(sample)
        else:
            self._loose.append(sample)

    def fail(self, sample: int) -> None:
        """Note that a sample has failed: in strict order its batch is short by it, else another takes its place."""
        self._leave(sample)
        if self._order == "strict":
            self._open[self._homes.pop(sample)].size -= 1

    def give_back(self, sample: int) -> None:
        """Undo the start of a sample that its worker has not started."""
        self._leave(sample)
        self._new.appendleft(range(sample, sample + 1))

    def break_up(self, batch: int) -> None:
        """Note that the samples of a batch that one worker has come one by one after all."""
        samples = self._whole.pop(batch)
        self._open[batch] = _OpenBatch(len(samples))
        self._running.update(dict.fromkeys(samples, False))
        if self._order == "strict":
            self._homes.update(dict.fromkeys(samples, batch))

    def complete(self, batch: int) -> None:
        """Note that a batch is made, or has failed as a whole."""
        self._collating.discard(batch)
        self._whole.pop(batch, None)
        self.completed += 1

    def _collate_whole(self, number: int) -> Work | None:
        batch = self._open[number]
        return self._collate(number, sorted(batch.done)) if len(batch.done) == batch.size else None

    def _collate(self, number: int, samples: Sequence[int]) -> Work | None:
        del self._open[number]
        if not samples:
            return None
        self._collating.add(number)
        return Work(samples, number)

    def _leave(self, sample: int) -> None:
        if sample not in self._running:
            raise ValueError(f"sample {sample}: no worker has it")
        self._resumed -= self._running.pop(sample)
