"""The sample-aware loader over files: slow samples make way, and come as soon as they are ready."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from loaders.base import Batch, LoaderStats, Samples
from loaders.errors import LoaderError
from loaders.options import OnError, Remainder
from loaders.pipeline import Item, StageTimes, Tensors
from loaders.pipelines.callables import AnyTransform, as_pipeline
from loaders.sample_aware.coordinator.engine import Engine, Policy
from loaders.sample_aware.coordinator.stats import Stats
from loaders.sample_aware.coordinator.thread import Settings
from loaders.sample_aware.ipc import nontemporal_copy
from loaders.sample_aware.options import DEFAULT_BYTES, ahead_of, check_order, scheduler_of
from loaders.sample_aware.policy.balancer import Order
from loaders.sample_aware.policy.scheduler import Decision
from loaders.sample_aware.policy.timeout import SlowTimeout, TimeoutChange
from loaders.sample_aware.workers.jobs import PipelineJob
from loaders.sample_aware.workers.pool import start_context
from loaders.shared.device import DeviceTransfer, InTransfer
from loaders.shared.file_loader import FileLoader
from loaders.shared.files import encoded_bytes
from loaders.shared.processor import Collated, Loaded, SampleProcessor

__all__ = ["SampleAwareLoader"]


class SampleAwareLoader(FileLoader):
    """MinatoLoader's design (its paper, sections 4.1 to 4.3) in worker processes.

    A sample over its timeout is slow: it makes way for new ones between two transforms, others go on with it later,
    and no transform is run twice.
    """

    def __init__(
        self,
        *,
        samples: Samples,
        transform: AnyTransform,
        batch_size: int,
        seed: int,
        device: str = "cpu",
        num_workers: int = 4,
        prefetch_factor: int = 2,
        order: Order = "arrival",
        slow_timeout_s: float | None = None,
        warm_up: int = 32,
        min_workers: int | None = None,
        max_workers: int | None = None,
        alpha: float = 2.0,
        beta: float = 1.0,
        theta_c: float = 0.7,
        most_bytes: int = DEFAULT_BYTES,
        start_method: str | None = None,
        rank: int | None = None,
        world_size: int | None = None,
        remainder: Remainder | None = None,
        sample_timeout_s: float | None = None,
        on_error: OnError = "raise",
    ) -> None:
        """Check the arguments; raise LoaderConfigError.

        `num_workers` processes work on up to `prefetch_factor` batches for each of them, which all of them fill
        together, within `most_bytes` of shared memory. `order` is "arrival", first come, first used, or "strict", the
        epoch's own order. `slow_timeout_s` sets the timeout that is else profiled over the first `warm_up` samples and
        adjusted. `min_workers` and `max_workers` let the scheduler change the number of workers, by formulas 1 and 2
        of the paper with their `alpha`, `beta` and `theta_c`. `start_method` is fork, spawn or forkserver, None for the
        usual one. `rank`, `world_size` and `remainder` share the samples among
        ranks, see `Share`. A sample that is at work for more than `sample_timeout_s` seconds ends the epoch and the
        loader. With on_error "skip" a sample that fails is left out and told in `stats`; another takes its place.
        """
        transform = as_pipeline(transform)
        super().__init__(
            samples,
            device,
            batch_size=batch_size,
            seed=seed,
            rank=rank,
            world_size=world_size,
            remainder=remainder,
            sample_timeout_s=sample_timeout_s,
            on_error=on_error,
            num_workers=(num_workers, 1),
            prefetch_factor=(prefetch_factor, 1),
            warm_up=(warm_up, 1),
            most_bytes=(most_bytes, 1),
        )
        check_order(order)
        start_context(start_method)
        self._job = PipelineJob(samples, transform, seed)
        self.notes = _notes(len(transform.transforms), order)
        work = SampleProcessor(samples, transform, seed, workers=1, processes=False)
        # A pipeline of the user's own may do anything with the samples.
        in_place = str(transform.collate.__module__).startswith("loaders.")
        self._collate = _Collate(work, seed, DeviceTransfer(self._device), in_place=in_place)
        ahead = ahead_of(num_workers, prefetch_factor)
        self._settings: dict[str, Any] = {
            "workers": num_workers,
            "policy": Policy(order, ahead),
            "settings": Settings(
                most_bytes,
                sample_timeout_s,
                scheduler_of(num_workers, min_workers, max_workers, alpha=alpha, beta=beta, theta_c=theta_c),
                queue_size=ahead,
                on_error=on_error,
            ),
            "start_method": start_method,
        }
        self._details = Stats(self._job.stages)
        self._timeout = SlowTimeout(warm_up=warm_up, fixed_s=slow_timeout_s)
        self._engine: Engine | None = None
        self._epochs = 0
        # Compiled here, where it is outside of every epoch.
        nontemporal_copy.library()

    @property
    def timeout_history(self) -> Sequence[TimeoutChange]:
        """The timeouts above which samples were slow, from the end of the warm-up on."""
        return tuple(self._timeout.history)

    @property
    def decisions(self) -> Sequence[Decision]:
        """Everything that the scheduler has decided."""
        return tuple(self._details.decisions)

    @property
    def workers_over_time(self) -> Sequence[tuple[float, int]]:
        """Seconds since the loader was made, and their number from then on."""
        return tuple(self._details.workers)

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
            self._engine = Engine(
                self._job, self._collate, timeout=self._timeout, stats=self._details, **self._settings
            )
        engine = self._engine
        self._epochs += 1
        this = self._epochs
        order = self._share.order(epoch).tolist()
        size = self._batch_size
        running = engine.epoch(
            [(epoch, sample_id) for sample_id in order[start : start + size]] for start in range(0, len(order), size)
        )
        try:
            while True:
                if this != self._epochs:
                    raise LoaderError("another epoch was begun: its batches are not this one's")
                try:
                    built = running.next()
                except BaseException:
                    if engine.coordinator.error is not None:
                        self.close()
                    raise
                if built is None:
                    return
                collated, copied = built.value
                data, labels, extra = copied.wait()
                batch = Batch(
                    collated.ids, data, labels, encoded_bytes(self._samples, collated.ids), extra, collated.work_s
                )
                del built, collated, copied, data, labels, extra
                yield batch
                del batch
        finally:
            running.close()

    def _note(self) -> None:
        failed = self._engine.coordinator.failed if self._engine is not None else None
        while failed:
            (_, sample_id), why = failed.popleft()
            self._stats.skip(sample_id, why)
        found = self._details.details()
        # What is counted of all loaders has the start of an epoch in it.
        del found["wait_s"]
        self._stats.details.update(found)
        if self._timeout.history:
            latest = self._timeout.history[-1]
            self._stats.details["timeout_s"] = latest.timeout_s
            self._stats.details["timeout_percentile"] = float(latest.percentile or 0)


class _Collate:
    """The pipeline's collation, and the beginning of the batch's way to the device; knows nothing of the loader."""

    def __init__(self, work: SampleProcessor, seed: int, side: DeviceTransfer, *, in_place: bool) -> None:
        self._work, self._seed, self._side, self.in_place = work, seed, side, in_place
        """Whether a batch may share memory with its samples."""

    def __call__(
        self, keys: Sequence[tuple[int, int]], samples: Sequence[Any], work_ns: Sequence[int]
    ) -> tuple[Collated, InTransfer[Tensors]]:
        loaded = [
            Loaded(Item(sample_id, self._seed, epoch, *sample), ns, StageTimes())
            for (epoch, sample_id), sample, ns in zip(keys, samples, work_ns, strict=True)
        ]
        collated = self._work.collate(0, loaded)
        return collated, self._side.start(collated.tensors)

    @property
    def finishes(self) -> bool:
        """No."""
        return False

    def finish(self, batch: tuple[Collated, InTransfer[Tensors]]) -> tuple[Collated, InTransfer[Tensors]]:
        """Return it as it is."""
        return batch


def _notes(transforms: int, order: Order) -> tuple[str, ...]:
    notes = []
    if order == "arrival":
        notes.append("batches are of the samples that were done first")
    if transforms < 2 and order == "arrival":
        notes.append("the pipeline has one transform: a slow sample makes way before it or after it, not within it")
    return tuple(notes)
