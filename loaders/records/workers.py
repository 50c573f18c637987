"""Processes for work on records, which end with this one."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing.connection import wait as wait_for
from typing import TypeVar

from loaders.errors import WorkerError
from loaders.shared.options import check_whole

MAX_WORKERS = 256
_AHEAD = 2
"""Tasks handed over per process, so that none waits for its next."""

_Task = TypeVar("_Task")
_Result = TypeVar("_Result")


def run_tasks(work: Callable[[_Task], _Result], tasks: Sequence[_Task], workers: int) -> Iterator[tuple[int, _Result]]:
    """Yield the place and the result of every task as it is done; `work` is a function of a module.

    With one worker the tasks are done here, in order. After an error no further task starts, those under way are
    waited for, and the error is raised. Raises WorkerError when a process was killed, LoaderConfigError for a number of
    workers out of range.
    """
    check_whole("workers", workers, 1, MAX_WORKERS)
    if workers == 1 or len(tasks) <= 1:
        for place, task in enumerate(tasks):
            yield place, work(task)
        return
    # Forking would copy threads' locks, such as a progress bar's.
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(min(workers, len(tasks)), mp_context=context, initializer=begin_worker)
    under_way: dict[Future[_Result], int] = {}
    following = iter(enumerate(tasks))
    try:
        while True:
            while len(under_way) < _AHEAD * workers and (given := next(following, None)) is not None:
                with _holding_ctrl_c():
                    under_way[pool.submit(work, given[1])] = given[0]
            if not under_way:
                return
            for future in wait(under_way, return_when=FIRST_COMPLETED).done:
                yield under_way.pop(future), future.result()
    except BrokenProcessPool as error:
        raise WorkerError("a worker process was killed, by lack of memory perhaps; try fewer workers") from error
    finally:
        pool.shutdown(cancel_futures=True)


@contextmanager
def _holding_ctrl_c() -> Iterator[None]:
    """Hold Ctrl-C back here, and until `begin_worker` in a process that starts now: it would print a traceback."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def begin_worker() -> None:
    """Leave Ctrl-C to the parent, and end with it however it ends; a pool calls it in each of its processes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    wait_for([parent.sentinel])
    os._exit(1)
