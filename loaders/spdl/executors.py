"""What runs the stages of SPDL's pipeline: threads, worker processes, and coroutines that read files."""

from __future__ import annotations

import asyncio
import pickle
import signal
import time
from concurrent.futures import Executor, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.queues import SimpleQueue
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from loaders.base import Samples
from loaders.errors import LoaderConfigError, LoaderError, SampleError, WorkerError
from loaders.pipeline import FilePipeline, Pipeline, StageTimes, sample_error, stage_name
from loaders.records.decoding.pool import begin_numbered_worker, kill_workers, pickle_items, start_pool
from loaders.shared.processor import Loaded, Read, SampleProcessor
from loaders.shared.stall_monitor import StallMonitor

if TYPE_CHECKING:
    from multiprocessing.process import BaseProcess

_DEATH_S: Final = 5.0
"""How long a process that was killed may take until its signal is known."""


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
            raise LoaderConfigError(
                f"acquire=coroutines: obstore cannot be imported ({error}): pip install obstore, or use acquire=threads"
            ) from error
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
        self._seed, self._monitor, self.count = seed, monitor, workers
        try:
            self._pickled = pickle.dumps((samples, pipeline))
        except Exception as error:  # pickling a user's class may raise anything
            raise LoaderConfigError(
                f"executor=process: {stage_name(pipeline)} cannot be sent to another process: {error}; define it by "
                "name in a module, or use executor=thread"
            ) from error
        self._pool: ProcessPoolExecutor | None = None
        self._started: list[BaseProcess] = []
        self._broken: WorkerError | None = None

    def start(self) -> None:
        """Start the processes where there are none."""
        if self._pool is not None:
            return
        self._broken = None
        for number in range(self.count):  # a process that was killed has left its sample in the monitor
            self._monitor.end(number)
        self._pool = start_pool(self.count, _begin, self._pickled, self._seed, self._monitor)
        self._started = list((self._pool._processes or {}).values())

    async def load(self, epoch: int, given: int | Read) -> Loaded:
        """Load the sample of this id, or transform the one that another stage has read.

        Raises SampleError naming it and the stage, and WorkerError naming a process that died.
        """
        assert self._pool is not None
        if isinstance(given, Read) and isinstance(given.encoded, memoryview):
            given = given._replace(encoded=bytes(given.encoded))
        try:
            answer = await asyncio.wrap_future(self._pool.submit(_load, epoch, given))
        except BrokenProcessPool as error:
            # Named once: to look for it takes a while, and every call under way comes here.
            self._broken = self._broken or self._death()
            raise self._broken from error
        # From a process that this one has started, over a connection that only it has.
        loaded: Loaded | str = pickle.loads(answer)  # noqa: S301
        if isinstance(loaded, str):
            raise SampleError(loaded)
        return loaded

    def _death(self) -> WorkerError:
        """Return the error that names the process that died first; the pool then ends the others with SIGTERM."""
        deadline = time.monotonic() + _DEATH_S
        dead: BaseProcess | None = None
        while dead is None and time.monotonic() < deadline:
            ended = [one for one in self._started if one.exitcode is not None and one.exitcode != -signal.SIGTERM]
            dead = next(iter(ended), None)
            if dead is None:
                time.sleep(0.01)
        if dead is None or dead.exitcode is None:
            return WorkerError("a process of the loader died; use fewer of them (num_threads)")
        if dead.exitcode < 0:
            how = f"was killed by {signal.Signals(-dead.exitcode).name}, by lack of memory perhaps"
        else:
            how = f"ended with status {dead.exitcode}"
        return WorkerError(f"worker process {dead.pid} {how}; use fewer of them (num_threads)")

    def close(self) -> None:
        """Kill the processes, which keep nothing that could be lost; may be called twice."""
        pool, self._pool = self._pool, None
        if pool is not None:
            kill_workers(pool)
            pool.shutdown(cancel_futures=True)


class _Worker(NamedTuple):
    work: SampleProcessor
    number: int


_worker: _Worker | None = None
_refusal = ""
"""Why this process can do nothing at all."""


def _begin(pickled: bytes, seed: int, numbers: SimpleQueue[int], monitor: StallMonitor) -> None:
    global _worker, _refusal  # noqa: PLW0603 - one worker a process
    number = begin_numbered_worker(seed, numbers)
    try:
        samples, pipeline = pickle.loads(pickled)  # noqa: S301
    except Exception as error:  # noqa: BLE001 - the modules of a pipeline may raise anything
        _refusal = f"the pipeline cannot be sent to another process: {type(error).__name__}: {error}"
        return
    work = SampleProcessor(samples, pipeline, seed, workers=1, processes=False, monitor=monitor)
    _worker = _Worker(work, number)


def _load(epoch: int, given: int | Read) -> bytes:
    """Load or transform a sample; return it pickled, or why it failed. Raises LoaderError where it cannot be sent."""
    if _worker is None:
        raise LoaderError(f"executor=process: {_refusal}; use executor=thread")
    work, number = _worker
    try:
        made = work.transform(number, epoch, given) if isinstance(given, Read) else work.load(number, epoch, given)
    except SampleError as error:
        return pickle_items(str(error))
    try:
        # The times of a worker know the table that this process shares.
        return pickle_items(made._replace(times=StageTimes(made.times.ns)))
    except (pickle.PicklingError, TypeError, AttributeError) as error:
        raise LoaderError(
            f"executor=process: the items of the pipeline cannot be sent to another process: {error}; use "
            "executor=thread"
        ) from error
