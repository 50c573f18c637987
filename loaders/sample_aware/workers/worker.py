"""A worker process: takes the next task, runs its stages, parks a slow sample, and puts a finished one in its row."""

from __future__ import annotations

import mmap
import os
import pickle
import select
import signal
import struct
import threading
import time
import weakref
from array import array
from collections.abc import Callable, Sequence
from contextlib import suppress
from multiprocessing import reduction
from typing import Final, NamedTuple

import numpy as np
import torch

from loaders.sample_aware.ipc.control_page import ControlPage, Roots
from loaders.sample_aware.ipc.messages import (
    IN_REPORT,
    NO_ROW,
    SLOT_BYTES,
    TASK_BYTES,
    Report,
    ReportKind,
    Slot,
    Task,
    TaskKind,
    Value,
    room,
    unpack_key,
)
from loaders.sample_aware.ipc.nontemporal_copy import load_copy
from loaders.sample_aware.ipc.serialize import Packed, Spec, copy_to, load, load_report, offsets, pack
from loaders.sample_aware.workers.jobs import Job, WorkerPlace

_MIN_REST_NS: Final = 1_000_000
"""Remaining time of a slow sample below which parking it would cost more than it gains."""
_MIN_REST_SHARE: Final = 10
"""Of the time that it has taken so far, one in so many parts."""
_PATIENCE: Final = 4
"""By how many times a bundle may exceed what it usually takes, and by how much at least."""
_MIN_PATIENCE_NS: Final = 50_000_000
_ANSWER: Final = struct.Struct("<q")


class Descriptor(int):
    """A file descriptor that goes along to a worker, however that is started."""

    def __reduce__(self) -> tuple[object, ...]:
        return _received, (reduction.DupFd(int(self)),)


def _received(sent: Value) -> Descriptor:
    return Descriptor(sent.detach())


class Ends(NamedTuple):
    """The ends of the pipes that are a worker's, and the arena."""

    tasks: Descriptor
    rows: Descriptor
    reports: Descriptor
    answers: Descriptor
    """This worker's own."""
    arena: Descriptor
    copy: Descriptor
    """The library to copy with; empty where there is none."""
    parent: int
    """Process id, with which the worker ends."""


class _Stale(Exception):
    """The epoch was ended."""


def run_worker(ends: Ends, job: Job, place: WorkerPlace) -> None:
    """Work until asked to stop, or until the parent has ended."""
    _prepare_process(ends.parent)
    worker = _Worker(ends, job, place)
    try:
        roots = job.begin_worker(place)
    except Exception as error:  # noqa: BLE001 - raised in the consumer's thread
        worker.give_up(error)
        return
    worker.begin(roots)
    while record := os.read(ends.tasks, TASK_BYTES):
        task = Task.unpack(record)
        if task.kind == TaskKind.STOP:
            worker.retire()
            return
        worker.do(task)


class _Worker:
    def __init__(self, ends: Ends, job: Job, place: WorkerPlace) -> None:
        self._ends, self._job, self._place = ends, job, place
        self._stages = job.stages
        self._map = mmap.mmap(ends.arena, 0)
        self._memory = torch.frombuffer(self._map, dtype=torch.uint8)
        self._bytes = self._memory.numpy()
        self._kept: dict[int, Callable[[], object]] = {}
        """Functions that report that samples which a collation has kept are gone, by their blocks' offsets."""
        self._control = ControlPage(self._map)
        self._move = load_copy(ends.copy)
        self._rooted = False
        self._spec: Spec | None = None
        self._waiting = select.poll()
        self._waiting.register(ends.tasks, select.POLLIN)
        self._hands_over = True
        """Until a partial sample turns out not to pickle: from then on the slow ones go on where they are."""

    def begin(self, roots: Roots) -> None:
        """Report that the worker has started."""
        self._send(Report(ReportKind.READY, self._place.worker, 0, 0, payload=struct.pack("<3q", *roots)))

    def retire(self) -> None:
        for let_go in list(self._kept.values()):
            let_go()
        self._send(Report(ReportKind.RETIRED, self._place.worker, 0, 0))

    def give_up(self, error: Exception) -> None:
        """Report why the worker cannot start."""
        failure = self._job.failure(self._place, "worker_init", None, error)
        self._send_apart(Report(ReportKind.FAILED, self._place.worker, 0, -1), pack(failure))

    def do(self, task: Task) -> None:
        """Run a sample until it is done, has failed, or is handed over; or make a batch."""
        worker = self._place.worker
        if not self._rooted:
            self._rooted = True
            self._job.begin_samples(self._control.roots())
        if task.kind == TaskKind.COLLATE:
            self._make_batch(task)
            return
        if task.kind == TaskKind.BUNDLE:
            self._run_bundle(task)
            return
        began = time.monotonic_ns()
        self._control.workers.begin(worker, task.run, task.sample, task.stage, began - task.spent_ns)
        try:
            self._run(task, began)
        except _Stale:
            self._send(Report(ReportKind.DROPPED, worker, task.run, task.sample))
        finally:
            self._control.workers.end(worker)

    def _run(self, task: Task, began: int) -> None:
        key = task.key
        worker, stage, now, times, last = self._place.worker, task.stage, began, [], len(self._stages)
        try:
            partial = None
            if task.kind == TaskKind.RESUME:
                key, partial, state = self._resumed(task)
                self._job.set_random_state(state)
            else:
                key = self._input(task)
            while stage < last:
                partial = self._job.run(stage, key, partial)
                stage += 1
                before, now = now, time.monotonic_ns()
                times.append(now - before)
                if stage == last:
                    break
                self._control.workers.at_stage(worker, stage)
                spent_ns = now - began + task.spent_ns
                if self._makes_way(task, stage, spent_ns):
                    partly = _packed((key, partial, self._job.random_state()))
                    if partly is None:
                        self._hands_over = False
                        continue
                    report = Report(
                        ReportKind.PARKED, worker, task.run, task.sample, NO_ROW, 0, spent_ns, task.stage, times
                    )
                    self._send_apart(report, partly, task)
                    return
            packed = pack(self._job.result(partial))
        except _Stale:
            raise
        except Exception as error:  # noqa: BLE001 - raised in the consumer's process
            self._fail(task.run, task.sample, self._stages[stage] if stage < last else "hand-over", key, error)
            return
        self._done(task, times, now - began + task.spent_ns, packed)

    def _resumed(self, task: Task) -> Value:
        # Copied, for a transform may keep what it is given, and the block is used again.
        return load(self._bytes, task.offset, task.nbytes, copy=True)

    def _input(self, task: Task) -> Value:
        return unpack_key(self._map[task.offset : task.offset + task.nbytes]) if task.key is None else task.key

    def _fail(self, run: int, sample: int, stage: str, key: Value, error: Exception) -> None:
        failure = self._job.failure(self._place, stage, key, error)
        self._send_apart(Report(ReportKind.FAILED, self._place.worker, run, sample), pack(failure))

    def _run_bundle(self, task: Task) -> None:
        """Make a batch of quick samples; where one of them turns out slow and others are idle, leave them the rest."""
        control, table = self._control, self._control.workers
        worker, stages = self._place.worker, range(len(self._stages))
        samples: list[object] = []
        times: list[list[int]] = []
        keys, key, name = self._input(task), None, ""
        now = time.monotonic_ns()
        until = now + _PATIENCE * task.spent_ns + _MIN_PATIENCE_NS
        try:
            for number, key in enumerate(keys, task.sample):
                if control.epoch != task.run:
                    raise _Stale
                if now > until and not self._waiting.poll(0):
                    self._split_bundle(task, samples, times, len(keys))
                    return
                table.begin(worker, task.run, number, 0, now)
                partial, took = None, []
                for stage in stages:
                    name = self._stages[stage]
                    table.at_stage(worker, stage)
                    partial = self._job.run(stage, key, partial)
                    before, now = now, time.monotonic_ns()
                    took.append(now - before)
                times.append(took)
                samples.append(self._job.result(partial))
            key, name = None, "collate_fn"
            packed = pack(self._job.collate(keys, samples), strides=True)
            spent = array("q", map(sum, times))
            self._send_apart(
                Report(
                    ReportKind.BATCH, worker, task.run, task.sample, task.batch, len(keys), sum(spent), 0,
                    [sum(each) for each in zip(*times, strict=True)],
                ),
                packed, task, spent.tobytes(),
            )  # fmt: skip
        except _Stale:
            self._send(Report(ReportKind.DROPPED, worker, task.run, task.sample, row=len(keys)))
        except Exception as error:  # noqa: BLE001 - raised in the consumer's process
            with suppress(_Stale):
                self._fail(task.run, task.sample, name, key, error)
            self._send(Report(ReportKind.DROPPED, worker, task.run, task.sample, row=len(keys)))
        finally:
            table.end(worker)

    def _split_bundle(self, task: Task, samples: list[object], times: list[list[int]], count: int) -> None:
        """Give back the samples that were not started, and send the finished ones one by one."""
        worker, done = self._place.worker, len(samples)
        self._send(Report(ReportKind.GIVEN_BACK, worker, task.run, task.sample + done, row=count - done))
        for row, (sample, took) in enumerate(zip(samples, times, strict=True)):
            number = task.sample + row
            try:
                self._send_apart(
                    Report(ReportKind.DONE, worker, task.run, number, task.batch, row, sum(took), 0, took), pack(sample)
                )
            except _Stale:
                self._send(Report(ReportKind.DROPPED, worker, task.run, number))

    def _make_batch(self, task: Task) -> None:
        """Collate samples that lie apart."""
        owners: list[tuple[weakref.ref[object], int]] = []
        report = Report(ReportKind.BATCH, self._place.worker, task.run, task.sample, task.batch)
        try:
            if self._control.epoch != task.run:
                raise _Stale
            report = self._put(report, self._collated(task, owners), task)
        except _Stale:
            report = report._replace(kind=ReportKind.DROPPED)
        except Exception as error:  # noqa: BLE001 - raised in the consumer's process
            failure = pack(self._job.failure(self._place, "collate_fn", None, error))
            try:
                report = self._put(report._replace(kind=ReportKind.FAILED), failure)
            except _Stale:
                report = report._replace(kind=ReportKind.DROPPED)
        self._report_kept(owners)
        self._send(report)

    def _collated(self, task: Task, owners: list[tuple[weakref.ref[object], int]]) -> Packed:
        keys, parts = self._input(task)
        samples = []
        for place, payload in parts:
            if place is None:
                samples.append(load_report(payload))
                continue
            begin, size, at, nbytes = place
            memory = np.frombuffer(self._map, np.uint8, size, begin)
            owners.append((weakref.ref(memory), begin))
            samples.append(load(memory, at - begin, nbytes, copy=False))
        return pack(self._job.collate(keys, samples), strides=True)

    def _report_kept(self, owners: Sequence[tuple[weakref.ref[object], int]]) -> None:
        """Have the memory of samples kept to which the collation has kept a reference, until that is gone."""
        for owner, begin in owners:
            memory = owner()
            if memory is not None:
                self._send(Report(ReportKind.KEPT, self._place.worker, 0, 0, offset=begin))
                self._kept[begin] = weakref.finalize(memory, self._let_go, begin)

    def _let_go(self, begin: int) -> None:
        del self._kept[begin]
        self._send(Report(ReportKind.LET_GO, self._place.worker, 0, 0, offset=begin))

    def _makes_way(self, task: Task, stage: int, spent_ns: int) -> bool:
        """Return whether a slow sample makes way for one that waits; where none waits, it goes on in place."""
        if self._control.epoch != task.run:
            raise _Stale
        if not self._hands_over or task.kind == TaskKind.RESUME or task.batch != NO_ROW:
            return False
        min_rest_ns = max(_MIN_REST_NS, spent_ns // _MIN_REST_SHARE)
        return self._control.worth_parking(spent_ns, stage, min_rest_ns) and bool(self._waiting.poll(0))

    def _done(self, task: Task, times: Sequence[int], spent_ns: int, packed: Packed) -> None:
        row = self._row(task)
        in_row = self._fits_row(row, packed, len(times))
        report = Report(
            ReportKind.DONE, self._place.worker, task.run, task.sample, row.batch, row.row, spent_ns, task.stage, times,
            payload=packed.payload if in_row else b"",
        )  # fmt: skip
        if not in_row:
            self._send_apart(report, packed, task)
            return
        begins, _ = offsets(packed.spec, row.rows)
        for begin, leaf, values in zip(begins, packed.spec, packed.leaves, strict=True):
            copy_to(self._memory, row.base + begin + row.row * leaf.nbytes, leaf, values, self._move)
        self._send(report)

    def _fits_row(self, row: Slot, packed: Packed, stages: int) -> bool:
        """Return whether the sample's tensors are those that the row is for, and the rest fits into a report."""
        if row.base < 0:
            return False
        if self._spec is None:
            self._spec = self._control.spec()
        return packed.spec == self._spec and len(packed.payload) <= room(stages)

    def _row(self, task: Task) -> Slot:
        if task.batch != NO_ROW:
            return Slot(task.run, task.batch, task.base, task.row, task.rows)
        if self._control.epoch != task.run:
            raise _Stale
        while True:
            row = Slot.unpack(os.read(self._ends.rows, SLOT_BYTES))
            if row.run == task.run:
                return row
            if row.run > task.run:
                self._send(Report(ReportKind.ROW_BACK, self._place.worker, row.run, 0, row.batch, row.row))
                raise _Stale

    def _send_apart(self, report: Report, packed: Packed, task: Task | None = None, end: bytes = b"") -> None:
        self._send(self._put(report, packed, task, end))

    def _put(self, report: Report, packed: Packed, task: Task | None = None, end: bytes = b"") -> Report:
        """Return a report with everything in a block: tensors first, then the rest and how the tensors lie, `end` last.

        The block is the task's spare one where that is large enough.
        """
        begins, tensors = offsets(packed.spec)
        rest = pickle.dumps((packed.payload, packed.spec), pickle.HIGHEST_PROTOCOL)
        short = not packed.spec and len(rest) <= room(len(report.stage_ns))
        if short and report.kind != ReportKind.PARKED and not end:
            return report._replace(payload=rest, offset=IN_REPORT)
        nbytes = tensors + len(rest) + len(end)
        fits = task is not None and nbytes <= task.spare_nbytes
        block = task.spare if task is not None and fits else self._block(report.run, nbytes)
        for begin, leaf, values in zip(begins, packed.spec, packed.leaves, strict=True):
            copy_to(self._memory, block + begin, leaf, values, self._move)
        self._map[block + tensors : block + nbytes] = rest + end
        return report._replace(offset=block + tensors, nbytes=len(rest))

    def _block(self, run: int, nbytes: int) -> int:
        self._send(Report(ReportKind.NEED, self._place.worker, run, 0, nbytes=nbytes))
        (offset,) = _ANSWER.unpack(os.read(self._ends.answers, _ANSWER.size))
        if offset < 0:
            raise _Stale
        return int(offset)

    def _send(self, report: Report) -> None:
        os.write(self._ends.reports, report.pack())


def _packed(partial: object) -> Packed | None:
    """Pack a partial sample; None where it contains a value that cannot leave the process, such as an open file."""
    try:
        return pack(partial)
    except Exception:  # noqa: BLE001 - pickling raises whatever the objects do
        return None


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
