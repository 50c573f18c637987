"""What runs the stages of SPDL's pipeline: threads, worker processes, and coroutines that read files."""

from __future__ import annotations

import asyncio
import pickle
import time
from concurrent.futures import Executor
from concurrent.futures.process import BrokenProcessPool
from typing import Any, NamedTuple

from joulefeed.version import remedy
from loaders.base import Samples
from loaders.errors import LoaderConfigError, SampleError, WorkerError
from loaders.pipeline import FilePipeline, Pipeline, StageTimes, sample_error
from loaders.records.decoding.pool import WorkerPool, send_back, this_worker
from loaders.shared.processor import Loaded, Read, SampleProcessor
from loaders.shared.stall_monitor import StallMonitor


class Executors(NamedTuple):
    """What runs the stages of an epoch."""

    threads: Executor
    """Load, transform and collate, where no process does."""
    reading: Executor | None = None
    """Threads of the stage that reads."""
    files: CoroutineFiles | None = None
    """Coroutines of the stage that reads, in the place of its threads."""
    processes: LoadProcesses | None = None
    """Load or transform, in the place of the threads."""


class CoroutineFiles:
    """Reads an epoch's files in coroutines through obstore, whose native threads do it without the interpreter's lock.

    Linux has no non-blocking read of a file that an event loop could wait for.
    """

    def __init__(self, samples: Samples, monitor: StallMonitor, slots: range) -> None:
        """Read at most so many files at once; each has one of the monitor's `slots`."""
        self.slots = slots
        self._samples, self._monitor, self._free = samples, monitor, list(slots)
        # SPDL starts more than a stage's concurrency where outputs have to be in the order of inputs.
        self._at_once = asyncio.Semaphore(len(slots))
        self._store: Any = None

    @staticmethod
    def check(pipeline: Pipeline) -> None:
        """Raise LoaderConfigError where obstore is missing, or a pipeline reads more than one file of a sample."""
        try:
            import obstore  # noqa: F401
        except ImportError as error:
            raise LoaderConfigError(f"acquire=coroutines: {error}{remedy(error)}; or use acquire=threads") from error
        if getattr(type(pipeline), "read", None) is not FilePipeline.read:
            raise LoaderConfigError(
                f"acquire=coroutines: coroutines read the one file of a sample, and {type(pipeline).__name__} has a "
                "`read` of its own; use acquire=threads"
            )

    async def read(self, sample_id: int) -> Read:
        """Read one sample; raise SampleError naming it."""
        async with self._at_once:
            began, slot = time.perf_counter_ns(), self._free.pop()
            self._monitor.begin(slot, sample_id)
            try:
                encoded = await self._get(self._samples.paths[sample_id])
            except Exception as error:
                why = OSError(str(error).partition("\n")[0])
                raise sample_error(self._samples, sample_id, "read", why) from error
            finally:
                self._monitor.end(slot)
                self._free.append(slot)
        return Read(sample_id, encoded, time.perf_counter_ns() - began)

    async def _get(self, path: str) -> memoryview:
        import obstore
        from obstore.store import LocalStore

        if self._store is None:
            self._store = LocalStore(self._samples.root)
        answer = await obstore.get_async(self._store, path)
        return memoryview(await answer.bytes_async())


class LoadProcesses:
    """Processes that load or transform samples, from the first epoch to the end of the loader."""

    def __init__(self, samples: Samples, pipeline: Pipeline, seed: int, monitor: StallMonitor, workers: int) -> None:
        """Start none yet; raise LoaderConfigError for samples or a pipeline that cannot be sent to a process."""
        self.count = workers
        self._pool = WorkerPool(
            (samples, pipeline),
            pipeline,
            count=workers,
            seed=seed,
            monitor=monitor,
            setting="executor=process",
            instead="executor=thread",
        )
        self._broken: WorkerError | None = None

    def start(self) -> None:
        """Start the processes where there are none."""
        self._broken = None
        self._pool.start()

    async def load(self, epoch: int, given: int | Read) -> Loaded:
        """Load the sample of this id, or transform the one that another stage has read.

        Raises SampleError naming it and the stage, and WorkerError naming a process that died.
        """
        if isinstance(given, Read) and isinstance(given.encoded, memoryview):
            given = given._replace(encoded=bytes(given.encoded))
        if self._broken is not None:
            raise self._broken
        try:
            answer = await asyncio.wrap_future(self._pool.submit(_load, epoch, given))
        except BrokenProcessPool as error:
            # Named once: to look for it takes a while, and every call under way comes here.
            self._broken = self._broken or self._pool.death()
            raise self._broken from error
        # From a process that this one has started, over a connection that only it has.
        loaded: Loaded | str = pickle.loads(answer)  # noqa: S301
        if isinstance(loaded, str):
            raise SampleError(loaded)
        return loaded

    def close(self) -> None:
        """Kill the processes, which keep nothing that could be lost; may be called twice."""
        self._pool.close(kill=True)


def _load(epoch: int, given: int | Read) -> bytes:
    """Load or transform a sample; return it pickled, or why it failed. Raises LoaderError where it cannot be sent."""
    (samples, pipeline), seed, number, monitor = this_worker()
    work = SampleProcessor(samples, pipeline, seed, workers=1, processes=False, monitor=monitor)
    try:
        made = work.transform(number, epoch, given) if isinstance(given, Read) else work.load(number, epoch, given)
    except SampleError as error:
        return send_back(str(error))
    # The times of a worker know the table that this process shares.
    return send_back(made._replace(times=StageTimes(made.times.ns)))
