"""Work on many files in several processes, none of which outlives the one that started it."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.connection import wait as wait_for
from typing import TypeVar

from loaders.errors import LoaderConfigError, WorkerError

__all__ = ["MAX_WORKERS", "check_workers", "each"]

MAX_WORKERS = 256
_AHEAD = 2
"""Tasks handed over per process, so that none waits for its next."""

_Task = TypeVar("_Task")
_Result = TypeVar("_Result")


def check_workers(workers: int) -> None:
    """Raise LoaderConfigError unless so many processes may be started."""
    if not 1 <= workers <= MAX_WORKERS:
        raise LoaderConfigError(f"workers={workers}: expected 1 to {MAX_WORKERS}")


def each(work: Callable[[_Task], _Result], tasks: Sequence[_Task], workers: int) -> Iterator[tuple[int, _Result]]:
    """Yield the place and the result of every task as it is done; `work` is a function of a module.

    With one worker the tasks are done here, in order. After an error no further task is begun, those under way are
    waited for, and the error is raised. Raises WorkerError when a process was killed.
    """
    check_workers(workers)
    if workers == 1 or len(tasks) <= 1:
        for place, task in enumerate(tasks):
            yield place, work(task)
        return
    # Forking would copy threads' locks, a progress bar's for one.
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(min(workers, len(tasks)), mp_context=context, initializer=_begin)
    try:
        yield from _done(pool, work, tasks, _AHEAD * workers)
    except BrokenProcessPool as error:
        raise WorkerError("a worker process was killed, by lack of memory perhaps; try fewer workers") from error
    finally:
        pool.shutdown(cancel_futures=True)


def _done(
    pool: ProcessPoolExecutor, work: Callable[[_Task], _Result], tasks: Sequence[_Task], ahead: int
) -> Iterator[tuple[int, _Result]]:
    under_way: dict[Future[_Result], int] = {}
    following = iter(enumerate(tasks))
    while True:
        for place, task in following:
            under_way[pool.submit(work, task)] = place
            if len(under_way) >= ahead:
                break
        if not under_way:
            return
        for future in wait(under_way, return_when=FIRST_COMPLETED).done:
            yield under_way.pop(future), future.result()


def _begin() -> None:
    """Leave Ctrl-C to the parent, and end with it however it ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    wait_for([parent.sentinel])
    os._exit(1)
