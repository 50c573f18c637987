"""From raw batches to tensors in processes beside this one: any pipeline, a part of every batch in each."""

from __future__ import annotations

import pickle
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
import torch

from loaders.errors import LoaderError, SampleError
from loaders.pipeline import Item, Pipeline, StageTimes
from loaders.records.decoding.decoder import DecodedBatch, collate_batch
from loaders.records.decoding.pool import WorkerPool, send_back, this_worker
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
        self._monitor = StallMonitor(pipeline, workers, processes=True)
        self._pool = WorkerPool(
            pipeline,
            pipeline,
            count=workers,
            seed=seed,
            monitor=self._monitor,
            setting="decode=torch-process",
            instead="decode=torch",
        )
        self._pool.start()

    @property
    def pending(self) -> int:
        """Batches submitted and not yet collected."""
        return len(self._pending)

    def submit(self, raw: RawBatch) -> None:
        """Start to decode a batch."""
        ids, rows = raw.ids.tolist(), read_rows(raw)
        records = [
            _RecordToDecode(sample_id, row.label, bytes(row.content), row.at, len(row.payload))
            for sample_id, row in zip(ids, rows, strict=True)
        ]
        places = [each for each in np.array_split(np.arange(len(raw)), self._workers) if len(each)]
        self._pool.start()
        try:
            parts = [
                self._pool.submit(_decode, raw.epoch, records[int(each[0]) : int(each[-1]) + 1]) for each in places
            ]
        except BrokenProcessPool as error:
            dead = self._pool.death()
            self.close(kill=True)
            raise dead from error
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
            batch.parts.clear()  # each has the error, whose traceback has this frame
            raise self._pool.death() from error

    def reset(self) -> None:
        """Drop the pending batches; what the processes have started of them, they end first."""
        while self._pending:
            for part in self._pending.popleft().parts:
                part.cancel()

    def interrupt(self) -> None:
        """End the processes, and so a `collect` that waits for them."""
        self._pool.kill()

    def close(self, *, kill: bool = False) -> None:
        """End the processes, at once if `kill`; the next batch submitted starts others."""
        self._pending.clear()
        self._pool.close(kill=kill)


def _decode(epoch: int, records: Sequence[_RecordToDecode]) -> bytes:
    """Run the pipeline over samples; return the pickled outcome of each."""
    pipeline, seed, number, monitor = this_worker()
    rows = {
        each.sample_id: ReceivedSample(memoryview(each.content), each.label, each.file, each.size) for each in records
    }
    work = SampleProcessor(ReceivedSamples(rows), pipeline, seed, workers=1, processes=False, monitor=monitor)
    done = []
    for sample_id in rows:
        try:
            loaded = work.load(number, epoch, sample_id)
            done.append(_DecodedSample(loaded.item, loaded.ns, ""))
        except SampleError as error:
            done.append(_DecodedSample(None, 0, str(error)))
    return send_back(done)
