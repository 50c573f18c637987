"""Messages between the coordinator and the workers: records so short that pipes pass them on whole (pipe(7)).

Tasks and rows lie in a pipe each, from which all workers take: an idle worker takes the next one, and does not wait
for the coordinator. The workers' reports come through one pipe too.
"""

from __future__ import annotations

import pickle
import select
import struct
from collections.abc import Iterator, Sequence
from enum import IntEnum
from typing import Any, Final, NamedTuple, TypeAlias

Value: TypeAlias = Any
"""A sample, whole or partial, its key in the dataset, or a batch: of the types of the user's dataset."""

NO_ROW: Final = -1
IN_ROW: Final = -1
IN_REPORT: Final = -2
_TASK: Final = struct.Struct("<BBHIqqqqiiqqqqq56s")
_SLOT: Final = struct.Struct("<qqqii")
_REPORT: Final = struct.Struct("<HBBHHqqqqiqqI")
_KEY_ROOM: Final = 56
TASK_BYTES: Final = _TASK.size
SLOT_BYTES: Final = _SLOT.size


class TaskKind(IntEnum):
    """What a worker is asked for."""

    START = 1
    RESUME = 2
    STOP = 3
    BUNDLE = 4
    """A whole batch of quick samples, and its collation."""
    COLLATE = 5
    """Of samples that are done and lie apart."""


class ReportKind(IntEnum):
    """A worker's message."""

    DONE = 1
    PARKED = 2
    FAILED = 3
    DROPPED = 4
    """Left, for its epoch was ended."""
    NEED = 5
    """Asks for a block; the answer comes through its own pipe."""
    ROW_BACK = 6
    """A row of a later epoch than its sample's."""
    RETIRED = 7
    BATCH = 8
    """A batch is collated: the answer to a bundle and to a collation."""
    GIVEN_BACK = 9
    """`row` samples of a bundle that were not started, from `sample` on."""
    KEPT = 10
    """The collation keeps a reference to the sample whose block begins at `offset`."""
    LET_GO = 11
    """That reference is gone."""
    READY = 12
    """The worker has started; with the roots of its random numbers in the payload."""


class Slot(NamedTuple):
    """A row of a batch, for the worker that is done next."""

    run: int
    batch: int
    base: int
    """Where the batch's memory begins, -1 where it has none."""
    row: int
    rows: int
    """Of the batch."""

    def pack(self) -> bytes:
        """Return the record."""
        return _SLOT.pack(*self)

    @classmethod
    def unpack(cls, record: bytes) -> Slot:
        """Return what `pack` wrote."""
        return cls(*_SLOT.unpack(record))


class Task(NamedTuple):
    """What one worker is to do."""

    kind: int
    run: int
    sample: int
    key: Value
    stage: int = 0
    """With which it begins."""
    spent_ns: int = 0
    batch: int = NO_ROW
    """-1: the row is taken when the sample is done."""
    row: int = 0
    rows: int = 0
    base: int = -1
    offset: int = 0
    """Of the partial sample, or of a key that is too long for the record."""
    nbytes: int = 0
    spare: int = -1
    """Where a block for the result begins, -1 where there is none; what does not fit asks for another one."""
    spare_nbytes: int = 0

    @property
    def samples(self) -> int:
        """How many samples it is about."""
        return self.rows if self.kind == TaskKind.BUNDLE else 1

    def pack(self, key: bytes) -> bytes:
        """Return the record, with what `pack_key` returned."""
        length = len(key) if len(key) <= _KEY_ROOM else 0
        return _TASK.pack(
            self.kind, length, self.stage, 0, self.run, self.sample, self.spent_ns, self.batch, self.row, self.rows,
            self.base, self.offset, self.nbytes, self.spare, self.spare_nbytes, key if length else b"",
        )  # fmt: skip

    @classmethod
    def unpack(cls, record: bytes) -> Task:
        """Return what `pack` wrote; the key is None where it did not fit."""
        kind, length, stage, _, run, sample, spent, batch, row, rows, base, *memory, key = _TASK.unpack(record)
        unpacked = unpack_key(key[:length]) if length else None
        return cls(kind, run, sample, unpacked, stage, spent, batch, row, rows, base, *memory)


def pack_key(key: Value) -> bytes:
    """Return a sample's key as bytes."""
    return pickle.dumps(key, pickle.HIGHEST_PROTOCOL)


def unpack_key(packed: bytes) -> Value:
    """Return the key that `pack_key` packed in the other process of the pair."""
    return pickle.loads(packed)  # noqa: S301


def fits(key: bytes) -> bool:
    """Return whether a packed key fits into a task's record."""
    return len(key) <= _KEY_ROOM


def room(stages: int) -> int:
    """Return how many bytes of payload a report on so many stages may take."""
    return select.PIPE_BUF - _REPORT.size - 8 * stages


class Report(NamedTuple):
    """A worker's message about a sample."""

    kind: int
    worker: int
    run: int
    sample: int
    batch: int = NO_ROW
    row: int = 0
    """Or the number of samples from `sample` on; 0 stands for one sample."""
    spent_ns: int = 0
    """On this sample since it was started, waits not counted."""
    first_stage: int = 0
    stage_ns: Sequence[int] = ()
    """Of the stages from `first_stage` on that were run now."""
    offset: int = IN_ROW
    """The offset of the pickled part, in a block behind the tensors; or IN_ROW: the tensors lie in the sample's row and
    the rest is in the payload; or IN_REPORT: the sample has no tensors, and all of it is in the payload."""
    nbytes: int = 0
    payload: bytes = b""

    @property
    def samples(self) -> int:
        """How many samples it is about."""
        several = self.kind in (ReportKind.BATCH, ReportKind.DROPPED, ReportKind.GIVEN_BACK)
        return max(1, self.row) if several else 1

    def pack(self) -> bytes:
        """Return the record."""
        times = self.stage_ns
        length = _REPORT.size + 8 * len(times) + len(self.payload)
        head = _REPORT.pack(
            length, self.kind, 0, len(times), self.first_stage, self.run, self.sample, self.spent_ns, self.batch,
            self.row, self.offset, self.nbytes, self.worker,
        )  # fmt: skip
        return head + struct.pack(f"<{len(times)}q", *times) + self.payload


class Reports:
    """Cuts the bytes of the pipe into reports."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, read: bytes) -> Iterator[Report]:
        """Yield the reports that are whole now."""
        read = self._rest + read
        at = 0
        while len(read) - at >= _REPORT.size:
            length, kind, _, stages, first, run, sample, spent, batch, row, offset, nbytes, worker = (
                _REPORT.unpack_from(read, at)
            )
            if len(read) - at < length:
                break
            times_at = at + _REPORT.size
            payload_at = times_at + 8 * stages
            yield Report(
                kind, worker, run, sample, batch, row, spent, first, struct.unpack_from(f"<{stages}q", read, times_at),
                offset, nbytes, read[payload_at : at + length],
            )  # fmt: skip
            at += length
        self._rest = read[at:]
