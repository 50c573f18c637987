"""Messages between the coordinator and the workers: records so short that pipes pass them on whole (pipe(7)).

Tasks lie in a pipe from which all workers take: an idle worker takes the next one, and does not wait for the
coordinator. Batches that only have to be collated lie in a second pipe, which workers look at first. The workers'
reports come through one pipe.
"""

from __future__ import annotations

import mmap
import pickle
import select
import struct
from collections.abc import Iterator, Sequence
from enum import IntEnum
from typing import Any, Final, NamedTuple, TypeAlias

Value: TypeAlias = Any
"""A sample, whole or partial, its key in the dataset, or a batch: of the types of the user's dataset."""

NOWHERE: Final = -1
ITEMS_ROOM: Final = 80
"""Bytes of packed items that fit into a task's record."""
_TASK: Final = struct.Struct(f"<BIq?qqqqH{ITEMS_ROOM}s")
"""The fields of TaskRecord in their order, with the length of the items before them."""
TASK_BYTES: Final = _TASK.size
_REPORT: Final = struct.Struct("<HBBIqqqqHqqq?")
"""The length of the record and the number of stages, then the fields of WorkerReport in their order."""


class TaskKind(IntEnum):
    """What a worker is asked for."""

    WORK = 1
    LOOK = 2
    """Nothing but a look at the pipe of batches that are to be collated."""
    STOP = 3


class ReportKind(IntEnum):
    """A worker's message."""

    READY = 1
    """The worker has started; with the roots of its random numbers in the payload."""
    NEED = 2
    """Asks for a block of `nbytes`; the answer comes through its own pipe."""
    DONE = 3
    PARKED = 4
    FAILED = 5
    """A sample, or a collation where `sample` is negative."""
    BATCH = 6
    """All samples of the task are done and collated; what each took lies behind the batch."""
    LEFT = 7
    """The samples of the task that no report was about were not started, or their epoch was ended."""
    RETIRED = 8


class ArenaPlace(NamedTuple):
    """Where a sample or a batch lies: its tensors in a block, and from `offset` on how they lie, and the rest of it."""

    block: int
    """The beginning of the block, -1 where there is no block and the payload is all."""
    offset: int
    nbytes: int
    payload: bytes = b""


class WorkItem(NamedTuple):
    """A sample of a task: new, partial, or done and only to be collated."""

    sample: int
    key: Value
    stage: int = 0
    """With which the worker begins."""
    spent_ns: int = 0
    place: ArenaPlace | None = None
    """None for a new sample."""


class TaskRecord(NamedTuple):
    """Work on some samples; with `collates` they are a batch."""

    kind: int
    run: int = 0
    """The epoch, counted by the engine."""
    task: int = 0
    collates: bool = False
    offset: int = 0
    """Of the items, where they are too long for the record."""
    nbytes: int = 0
    out: int = NOWHERE
    """Where a block for the result begins; what does not fit asks for another one."""
    out_bytes: int = 0
    items: bytes = b""

    def pack(self) -> bytes:
        """Return the record."""
        return _TASK.pack(*self[:-1], len(self.items), self.items)

    @classmethod
    def unpack(cls, record: bytes) -> TaskRecord:
        """Return what `pack` wrote."""
        *fields, length, items = _TASK.unpack(record)
        return cls._make([*fields, items[:length]])

    def read_items(self, memory: mmap.mmap) -> list[WorkItem]:
        """Return the samples, from the record or from where they lie."""
        packed = self.items or memory[self.offset : self.offset + self.nbytes]
        # Written by the process that started this one.
        samples, keys, stored = pickle.loads(packed)  # noqa: S301
        if not stored:
            return list(map(WorkItem, samples, keys))
        return [
            WorkItem(sample, key, stage, spent_ns, ArenaPlace(*place))
            for sample, key, (stage, spent_ns, place) in zip(samples, keys, stored, strict=True)
        ]


def pack_items(samples: Sequence[int], keys: Sequence[Value], stored: Sequence[tuple[int, int, ArenaPlace]]) -> bytes:
    """Return what `read_items` reads; `stored` has stage, time and place of each sample where they are not new."""
    places = [(stage, spent_ns, tuple(place)) for stage, spent_ns, place in stored]
    return pickle.dumps((samples, keys, places), pickle.HIGHEST_PROTOCOL)


def room(stages: int) -> int:
    """Return how many bytes of payload a report on so many stages may take."""
    return select.PIPE_BUF - _REPORT.size - 8 * stages


class WorkerReport(NamedTuple):
    """A worker's message about a task."""

    kind: int
    worker: int
    run: int = 0
    task: int = NOWHERE
    sample: int = NOWHERE
    spent_ns: int = 0
    """On this sample since it was started, or on all samples of a batch; waits not counted."""
    first_stage: int = 0
    stage_ns: Sequence[int] = ()
    """Of the stages from `first_stage` on that were run now."""
    place: ArenaPlace = ArenaPlace(NOWHERE, 0, 0)
    is_last: bool = False
    """Whether it is the last one about its task."""

    def pack(self) -> bytes:
        """Return the record."""
        *fields, times, place, is_last = self
        length = _REPORT.size + 8 * len(times) + len(place.payload)
        head = _REPORT.pack(length, len(times), *fields, *place[:-1], is_last)
        return head + struct.pack(f"<{len(times)}q", *times) + place.payload


class ReportReader:
    """Cuts the bytes of the pipe into reports."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, read: bytes) -> Iterator[WorkerReport]:
        """Yield the reports that are whole now."""
        read = self._rest + read
        at = 0
        while len(read) - at >= _REPORT.size:
            length, stages, *fields, block, offset, nbytes, is_last = _REPORT.unpack_from(read, at)
            if len(read) - at < length:
                break
            times_at = at + _REPORT.size
            payload = read[times_at + 8 * stages : at + length]
            times = struct.unpack_from(f"<{stages}q", read, times_at)
            place = ArenaPlace(block, offset, nbytes, payload)
            yield WorkerReport._make([*fields, times, place, is_last])
            at += length
        self._rest = read[at:]
