"""From raw batches to tensors in processes beside this one: any pipeline, a part of every batch in each."""

from __future__ import annotations

import pickle
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from multiprocessing.queues import SimpleQueue
from typing import Final, NamedTuple

import numpy as np
import torch

from loaders.errors import LoaderConfigError, LoaderError, SampleError, WorkerError
from loaders.pipeline import Item, Pipeline, StageTimes, stage_name
from loaders.records.decoding.decoder import DecodedBatch, collate_batch
from loaders.records.decoding.pool import begin_numbered_worker, kill_workers, pickle_items, start_pool
from loaders.records.decoding.received import ReceivedSample, ReceivedSamples, read_rows
from loaders.records.raw_batch import RawBatch
from loaders.shared.options import OnError
from loaders.shared.processor import Failed, Loaded, SampleProcessor
from loaders.shared.stall_monitor import StallMonitor

_POLLS: Final = 4
"""How often within `timeout_s` the workers are looked at."""


class _RecordToDecode(NamedTuple):
    """A sample as it is sent to a process."""

    sample_id: int
    label: int
    content: bytes
    file: int
    """Where its file begins in the record."""
    size: int


class _DecodedSample(NamedTuple):
    """What a process has made of a sample."""

    item: Item | None
    """None where it failed."""
    ns: int
    """Duration from reading on."""
    why: str


@dataclass(frozen=True, slots=True)
class _BatchInProcesses:
    work: SampleProcessor
    samples: ReceivedSamples
    ids: list[int]
    parts: list[Future[bytes]]


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
        self._pipeline, self._seed, self._device, self._workers = pipeline, seed, device, workers
        self._on_error, self._timeout_s = on_error, timeout_s
        self._pending: deque[_BatchInProcesses] = deque()
        try:
            self._pickled = pickle.dumps(pipeline)
        except Exception as error:  # pickling a user's class may raise anything
            raise LoaderConfigError(
                f"decode=torch-process: {stage_name(pipeline)} cannot be sent to another process: {error}; "
                "define it by name in a module, or use decode=torch"
            ) from error
        self._pool: ProcessPoolExecutor | None = self._start()

    def _start(self) -> ProcessPoolExecutor:
        self._monitor = StallMonitor(self._pipeline, self._workers, processes=True)
        return start_pool(self._workers, _begin, self._pickled, self._seed, self._monitor)

    @property
    def pending(self) -> int:
        """Batches submitted and not yet collected."""
        return len(self._pending)

    def submit(self, raw: RawBatch) -> None:
        """Start to decode a batch."""
        if self._pool is None:
            self._pool = self._start()
        ids, rows = raw.ids.tolist(), read_rows(raw)
        records = [
            _RecordToDecode(sample_id, row.label, bytes(row.content), row.at, len(row.payload))
            for sample_id, row in zip(ids, rows, strict=True)
        ]
        places = [each for each in np.array_split(np.arange(len(raw)), self._workers) if len(each)]
        try:
            parts = [
                self._pool.submit(_decode, raw.epoch, records[int(each[0]) : int(each[-1]) + 1]) for each in places
            ]
        except BrokenProcessPool as error:
            self.close(kill=True)
            raise _worker_error() from error
        samples = ReceivedSamples(dict(zip(ids, rows, strict=True)))
        work = SampleProcessor(samples, self._pipeline, self._seed, workers=1, processes=False)
        self._pending.append(_BatchInProcesses(work, samples, ids, parts))

    def collect(self) -> DecodedBatch:
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
        return collate_batch(oldest.work, 0, oldest.samples, loaded, failed, self._device)

    def _receive(self, batch: _BatchInProcesses) -> list[_DecodedSample]:
        poll_s = None if self._timeout_s is None else self._timeout_s / _POLLS
        while wait(batch.parts, poll_s).not_done:
            assert self._timeout_s is not None
            if (late := self._monitor.overdue(self._timeout_s)) is not None:
                raise batch.work.timeout_error(late, f"worker {late.worker}")
        try:
            # From the processes that this one has started, over connections that only they have.
            return [one for part in batch.parts for one in pickle.loads(part.result())]  # noqa: S301
        except BrokenProcessPool as error:
            raise _worker_error() from error

    def reset(self) -> None:
        """Drop the pending batches; what the processes have started of them, they end first."""
        while self._pending:
            for part in self._pending.popleft().parts:
                part.cancel()

    def interrupt(self) -> None:
        """End the processes, and so a `collect` that waits for them."""
        if self._pool is not None:
            kill_workers(self._pool)

    def close(self, *, kill: bool = False) -> None:
        """End the processes, at once if `kill`; the next batch submitted starts others."""
        self._pending.clear()
        if self._pool is not None:
            if kill:
                self.interrupt()
            self._pool.shutdown(cancel_futures=True)
            self._pool = None


def _worker_error() -> WorkerError:
    return WorkerError("a decoding process was killed, by lack of memory perhaps; use fewer (num_threads)")


class _DecodingWorker(NamedTuple):
    """What a process has from its start on."""

    pipeline: Pipeline
    seed: int
    number: int
    monitor: StallMonitor


_worker: _DecodingWorker | None = None
_refusal = ""
"""Why this process can do nothing at all."""


def _begin(pickled: bytes, seed: int, numbers: SimpleQueue[int], monitor: StallMonitor) -> None:
    global _worker, _refusal  # noqa: PLW0603 - one worker a process
    number = begin_numbered_worker(seed, numbers)
    try:
        _worker = _DecodingWorker(pickle.loads(pickled), seed, number, monitor)  # noqa: S301
    except Exception as error:  # noqa: BLE001 - the modules of a pipeline may raise anything
        _refusal = f"the pipeline cannot be sent to another process: {type(error).__name__}: {error}"


def _decode(epoch: int, records: Sequence[_RecordToDecode]) -> bytes:
    """Run the pipeline over samples; return the pickled outcome of each."""
    if _worker is None:
        raise LoaderError(f"decode=torch-process: {_refusal}; use decode=torch, whose threads need no copy")
    rows = {
        each.sample_id: ReceivedSample(memoryview(each.content), each.label, each.file, each.size) for each in records
    }
    work = SampleProcessor(
        ReceivedSamples(rows), _worker.pipeline, _worker.seed, workers=1, processes=False, monitor=_worker.monitor
    )
    done = []
    for sample_id in rows:
        try:
            loaded = work.load(_worker.number, epoch, sample_id)
            done.append(_DecodedSample(loaded.item, loaded.ns, ""))
        except SampleError as error:
            done.append(_DecodedSample(None, 0, str(error)))
    try:
        return pickle_items(done)
    except (pickle.PicklingError, TypeError, AttributeError) as error:
        raise LoaderError(
            f"decode=torch-process: the items of the pipeline cannot be sent to another process: {error}; "
            "use decode=torch, whose threads need no copy"
        ) from error
