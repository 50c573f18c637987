"""A worker process: runs the samples of a task one by one, parks slow ones, and collates whole batches."""

from __future__ import annotations

import mmap
import os
import select
import signal
import struct
import threading
import time
from array import array
from contextlib import nullcontext, suppress
from multiprocessing import reduction
from typing import Final, NamedTuple

import torch

from loaders.sample_aware.ipc.control_page import ControlPage
from loaders.sample_aware.ipc.messages import (
    NOWHERE,
    TASK_BYTES,
    ArenaPlace,
    ReportKind,
    TaskKind,
    TaskRecord,
    Value,
    WorkerReport,
    WorkItem,
    room,
)
from loaders.sample_aware.ipc.serialize import PackedValue, aligned, copy_to, layout, load, pack, pack_rest
from loaders.sample_aware.workers.batch_rows import MIN_BYTES, BatchRows, StackedInPlace
from loaders.sample_aware.workers.jobs import SampleJob, WorkerPlace

_MIN_REST_NS: Final = 1_000_000
"""Remaining time of a slow sample below which parking it would cost more than it gains."""
_MIN_REST_SHARE: Final = 10
"""Of the time that it has taken so far, one in so many parts."""
_PATIENCE_NS: Final = 500_000_000
"""Time after which a worker leaves the samples of a task that it has not started to idle ones."""
_TOGETHER: Final = 8
"""Reports that are sent at once where they are short."""
_ANSWER: Final = struct.Struct("<q")


class Descriptor(int):
    """A file descriptor that goes along to a worker, however that is started."""

    def __reduce__(self) -> tuple[object, ...]:
        return _received, (reduction.DupFd(int(self)),)


def _received(sent: Value) -> Descriptor:
    return Descriptor(sent.detach())


class WorkerEnds(NamedTuple):
    """The ends of the pipes that are a worker's, and the arena."""

    tasks: Descriptor
    collations: Descriptor
    """Does not block: workers look at it before they wait for a task."""
    reports: Descriptor
    answers: Descriptor
    """This worker's own."""
    arena: Descriptor
    parent: int
    """Process id, with which the worker ends."""


class _Stale(Exception):
    """The epoch was ended."""


class _Finished(NamedTuple):
    """A sample after its last stage, in this worker or in another one before."""

    item: WorkItem
    result: Value
    spent_ns: int
    times: list[int]
    """Of the stages that were run now."""


def run_worker(ends: WorkerEnds, job: SampleJob, place: WorkerPlace) -> None:
    """Work until asked to stop, or until the parent has ended."""
    _prepare_process(ends.parent)
    SampleWorker(ends, job, place).run()


class SampleWorker:
    """What a worker process does with the tasks that it takes."""

    def __init__(self, ends: WorkerEnds, job: SampleJob, place: WorkerPlace) -> None:
        self._ends, self._job, self._place = ends, job, place
        self._stages = job.stages
        self._map = mmap.mmap(ends.arena, 0)
        self._memory = torch.frombuffer(self._map, dtype=torch.uint8)
        self._bytes = self._memory.numpy()
        self._control = ControlPage(self._map)
        self._rooted = False
        self._waiting = select.poll()
        self._waiting.register(ends.tasks, select.POLLIN)
        self._parks = True
        """Until a partial sample turns out not to pickle: from then on the slow ones go on where they are."""
        self._out = range(0)
        """The rest of the block for the task's results."""
        self._samples = 1  # of the task
        self._reports: list[WorkerReport] = []
        """On the task that is under way, sent when it is over."""

    def run(self) -> None:
        """Work until asked to stop; report the beginning and the end, or why the worker cannot start."""
        worker = self._place.worker
        try:
            roots = self._job.begin_worker(self._place)
        except Exception as error:  # noqa: BLE001 - raised in the consumer's thread
            failure = pack(self._job.failure(self._place, "worker_init", None, error))
            self._send(self._put(WorkerReport(ReportKind.FAILED, worker), failure))
            return
        place = ArenaPlace(NOWHERE, 0, 0, struct.pack("<3q", *roots))
        self._send(WorkerReport(ReportKind.READY, worker, place=place))
        while (task := self._next_task()).kind != TaskKind.STOP:
            if task.kind == TaskKind.WORK:
                self._do(task)
        self._send(WorkerReport(ReportKind.RETIRED, worker))

    def _next_task(self) -> TaskRecord:
        """Wait for a task; batches that only have to be collated go before others."""
        with suppress(BlockingIOError):
            return TaskRecord.unpack(os.read(self._ends.collations, TASK_BYTES))
        return TaskRecord.unpack(os.read(self._ends.tasks, TASK_BYTES))

    def _do(self, task: TaskRecord) -> None:
        """Run the samples of a task, and make a batch of them where they are to be one and are all done."""
        if not self._rooted:
            self._rooted = True
            self._job.begin_samples(self._control.roots())
        try:
            items = task.read_items(self._map)
            rows, self._samples = self._rows(task, len(items)), len(items)
            # Nothing else may overwrite the rows.
            self._out = range(task.out, task.out + task.out_bytes) if rows is None else range(0)
            finished = self._finish_samples(task, items, rows)
            if task.collates and len(finished) == len(items):
                self._collate(task, finished, rows)
            else:
                self._report_apart(task, finished)
        except _Stale:
            pass
        except Exception as error:
            if not task.collates:
                raise
            self._fail(task, NOWHERE, "collate_fn", None, error)
        finally:
            self._control.workers.end(self._place.worker)
        reports = self._reports or [WorkerReport(ReportKind.LEFT, self._place.worker, task.run, task.task)]
        self._reports, self._out = [], range(0)
        reports[-1] = reports[-1]._replace(is_last=True)
        for first in range(0, len(reports), _TOGETHER):
            self._send(*reports[first : first + _TOGETHER])

    def _rows(self, task: TaskRecord, rows: int) -> BatchRows | None:
        """Return the rows of a batch of large samples, whose collation may share their memory."""
        if not task.collates or not self._job.stacks_in_place or task.out_bytes < rows * MIN_BYTES:
            return None
        return BatchRows(self._memory, task.out, task.out_bytes, rows)

    def _finish_samples(self, task: TaskRecord, items: list[WorkItem], rows: BatchRows | None) -> list[_Finished]:
        """Run samples to their end; those that are parked, fail or are left are missing in the list."""
        finished = []
        until = time.monotonic_ns() + _PATIENCE_NS
        for number, item in enumerate(items):
            if self._control.epoch != task.run:
                raise _Stale
            if number and time.monotonic_ns() > until and not self._others_wait():
                break
            done = self._stored(item) if item.stage == len(self._stages) else self._finish_sample(task, item)
            if done is not None:
                finished.append(done if rows is None else done._replace(result=rows.add(done.result)))
        return finished

    def _stored(self, item: WorkItem) -> _Finished:
        """Return a sample that is done already; a copy where a collation may keep it, for its block is used again."""
        assert item.place is not None
        memory = self._bytes[item.place.block :]
        return _Finished(item, load(item.place, memory, copy=not self._job.stacks_in_place), item.spent_ns, [])

    def _finish_sample(self, task: TaskRecord, item: WorkItem) -> _Finished | None:
        sample, key, stage, before_ns, place = item
        last, job, table, worker = len(self._stages), self._job, self._control.workers, self._place.worker
        began = now = time.monotonic_ns()
        table.begin(worker, task.run, sample, stage, now - before_ns)
        times: list[int] = []
        partial = None
        try:
            if place is not None:
                # A copy, for a transform may keep what it is given, and the block is used again.
                partial, state = load(place, self._bytes[place.block :], copy=True)
                job.set_random_state(state)
            while True:
                partial = job.run(stage, key, partial)
                stage += 1
                since, now = now, time.monotonic_ns()
                times.append(now - since)
                if stage == last:
                    return _Finished(item, job.result(partial), now - began + before_ns, times)
                table.at_stage(worker, stage)
                if self._control.epoch != task.run:
                    raise _Stale
                if place is None and self._makes_way(now - began, stage) and self._park(task, item, partial, times):
                    return None
        except _Stale:
            raise
        except Exception as error:  # noqa: BLE001 - raised in the consumer's process
            self._fail(task, sample, self._stages[min(stage, last - 1)], key, error)
            return None

    def _makes_way(self, spent_ns: int, stage: int) -> bool:
        """Return whether a slow sample makes way for one that waits; where none waits, it goes on in place."""
        min_rest_ns = max(_MIN_REST_NS, spent_ns // _MIN_REST_SHARE)
        return self._parks and self._control.worth_parking(spent_ns, stage, min_rest_ns) and self._others_wait()

    def _others_wait(self) -> bool:
        return bool(self._waiting.poll(0))

    def _park(self, task: TaskRecord, item: WorkItem, partial: Value, times: list[int]) -> bool:
        """Report a partial sample that another worker may go on with; return False where it cannot leave the process.

        It cannot where it contains an open file, for example.
        """
        try:
            packed = pack((partial, self._job.random_state()))
        except Exception:  # noqa: BLE001 - pickling raises whatever the objects do
            self._parks = False
            return False
        self._report(ReportKind.PARKED, task, item.sample, packed, sum(times), 0, times)
        return True

    def _fail(self, task: TaskRecord, sample: int, stage: str, key: Value, error: Exception) -> None:
        self._report(ReportKind.FAILED, task, sample, pack(self._job.failure(self._place, stage, key, error)))

    def _report_apart(self, task: TaskRecord, finished: list[_Finished]) -> None:
        """Report samples that are done one by one, for a batch that is made of them and others."""
        for item, result, spent_ns, times in finished:
            try:
                packed = pack(result)
            except Exception as error:  # noqa: BLE001 - raised in the consumer's process
                self._fail(task, item.sample, "hand-over", item.key, error)
                continue
            self._report(ReportKind.DONE, task, item.sample, packed, spent_ns, item.stage, times)

    def _report(
        self,
        kind: ReportKind,
        task: TaskRecord,
        sample: int,
        packed: PackedValue,
        spent_ns: int = 0,
        stage: int = 0,
        times: list[int] | None = None,
    ) -> None:
        report = WorkerReport(kind, self._place.worker, task.run, task.task, sample, spent_ns, stage, times or ())
        self._reports.append(self._put(report, packed))

    def _collate(self, task: TaskRecord, finished: list[_Finished], rows: BatchRows | None) -> None:
        keys, samples = [one.item.key for one in finished], [one.result for one in finished]
        self._control.workers.end(self._place.worker)
        try:
            with StackedInPlace(rows.regions) if rows is not None and rows.regions else nullcontext():
                batch = self._job.collate(keys, samples)
            packed = pack(batch, strides=True)
        except Exception as error:  # noqa: BLE001 - raised in the consumer's process
            self._fail(task, NOWHERE, "collate_fn", None, error)
            return
        self._out = range(task.out, task.out + task.out_bytes)
        first = min(one.item.stage for one in finished)
        ran = [one.times for one in finished if one.times]
        spent = array("q", [one.spent_ns for one in finished])
        report = WorkerReport(
            ReportKind.BATCH, self._place.worker, task.run, task.task, spent_ns=sum(spent),
            first_stage=first, stage_ns=[sum(each) for each in zip(*ran, strict=True)],
        )  # fmt: skip
        self._reports.append(self._put(report, packed, rows, spent.tobytes()))

    def _put(
        self, report: WorkerReport, packed: PackedValue, rows: BatchRows | None = None, end: bytes = b""
    ) -> WorkerReport:
        """Return a report with a place: a block with the tensors, the rest, and `end`; or the report itself for short.

        The block is the task's own where that is large enough and not used yet.
        """
        if not packed.spec and not end:
            rest = pack_rest(packed, ())
            if len(rest) <= room(len(report.stage_ns)):
                return report._replace(place=ArenaPlace(NOWHERE, 0, 0, rest))
        there: list[int] = []
        begins, tensors = layout(packed.spec)
        if rows is not None and rows.end:
            begins, there, tensors = rows.begins(packed)
        rest = pack_rest(packed, begins)
        nbytes = tensors + len(rest) + len(end)
        if nbytes > len(self._out):
            # Those of the task's other samples may need one too, and the coordinator takes a while to answer.
            wanted = aligned(nbytes) * (1 if report.kind == ReportKind.BATCH else self._samples)
            begin, there = self._ask_for_block(report, wanted), []
            self._out = range(begin, begin + wanted)
        block, self._out = self._out.start, self._out[aligned(nbytes) :]
        for number, (begin, leaf, values) in enumerate(zip(begins, packed.spec, packed.leaves, strict=True)):
            if number not in there:
                copy_to(self._memory, block + begin, leaf, values)
        self._map[block + tensors : block + nbytes] = rest + end
        return report._replace(place=ArenaPlace(block, tensors, len(rest)))

    def _ask_for_block(self, report: WorkerReport, nbytes: int) -> int:
        place = ArenaPlace(NOWHERE, 0, nbytes)
        self._send(WorkerReport(ReportKind.NEED, self._place.worker, report.run, report.task, place=place))
        (offset,) = _ANSWER.unpack(os.read(self._ends.answers, _ANSWER.size))
        if offset < 0:
            raise _Stale
        return int(offset)

    def _send(self, *reports: WorkerReport) -> None:
        records = [report.pack() for report in reports]
        if sum(map(len, records)) <= select.PIPE_BUF:
            records = [b"".join(records)]
        for record in records:
            os.write(self._ends.reports, record)


def _prepare_process(parent: int) -> None:
    """Leave Ctrl-C to the parent, end with it, and use one core."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    torch.set_num_threads(1)
    alive = os.pidfd_open(parent)
    threading.Thread(target=_end_with, args=(alive,), name="parent-watch", daemon=True).start()


def _end_with(parent: int) -> None:
    # A thread, for the kernel's own tie (PR_SET_PDEATHSIG) is to the thread that started the worker.
    ended = select.poll()
    ended.register(parent, select.POLLIN)
    ended.poll()
    os._exit(1)
