"""The sample-aware loader over files: slow samples make way, and come as soon as they are ready."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator
from typing import Any

import numpy as np

from loaders.base import Batch, LoaderStats, Samples
from loaders.pipeline.callables import AnyTransform, as_pipeline
from loaders.sample_aware.coordinator.engine import Engine
from loaders.sample_aware.coordinator.stats import ShowsHistory, Stats
from loaders.sample_aware.options import SampleAwareOptions
from loaders.sample_aware.policy.balancer import Order
from loaders.sample_aware.workers.jobs import PipelineJob
from loaders.shared.device import DeviceTransfer, InTransfer
from loaders.shared.file_loader import FileLoader
from loaders.shared.options import takes_options


class SampleAwareLoader(ShowsHistory, FileLoader):
    """MinatoLoader's design (its paper, sections 4.1 to 4.3) in worker processes.

    A sample over its timeout is slow: it makes way for new ones between two transforms, others go on with it later,
    and no transform is run twice.
    """

    @takes_options(SampleAwareOptions)
    def __init__(self, *, samples: Samples, transform: AnyTransform, **keywords: Any) -> None:
        """Check the arguments; raise LoaderConfigError.

        With on_error "skip" another sample takes the place of one that fails.

        Args:
            samples: the files.
            transform: a pipeline, or a callable on the decoded sample.
        """
        options = SampleAwareOptions(**keywords)
        super().__init__(samples, options)
        transform = as_pipeline(transform)
        self._job = PipelineJob(samples, transform, options.seed)
        self.notes = _notes(len(transform.transforms), options.order)
        self._settings = options.settings(options.num_workers, options.prefetch_factor, options.order, options.on_error)
        self._context = multiprocessing.get_context(options.start_method)
        self._run_stats = Stats(self._job.stages)
        self._engine: Engine | None = None

    def stats(self) -> LoaderStats:
        """Return the counts so far.

        `wait_s` is the time spent waiting for batches, the start of an epoch included. Of every stage STAGE_count and
        STAGE_mean_s; of every queue QUEUE_queue_mean and QUEUE_queue_most: samples that workers hold (running), that
        are parked (temp), that are slow and not done (slow), and batches that are ready (batch); slow_share,
        slow_samples, parked_samples; the timeout_s in force and the percentile that it is; the number of workers now.
        """
        self._note()
        return self._stats

    def close(self) -> None:
        """End the workers, in the middle of a transform too."""
        self._closed = True
        self._note()
        if self._engine is not None:
            self._engine.close()

    def _batches(self, epoch: int) -> Iterator[Batch]:
        """Make the epoch's batches; raises SampleError naming a sample, WorkerError naming a worker's pid."""
        if self._engine is None:
            finish = None if self._device.type == "cpu" else DeviceTransfer(self._device).start
            self._engine = Engine(self._job, self._settings, self._run_stats, finish, self._context)
        engine = self._engine
        order, size = self._share.order(epoch).tolist(), self._options.batch_size
        running = engine.epoch(
            [(epoch, sample_id) for sample_id in order[start : start + size]] for start in range(0, len(order), size)
        )
        try:
            while True:
                try:
                    made = running.next()
                except BaseException:
                    if engine.coordinator.error is not None:
                        self.close()
                    raise
                if made is None:
                    return
                tensors = made.value.wait() if isinstance(made.value, InTransfer) else made.value
                ids = np.array([sample_id for _, sample_id in made.keys], np.int64)
                batch = self._batch(ids, tensors, np.array(made.work_ns) * 1e-9)
                del made, tensors
                yield batch
                del batch
        finally:
            running.close()

    def _note(self) -> None:
        failed = self._engine.coordinator.failed if self._engine is not None else None
        while failed:
            (_, sample_id), why = failed.popleft()
            self._stats.skip(sample_id, why)
        found = self._run_stats.details()
        # FileLoader's own count includes the start of an epoch.
        del found["wait_s"]
        self._stats.details.update(found)
        if self.timeout_history:
            latest = self.timeout_history[-1]
            self._stats.details["timeout_s"] = latest.timeout_s
            self._stats.details["timeout_percentile"] = float(latest.percentile or 0)


def _notes(transforms: int, order: Order) -> tuple[str, ...]:
    notes = []
    if order == "arrival":
        notes.append("batches are of the samples that were done first")
    if transforms < 2 and order == "arrival":
        notes.append("the pipeline has one transform: a slow sample makes way before it or after it, not within it")
    return tuple(notes)
