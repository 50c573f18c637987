"""What the workers do next, and which samples form the next batch (pure).

A sample is known by its number in the epoch, 0 to n-1 in the sampler's order. A sample is taken from there once
and for all: it is running, parked (a partial sample of the temp queue), done or failed, and never begins again.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Literal, NamedTuple, TypeAlias

Order: TypeAlias = Literal["arrival", "strict"]
"""Which samples share a batch: those that are done first, or those that the sampler put together."""


class Row(NamedTuple):
    """A place in a batch."""

    batch: int
    row: int


class Start(NamedTuple):
    """A worker is to begin a sample; in strict order it has its row from the beginning."""

    sample: int
    row: Row | None


class Resume(NamedTuple):
    """A worker is to go on with a parked sample."""

    sample: int


class Bundle(NamedTuple):
    """A worker is to make a whole batch by itself."""

    batch: int
    samples: range


class _State(Enum):
    RUNNING = auto()
    RESUMED = auto()
    PARKED = auto()


@dataclass(slots=True)
class _Open:
    """A batch that is being filled."""

    size: int
    filled: dict[int, int] = field(default_factory=dict)
    """Sample by row."""
    failed: int = 0


class Balancer:
    """Spreads samples over workers and rows; its owner reports every event to it."""

    def __init__(self, *, order: Order = "arrival", background: int = 1, max_wait: int = 4) -> None:
        """Keep `background` workers for parked samples while there are new ones, at most.

        A sample that was parked `max_wait` batches ago is resumed before anything else.
        """
        self._order, self._background, self._max_wait = order, background, max_wait
        self._new: deque[int] = deque()
        self._rows: deque[Row] = deque()
        self._home: dict[int, Row] = {}
        self._states: dict[int, _State] = {}
        self._parked: deque[tuple[int, int]] = deque()
        self._open: dict[int, _Open] = {}
        self._untouched: dict[int, tuple[int, range]] = {}
        """Batches of which no sample was started, by their first sample."""
        self._whole: dict[int, list[int]] = {}
        self._next_strict = 0
        self._samples = 0
        self._batches = 0
        self._completed = 0
        self._resumed = 0
        self._no_more = False

    def open_batch(self, size: int) -> range:
        """Take on the next `size` samples of the sampler; return their numbers."""
        samples = range(self._samples, self._samples + size)
        rows = [Row(self._batches, row) for row in range(size)]
        self._open[self._batches] = _Open(size)
        self._untouched[self._samples] = self._batches, samples
        self._batches += 1
        self._samples += size
        self._new.extend(samples)
        if self._order == "strict":
            self._home.update(zip(samples, rows, strict=True))
        else:
            self._rows.extend(rows)
        return samples

    def no_more(self) -> None:
        """Note that the sampler has ended."""
        self._no_more = True

    @property
    def ending(self) -> bool:
        """Whether the sampler has ended."""
        return self._no_more

    @property
    def new(self) -> int:
        """Samples that were not started."""
        return len(self._new)

    @property
    def parked(self) -> int:
        """Samples in the temp queue."""
        return len(self._parked)

    @property
    def running(self) -> int:
        """Samples that workers hold."""
        return len(self._states) - len(self._parked)

    @property
    def completed(self) -> int:
        """Batches that were completed."""
        return self._completed

    @property
    def over(self) -> bool:
        """Whether every sample is in a batch that is whole, or has failed."""
        return self._no_more and not (self._new or self._states or self._open or self._whole)

    @property
    def starving(self) -> bool:
        """Whether no worker has or can be given a sample, and the sampler has more."""
        return not (self._no_more or self._new or self._states)

    def next_task(self, *, may_start: bool = True) -> Start | Resume | None:
        """Return what the next idle worker does, None where there is nothing; `may_start` allows new samples."""
        start = bool(self._new) and may_start
        if self._parked:
            _, since = self._parked[0]
            overdue = self._completed - since >= self._max_wait
            if overdue or not start or self._resumed < self._background:
                sample, _ = self._parked.popleft()
                self._states[sample] = _State.RESUMED
                self._resumed += 1
                return Resume(sample)
        if not start:
            return None
        sample = self._new.popleft()
        self._untouched.pop(sample, None)
        self._states[sample] = _State.RUNNING
        return Start(sample, self._home.get(sample))

    def next_bundle(self) -> Bundle | None:
        """Return the batch that a worker makes by itself, None where the next sample is none of an untouched batch.

        Its samples have their rows from the beginning.
        """
        if self._parked or not self._new or self._new[0] not in self._untouched:
            return None
        batch, samples = self._untouched[self._new[0]]
        if self._order == "arrival":
            if not self._rows or self._rows[0] != (batch, 0):
                return None
            for sample in samples:
                self._home[sample] = self._rows.popleft()
        del self._untouched[samples[0]]
        for sample in samples:
            self._new.popleft()
            self._states[sample] = _State.RUNNING
        return Bundle(batch, samples)

    def finish_bundle(self, bundle: Bundle) -> None:
        """Note that a batch is whole that one worker has made."""
        for row, sample in enumerate(bundle.samples):
            self._leave(sample)
            del self._home[sample]
            self._open[bundle.batch].filled[row] = sample
        self._complete(bundle.batch)

    def give_back(self, samples: range) -> None:
        """Undo a part of a bundle that its worker has not started."""
        for sample in reversed(samples):
            self._leave(sample)
            self._new.appendleft(sample)

    def take_row(self) -> Row:
        """Return the next row, for the sample that is done first; there is one for each that was started."""
        return self._rows.popleft()

    def park(self, sample: int) -> None:
        """Put a slow sample that its worker has handed over in the temp queue."""
        self._leave(sample)
        self._states[sample] = _State.PARKED
        self._parked.append((sample, self._completed))

    def finish(self, sample: int, row: Row) -> None:
        """Put a sample that is done in its row; raise ValueError for a row that is taken."""
        self._leave(sample)
        self._home.pop(sample, None)
        batch = self._open[row.batch]
        if row.row in batch.filled:
            raise ValueError(f"sample {sample}: row {row} is taken by sample {batch.filled[row.row]}")
        batch.filled[row.row] = sample
        self._complete_if_whole(row.batch)

    def home(self, sample: int) -> Row | None:
        """Return the row that a sample has from the beginning, in strict order."""
        return self._home.get(sample)

    def fail(self, sample: int) -> None:
        """Note that a sample has failed: in strict order its row stays empty, else another takes it."""
        self._leave(sample)
        row = self._home.pop(sample, None)
        if row is not None:
            self._open[row.batch].failed += 1
            self._complete_if_whole(row.batch)

    def next_batch(self) -> tuple[int, list[int]] | None:
        """Return a batch's number and its samples by row, None where no batch is whole.

        A batch is short where samples have failed, and left out where nothing is left of it.
        """
        if self._order == "arrival" and self._no_more and not (self._new or self._states):
            # Every sample has its row, so a row that is not filled by now is never filled.
            for number in list(self._open):
                self._complete(number)
        while self._whole:
            number = self._next_strict if self._order == "strict" else next(iter(self._whole))
            if number not in self._whole:
                return None
            self._next_strict += 1
            samples = self._whole.pop(number)
            if samples:
                return number, samples
        return None

    def _leave(self, sample: int) -> None:
        state = self._states.pop(sample, None)
        if state is None or state is _State.PARKED:
            raise ValueError(f"sample {sample}: no worker holds it")
        if state is _State.RESUMED:
            self._resumed -= 1

    def _complete_if_whole(self, number: int) -> None:
        batch = self._open[number]
        if len(batch.filled) + batch.failed == batch.size:
            self._complete(number)

    def _complete(self, number: int) -> None:
        filled = self._open.pop(number).filled
        self._whole[number] = [filled[row] for row in sorted(filled)]
        self._completed += 1
