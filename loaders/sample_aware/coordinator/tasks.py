"""Tasks that the workers have, and the memory that each of them needs until its last report."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Final

from loaders.sample_aware.ipc.arena import Arena, ArenaBlock
from loaders.sample_aware.ipc.messages import (
    ITEMS_ROOM,
    NOWHERE,
    ArenaPlace,
    TaskKind,
    TaskRecord,
    Value,
    WorkerReport,
    pack_items,
)
from loaders.sample_aware.ipc.serialize import aligned
from loaders.sample_aware.policy.balancer import NO_BATCH, Work

_MARGIN: Final = 1.1
"""How much larger than the largest of the recent ones the next sample or batch may be, as a rule."""
_FORGETS: Final = 0.995
"""By which factor the largest size counts for less with each later one."""


@dataclass(slots=True)
class StoredSample:
    """A sample that no worker has: partial, done, or failed."""

    place: ArenaPlace
    block: ArenaBlock | None
    key: Value
    stage: int = 0
    spent_ns: int = 0
    error: BaseException | None = None


@dataclass(slots=True)
class GivenTask:
    """A task from when it is given to the workers to its last report."""

    run: int
    work: Work
    keys: Sequence[Value]
    is_collation: bool = False
    """Whether all its samples were done before."""
    unreported: set[int] = field(default_factory=set)
    """Samples of which no report was."""
    inputs: list[ArenaBlock] = field(default_factory=list)
    results: list[ArenaBlock] = field(default_factory=list)
    is_broken: bool = False
    """Whether the samples of a batch come one by one."""


class TaskTable:
    """Creates tasks, and frees what they needed."""

    def __init__(self, arena: Arena) -> None:
        self._arena = arena
        self.given: dict[int, GivenTask] = {}
        """Tasks that workers have, by number."""
        self._numbers = count()
        self.sample_bytes = self._batch_bytes = 0.0
        """What the next sample, or batch, takes in memory at most, as a rule; 0 before the first one."""

    def __len__(self) -> int:
        """Return how many tasks the workers have."""
        return len(self.given)

    def create(self, run: int, work: Work, keys: Sequence[Value], stored: Sequence[StoredSample]) -> bytes:
        """Return the record of a task on samples that are new, or of all of which something is stored."""
        number, is_batch = next(self._numbers), work.batch != NO_BATCH
        given = GivenTask(run, work, keys, is_collation=is_batch and bool(stored), unreported=set(work.samples))
        given.inputs = [each.block for each in stored if each.block is not None]
        items = pack_items(work.samples, keys, [(each.stage, each.spent_ns, each.place) for each in stored])
        task = TaskRecord(TaskKind.WORK, run, number, is_batch)
        if len(items) <= ITEMS_ROOM:
            task = task._replace(items=items)
        else:
            block = self._arena.allocate(len(items))
            self._arena.map[block.offset : block.offset + len(items)] = items
            given.inputs.append(block)
            task = task._replace(offset=block.offset, nbytes=len(items))
        size = len(work.samples) * self.sample_bytes
        if is_batch:
            size = self._batch_bytes or size
        if size:
            out = self._arena.allocate(int(size))
            given.results.append(out)
            task = task._replace(out=out.offset, out_bytes=out.size)
        self.given[number] = given
        return task.pack()

    def key_of(self, run: int, sample: int) -> Value:
        """Return the key of a sample that workers have; None where they do not."""
        for given in self.given.values():
            if given.run == run and sample in given.unreported:
                return given.keys[given.work.samples.index(sample)]
        return None

    def allocate(self, report: WorkerReport) -> int:
        """Return where the block begins that a worker has asked for."""
        block = self._arena.allocate(report.place.nbytes)
        # A worker that cannot start has no task.
        given = self.given.setdefault(report.task, GivenTask(report.run, Work(()), ()))
        given.results.append(block)
        return block.offset

    def share_result(self, report: WorkerReport) -> ArenaBlock | None:
        """Return the block in which a result lies, to be freed by the caller too; None where it is in the report."""
        at = report.place.block
        if at == NOWHERE:
            return None
        results = self.given[report.task].results
        block = next(block for block in results if block.offset <= at < block.offset + block.size)
        block.users += 1
        return block

    def learn_size(self, report: WorkerReport, *, is_batch: bool) -> None:
        """Note what a result takes."""
        place = report.place
        if place.block == NOWHERE:
            return
        if is_batch:
            nbytes = aligned(place.offset + place.nbytes + 8 * len(self.given[report.task].keys))
            self._batch_bytes = max(_MARGIN * nbytes, _FORGETS * self._batch_bytes)
        else:
            self.sample_bytes = max(_MARGIN * aligned(place.offset + place.nbytes), _FORGETS * self.sample_bytes)

    def end(self, task: int) -> None:
        """Free what a task needed, after its last report."""
        given = self.given.pop(task)
        for block in [*given.inputs, *given.results]:
            self._arena.free(block)
