"""From raw batches to tensors in processes beside this one: any pipeline, a part of every batch in each."""

from __future__ import annotations

import os
import pickle
import select
import signal
import sys
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgpack
import numpy as np
import torch

from energymon.system.child import Child
from loaders.base import Batch
from loaders.errors import LoaderConfigError, LoaderError, SampleError, WorkerError
from loaders.options import OnError
from loaders.pipeline import Pipeline, StageTimes, stage_name
from loaders.shared.processor import Failed, Loaded, SampleProcessor
from loaders.shared.stall_monitor import MONITOR_BYTES, StallMonitor
from loaders.streaming.decoding.decoder import LOOKAHEAD, Outcome, pinned
from loaders.streaming.decoding.memory import SharedMemory
from loaders.streaming.decoding.messages import Answer, Done, Job, Part, load, read_message, write_message
from loaders.streaming.decoding.received import ReceivedSamples, received, rows_of
from loaders.streaming.receiver.batch import RawBatch

__all__ = ["ProcessDecoder"]

_POLLS: Final = 4
"""How often within `timeout_s` the workers are looked at."""


class _Worker:
    """A process that runs the pipeline over a part of every batch."""

    def __init__(self, told: bytes, watch: SharedMemory, records: Sequence[SharedMemory]) -> None:
        """Start it; `told` is what it is told first, `records` the memory of the slots that it reads from."""
        self._items = [SharedMemory() for _ in records]
        memory = [watch, *(each for pair in zip(records, self._items, strict=True) for each in pair)]
        descriptors = [each.descriptor for each in memory]
        self._child = Child(
            [sys.executable, "-m", "loaders.streaming.decoding.worker", *map(str, descriptors)],
            pass_fds=descriptors,
            # It has to find what this process finds, wherever that was started.
            env=os.environ | {"PYTHONPATH": os.pathsep.join(path or str(Path.cwd()) for path in sys.path)},
        )
        self.send(told)

    def send(self, message: bytes) -> None:
        """Send a message; raise WorkerError when the process is gone."""
        try:
            write_message(self._child.input_fd, message)
        except BrokenPipeError as error:
            raise self._dead() from error

    def receive(self, slot: int, timeout_s: float | None, late: Callable[[], None]) -> list[Done]:
        """Wait for the oldest job, which is of this slot, and call `late` now and then; return its samples.

        Raises LoaderError when it cannot be done, WorkerError when the process is gone.
        """
        pipe = self._child.output_fd

        def wait() -> None:
            while timeout_s is not None and not select.select([pipe], [], [], timeout_s / _POLLS)[0]:
                late()

        message = read_message(pipe, wait)
        if message is None:
            raise self._dead()
        answer = Answer(*msgpack.unpackb(message))
        if answer.refusal:
            raise LoaderError(f"decode=torch-process: {answer.refusal}; use decode=torch, whose threads need no copy")
        done: list[Done] = load(self._items[slot], answer.at, answer.nbytes)
        return done

    def _dead(self) -> WorkerError:
        return WorkerError(
            f"the streaming loader's decoding process (pid {self._child.pid}) {self._child.describe_end()}"
        )

    def kill(self) -> None:
        """Make the process end, whatever it is at."""
        self._child.signal(signal.SIGKILL)

    def hang_up(self) -> None:
        """Ask the process to end."""
        self._child.hang_up()

    def join(self) -> None:
        """Wait for its end."""
        self._child.stop(term_s=0)
        for memory in self._items:
            memory.close()


@dataclass(frozen=True, slots=True)
class _Pending:
    work: SampleProcessor
    samples: ReceivedSamples
    ids: list[int]
    slot: int
    busy: list[_Worker]


class ProcessDecoder:
    """Runs a pipeline over every batch in several processes at once, each a part of it, and joins the batches here."""

    notes: tuple[str, ...] = ()

    def __init__(
        self,
        pipeline: Pipeline,
        *,
        seed: int,
        device: torch.device,
        num_workers: int,
        on_error: OnError = "raise",
        timeout_s: float | None = None,
    ) -> None:
        """Start `num_workers` processes; raises LoaderConfigError for a pipeline that cannot be sent to them."""
        self._pipeline, self._seed, self._device, self._num_workers = pipeline, seed, device, num_workers
        self._on_error, self._timeout_s = on_error, timeout_s
        self._memory: list[SharedMemory] = []
        self._records: list[SharedMemory] = []
        self._watch: StallMonitor | None = None
        self._workers: list[_Worker] = []
        self._pending: deque[_Pending] = deque()
        self._submitted = 0
        self._start()

    @property
    def pending(self) -> int:
        """Batches submitted and not yet collected."""
        return len(self._pending)

    def submit(self, raw: RawBatch) -> None:
        """Start to decode a batch."""
        if not self._workers:
            self._start()
        slot = self._submitted % LOOKAHEAD
        self._submitted += 1
        ids, rows = raw.ids.tolist(), rows_of(raw)
        ends = np.cumsum([len(row.content) for row in rows]).tolist()
        memory = self._records[slot].view(max(1, ends[-1]))
        parts = []
        for sample_id, row, end in zip(ids, rows, ends, strict=True):
            begin = end - len(row.content)
            memory[begin:end] = row.content
            parts.append(Part(sample_id, row.label, begin, len(row.content), row.at, len(row.payload), row.whole))
        busy = []
        for worker, places in zip(self._workers, np.array_split(np.arange(len(raw)), self._num_workers), strict=True):
            if len(places):
                job = Job(slot, raw.epoch, parts[int(places[0]) : int(places[-1]) + 1])
                try:
                    worker.send(msgpack.packb(job))
                except WorkerError:
                    self.close()
                    raise
                busy.append(worker)
        samples = received(dict(zip(ids, rows, strict=True)))
        work = SampleProcessor(samples, self._pipeline, self._seed, workers=1, processes=False)
        self._pending.append(_Pending(work, samples, ids, slot, busy))

    def collect(self) -> Outcome:
        """Return the oldest batch; raise SampleError naming the sample that failed, or is late, or WorkerError."""
        oldest = self._pending.popleft()
        try:
            done = self._received(oldest)
        except LoaderError:
            self.close(kill=True)
            raise
        loaded, failed = [], []
        for sample_id, one in zip(oldest.ids, done, strict=True):
            if one.item is None:
                if self._on_error == "raise":
                    raise SampleError(one.why)
                failed.append(Failed(sample_id, one.why))
            else:
                loaded.append(Loaded(one.item, one.ns, StageTimes()))
        if not loaded:
            return Outcome(None, failed)
        # Joined from memory that the next batch but one goes into, so a batch may be kept as long as its user wants.
        made = oldest.work.collate(0, loaded)
        data, labels, extra = pinned(made.tensors, self._device)
        nbytes = sum(oldest.samples.rows[one.item.id].size for one in loaded)
        return Outcome(Batch(made.ids, data, labels, nbytes, extra, made.work_s), failed)

    def _received(self, batch: _Pending) -> list[Done]:
        def late() -> None:
            assert self._timeout_s is not None and self._watch is not None
            if (found := self._watch.overdue(self._timeout_s)) is not None:
                raise batch.work.timeout_error(found, f"worker {found.worker}")

        return [one for worker in batch.busy for one in worker.receive(batch.slot, self._timeout_s, late)]

    def reset(self) -> None:
        """Forget what is pending, once it is done: processes take longer to start than a batch takes them."""
        while self._pending:
            try:
                self._received(self._pending.popleft())
            except LoaderError:
                self.close(kill=True)

    def interrupt(self) -> None:
        """End the processes, and so a `collect` that waits for them."""
        for worker in list(self._workers):
            worker.kill()

    def close(self, *, kill: bool = False) -> None:
        """End the processes, at once if `kill`; the next batch submitted starts others."""
        self._pending.clear()
        self._submitted = 0
        for worker in self._workers:
            worker.hang_up()
            if kill:
                worker.kill()
        while self._workers:
            self._workers.pop().join()
        self._watch = None
        while self._memory:
            self._memory.pop().close()
        self._records = []

    def _start(self) -> None:
        try:
            told = pickle.dumps(self._pipeline)
        except Exception as error:  # what is pickled may raise what it likes
            raise LoaderConfigError(
                f"decode=torch-process: {stage_name(self._pipeline)} cannot be sent to another process: {error}; "
                "define it by name in a module, or use decode=torch"
            ) from error
        try:
            watch, *self._records = self._memory = [SharedMemory() for _ in range(1 + LOOKAHEAD)]
            size = self._num_workers * MONITOR_BYTES
            self._watch = StallMonitor(self._pipeline, self._num_workers, processes=True, memory=watch.mapped(size))
            for number in range(self._num_workers):
                first = pickle.dumps((told, self._seed, number, self._num_workers))
                self._workers.append(_Worker(first, watch, self._records))
        except BaseException:
            self.close()
            raise
