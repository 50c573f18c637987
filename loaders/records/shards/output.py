"""Work on folders of shards: by one process at a time or by several, with errors that say what to do."""

from __future__ import annotations

import errno
import fcntl
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing.connection import wait as wait_for
from pathlib import Path
from typing import TypeVar

from loaders.errors import LoaderConfigError, LoaderError, WorkerError

_FULL = (errno.ENOSPC, errno.EDQUOT)


class OutputError(LoaderError):
    """A folder of shards cannot be made or changed where it was asked for."""


@contextmanager
def output_errors(out: Path, remedy: str = "choose a folder that can be written") -> Iterator[None]:
    """Turn an OSError of the block into a OutputError that names the file and the remedy."""
    try:
        yield
    except OSError as error:
        where = error.filename or out
        if error.errno in _FULL:
            message = "the disk is full; make room, then run the same command again: it goes on with the whole shards"
        else:
            message = f"{error.strerror or error}; {remedy}"
        raise OutputError(f"{where}: {message}") from error


@contextmanager
def exclusive_lock(path: Path, out: Path) -> Iterator[None]:
    """Hold the sole right to make `out` by the lock file `path`; raises OutputError when another process does."""
    while True:
        lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            holder = os.pread(lock, 32, 0).decode(errors="replace").strip()
            os.close(lock)
            raise OutputError(
                f"{out}: another process makes its shards (process {holder or 'unknown'}); "
                "wait for it, or choose another folder"
            ) from error
        if _is_at(lock, path):
            break
        os.close(lock)  # the one that held it before took the file away
    try:
        os.ftruncate(lock, 0)
        os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)
        yield
    finally:
        path.unlink(missing_ok=True)
        os.close(lock)


def _is_at(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False


MAX_WORKERS = 256
_AHEAD = 2
"""Tasks handed over per process, so that none waits for its next."""

_Task = TypeVar("_Task")
_Result = TypeVar("_Result")


def check_workers(workers: int) -> None:
    """Raise LoaderConfigError unless so many processes may be started."""
    if not 1 <= workers <= MAX_WORKERS:
        raise LoaderConfigError(f"workers={workers}: expected 1 to {MAX_WORKERS}")


def run_tasks(work: Callable[[_Task], _Result], tasks: Sequence[_Task], workers: int) -> Iterator[tuple[int, _Result]]:
    """Yield the place and the result of every task as it is done; `work` is a function of a module.

    With one worker the tasks are done here, in order. After an error no further task starts, those under way are
    waited for, and the error is raised. Raises WorkerError when a process was killed.
    """
    check_workers(workers)
    if workers == 1 or len(tasks) <= 1:
        for place, task in enumerate(tasks):
            yield place, work(task)
        return
    # Forking would copy threads' locks, such as a progress bar's.
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
