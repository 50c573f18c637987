"""The thread that keeps all workers at work: it waits for what they report and gives out what is next."""

from __future__ import annotations

import os
import selectors
import struct
import threading
import time
from array import array
from collections import deque
from collections.abc import Callable
from typing import Final

from loaders.errors import LoaderError, SampleTimeoutError, WorkerError
from loaders.sample_aware.coordinator.collator import Collator, be_prompt
from loaders.sample_aware.coordinator.epoch_queue import EpochQueue
from loaders.sample_aware.coordinator.epoch_state import EpochState, SizeGuess
from loaders.sample_aware.coordinator.output_queue import OutputQueue
from loaders.sample_aware.coordinator.scaling import WorkerScaler
from loaders.sample_aware.coordinator.slow_samples import NEVER, SlowSampleTracker
from loaders.sample_aware.coordinator.stats import Stats
from loaders.sample_aware.ipc.arena import Arena, Block
from loaders.sample_aware.ipc.control_page import ControlPage, Layout, Roots
from loaders.sample_aware.ipc.messages import Report, ReportKind, Reports, Value
from loaders.sample_aware.ipc.serialize import load, load_report
from loaders.sample_aware.options import Settings
from loaders.sample_aware.policy.pace import is_for_one, rest_s, tasks_ahead
from loaders.sample_aware.policy.timeout import SlowTimeout
from loaders.sample_aware.workers.jobs import Failure, Job
from loaders.sample_aware.workers.pool import Pool
from loaders.shared.stall_monitor import WorkerStatus

_READ_BYTES: Final = 1 << 16
_MAX_AHEAD: Final = 256
"""Tasks in the pipe that no worker has taken, at most: they have to fit into it."""
_LARGE_BYTES: Final = 1 << 16
"""Of a sample's tensors, from which writing them into the rows of a batch gains more than it costs."""


class Coordinator:
    """Owns the pool, the arena and the epochs; all that others ask for is put in a queue and done by its thread."""

    def __init__(
        self,
        job: Job,
        pool: Pool,
        arena: Arena,
        control: ControlPage,
        timeout: SlowTimeout,
        settings: Settings,
        stats: Stats,
    ) -> None:
        self.stats = stats
        self.failed: deque[tuple[Value, str]] = deque()
        """Keys of samples that were left out, and why."""
        self.error: BaseException | None = None
        """What has ended the workers."""
        self.collator: Collator
        self._job, self._pool, self._arena, self._control = job, pool, arena, control
        self._settings = settings
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._calls: deque[Callable[[], None]] = deque()
        self._reports = Reports()
        self.epochs = EpochQueue(pool, arena, control)
        self.scaler = WorkerScaler(settings, pool, stats)
        self._blocks: dict[int, Block] = {}
        """What workers have asked for and not reported, by worker."""
        self._layout = Layout(control)
        self._sample_size, self._batch_size = SizeGuess(), SizeGuess()
        """Of what lies apart."""
        self._slow_samples = SlowSampleTracker(timeout, settings.sample_timeout_s, control, stats)
        self._ready = False
        """Whether worker 0 has started: the samples' random numbers derive from its own."""
        self._ending = False
        self._selector = selectors.DefaultSelector()
        for descriptor in (self._wake, arena.wake_descriptor):
            self._selector.register(descriptor, selectors.EVENT_READ, "wake")
        self._selector.register(pool.reports, selectors.EVENT_READ, "reports")
        self._thread = threading.Thread(target=self._work, name="sample-aware-coordinator", daemon=True)

    def begin(self) -> None:
        """Start the thread, once there are workers."""
        self.stats.note_workers(len(self._pool))
        self._thread.start()

    def call(self, what: Callable[[], None]) -> None:
        """Have something done by the thread; from any thread."""
        self._calls.append(what)
        os.eventfd_write(self._wake, 1)

    def add_worker(self, worker: int, alive: int) -> None:
        """Watch over a worker that was started."""
        self._selector.register(alive, selectors.EVENT_READ, worker)
        self._slow_samples.workers = max(self._slow_samples.workers, worker + 1)
        self.stats.note_workers(len(self._pool))

    def begin_epoch(self, run: EpochState) -> None:
        """Take up an epoch; the one before it ends."""
        self.epochs.end(LoaderError("another epoch was started: its batches are not this one's"))
        self.epochs.begin(run)
        self.scaler.begin()
        if self.error is not None:
            self.epochs.end(self.error)

    def build_failed(self, output: OutputQueue, error: BaseException) -> None:
        """End the epoch of a batch that cannot be built; from any thread."""
        self.call(lambda: self.epochs.end(error, output))

    def close(self) -> None:
        """End the thread; the engine closes the pool and the arena."""
        if threading.current_thread() is self._thread:
            # The garbage collector has dropped the loader here.
            self._end()
        elif self._thread.is_alive():
            self.call(self._end)
            self._thread.join()
        self._selector.close()
        os.close(self._wake)

    def _end(self) -> None:
        self.epochs.end(LoaderError("the loader is closed: make a new one"))
        self._ending = True

    def _work(self) -> None:
        try:
            be_prompt()
            while not self._ending:
                for key, _ in self._selector.select(self._pause()):
                    self._handle(key.data, key.fd)
                self._arena.collect()
                run = self.epochs.current
                if run is not None:
                    self._look(run)
                    self.scaler.decide(run)
                    if self._ready:
                        self._fill(run)
                    rest = rest_s(self.stats.sample_ns, run.tasks, max(1, len(self._pool)))
                    if rest and not self._bundles(run):
                        time.sleep(rest)
        except BaseException as error:  # noqa: BLE001 - raised in the consumer's thread
            if not self._ending:
                self._die(error)

    def _handle(self, what: int | str, descriptor: int) -> None:
        if isinstance(what, int):
            self._selector.unregister(descriptor)
            error = self._pool.ended(what)
            self.stats.note_workers(len(self._pool))
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
        self.epochs.end(error)

    def _with_sample(self, error: WorkerError, worker: int) -> WorkerError:
        held = self._control.workers.held_by(worker)
        run = self.epochs.find(held.epoch)
        if not held.since_ns or run is None or held.sample not in run.outstanding:
            return error
        return WorkerError(f"{error} while it was at {self._job.name(run.key(held.sample))}, in {self._stage(held)}")

    def _receive(self, report: Report) -> None:
        if report.kind in (ReportKind.READY, ReportKind.RETIRED):
            self._on_worker(report)
            return
        run = self.epochs.find(report.run)
        if report.kind == ReportKind.NEED:
            offset = -1
            if run is not None or not report.run:
                block = self._blocks[report.worker] = self._arena.allocate(report.nbytes)
                offset = block.offset
            self._pool.answer(report.worker, offset)
            return
        if report.kind == ReportKind.ROW_BACK:
            if run is not None:
                self._pool.give_rows(run.row_again(report))
            return
        if report.kind == ReportKind.KEPT:
            self._arena.keep(report.offset)
            return
        if report.kind == ReportKind.LET_GO:
            self._arena.let_go(report.offset)
            return
        held = self._blocks.pop(report.worker, None) if report.offset >= 0 else None
        if run is not None:
            if report.offset >= 0 and held is None:
                held = run.take_spare(report.sample)
            self._on_sample(run, report, held)
            return
        if not report.run:
            self._die(self._failure(report, held).why())
        elif held is not None:
            self._arena.free(held)
        self.epochs.leave(report.run, report.sample, report.samples)

    def _on_worker(self, report: Report) -> None:
        if report.kind == ReportKind.RETIRED:
            self._pool.retire(report.worker)
        elif report.worker == 0:
            self._control.set_roots(Roots(*struct.unpack("<3q", report.payload)))
            self._ready = True

    def _on_sample(self, run: EpochState, report: Report, block: Block | None) -> None:
        self.stats.add_stages(report.first_stage, report.stage_ns, report.samples)
        if report.kind == ReportKind.PARKED:
            assert block is not None
            self._slow_samples.mark(run, report.sample)
            self.stats.parked += 1
            run.park(report, block)
        elif report.kind == ReportKind.FAILED:
            failure = self._failure(report, block)
            if self._settings.on_error == "batch":
                run.fail_batch(report.sample, failure.why(), self._pool.take_row)
                return
            key = run.key(report.sample)
            run.fail(report.sample)
            if self._settings.on_error == "raise":
                self.epochs.end(failure.why())
                return
            self.failed.append((key, str(failure.why())))
        elif report.kind == ReportKind.DONE:
            if self.collator.in_place:
                self._layout.learn(report, self._arena.memory)
            self._note_size(self._sample_size, report, block)
            self.stats.add_total(report.spent_ns)
            run.finish(report, block)
            self._slow_samples.done(run, report.sample, report.spent_ns * 1e-9)

        elif report.kind == ReportKind.GIVEN_BACK:
            run.split(report)
        elif report.kind == ReportKind.BATCH:
            self._note_size(self._batch_size, report, block)
            self._on_batch(run, report, block)

    def _on_batch(self, run: EpochState, report: Report, block: Block | None) -> None:
        if report.sample < 0:
            run.finish_collation(report, block)
            return
        times_at = report.offset + report.nbytes
        spent_ns = array("q", self._arena.map[times_at : times_at + 8 * report.samples])
        bundle = run.finish_bundle(report, block, spent_ns)
        self.stats.add_total(report.spent_ns, report.samples)
        for sample, ns in zip(bundle.samples, spent_ns, strict=True):
            self._slow_samples.done(run, sample, ns * 1e-9)

    def _note_size(self, size: SizeGuess, report: Report, block: Block | None) -> None:
        if block is not None:
            size.learn(report.offset + report.nbytes + 8 * report.samples - block.offset)

    def _failure(self, report: Report, block: Block | None) -> Failure:
        failure: Failure
        if block is None:
            failure = load_report(report.payload)
        else:
            failure = load(self._arena.memory, report.offset, report.nbytes, copy=True)
            self._arena.free(block)
        return failure

    def _pause(self) -> float | None:
        """Return for how long nothing is due."""
        due = min(self._slow_samples.look_at, self.scaler.due) if self.epochs.current is not None else NEVER
        return None if due == NEVER else max(0.0, due - time.monotonic())

    def _look(self, run: EpochState) -> None:
        """Mark samples slow whose timeout has passed, and end where one has not come back in time."""
        overdue = self._slow_samples.look(run)
        if overdue is not None:
            self._die(self._overdue(run, *overdue))

    def _overdue(self, run: EpochState, held: WorkerStatus, took_s: float) -> SampleTimeoutError:
        return SampleTimeoutError(
            f"{self._job.name(run.key(held.sample))} is in {self._stage(held)} for {took_s:.1f} s in worker "
            f"{held.worker} (pid {self._pool.pid(held.worker)}): longer than sample_timeout_s; the file's storage "
            "hangs, or the limit is too low for it"
        )

    def _stage(self, held: WorkerStatus) -> str:
        return self._job.stages[min(held.stage, len(self._job.stages) - 1)]

    def _bundles(self, run: EpochState) -> bool:
        """Return whether one worker makes a batch: of quick samples, not of large ones, for which rows save a copy."""
        spec = self._layout.spec
        large = spec is not None and sum(leaf.nbytes for leaf in spec) >= _LARGE_BYTES
        return (
            self._job.collates
            and not large
            and is_for_one(self.stats.sample_ns, run.batch_size, last=run.balancer.ending)
        )

    def _fill(self, run: EpochState) -> None:
        """Send tasks until every worker has one and enough wait (`tasks_ahead`); send whole batches to the collator."""
        for request in run.requests():
            self.collator.put(request)
        workers, bundles, spec = len(self._pool), self._bundles(run), self._layout.spec
        task_ns = self.stats.sample_ns * (run.batch_size if bundles else 1)
        room = workers + min(workers * tasks_ahead(task_ns), _MAX_AHEAD) - run.tasks
        # Each parked sample leaves a row in the pipe, which takes some two thousand.
        self._control.set_may_park(run.balancer.parked < min(_MAX_AHEAD, 2 * workers))
        tasks, rows = list(run.collations(self._batch_size)), []
        apart = self._sample_size if spec is None else None
        while room > 0:
            room -= 1
            may_start = self._may_start(run)
            if bundles and may_start and (bundle := run.balancer.next_bundle()) is not None:
                tasks.append(run.bundle_record(bundle, self.stats.sample_ns, self._batch_size))
                continue
            what = run.balancer.next_task(may_start=may_start)
            if what is None:
                break
            task, row = run.records(what, spec, apart)
            tasks.append(task)
            rows += [row] if row is not None else []
        self._pool.give_rows(rows)
        self._pool.give(tasks)
        if run.finished and not run.over:
            run.over = True
            self.collator.end(run.output)
        if run.balancer.starving and not run.outstanding and run.opened > run.shipped == run.taken:
            # Samples have failed, so the batch that the consumer waits for needs others: it asks the sampler for them.
            run.output.waiting = True
            run.output.wake()
        queues = self.stats.queues
        queues["running"].set(run.balancer.running)
        queues["temp"].set(run.balancer.parked)
        queues["slow"].set(len(run.slow))
        queues["batch"].set(len(run.output))

    def _may_start(self, run: EpochState) -> bool:
        """Return whether memory allows another sample; one is allowed where the consumer would wait without end."""
        return self._arena.ahead < self._settings.max_bytes or not (run.outstanding or run.shipped > run.taken)
