"""Worker processes that run a pipeline: their start and end, and the bytes that go to them and back."""

from __future__ import annotations

import io
import multiprocessing
import pickle
import random
import signal
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from multiprocessing import connection
from multiprocessing.queues import SimpleQueue
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import torch

from loaders.errors import LoaderConfigError, LoaderError, WorkerError
from loaders.pipeline import Pipeline, stage_name
from loaders.records.workers import begin_worker
from loaders.shared.stall_monitor import StallMonitor

if TYPE_CHECKING:
    from multiprocessing.process import BaseProcess

_DEATH_S: Final = 2.0
"""How long it may take until it is known how a process ended."""


class Worker(NamedTuple):
    """What a process has from its start on."""

    sent: Any
    """Its copy of what the pool sends to each."""
    seed: int
    number: int
    """From 0."""
    monitor: StallMonitor


class WorkerPool:
    """Processes that run functions of a module; each starts with a copy of `sent`."""

    def __init__(
        self,
        sent: object,
        pipeline: Pipeline,
        *,
        count: int,
        seed: int,
        monitor: StallMonitor,
        setting: str,
        instead: str,
    ) -> None:
        """Start none yet; raise LoaderConfigError where `sent`, which holds the pipeline, cannot be pickled.

        Errors name the `setting` of the loader, and what to use `instead`.
        """
        self.count, self._seed, self._monitor = count, seed, monitor
        self._setting, self._instead = setting, instead
        try:
            self._pickled = pickle.dumps(sent)
        except Exception as error:  # pickling a user's class may raise anything
            raise LoaderConfigError(
                f"{setting}: {stage_name(pipeline)} cannot be sent to another process: {error}; define it by name in "
                f"a module, or use {instead}"
            ) from error
        self._executor: ProcessPoolExecutor | None = None
        self._started: list[BaseProcess] = []

    def start(self) -> None:
        """Start the processes where there are none."""
        if self._executor is not None:
            return
        for number in range(self.count):  # a process that was killed has left its sample in the monitor
            self._monitor.end(number)
        # Forking would copy the locks of this process's threads.
        context = multiprocessing.get_context("spawn")
        numbers = context.SimpleQueue()
        for number in range(self.count):
            numbers.put(number)
        begin = (self._pickled, self._seed, numbers, self._monitor, self._setting, self._instead)
        self._executor = ProcessPoolExecutor(self.count, mp_context=context, initializer=_begin, initargs=begin)
        self._executor._safe_to_dynamically_spawn_children = False  # type: ignore[attr-defined] # all by the first call
        self._executor.submit(_is_ready)
        self._started = list((self._executor._processes or {}).values())  # no public way before Python 3.14
        # One that is killed as it sends leaves half a result, for whose rest the executor waits while others may send.
        self._executor._result_queue._writer.close()  # type: ignore[attr-defined]
        threading.Thread(target=_end_together, args=(self._started,), name="workers-end-together", daemon=True).start()

    def submit(self, function: Callable[..., bytes], *arguments: object) -> Future[bytes]:
        """Have a process call `function`, which returns what `send_back` does.

        Raises BrokenProcessPool, and WorkerError where none is started.
        """
        if self._executor is None:
            raise WorkerError(f"{self._setting}: the worker processes were ended")
        return self._executor.submit(function, *arguments)

    def death(self) -> WorkerError:
        """Return the error that names the process that died first, after BrokenProcessPool.

        The pool ends the others with SIGTERM.
        """
        deadline = time.monotonic() + _DEATH_S
        while True:
            ended = [one for one in self._started if one.exitcode is not None]
            by_itself = [one for one in ended if one.exitcode != -signal.SIGTERM]
            if by_itself or len(ended) == len(self._started) or time.monotonic() > deadline:
                break
            time.sleep(0.01)
        dead = next(iter(by_itself or ended), None)
        if dead is None or dead.exitcode is None:
            return WorkerError(f"{self._setting}: a worker process died")
        who = f"{self._setting}: worker process {dead.pid}"
        if dead.exitcode >= 0:
            return WorkerError(
                f"{who} ended with status {dead.exitcode}, and says why on stderr; a script that makes a loader of "
                'processes does so under `if __name__ == "__main__":`'
            )
        why = ", by lack of memory perhaps; use fewer of them (num_threads)" if dead.exitcode == -signal.SIGKILL else ""
        return WorkerError(f"{who} was killed by {signal.Signals(-dead.exitcode).name}{why}")

    def kill(self) -> None:
        """Kill the processes, whose calls under way then raise BrokenProcessPool."""
        for process in self._started:
            process.kill()

    def close(self, *, kill: bool) -> None:
        """End the processes, at once if `kill`; may be called twice."""
        executor, self._executor = self._executor, None
        if executor is not None:
            if kill:
                self.kill()
            executor.shutdown(cancel_futures=True)


def _end_together(processes: Sequence[BaseProcess]) -> None:
    """Wait for the end of a process, then end the others: one that was killed may hold the lock of their results."""
    connection.wait([one.sentinel for one in processes])
    time.sleep(_DEATH_S / 4)  # in which others may still send
    for one in processes:
        one.terminate()


_worker: Worker | None = None
_setting, _instead = "", ""
_refusal = ""
"""Why this process can do nothing at all."""


def _begin(
    pickled: bytes, seed: int, numbers: SimpleQueue[int], monitor: StallMonitor, setting: str, instead: str
) -> None:
    """Begin a worker that runs a pipeline."""
    global _worker, _setting, _instead, _refusal  # noqa: PLW0603 - one worker a process
    begin_worker()
    torch.set_num_threads(1)
    _setting, _instead = setting, instead
    number = numbers.get()
    # A callable may draw from the process's own generators, which start alike in every process.
    own = int(np.random.SeedSequence([seed, number]).generate_state(1)[0])
    random.seed(own)
    np.random.seed(own)
    torch.manual_seed(own)
    try:
        _worker = Worker(pickle.loads(pickled), seed, number, monitor)  # noqa: S301
    except Exception as error:  # noqa: BLE001 - the modules of a pipeline may raise anything
        _refusal = f"the pipeline cannot be sent to another process: {type(error).__name__}: {error}"


def _is_ready() -> bytes:
    """Return once this process has started."""
    return b""


def this_worker() -> Worker:
    """Return what this process has; raises LoaderError where it could not be sent."""
    if _worker is None:
        raise LoaderError(f"{_setting}: {_refusal}; use {_instead}")
    return _worker


def send_back(value: object) -> bytes:
    """Return a pickle in which tensors are arrays, which are copied once; raises LoaderError."""
    content = io.BytesIO()
    try:
        _Pickler(content, protocol=5).dump(value)
    except (pickle.PicklingError, TypeError, AttributeError) as error:
        raise LoaderError(
            f"{_setting}: the items of the pipeline cannot be sent to another process: {error}; use {_instead}"
        ) from error
    return content.getvalue()


class _Pickler(pickle.Pickler):
    def reducer_override(self, value: object) -> Any:
        if type(value) is torch.Tensor and value.device.type == "cpu" and value.dtype != torch.bfloat16:
            return torch.from_numpy, (value.detach().contiguous().numpy(),)
        return NotImplemented
