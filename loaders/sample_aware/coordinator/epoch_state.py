"""One epoch as the coordinator sees it: its samples, where they lie, and what they are for."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from loaders.sample_aware.coordinator.collator import CollateRequest, Rows
from loaders.sample_aware.coordinator.output_queue import OutputQueue
from loaders.sample_aware.ipc.arena import Arena, Block
from loaders.sample_aware.ipc.messages import NO_ROW, Report, Slot, Task, TaskKind, fits, pack_key
from loaders.sample_aware.ipc.serialize import Spec, offsets
from loaders.sample_aware.policy.balancer import Balancer, Bundle, Resume, Row, Start

_MARGIN: Final = 1.1
_FORGETS: Final = 0.995
"""By which factor the largest size counts for less with each later one."""

_FIRST_COLLATION: Final = -2
"""The number of the collation of batch 0, where samples have numbers from 0 on; -3 is that of batch 1, and so on."""


class EpochState:
    """The samples of one epoch from the sampler to the collator; belongs to the coordinator's thread."""

    def __init__(self, output: OutputQueue, balancer: Balancer, arena: Arena, *, strict: bool, collates: bool) -> None:
        """With `collates` workers collate the batches whose samples lie apart."""
        self.output, self.balancer = output, balancer
        self.slow: set[int] = set()
        self.outstanding: set[int] = set()
        """Samples that were given to the workers and not reported, and collations."""
        self.opened = self.shipped = self.taken = 0
        """Batches that were taken up, those that were given to the collator, and those that the consumer has."""
        self.batch_size = 0
        """Of the latest one."""
        self._arena, self._strict, self._collates = arena, strict, collates
        self._keys: dict[int, object] = {}
        self._done: dict[int, Report] = {}
        self._parked: dict[int, Report] = {}
        self._blocks: dict[int, Block] = {}
        """Of keys, partial samples and samples, by sample."""
        self._spares: dict[int, Block] = {}
        """Given out with a task for its result, by sample."""
        self._rows: dict[int, tuple[int, Rows | None]] = {}
        """How many rows every batch has, and their memory, from the first row that is given out."""
        self.over = False
        """Whether the consumer was promised its end."""
        self._begun: set[int] = set()
        """Batches of which a row was given out: what their memory is is settled."""
        self._errors: dict[int, BaseException] = {}
        """Of samples that end their batch, and of bundles, by the first sample."""
        self.without_row: list[int] = []
        """Samples whose error has no row yet."""
        self._spare_rows = 0
        """Rows that were given out with samples that have failed."""
        self._bundles: dict[int, Bundle] = {}
        """That workers make, by their first sample."""
        self._bundled: dict[int, tuple[Report, Block | None, Sequence[int]]] = {}
        """Batches that one worker has made, with what each sample took in ns, by batch."""
        self._collating: dict[int, CollateRequest] = {}
        """By batch."""
        self._uncollated: deque[int] = deque()
        """Those of them that no worker was asked for."""
        self._ready: dict[int, CollateRequest | None] = {}
        """Batches for the collator in the order in which they became whole; None while one is collated."""

    @property
    def number(self) -> int:
        """The epoch, counted by the engine."""
        return self.output.number

    @property
    def tasks(self) -> int:
        """Tasks that were given to the workers and not reported."""
        return len(self.outstanding) - sum(len(bundle.samples) - 1 for bundle in self._bundles.values())

    @property
    def finished(self) -> bool:
        """Whether every batch was given to the collator."""
        return self.balancer.over and not self._ready

    def open_batch(self, keys: Sequence[object]) -> None:
        """Take up a batch of keys that the sampler has put together."""
        self._keys.update(zip(self.balancer.open_batch(len(keys)), keys, strict=True))
        self._rows[self.opened] = len(keys), None
        self.batch_size = len(keys)
        self.opened += 1

    def key(self, sample: int) -> object:
        """Return what the dataset knows the sample by."""
        return self._keys[sample]

    def records(
        self, what: Start | Resume, spec: Spec | None, guess: SizeGuess | None = None
    ) -> tuple[bytes, bytes | None]:
        """Return the record of a task, and that of the row that comes with it where that is not in the task.

        With a guess a block comes with it for a result that is not for a row.
        """
        sample = what.sample
        self.outstanding.add(sample)
        if isinstance(what, Resume):
            report = self._parked[sample]
            stage = report.first_stage + len(report.stage_ns)
            task = Task(TaskKind.RESUME, self.number, sample, None, stage, report.spent_ns)
            task = task._replace(offset=report.offset, nbytes=report.nbytes)
            return self._with_spare(task, guess).pack(b""), None
        batch, row, rows, base = NO_ROW, 0, 0, -1
        if what.row is not None:
            batch, row = what.row
            rows, base = self._memory(batch, spec)
        task = Task(TaskKind.START, self.number, sample, None, 0, 0, batch, row, rows, base)
        start = self._with_input(self._with_spare(task, guess), self._keys[sample])
        if what.row is not None:
            return start, None
        if self._spare_rows:
            self._spare_rows -= 1
            return start, None
        batch, row = self.balancer.take_row()
        rows, base = self._memory(batch, spec)
        return start, Slot(self.number, batch, base, row, rows).pack()

    def bundle_record(self, bundle: Bundle, sample_ns: int, guess: SizeGuess) -> bytes:
        """Return the record of a whole batch for one worker, of samples that usually take `sample_ns`."""
        batch, samples = bundle
        self._bundles[samples[0]] = bundle
        self.outstanding.update(samples)
        count = len(samples)
        task = Task(TaskKind.BUNDLE, self.number, samples[0], None, 0, count * sample_ns, batch, rows=count)
        return self._with_input(self._with_spare(task, guess), [self._keys[sample] for sample in samples])

    def collations(self, guess: SizeGuess) -> Iterator[bytes]:
        """Yield the records of batches that workers are to collate."""
        while self._uncollated:
            number = self._uncollated.popleft()
            request, collation = self._collating[number], _FIRST_COLLATION - number
            self.outstanding.add(collation)
            parts = [
                (None, report.payload)
                if block is None
                else ((block.offset, block.size, report.offset, report.nbytes), b"")
                for report, block in zip(request.reports, request.blocks, strict=True)
            ]
            task = Task(TaskKind.COLLATE, self.number, collation, None, batch=number)
            yield self._with_input(self._with_spare(task, guess), (request.keys, parts))

    def row_again(self, report: Report) -> list[bytes]:
        """Return the record of a row that a worker has given back, none where an error takes it."""
        if self.without_row:
            self._put_error(self.without_row.pop(), Row(report.batch, report.row))
            return []
        rows, memory = self._rows[report.batch]
        base = memory.block.offset if memory else -1
        return [Slot(self.number, report.batch, base, report.row, rows).pack()]

    def take_spare(self, sample: int) -> Block:
        """Return the block that came with a task, for its result lies there."""
        return self._spares.pop(sample)

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
        # Its row stays in the pipe for the sample that is done first; resumed, it takes another's.

    def fail_batch(self, sample: int, error: BaseException, take_row: Callable[[], Slot | None]) -> None:
        """Have a batch be an error: of a sample, of a bundle by its first sample, or of a collation.

        A single sample takes a row of the next batch with it; `take_row` takes one that no worker has taken.
        """
        if sample < 0:
            number = _FIRST_COLLATION - sample
            self._leave(sample, None)
            self._ready[number] = self._freed(self._collating.pop(number)).failed_with(error)
        elif sample in self._bundles:
            bundle = self._take_bundle(sample)
            self._errors[sample] = error
            self.balancer.finish_bundle(bundle)
        else:
            row = self.balancer.home(sample)
            if row is None and (token := take_row()) is not None:
                row = Row(token.batch, token.row)
            self._errors[sample] = error
            self.slow.discard(sample)
            if row is not None:
                self._put_error(sample, row)
            else:
                # A worker has taken it in vain, and gives it back.
                self.without_row.append(sample)

    def fail(self, sample: int) -> None:
        """Leave a sample out; the row that was given out with it is the next one's."""
        self._leave(sample, None)
        self._spare_rows += 1
        self.balancer.fail(sample)

    def finish_bundle(self, report: Report, block: Block | None, spent_ns: Sequence[int]) -> Bundle:
        """Take a batch that one worker has made."""
        bundle = self._take_bundle(report.sample)
        self._bundled[bundle.batch] = report, block, spent_ns
        self.balancer.finish_bundle(bundle)
        return bundle

    def split(self, report: Report) -> None:
        """Take back the samples of a bundle that its worker has not started; it goes on with the others one by one."""
        samples = range(report.sample, report.sample + report.row)
        bundle = next(one for one in self._bundles.values() if report.sample in one.samples)
        del self._bundles[bundle.samples[0]]
        self.outstanding.difference_update(samples)
        self.balancer.give_back(samples)

    def finish_collation(self, report: Report, block: Block | None) -> None:
        """Take a batch that a worker has collated."""
        number = _FIRST_COLLATION - report.sample
        self._leave(report.sample, None)
        self._ready[number] = self._freed(self._collating.pop(number)).collated_as(report, block)

    def requests(self) -> Iterator[CollateRequest]:
        """Yield the batches that can be built."""
        while (batch := self.balancer.next_batch()) is not None:
            number, samples = batch
            _, rows = self._rows.pop(number)
            self._begun.discard(number)
            keys = [self._keys.pop(sample) for sample in samples]
            if number in self._bundled:
                report, block, spent_ns = self._bundled.pop(number)
                request = CollateRequest(self.output, samples, keys, spent_ns, (), (), None).collated_as(report, block)
                self._ready[number] = request
                continue
            errors = {sample: self._errors.pop(sample) for sample in samples if sample in self._errors}
            reports = [self._done.pop(sample) for sample in samples if sample in self._done]
            blocks = [self._blocks.pop(sample, None) for sample in samples]
            spent_ns = [one.spent_ns for one in reports]
            request = CollateRequest(self.output, samples, keys, spent_ns, reports, blocks, rows)
            if errors:
                self._ready[number] = self._freed(request).failed_with(next(iter(errors.values())))
            elif self._collates and rows is None:
                self._collating[number] = request
                self._uncollated.append(number)
                self._ready[number] = None
            else:
                self._ready[number] = request
        for number, ready in list(self._ready.items()):
            if ready is not None:
                del self._ready[number]
                self.shipped += 1
                yield ready
            elif self._strict:
                return

    def release(self) -> None:
        """Give back all memory, once no worker writes to it any more."""
        blocks = [*self._blocks.values(), *self._spares.values()]
        blocks += [rows.block for _, rows in self._rows.values() if rows is not None]
        for request in [*self._collating.values(), *self._ready.values()]:
            blocks += request.memory() if request is not None else ()
        blocks += [block for _, block, _ in self._bundled.values() if block is not None]
        for block in blocks:
            self._arena.free(block)
        for held in (self._blocks, self._spares, self._rows, self._collating, self._ready, self._bundled):
            held.clear()

    def _take_bundle(self, first: int) -> Bundle:
        bundle = self._bundles.pop(first)
        self.outstanding.difference_update(bundle.samples)
        self._leave(first, None)
        return bundle

    def _freed(self, request: CollateRequest) -> CollateRequest:
        for block in request.memory():
            self._arena.free(block)
        return request

    def _put_error(self, sample: int, row: Row) -> None:
        self._leave(sample, None)
        self.balancer.finish(sample, row)

    def _leave(self, sample: int, block: Block | None) -> None:
        self.outstanding.discard(sample)
        self._parked.pop(sample, None)
        for held in (self._blocks, self._spares):
            old = held.pop(sample, None)
            if old is not None:
                self._arena.free(old)
        if block is not None:
            self._blocks[sample] = block

    def _with_input(self, task: Task, value: object) -> bytes:
        """Return a task's record with what it is about, in the record where that is short, else in a block."""
        packed = pack_key(value)
        if not fits(packed):
            block = self._blocks[task.sample] = self._arena.allocate(len(packed))
            self._arena.map[block.offset : block.offset + len(packed)] = packed
            task = task._replace(offset=block.offset, nbytes=len(packed))
        return task.pack(packed)

    def _with_spare(self, task: Task, guess: SizeGuess | None) -> Task:
        if guess is None or not guess.nbytes or task.base >= 0:
            return task
        block = self._spares[task.sample] = self._arena.allocate(guess.nbytes)
        return task._replace(spare=block.offset, spare_nbytes=block.size)

    def _memory(self, batch: int, spec: Spec | None) -> tuple[int, int]:
        """Return a batch's rows and where its memory begins, -1 where samples are not known to have one shape."""
        rows, memory = self._rows[batch]
        if memory is None and spec is not None and batch not in self._begun:
            memory = Rows(self._arena.allocate(offsets(spec, rows)[1]), spec, rows)
            self._rows[batch] = rows, memory
        self._begun.add(batch)
        return rows, memory.block.offset if memory else -1


class SizeGuess:
    """The largest of the recent sizes, and some more."""

    def __init__(self) -> None:
        self._largest = 0.0

    @property
    def nbytes(self) -> int:
        """What the next one takes at most, as a rule; 0 before the first one."""
        return int(_MARGIN * self._largest)

    def learn(self, nbytes: int) -> None:
        """Note what one has taken."""
        self._largest = max(float(nbytes), _FORGETS * self._largest)
