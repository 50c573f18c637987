"""One epoch as a pipeline of SPDL's: samples are read, transformed, aggregated and collated, each a stage."""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import Executor
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any, Final, Literal, TypeAlias

import numpy as np
import numpy.typing as npt
from pydantic import Field
from spdl.pipeline import AsyncQueue, Pipeline, PipelineBuilder, PipelineFailure, StageInfo, create_task

from loaders.base import Batch
from loaders.errors import LoaderConfigError, LoaderError, SampleError, SampleTimeoutError
from loaders.shared.device import InTransfer
from loaders.shared.options import Count, LoaderOptions
from loaders.shared.processor import Collated, Failed, Failures, Loaded, Read, SampleProcessor
from loaders.shared.stage_table import StageTable
from loaders.shared.stall_monitor import Stalled
from loaders.shared.threads import thread_number
from loaders.spdl.executors import Executors

_POLLS: Final = 4
"""How often within `timeout_s` the threads are looked at."""
_MAX_POLL_S: Final = 1.0
_STOP_S: Final = 10.0
"""SPDL's own limit for a pipeline that is stopped by the garbage collector."""


OutputOrder: TypeAlias = Literal["completion", "input"]
"""Whether a stage yields its outputs as they are done, or in the order of its inputs."""


class SpdlOptions(LoaderOptions):
    """What every loader takes, and SPDL's pipeline."""

    num_threads: Count = Field(
        default=4, description="threads, or processes, that load samples; threads collate batches as well"
    )
    executor: Literal["thread", "process"] = Field(
        default="thread",
        description='what loads samples: "thread", or "process", to which samples are pickled and from which they are '
        "pickled back; batches are collated in threads",
    )
    read_concurrency: Count | None = Field(
        default=None,
        description="samples that are read at a time, in a stage of their own; None reads a sample in the stage that "
        "decodes it, which takes less processor time",
    )
    acquire: Literal["threads", "coroutines"] = Field(
        default="threads",
        description='of the stage that reads: "threads" of its own, `read_concurrency` of them, or "coroutines", which '
        "await obstore, whose native threads read the files",
    )
    transform_concurrency: Count | None = Field(
        default=None, description="samples that are decoded and transformed at a time; None for `num_threads`"
    )
    collate_concurrency: Count = Field(default=1, description="batches that are collated at a time")
    output_order: OutputOrder = Field(
        default="completion",
        description='of every stage\'s outputs: "completion", first done, first out, or "input", in the epoch\'s own '
        "order",
    )
    buffer_size: Count = Field(default=3, description="batches kept ready")
    decode: Literal["pil", "spdl"] = Field(
        default="pil",
        description='of images alone: "pil" as other loaders, or "spdl", in which FFmpeg decodes, crops and resizes',
    )

    def model_post_init(self, context: object) -> None:
        """Check what several arguments say together; raises LoaderConfigError."""
        super().model_post_init(context)
        if self.acquire == "coroutines" and self.read_concurrency is None:
            raise LoaderConfigError("acquire=coroutines: needs read_concurrency, which makes a stage that reads")
        if self.executor == "process" and self.decode == "spdl":
            raise LoaderConfigError(
                "executor=process: FFmpeg's frames of decode=spdl cannot be sent to another process; use decode=pil"
            )


class SpdlEpoch:
    """Runs from when it is made until it is closed."""

    def __init__(
        self,
        work: SampleProcessor,
        ids: npt.NDArray[np.int64],
        *,
        epoch: int,
        options: SpdlOptions,
        executors: Executors,
        start_transfer: Callable[[Collated], InTransfer[Batch]],
        stages: StageTable,
    ) -> None:
        """Start the pipeline over the samples `ids`, in their order; `stages` gets the times of every stage."""
        self.failed = Failures()
        self._work, self._epoch, self._start_transfer, self._stages = work, epoch, start_transfer, stages
        self._expected, self._delivered = len(ids), 0
        self._on_error, self._timeout_s = options.on_error, options.sample_timeout_s
        self._executors = executors
        self._error: LoaderError | None = None
        """What ends the epoch, and is of no sample or of a whole batch."""
        # SPDL drops what fails, up to a number of failures. It also counts the failures of all stages together.
        max_failures = 0 if self._on_error == "raise" else len(ids)
        order = options.output_order
        builder: Any = PipelineBuilder().add_source(ids.tolist())
        for name, run, executor, concurrency in self._stages_of_samples(options):
            builder.pipe(
                run,
                name=name,
                executor=executor,
                concurrency=concurrency,
                max_failures=max_failures,
                output_order=order,
            )
        self._pipeline: Pipeline[InTransfer[Batch]] | None = (
            builder.aggregate(options.batch_size)
            .pipe(
                self._collate,
                name="collate",
                executor=executors.threads,
                concurrency=options.collate_concurrency,
                max_failures=0,
                output_order=order,
            )
            .add_sink(options.buffer_size)
            .build(
                # The threads are the loader's own: SPDL's would keep the process from ending while one of them hangs.
                num_threads=1,
                max_failures=max_failures,
                queue_class=type("CountedQueue", (_CountedQueue,), {"stages": stages}),
                task_hook_factory=lambda _: [],
            )
        )
        self._pipeline.start()

    def _stages_of_samples(
        self, options: SpdlOptions
    ) -> Iterator[tuple[str, Callable[..., object], Executor | None, int]]:
        """Yield the name, function, executor and concurrency of each stage; a coroutine function has no executor."""
        threads, reading, files, processes = self._executors
        at_a_time = options.transform_concurrency or options.num_threads
        if options.read_concurrency is not None:
            read = self._read if files is None else self._acquire
            yield "read", read, reading, options.read_concurrency
        name = "load" if options.read_concurrency is None else "transform"
        if processes is not None:
            yield name, self._load_in_process, None, at_a_time
        else:
            yield name, self._load if name == "load" else self._transform, threads, at_a_time

    def next(self) -> InTransfer[Batch] | None:
        """Return the next batch, perhaps still on its way to a GPU, None after the last.

        Raises SampleError naming the sample that failed, or is late, WorkerError naming a process that died, and
        LoaderError once closed.
        """
        made = self._item()
        # What SPDL had aggregated when it stopped comes as if it were a batch.
        if self._error is not None:
            raise self._error
        if self._on_error == "raise" and self.failed:
            raise SampleError(self.failed[0].why)
        if made is not None:
            self._delivered += len(made.held)
        elif self._delivered + len(self.failed) != self._expected:
            raise LoaderError(
                f"SPDL ended the epoch after {self._delivered} samples and {len(self.failed)} failures: expected "
                f"{self._expected}"
            )
        return made

    def close(self) -> None:
        """End the pipeline; may be called twice. A sample that is being loaded is loaded to its end."""
        pipeline, self._pipeline = self._pipeline, None
        if pipeline is not None:
            with suppress(PipelineFailure):  # raised by `next` already, or not asked for
                pipeline.stop(timeout=_STOP_S)

    def _item(self) -> InTransfer[Batch] | None:
        poll_s = None if self._timeout_s is None else min(_MAX_POLL_S, self._timeout_s / _POLLS)
        while True:
            if self._pipeline is None:
                raise LoaderError("this epoch was closed, or another one was started")
            try:
                return self._pipeline.get_item(timeout=poll_s)
            except EOFError:
                return None
            except TimeoutError:
                assert self._timeout_s is not None
                late = self._work.monitor.overdue(self._timeout_s)
                if late is not None:
                    raise self._timeout_error(late) from None
            except PipelineFailure as failure:
                if not (self.failed and self._on_error == "raise") and self._error is None:
                    reasons = "; ".join(str(error) for error in failure.exceptions)
                    raise LoaderError(f"SPDL's pipeline failed: {reasons}") from failure
                return None

    def _timeout_error(self, late: Stalled) -> SampleTimeoutError:
        _, _, files, processes = self._executors
        if processes is not None and late.worker < processes.count:
            what = "worker"
        else:
            what = "coroutine" if files is not None and late.worker in files.slots else "thread"
        return self._work.timeout_error(late, f"{what} {late.worker}")

    def _load(self, sample_id: int) -> Loaded:
        with self._noting_failure(sample_id):
            loaded = self._work.load(thread_number(), self._epoch, sample_id)
        self._stages.add(loaded.times.seconds())
        return loaded

    def _read(self, sample_id: int) -> Read:
        with self._noting_failure(sample_id):
            return self._work.read(thread_number(), sample_id)

    async def _acquire(self, sample_id: int) -> Read:
        assert self._executors.files is not None
        with self._noting_failure(sample_id):
            return await self._executors.files.read(sample_id)

    async def _load_in_process(self, given: int | Read) -> Loaded:
        assert self._executors.processes is not None
        with self._noting_failure(given.sample_id if isinstance(given, Read) else given):
            loaded = await self._executors.processes.load(self._epoch, given)
        self._stages.add(loaded.times.seconds())
        return loaded

    def _transform(self, read: Read) -> Loaded:
        with self._noting_failure(read.sample_id):
            loaded = self._work.transform(thread_number(), self._epoch, read)
        self._stages.add(loaded.times.seconds())
        return loaded

    @contextmanager
    def _noting_failure(self, sample_id: int) -> Iterator[None]:
        try:
            yield
        except SampleError as error:
            self.failed.append(Failed(sample_id, str(error)))
            raise
        except LoaderError as error:
            self._error = self._error or error
            raise

    def _collate(self, loaded: list[Loaded]) -> InTransfer[Batch]:
        began = time.perf_counter_ns()
        try:
            collated = self._work.collate(thread_number(), loaded)
        except SampleError as error:
            self._error = error
            raise
        self._stages.add({"collate": (time.perf_counter_ns() - began) * 1e-9})
        return self._start_transfer(collated)


class _CountedQueue(AsyncQueue):
    """A queue that measures for how long it was not empty."""

    stages: StageTable

    def __init__(self, info: StageInfo, *, buffer_size: int = 1) -> None:
        super().__init__(info, buffer_size=buffer_size)
        self._filled_ns, self._since = 0, 0

    async def put(self, item: object) -> None:
        await super().put(item)
        if self.qsize() == 1:
            self._since = time.perf_counter_ns()

    async def get(self) -> object:
        item = await super().get()
        if self._since and self.empty():
            self._filled_ns += time.perf_counter_ns() - self._since
            self._since = 0
        return item

    @asynccontextmanager
    async def stage_hook(self) -> AsyncIterator[None]:
        began = time.perf_counter_ns()
        try:
            yield
        finally:
            now = time.perf_counter_ns()
            filled = self._filled_ns + (now - self._since if self._since else 0)
            self.stages.add_queue(self.info.stage_name.partition("(")[0], filled * 1e-9, (now - began) * 1e-9)


def _is_told(record: logging.LogRecord) -> bool:
    """Return whether SPDL logs, with its traceback, what a loader raises or counts anyway."""
    error = record.exc_info[1] if record.exc_info else None
    parts = error.exceptions if isinstance(error, PipelineFailure) else (error,)
    return all(isinstance(part, LoaderError) or isinstance(part and part.__cause__, LoaderError) for part in parts)


logging.getLogger(create_task.__module__).addFilter(lambda record: not _is_told(record))
