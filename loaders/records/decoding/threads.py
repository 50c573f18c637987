"""From raw batches to tensors in threads: any pipeline, sample by sample, as the loaders of files run it."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass
from typing import Any, Final

import torch

from loaders.errors import LoaderError, SampleError
from loaders.pipeline import Pipeline
from loaders.records.decoding.decoder import DecodedBatch, collate_batch
from loaders.records.decoding.received import ReceivedSamples, read_rows
from loaders.records.raw_batch import RawBatch
from loaders.shared.options import OnError
from loaders.shared.processor import Failed, Loaded, SampleProcessor
from loaders.shared.threads import DaemonThreads, thread_number

_POLLS: Final = 4
"""How often within `timeout_s` the threads are looked at."""


@dataclass(frozen=True, slots=True)
class _BatchInThreads:
    work: SampleProcessor
    samples: list[Future[Loaded]]
    batch: Future[DecodedBatch]


class TorchDecoder:
    """Runs a pipeline in a pool of threads, which join the batches too."""

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
        self._pipeline, self._seed, self._device = pipeline, seed, device
        self._num_threads, self._on_error, self._timeout_s = workers, on_error, timeout_s
        self._threads: DaemonThreads | None = self._start()
        self._pending: deque[_BatchInThreads] = deque()
        self._interrupted: Future[None] = Future()

    def _start(self) -> DaemonThreads:
        return DaemonThreads(self._num_threads, "streaming-decode")

    @property
    def pending(self) -> int:
        """Batches submitted and not yet collected."""
        return len(self._pending)

    def submit(self, raw: RawBatch) -> None:
        """Start to decode a batch."""
        if self._threads is None:
            self._threads = self._start()
        ids = raw.ids.tolist()
        samples = ReceivedSamples(dict(zip(ids, read_rows(raw), strict=True)))
        work = SampleProcessor(samples, self._pipeline, self._seed, workers=self._num_threads, processes=False)
        jobs = [self._threads.submit(_load, work, raw.epoch, sample_id) for sample_id in ids]
        # Behind its samples in the pool's queue, so what it waits for is done, or under way in another thread.
        self._pending.append(_BatchInThreads(work, jobs, self._threads.submit(self._join, work, samples, ids, jobs)))

    def _join(
        self, work: SampleProcessor, samples: ReceivedSamples, ids: Sequence[int], jobs: list[Future[Loaded]]
    ) -> DecodedBatch:
        loaded, failed = [], []
        for sample_id, job in zip(ids, jobs, strict=True):
            try:
                loaded.append(job.result())
            except SampleError as error:
                if self._on_error == "raise":
                    raise
                failed.append(Failed(sample_id, str(error)))
        jobs.clear()  # which hold every sample a second time, beside its batch
        return collate_batch(work, thread_number(), samples, loaded, failed, self._device)

    def collect(self) -> DecodedBatch:
        """Return the oldest batch.

        Raises SampleError naming the sample that failed or is late, LoaderError when the loader is closed meanwhile.
        """
        oldest = self._pending.popleft()
        poll_s = None if self._timeout_s is None else self._timeout_s / _POLLS
        ends: tuple[Future[Any], ...] = (oldest.batch, self._interrupted)
        while not wait(ends, poll_s, FIRST_COMPLETED).done:
            assert self._timeout_s is not None
            if (late := oldest.work.monitor.overdue(self._timeout_s)) is not None:
                self.close()  # a thread that hangs is left behind
                raise oldest.work.timeout_error(late, f"thread {late.worker}")
        if not oldest.batch.done():
            raise LoaderError("the loader was closed while a batch was decoded")
        return oldest.batch.result()

    def reset(self) -> None:
        """Drop the pending batches."""
        while self._pending:
            forgotten = self._pending.popleft()
            for job in list(forgotten.samples):
                job.cancel()
            forgotten.batch.cancel()

    def interrupt(self) -> None:
        """End a `collect` that another thread is in."""
        if not self._interrupted.done():
            self._interrupted.set_result(None)

    def close(self) -> None:
        """End the threads; the next batch submitted starts others."""
        self.reset()
        if self._threads is not None:
            self._threads.shutdown(cancel_futures=True)
            self._threads = None


def _load(work: SampleProcessor, epoch: int, sample_id: int) -> Loaded:
    return work.load(thread_number(), epoch, sample_id)
