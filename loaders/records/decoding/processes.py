"""From raw batches to tensors in processes beside this one: any pipeline, a part of every batch in each."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import Pipe
from pathlib import Path
from typing import Final

import numpy as np
import torch

from joulefeed.child import GRACE_S, Child
from loaders.errors import LoaderConfigError, LoaderError, SampleError, WorkerError
from loaders.pipeline import Pipeline, StageTimes, stage_name
from loaders.records.decoding.decoder import LOOKAHEAD, Outcome, collate_batch
from loaders.records.decoding.received import ReceivedSamples, read_rows
from loaders.records.decoding.worker import Done, Job, JobResult, Part, SharedMemory, load
from loaders.records.raw_batch import RawBatch
from loaders.shared.options import OnError
from loaders.shared.processor import Failed, Loaded, SampleProcessor
from loaders.shared.stall_monitor import MONITOR_BYTES, StallMonitor

_WORKER: Final = "from loaders.records.decoding.worker import main; main()"
"""What a decoding process runs: as a module of its own name, so that both sides pickle the same classes."""
_POLLS: Final = 4
"""How often within `timeout_s` the workers are looked at."""


class _Worker:
    """A process that runs the pipeline over a part of every batch."""

    def __init__(self, first: tuple[object, ...], watch: SharedMemory, records: Sequence[SharedMemory]) -> None:
        """Start it; `first` is its first message, `records` the memory of the slots that it reads from."""
        self._items = [SharedMemory() for _ in records]
        memory = [watch, *(each for pair in zip(records, self._items, strict=True) for each in pair)]
        self._connection, theirs = Pipe()
        descriptors = [theirs.fileno(), *(each.descriptor for each in memory)]
        with theirs:
            self._child = Child(
                [sys.executable, "-c", _WORKER, *map(str, descriptors)],
                stdin=subprocess.DEVNULL,
                stdout=2,
                pass_fds=descriptors,
                # It has to find the same modules, wherever this process was started.
                env=os.environ | {"PYTHONPATH": os.pathsep.join(path or str(Path.cwd()) for path in sys.path)},
            )
        self.send(first)

    def send(self, message: tuple[object, ...]) -> None:
        """Send a message; raise WorkerError when the process is gone."""
        try:
            self._connection.send(message)
        except ConnectionError as error:
            raise self._make_error() from error

    def receive(self, slot: int, timeout_s: float | None, late: Callable[[], None]) -> list[Done]:
        """Wait for the oldest job, which is of this slot, and call `late` now and then; return its samples.

        Raises LoaderError when it cannot be done, WorkerError when the process is gone.
        """
        try:
            while timeout_s is not None and not self._connection.poll(timeout_s / _POLLS):
                late()
            result: JobResult = self._connection.recv()
        except (EOFError, ConnectionError) as error:
            raise self._make_error() from error
        if result.refusal:
            raise LoaderError(f"decode=torch-process: {result.refusal}; use decode=torch, whose threads need no copy")
        return load(self._items[slot], result)

    def _make_error(self) -> WorkerError:
        return WorkerError(
            f"the streaming loader's decoding process (pid {self._child.pid}) {self._child.describe_end()}"
        )

    def kill(self) -> None:
        """Kill the process."""
        self._child.signal(signal.SIGKILL)

    def hang_up(self) -> None:
        """Ask the process to end."""
        self._connection.close()

    def join(self) -> None:
        """Wait for its end."""
        with suppress(subprocess.TimeoutExpired):
            self._child.process.wait(GRACE_S)
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
        workers: int,
        on_error: OnError = "raise",
        timeout_s: float | None = None,
    ) -> None:
        """Start so many processes; raises LoaderConfigError for a pipeline that cannot be sent to them."""
        self._pipeline, self._seed, self._device, self._num_workers = pipeline, seed, device, workers
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
        ids, rows = raw.ids.tolist(), read_rows(raw)
        ends = np.cumsum([len(row.content) for row in rows]).tolist()
        memory = self._records[slot].view(max(1, ends[-1]))
        parts = []
        for sample_id, row, end in zip(ids, rows, ends, strict=True):
            begin = end - len(row.content)
            memory[begin:end] = row.content
            parts.append(Part(sample_id, row.label, begin, len(row.content), row.at, len(row.payload)))
        busy = []
        for worker, places in zip(self._workers, np.array_split(np.arange(len(raw)), self._num_workers), strict=True):
            if len(places):
                job = Job(slot, raw.epoch, parts[int(places[0]) : int(places[-1]) + 1])
                try:
                    worker.send(job)
                except WorkerError:
                    self.close()
                    raise
                busy.append(worker)
        samples = ReceivedSamples(dict(zip(ids, rows, strict=True)))
        work = SampleProcessor(samples, self._pipeline, self._seed, workers=1, processes=False)
        self._pending.append(_Pending(work, samples, ids, slot, busy))

    def collect(self) -> Outcome:
        """Return the oldest batch; raise SampleError naming the sample that failed, or is late, or WorkerError."""
        oldest = self._pending.popleft()
        try:
            done = self._receive(oldest)
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
        # The tensors are copies: the items' memory is that of the next batch but one.
        return collate_batch(oldest.work, 0, oldest.samples, loaded, failed, self._device)

    def _receive(self, batch: _Pending) -> list[Done]:
        def late() -> None:
            assert self._timeout_s is not None and self._watch is not None
            if (found := self._watch.overdue(self._timeout_s)) is not None:
                raise batch.work.timeout_error(found, f"worker {found.worker}")

        return [one for worker in batch.busy for one in worker.receive(batch.slot, self._timeout_s, late)]

    def reset(self) -> None:
        """Wait for the pending batches and drop them: processes take longer to start than a batch."""
        while self._pending:
            try:
                self._receive(self._pending.popleft())
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
            pickled = pickle.dumps(self._pipeline)
        except Exception as error:  # pickling a user's class may raise anything
            raise LoaderConfigError(
                f"decode=torch-process: {stage_name(self._pipeline)} cannot be sent to another process: {error}; "
                "define it by name in a module, or use decode=torch"
            ) from error
        try:
            watch, *self._records = self._memory = [SharedMemory() for _ in range(1 + LOOKAHEAD)]
            size = self._num_workers * MONITOR_BYTES
            self._watch = StallMonitor(self._pipeline, self._num_workers, processes=True, memory=watch.map(size))
            for number in range(self._num_workers):
                first = (pickled, self._seed, number, self._num_workers)
                self._workers.append(_Worker(first, watch, self._records))
        except BaseException:
            self.close()
            raise
