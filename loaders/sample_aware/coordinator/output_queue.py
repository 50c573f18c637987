"""The queue in which the batches of one epoch wait for the consumer, and the error that may end it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from loaders.sample_aware.ipc.arena import ArenaBlock
from loaders.sample_aware.ipc.messages import Value
from loaders.shared.threads import Wakeup


@dataclass(slots=True)
class ReadyBatch:
    """A batch that is ready."""

    keys: Sequence[Value]
    work_ns: Sequence[int]
    """What every sample took from its first to its last stage, waits not counted."""
    value: Value = None
    """What the collation gave."""
    block: ArenaBlock | None = None
    """The memory that its tensors lie in."""
    error: BaseException | None = None
    """Why there is no value."""


class OutputQueue:
    """A queue of batches, at whose end is nothing, or an error."""

    def __init__(self, number: int) -> None:
        self.number = number
        """Of the epoch, counted by the engine."""
        self._news = Wakeup()
        self._ready: deque[ReadyBatch] = deque()
        self._error: BaseException | None = None
        self._over = False
        self._woken = False
        self.waiting = False
        """Whether the workers have nothing to do until the consumer asks the sampler for more."""

    def __len__(self) -> int:
        """Return the number of batches that wait."""
        return len(self._ready)

    @property
    def over(self) -> bool:
        """Whether it was ended; a batch that is put in after that is never taken."""
        return self._over

    def put(self, batch: ReadyBatch) -> None:
        """Add a batch."""
        self._ready.append(batch)
        self._news.wake()

    def end(self, error: BaseException | None = None) -> None:
        """Let the consumer know that this was all, or raise an error in its place; the first word counts."""
        if not self._over:
            self._error, self._over = error, True
        self._news.wake()

    def wake(self) -> None:
        """Have the consumer call its `on_idle` if it waits."""
        self._woken = True
        self._news.wake()

    def get(self, on_idle: Callable[[], None], timeout_s: float | None = None) -> ReadyBatch | None:
        """Return the next batch, None at the end; raise what ended the epoch, TimeoutError after `timeout_s`."""
        while True:
            is_over = self._over  # set after the error
            if self._error is not None:
                raise self._error
            if self._ready:
                return self._ready.popleft()
            if is_over:
                return None
            if self._woken:
                self._woken = False
                on_idle()
            elif not self._news.wait(-1 if timeout_s is None else timeout_s):
                raise TimeoutError
