"""A pool of threads that nothing waits for: a thread that hangs in a read does not keep the process from ending.

A thread that runs C++ when the interpreter ends aborts the process, so everything that has threads is closed before.
"""

from __future__ import annotations

import ctypes
import gc
import os
import queue
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future
from contextlib import contextmanager, suppress
from multiprocessing.util import Finalize
from pathlib import Path
from typing import Any, Final, NamedTuple, ParamSpec, Protocol, TypeVar

import torch

P = ParamSpec("P")
T = TypeVar("T")

_GRACE_S: Final = 1.0
"""Seconds that `shutdown` waits for running calls; one that hangs is left, because a thread cannot be ended."""
_here = threading.local()


class _Closable(Protocol):
    def close(self) -> None: ...


def close_at_exit(what: _Closable) -> None:
    """Have something closed at the end of this process, a worker of a DataLoader too, if it is still there then."""
    kept = weakref.ref(what)

    def close() -> None:
        found = kept()
        if found is not None:
            found.close()

    Finalize(what, close, exitpriority=0)


class Wakeup:
    """Wakes the one thread that waits for news; a signal's exception leaves it whole, as it would not a Condition."""

    def __init__(self) -> None:
        self._no_news = threading.Lock()
        self._no_news.acquire()

    def wake(self) -> None:
        """End the thread's wait, or its next one."""
        with suppress(RuntimeError):  # it was woken, and has not waited since
            self._no_news.release()

    def wait(self, limit_s: float = -1) -> bool:
        """Wait for news since the last wait, without end or for so long; return whether there is any."""
        return self._no_news.acquire(timeout=limit_s)


class _PoolCall(NamedTuple):
    future: Future[Any]
    run: Callable[[], object]


class DaemonThreads(Executor):
    """An executor with a fixed number of daemon threads, each of which knows its number and computes by itself."""

    def __init__(self, count: int, name: str, *, first: int = 0) -> None:
        """Start so many threads, whose numbers begin with `first`."""
        self._tasks: queue.SimpleQueue[_PoolCall | None] = queue.SimpleQueue()
        self._threads = [
            threading.Thread(target=self._work, args=(number,), name=f"{name}-{number}", daemon=True)
            for number in range(first, first + count)
        ]
        self._ending = threading.Lock()
        self._ended = False
        for thread in self._threads:
            thread.start()

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Run a call in one of the threads; raises RuntimeError after the shutdown."""
        future: Future[T] = Future()
        with self._ending:
            if self._ended:
                raise RuntimeError("the threads were shut down")
            self._tasks.put(_PoolCall(future, lambda: fn(*args, **kwargs)))
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """End the threads; what waits is cancelled, and what runs has a second to end."""
        with self._ending:
            if not self._ended:
                self._ended = True
                self._cancel_waiting()
                for _ in self._threads:
                    self._tasks.put(None)
        deadline = time.monotonic() + _GRACE_S
        for thread in self._threads if wait else ():
            thread.join(max(0.0, deadline - time.monotonic()))

    def _cancel_waiting(self) -> None:
        while True:
            try:
                task = self._tasks.get_nowait()
            except queue.Empty:
                return
            if task is not None:
                task.future.cancel()

    def _work(self, number: int) -> None:
        _here.number = number
        ready = False
        while (task := self._tasks.get()) is not None:
            future, run = task
            del task
            if not future.set_running_or_notify_cancel():
                continue
            try:
                # Inside, because a thread that ends here would leave its tasks waiting without an error.
                if not ready:
                    use_one_thread()
                    ready = True
                result = run()
            except BaseException as error:  # noqa: BLE001 - raised again by the future
                future.set_exception(error)
                del error
            else:
                future.set_result(result)
                del result
            del future, run


def thread_number() -> int:
    """Return the number of the calling thread in its pool."""
    number: int = _here.number
    return number


def use_one_thread() -> None:
    """Have torch compute what this thread asks for in this thread alone, as its DataLoader has its workers do.

    `torch.set_num_threads` also sets it for later threads; OpenMP keeps the number by thread (OpenMP 5.2,
    omp_set_num_threads). Where torch came without OpenMP nothing happens.
    """
    # torch sets a new thread's number when it is first asked, to the process's latest one.
    torch.get_num_threads()
    for library in _mapped_files():
        if library.name.startswith(("libgomp", "libiomp5")):
            ctypes.CDLL(str(library)).omp_set_num_threads(1)


def _mapped_files() -> set[Path]:
    """Return the files that this process has mapped (proc_pid_maps(5)); a path may contain blanks, and any bytes."""
    lines = Path("/proc/self/maps").read_bytes().splitlines()
    fields = (line.split(maxsplit=5) for line in lines)
    return {Path(os.fsdecode(field[5])) for field in fields if len(field) == 6 and field[5].startswith(b"/")}


@contextmanager
def gc_frozen() -> Iterator[None]:
    """Leave the garbage of this process uncollected in the processes that are forked meanwhile.

    An object that ends its threads when it is collected, such as a DALI pipeline, would wait in a process that does
    not have these threads.
    """
    frozen = gc.get_freeze_count()
    gc.freeze()
    try:
        yield
    finally:
        if not frozen:
            gc.unfreeze()
