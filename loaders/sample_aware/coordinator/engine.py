"""Workers, coordinator and collator as one: epochs of keys go in, batches come out."""

from __future__ import annotations

import os
import time
import weakref
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from multiprocessing.context import BaseContext
from multiprocessing.process import BaseProcess
from typing import Final

from loaders.errors import LoaderError
from loaders.sample_aware.coordinator.coordinator import Coordinator, Finish
from loaders.sample_aware.coordinator.epoch_state import EpochState
from loaders.sample_aware.coordinator.output_queue import OutputQueue, ReadyBatch
from loaders.sample_aware.coordinator.stats import Stats
from loaders.sample_aware.ipc.arena import Arena
from loaders.sample_aware.ipc.control_page import RESERVED_BYTES, ControlPage
from loaders.sample_aware.ipc.messages import Value
from loaders.sample_aware.options import EngineSettings
from loaders.sample_aware.policy.balancer import Balancer
from loaders.sample_aware.workers.jobs import SampleJob
from loaders.sample_aware.workers.pool import Pool

_BACKGROUND_SHARE: Final = 4
"""One worker in so many goes on with parked samples while there are new ones, at most."""


class Engine:
    """Worker processes and the coordinator's thread; ended by `close`, or when it is dropped."""

    def __init__(
        self, job: SampleJob, settings: EngineSettings, stats: Stats, finish: Finish | None, context: BaseContext
    ) -> None:
        """Start the workers; with `finish` the consumer gets what it makes of each batch, in a thread.

        Raises LoaderConfigError where the job does not pickle and has to, and LoaderError where the process may not
        have enough addresses.
        """
        arena = Arena(2 * settings.max_bytes, RESERVED_BYTES)
        # The rest of the addresses is for what the consumer keeps, and for sizes that differ.
        settings = replace(settings, max_bytes=min(settings.max_bytes, arena.nbytes // 4))
        self._settings = settings
        workers = settings.workers
        pool = self._pool = Pool(job, context, arena.descriptor)
        try:
            started = [pool.start(workers) for _ in range(workers)]
        except BaseException:
            pool.close()
            arena.close()
            raise
        self.coordinator = Coordinator(job, pool, arena, ControlPage(arena.map), settings, stats, finish)
        self._arena = arena
        for worker, alive in started:
            self.coordinator.add_worker(worker, alive)
        self._epochs = 0
        self.stats = stats
        # Nothing that it refers to refers to the engine.
        self._finalizer = weakref.finalize(self, _close, self.coordinator, pool, arena, os.getpid())
        self.coordinator.begin()

    @property
    def closed(self) -> bool:
        """Whether it was closed."""
        return not self._finalizer.alive

    @property
    def processes(self) -> list[BaseProcess]:
        """The worker processes."""
        return self._pool.processes

    def epoch(self, batches: Iterable[Sequence[Value]]) -> BatchSource:
        """Begin an epoch of batches of keys; the one before it ends."""
        self._epochs += 1
        output = OutputQueue(self._epochs)
        settings = self._settings
        balancer = Balancer(order=settings.order, background=max(1, settings.workers // _BACKGROUND_SHARE))
        epoch = EpochState(output, balancer, is_strict=settings.order == "strict")
        self.coordinator.call(lambda: self.coordinator.begin_epoch(epoch))
        return BatchSource(self, output, iter(batches), settings.max_batches_ahead)

    def start_wanted(self) -> None:
        """Start the workers that the scheduler has asked for; in the consumer's thread, where a fork is safest."""
        while self.coordinator.scaler.wanted:
            self.coordinator.scaler.wanted -= 1
            worker, alive = self._pool.start(self._settings.workers)
            self.coordinator.call(partial(self.coordinator.add_worker, worker, alive))

    def close(self) -> None:
        """End workers and threads; may be called twice."""
        self._finalizer()


class BatchSource:
    """The batches of one epoch, for the consumer's thread."""

    def __init__(self, engine: Engine, output: OutputQueue, batches: Iterator[Sequence[Value]], ahead: int) -> None:
        self._engine, self._output, self._batches = engine, output, batches
        self._exhausted = False
        # In this thread, as torch's DataLoader does: samplers draw from its random numbers.
        for _ in range(ahead):
            self._offer()

    def next(self, timeout_s: float | None = None) -> ReadyBatch | None:
        """Return the next batch, None after the last.

        Raises what a sample, a worker or the collation has raised, TimeoutError, and LoaderError where another epoch
        was started or the engine closed.
        """
        engine = self._engine
        if engine.closed:
            raise engine.coordinator.error or LoaderError("the loader is closed: make a new one")
        began = time.perf_counter_ns()
        try:
            batch = self._output.get(self._on_idle, timeout_s)
        finally:
            engine.stats.wait_s += (time.perf_counter_ns() - began) * 1e-9
        if batch is not None:
            self._offer(batch)
        return batch

    def close(self) -> None:
        """End the epoch, wherever it is."""
        if not self._engine.closed:
            coordinator = self._engine.coordinator
            coordinator.call(partial(coordinator.end_epoch, None, self._output))

    def _on_idle(self) -> None:
        self._engine.start_wanted()
        if self._output.waiting:
            self._output.waiting = False
            self._offer()

    def _offer(self, taken: ReadyBatch | None = None) -> None:
        """Send the coordinator in one call that a batch was taken, and which keys the sampler has next."""
        if taken is None and self._exhausted:
            return
        keys = None if self._exhausted else next(self._batches, None)
        self._exhausted = keys is None
        coordinator = self._engine.coordinator
        coordinator.call(partial(coordinator.offer, self._output, None if keys is None else list(keys), taken))


def _close(coordinator: Coordinator, pool: Pool, arena: Arena, pid: int) -> None:
    if os.getpid() != pid:
        # A copy in a process that was forked off: nothing of it is its own.
        return
    coordinator.close()
    pool.close()
    arena.close()
