"""One epoch as the coordinator sees it: its samples, where they lie, and what they are for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from loaders.sample_aware.balancer import Balancer, Resume, Row, Start
from loaders.sample_aware.builder import Order, Rows
from loaders.sample_aware.delivery import Delivery
from loaders.sample_aware.messages import NO_ROW, Report, RowToken, Task, TaskKind, fits, pack_key
from loaders.sample_aware.packing import Spec, offsets
from loaders.sample_aware.shared import Arena, Block

__all__ = ["Run"]


class Run:
    """The samples of one epoch from the sampler to the builder; belongs to the coordinator's thread."""

    def __init__(self, delivery: Delivery, balancer: Balancer, arena: Arena) -> None:
        self.delivery, self.balancer = delivery, balancer
        self.slow: set[int] = set()
        self.outstanding: set[int] = set()
        """Samples that were given to the workers and not reported."""
        self.opened = self.shipped = self.taken = 0
        """Batches that were taken up, those that were given to the builder, and those that the consumer has."""
        self._arena = arena
        self._keys: dict[int, Any] = {}
        self._done: dict[int, Report] = {}
        self._parked: dict[int, Report] = {}
        self._blocks: dict[int, Block] = {}
        """Of keys, partial samples and samples, by sample."""
        self._rows: dict[int, tuple[int, Rows | None]] = {}
        """How many rows every batch has, and their memory, from the first row that is given out."""
        self.over = False
        """Whether the consumer was promised its end."""
        self._begun: set[int] = set()
        """Batches of which a row was given out: what their memory is is settled."""
        self._spare_rows = 0
        """Rows that were given out with samples that have failed."""

    @property
    def number(self) -> int:
        """The epoch, counted by the engine."""
        return self.delivery.number

    def open_batch(self, keys: Sequence[Any]) -> None:
        """Take up a batch of keys that the sampler has put together."""
        self._keys.update(zip(self.balancer.open_batch(len(keys)), keys, strict=True))
        self._rows[self.opened] = len(keys), None
        self.opened += 1

    def key(self, sample: int) -> Any:
        """Return what the dataset knows the sample by."""
        return self._keys[sample]

    def records(self, what: Start | Resume, spec: Spec | None) -> tuple[bytes, bytes | None]:
        """Return the record of a task, and that of the row that comes with it where that is not in the task."""
        sample = what.sample
        self.outstanding.add(sample)
        if isinstance(what, Resume):
            report = self._parked[sample]
            stage = report.first_stage + len(report.stage_ns)
            task = Task(TaskKind.RESUME, self.number, sample, None, stage, report.spent_ns)
            return task._replace(offset=report.offset, nbytes=report.nbytes).pack(b""), None
        key, offset, nbytes = pack_key(self._keys[sample]), 0, 0
        if not fits(key):
            block = self._blocks[sample] = self._arena.allocate(len(key))
            offset, nbytes = block.offset, len(key)
            self._arena.map[offset : offset + nbytes] = key
        batch, row, rows, base = NO_ROW, 0, 0, -1
        if what.row is not None:
            batch, row = what.row
            rows, base = self._memory(batch, spec)
        start = Task(TaskKind.START, self.number, sample, None, 0, 0, batch, row, rows, base, offset, nbytes).pack(key)
        if what.row is not None:
            return start, None
        if self._spare_rows:
            self._spare_rows -= 1
            return start, None
        batch, row = self.balancer.take_row()
        rows, base = self._memory(batch, spec)
        return start, RowToken(self.number, batch, base, row, rows).pack()

    def row_again(self, report: Report) -> bytes:
        """Return the record of a row that a worker has given back."""
        rows, memory = self._rows[report.batch]
        base = memory.block.offset if memory else -1
        return RowToken(self.number, report.batch, base, report.row, rows).pack()

    def finish(self, report: Report, block: Block | None) -> None:
        """Put a sample that is done in its row."""
        self._leave(report.sample, block)
        self._done[report.sample] = report
        self.balancer.finish(report.sample, Row(report.batch, report.row))

    def park(self, report: Report, block: Block) -> None:
        """Put a partial sample in the temp queue."""
        self._leave(report.sample, block)
        self._parked[report.sample] = report
        self.balancer.park(report.sample)
        # Its row stays in the pipe for whoever is done first; resumed, it takes another's.

    def fail(self, sample: int) -> None:
        """Leave a sample out; the row that was given out with it is the next one's."""
        self._leave(sample, None)
        self._spare_rows += 1
        self.balancer.fail(sample)

    def orders(self) -> Iterator[Order]:
        """Yield the batches that are whole."""
        while (batch := self.balancer.next_batch()) is not None:
            number, samples = batch
            _, rows = self._rows.pop(number)
            self._begun.discard(number)
            self.shipped += 1
            yield Order(
                self.delivery,
                samples,
                [self._keys.pop(sample) for sample in samples],
                [self._done.pop(sample) for sample in samples],
                [self._blocks.pop(sample, None) for sample in samples],
                rows,
            )

    def release(self) -> None:
        """Give back all memory, once no worker writes to it any more."""
        for block in self._blocks.values():
            self._arena.free(block)
        for _, rows in self._rows.values():
            if rows is not None:
                self._arena.free(rows.block)
        self._blocks.clear()
        self._rows.clear()

    def _leave(self, sample: int, block: Block | None) -> None:
        self.outstanding.discard(sample)
        self._parked.pop(sample, None)
        old = self._blocks.pop(sample, None)
        if old is not None:
            self._arena.free(old)
        if block is not None:
            self._blocks[sample] = block

    def _memory(self, batch: int, spec: Spec | None) -> tuple[int, int]:
        """Return a batch's rows and where its memory begins, -1 where samples are not known to have one shape."""
        rows, memory = self._rows[batch]
        if memory is None and spec is not None and batch not in self._begun:
            memory = Rows(self._arena.allocate(offsets(spec, rows)[1]), spec, rows)
            self._rows[batch] = rows, memory
        self._begun.add(batch)
        return rows, memory.block.offset if memory else -1
