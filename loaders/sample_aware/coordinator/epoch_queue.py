"""The epoch that is under way, and those that were ended while workers held samples of theirs."""

from __future__ import annotations

from loaders.sample_aware.coordinator.epoch_state import EpochState
from loaders.sample_aware.coordinator.output_queue import OutputQueue, ReadyBatch
from loaders.sample_aware.ipc.arena import Arena
from loaders.sample_aware.ipc.control_page import ControlPage
from loaders.sample_aware.workers.pool import Pool


class EpochQueue:
    """Begins and ends epochs; memory of one that was ended is kept until no worker writes to it any more."""

    def __init__(self, pool: Pool, arena: Arena, control: ControlPage) -> None:
        self._pool, self._arena, self._control = pool, arena, control
        self.current: EpochState | None = None
        self._ended: dict[int, EpochState] = {}

    def begin(self, run: EpochState) -> None:
        """Take up an epoch."""
        self.current = run
        self._control.epoch = run.number

    def find(self, number: int) -> EpochState | None:
        """Return the epoch under way if it has this number."""
        current = self.current
        return current if current is not None and current.number == number else None

    def end(self, error: BaseException | None, output: OutputQueue | None = None) -> None:
        """End the current epoch, or only the one of an output queue; tasks that no worker has taken are undone."""
        run = self.current
        if run is None or (output is not None and run.output is not output):
            return
        self.current, self._control.epoch = None, 0
        for task in self._pool.recall():
            run.outstanding.difference_update(range(task.sample, task.sample + task.samples))
        self._pool.recall_rows()
        run.outstanding.difference_update(run.without_row)
        run.output.end(error)
        if run.outstanding:
            self._ended[run.number] = run
        else:
            run.release()

    def leave(self, number: int, sample: int, samples: int = 1) -> None:
        """Note that a worker holds a sample of an ended epoch no more, or so many from that one on."""
        run = self._ended.get(number)
        if run is not None:
            run.outstanding.difference_update(range(sample, sample + samples))
            if not run.outstanding:
                self._ended.pop(number).release()

    def offer(self, output: OutputQueue, keys: list[object] | None) -> None:
        """Take up a batch of keys from the sampler; None is its end."""
        run = self.find(output.number)
        if run is not None and keys is None:
            run.balancer.no_more()
        elif run is not None and keys is not None:
            run.open_batch(keys)

    def take(self, output: OutputQueue, built: ReadyBatch) -> None:
        """Note that the consumer has taken a batch."""
        for block in built.blocks:
            self._arena.release(block)
        run = self.find(output.number)
        if run is not None:
            run.taken += 1
