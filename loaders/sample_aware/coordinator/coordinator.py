"""The thread that keeps all workers at work: it waits for what they report and gives out what is next."""

from __future__ import annotations

import os
import selectors
import struct
import threading
import time
from array import array
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from loaders.errors import LoaderError, WorkerError
from loaders.sample_aware.coordinator.epoch_state import EpochState
from loaders.sample_aware.coordinator.output_queue import OutputQueue, ReadyBatch
from loaders.sample_aware.coordinator.scaling import WorkerScaler
from loaders.sample_aware.coordinator.slow_tracker import NEVER, SlowSampleTracker
from loaders.sample_aware.coordinator.stats import Stats
from loaders.sample_aware.coordinator.tasks import GivenTask, StoredSample, TaskTable
from loaders.sample_aware.ipc.arena import Arena, ArenaBlock
from loaders.sample_aware.ipc.control_page import ControlPage, Roots
from loaders.sample_aware.ipc.messages import NOWHERE, ArenaPlace, ReportKind, ReportReader, Value, WorkerReport
from loaders.sample_aware.ipc.serialize import load
from loaders.sample_aware.options import EngineSettings
from loaders.sample_aware.policy.balancer import Work
from loaders.sample_aware.policy.task_size import task_size
from loaders.sample_aware.workers.jobs import SampleJob, unwrapped
from loaders.sample_aware.workers.pool import Pool
from loaders.shared.stall_monitor import WorkerStatus, timeout_error
from loaders.shared.threads import DaemonThreads

Finish = Callable[[Value], Value]

_READ_BYTES: Final = 1 << 16
_MAX_AHEAD: Final = 256
"""Tasks in the pipe that no worker has taken, at most: they have to fit into it."""
_REST_S: Final = 0.02
"""For which reports may lie at most, where workers have enough to do: each wake takes a processor from a worker."""


class Coordinator:
    """Owns the pool, the arena and the epoch; all that others ask for is put in a queue and done by its thread."""

    def __init__(
        self,
        job: SampleJob,
        pool: Pool,
        arena: Arena,
        control: ControlPage,
        settings: EngineSettings,
        stats: Stats,
        finish: Finish | None,
    ) -> None:
        """With `finish` a thread calls it with each batch, ahead of the consumer, which gets what it returns."""
        self.stats = stats
        self.failed: deque[tuple[Value, str]] = deque()
        """Keys of samples that were left out, and why."""
        self.error: BaseException | None = None
        """What has ended the workers."""
        self._job, self._pool, self._arena, self._control = job, pool, arena, control
        self._settings, self._finish = settings, finish
        self._finisher = DaemonThreads(1, "sample-aware-finisher") if finish is not None else None
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._calls: deque[Callable[[], None]] = deque()
        self._reports = ReportReader()
        self._epoch: EpochState | None = None
        self._tasks = TaskTable(arena)
        self.scaler = WorkerScaler(settings, pool, stats)
        self._slow_samples = SlowSampleTracker(settings, control, stats)
        self._ready = False
        """Whether worker 0 has started: the samples' random numbers derive from its own."""
        self._ending = False
        self._selector = selectors.DefaultSelector()
        for descriptor in (self._wake, arena.returns.wake):
            self._selector.register(descriptor, selectors.EVENT_READ, "wake")
        self._selector.register(pool.reports, selectors.EVENT_READ, "reports")
        self._thread = threading.Thread(target=self._work, name="sample-aware-coordinator", daemon=True)

    def begin(self) -> None:
        """Start the thread, once there are workers."""
        self.stats.workers = len(self._pool)
        self._thread.start()

    def call(self, what: Callable[[], None]) -> None:
        """Have something done by the thread; from any thread."""
        self._calls.append(what)
        os.eventfd_write(self._wake, 1)

    def add_worker(self, worker: int, alive: int) -> None:
        """Watch over a worker that was started."""
        self._selector.register(alive, selectors.EVENT_READ, worker)
        self._slow_samples.workers = max(self._slow_samples.workers, worker + 1)
        self.stats.workers = len(self._pool)

    def begin_epoch(self, epoch: EpochState) -> None:
        """Take up an epoch; the one before it ends."""
        self.end_epoch(LoaderError("another epoch was started: its batches are not this one's"))
        self._epoch, self._control.epoch = epoch, epoch.number
        self.scaler.begin()
        if self.error is not None:
            self.end_epoch(self.error)

    def end_epoch(self, error: BaseException | None, output: OutputQueue | None = None) -> None:
        """End the current epoch, or only the one of an output queue; tasks that no worker has taken are undone."""
        epoch = self._epoch
        if epoch is None or (output is not None and epoch.output is not output):
            return
        self._epoch, self._control.epoch = None, 0
        epoch.output.end(error)
        for record in self._pool.recall():
            self._tasks.end(record.task)
        # What workers still have is freed with their last reports.
        for block in epoch.blocks():
            self._arena.free(block)

    def offer(self, output: OutputQueue, keys: Sequence[Value] | None, taken: ReadyBatch | None) -> None:
        """Take up a batch of keys from the sampler, None at its end; note that the consumer has taken a batch."""
        if taken is not None and taken.block is not None:
            self._arena.release(taken.block)
        epoch = self._find(output.number)
        if epoch is None:
            return
        epoch.taken += taken is not None
        if keys is not None:
            epoch.open_batch(keys)
        else:
            epoch.balancer.is_ending = True

    def close(self) -> None:
        """End the thread; the engine closes the pool and the arena."""
        if threading.current_thread() is self._thread:
            # The garbage collector has dropped the loader here.
            self._end()
        elif self._thread.is_alive():
            self.call(self._end)
            self._thread.join()
        if self._finisher is not None:
            self._finisher.shutdown()
        self._selector.close()
        os.close(self._wake)

    def _end(self) -> None:
        self.end_epoch(LoaderError("the loader is closed: make a new one"))
        self._ending = True

    def _work(self) -> None:
        try:
            while not self._ending:
                for key, _ in self._selector.select(self._pause()):
                    self._handle(key.data, key.fd)
                self._arena.collect()
                if self._epoch is not None:
                    self._look(self._epoch)
                if (epoch := self._epoch) is not None:
                    self.scaler.decide(epoch)
                    if self._ready and (rest_s := self._fill(epoch)):
                        time.sleep(rest_s)
        except BaseException as error:  # noqa: BLE001 - raised in the consumer's thread
            if not self._ending:
                self._die(error)

    def _handle(self, what: int | str, descriptor: int) -> None:
        if isinstance(what, int):
            self._selector.unregister(descriptor)
            error = self._pool.ended(what)
            self.stats.workers = len(self._pool)
            if error is not None and self.error is None:
                self._die(self._with_sample(error, what))
        elif what == "wake":
            os.eventfd_read(descriptor)
            while self._calls:
                self._calls.popleft()()
        else:
            for report in self._reports.feed(os.read(descriptor, _READ_BYTES)):
                self._receive(report)

    def _die(self, error: BaseException) -> None:
        self.error = error
        self.end_epoch(error)

    def _find(self, number: int) -> EpochState | None:
        """Return the epoch under way if it has this number."""
        return self._epoch if self._epoch is not None and self._epoch.number == number else None

    def _receive(self, report: WorkerReport) -> None:
        if report.kind == ReportKind.READY:
            if report.worker == 0:
                self._control.set_roots(Roots(*struct.unpack("<3q", report.place.payload)))
                self._ready = True
        elif report.kind == ReportKind.RETIRED:
            self._pool.retire(report.worker)
        elif report.kind == ReportKind.NEED:
            is_wanted = not report.run or self._find(report.run) is not None
            self._pool.answer(report.worker, self._tasks.allocate(report) if is_wanted else -1)
        else:
            self._on_result(report)

    def _on_result(self, report: WorkerReport) -> None:
        block = self._tasks.share_result(report)
        epoch = self._find(report.run)
        if not report.run:
            self._die(self._failure(report, block))
            return
        if epoch is None:
            if block is not None:
                self._arena.free(block)
        elif report.kind == ReportKind.BATCH:
            self._on_batch(epoch, report, block)
        elif report.kind == ReportKind.FAILED and report.sample < 0:
            self._on_failed_collation(epoch, self._tasks.given[report.task], self._failure(report, block))
        else:
            self._on_sample(epoch, report, block)
        if report.is_last:
            if (epoch := self._find(report.run)) is not None:
                self._take_back(epoch, self._tasks.given[report.task])
            self._tasks.end(report.task)

    def _on_batch(self, epoch: EpochState, report: WorkerReport, block: ArenaBlock | None) -> None:
        given, place = self._tasks.given[report.task], report.place
        self._tasks.learn_size(report, is_batch=True)
        times_at = place.block + place.offset + place.nbytes
        work_ns = array("q", self._arena.map[times_at : times_at + 8 * len(given.keys)])
        if not given.is_collation:
            self.stats.add_stages(report.first_stage, report.stage_ns, len(work_ns))
            self._slow_samples.done(epoch, given.work.samples, work_ns)
        given.unreported.clear()
        epoch.add_batch(given.work, ReadyBatch(given.keys, work_ns, block=block), place)

    def _on_failed_collation(self, epoch: EpochState, given: GivenTask, error: BaseException) -> None:
        given.unreported.clear()
        if self._settings.on_error == "batch":
            self._add_error(epoch, given.work, given.keys, error)
        else:
            self.end_epoch(error)

    def _add_error(self, epoch: EpochState, work: Work, keys: Sequence[Value], error: BaseException) -> None:
        epoch.add_batch(work, ReadyBatch(keys, (), error=error), ArenaPlace(NOWHERE, 0, 0))

    def _on_sample(self, epoch: EpochState, report: WorkerReport, block: ArenaBlock | None) -> None:
        given = self._tasks.given[report.task]
        self._break_up(epoch, given)
        given.unreported.discard(report.sample)
        self.stats.add_stages(report.first_stage, report.stage_ns)
        key, stage = given.keys[given.work.samples.index(report.sample)], report.first_stage + len(report.stage_ns)
        stored = StoredSample(report.place, block, key, stage, report.spent_ns)
        if report.kind == ReportKind.PARKED:
            self._slow_samples.mark(epoch, report.sample)
            self.stats.parked += 1
            epoch.stored[report.sample] = stored
            epoch.balancer.park(report.sample)
        elif report.kind == ReportKind.DONE:
            self._tasks.learn_size(report, is_batch=False)
            self._slow_samples.done(epoch, (report.sample,), array("q", [report.spent_ns]))
            epoch.stored[report.sample] = stored
            epoch.balancer.finish(report.sample)
        elif report.kind == ReportKind.FAILED:
            self._on_failed_sample(epoch, report.sample, key, self._failure(report, block))

    def _on_failed_sample(self, epoch: EpochState, sample: int, key: Value, error: BaseException) -> None:
        epoch.slow.discard(sample)
        if self._settings.on_error == "raise":
            self.end_epoch(error)
        elif self._settings.on_error == "batch":
            epoch.stored[sample] = StoredSample(ArenaPlace(NOWHERE, 0, 0), None, key, error=error)
            epoch.balancer.finish(sample)
        else:
            epoch.balancer.fail(sample)
            self.failed.append((key, str(error)))

    def _break_up(self, epoch: EpochState, given: GivenTask) -> None:
        if given.work.batch >= 0 and not given.is_broken:
            given.is_broken = True
            epoch.balancer.break_up(given.work.batch)

    def _take_back(self, epoch: EpochState, given: GivenTask) -> None:
        """Have other workers start the samples that a worker has left."""
        if given.unreported:
            self._break_up(epoch, given)
        for sample in sorted(given.unreported, reverse=True):
            epoch.give_back(sample, given.keys[given.work.samples.index(sample)])

    def _failure(self, report: WorkerReport, block: ArenaBlock | None) -> BaseException:
        failure = load(report.place, self._arena.memory[max(0, report.place.block) :], copy=True)
        if block is not None:
            self._arena.free(block)
        return unwrapped(failure)

    def _with_sample(self, error: WorkerError, worker: int) -> WorkerError:
        held = self._control.workers.held_by(worker)
        key = self._tasks.key_of(held.epoch, held.sample) if held.since_ns else None
        if key is None:
            return error
        return WorkerError(f"{error} while it was at {self._job.name(key)}, in {self._stage(held)}")

    def _pause(self) -> float | None:
        """Return for how long nothing is due."""
        due = min(self._slow_samples.look_at, self.scaler.due) if self._epoch is not None else NEVER
        return None if due == NEVER else max(0.0, due - time.monotonic())

    def _look(self, epoch: EpochState) -> None:
        """Mark samples slow whose timeout has passed, and end where one has not come back in time."""
        if (overdue := self._slow_samples.look(epoch, self._tasks)) is None:
            return
        held, took_s = overdue
        name = self._job.name(self._tasks.key_of(epoch.number, held.sample))
        worker = f"worker {held.worker} (pid {self._pool.pid(held.worker)})"
        self._die(timeout_error(name, self._stage(held), took_s, worker))

    def _stage(self, held: WorkerStatus) -> str:
        return self._job.stages[min(held.stage, len(self._job.stages) - 1)]

    def _fill(self, epoch: EpochState) -> float:
        """Give out tasks until every worker has one and enough wait; send batches that are made to the consumer.

        Return for how long reports may lie without a worker running out of tasks, in seconds.
        """
        self._give_collations(epoch)
        workers, balancer = len(self._pool), epoch.balancer
        whole, part, task_s = task_size(
            self.stats.sample_ns, self._tasks.sample_bytes, epoch.batch_size, workers, is_ending=balancer.is_ending
        )
        ahead = 1 + round(2 * _REST_S / task_s) if task_s else 1
        # Each parked sample becomes a task, for which the pipe has to have room.
        self._control.set_may_park(self._settings.order != "strict" and balancer.parked < min(_MAX_AHEAD, 2 * workers))
        records = []
        for _ in range(workers + min(workers * ahead, _MAX_AHEAD) - len(self._tasks)):
            work = balancer.next_work(may_start=self._may_start(epoch), whole=whole, part=part)
            if work is None:
                break
            records.append(self._tasks.create(epoch.number, work, *epoch.take_for(work)))
        self._pool.give(records)
        for batch, place in epoch.ship():
            self._in_order(partial(self._deliver, epoch.output, batch, place))
        if epoch.finished and not epoch.is_over:
            epoch.is_over = True
            self._in_order(epoch.output.end)
        if balancer.starving and epoch.opened > epoch.shipped == epoch.taken:
            # Samples have failed, so the batch that the consumer waits for needs others: it asks the sampler for them.
            epoch.output.waiting = True
            epoch.output.wake()
        queues = self.stats.queues
        queues["running"].set(balancer.running)
        queues["temp"].set(balancer.parked)
        queues["slow"].set(len(epoch.slow))
        queues["batch"].set(len(epoch.output))
        return min(_REST_S, max(0.0, (len(self._tasks) / max(1, workers) - 1.5) * task_s / 2))

    def _give_collations(self, epoch: EpochState) -> None:
        records = []
        while (work := epoch.balancer.next_batch()) is not None:
            keys, stored = epoch.take_for(work)
            error = next((each.error for each in stored if each.error is not None), None)
            if error is None:
                records.append(self._tasks.create(epoch.number, work, keys, stored))
                continue
            for each in stored:
                if each.block is not None:
                    self._arena.free(each.block)
            self._add_error(epoch, work, keys, error)
        self._pool.give_collations(records)

    def _may_start(self, epoch: EpochState) -> bool:
        """Return whether memory allows another sample; one is allowed where the consumer would wait without end."""
        return self._arena.ahead < self._settings.max_bytes or not (len(self._tasks) or epoch.shipped > epoch.taken)

    def _in_order(self, call: Callable[[], None]) -> None:
        if self._finisher is None:
            call()
        else:
            self._finisher.submit(call)

    def _deliver(self, output: OutputQueue, batch: ReadyBatch, place: ArenaPlace) -> None:
        """Put a batch in the queue; in the finisher's thread where there is one."""
        try:
            if batch.block is not None and output.over:
                self._arena.returns.give_back(batch.block, os.getpid())
                return
            if batch.block is not None:
                # Its memory comes back when nothing refers to the tensors any more.
                batch.value = load(place, self._arena.view(batch.block))
            if batch.error is None and self._finish is not None:
                batch.value = self._finish(batch.value)
            output.put(batch)
        except BaseException as error:  # noqa: BLE001 - raised in the consumer's thread
            failure = error
            self.call(lambda: self.end_epoch(failure, output))
