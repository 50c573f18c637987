"""A pool of threads that nothing waits for: one that hangs in a read does not keep the process from ending.

Yet one that is in C++ when the interpreter ends aborts the process, so whatever has threads is closed before that.
"""

from __future__ import annotations

import queue
import threading
import time
import weakref
from collections.abc import Callable
from concurrent.futures import Executor, Future
from multiprocessing.util import Finalize
from typing import Any, Final, NamedTuple, ParamSpec, Protocol, TypeVar

from loaders.shared.single_thread import use_one_thread

__all__ = ["DaemonThreads", "close_at_exit", "thread_number"]

P = ParamSpec("P")
T = TypeVar("T")

_GRACE_S: Final = 1.0
"""How long `shutdown` waits for what is running; what hangs is left behind, for a thread cannot be ended."""
_here = threading.local()


class _Closing(Protocol):
    def close(self) -> None: ...


def close_at_exit(what: _Closing) -> None:
    """Have something closed at the end of this process, a worker of a DataLoader too, if it is still there then."""
    kept = weakref.ref(what)

    def close() -> None:
        found = kept()
        if found is not None:
            found.close()

    Finalize(what, close, exitpriority=0)


class _Task(NamedTuple):
    future: Future[Any]
    run: Callable[[], Any]


class DaemonThreads(Executor):
    """An executor with a fixed number of daemon threads, each of which knows its number and computes by itself."""

    def __init__(self, count: int, name: str) -> None:
        self._tasks: queue.SimpleQueue[_Task | None] = queue.SimpleQueue()
        self._threads = [
            threading.Thread(target=self._work, args=(number,), name=f"{name}-{number}", daemon=True)
            for number in range(count)
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
            self._tasks.put(_Task(future, lambda: fn(*args, **kwargs)))
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
            except BaseException as error:  # noqa: BLE001 - it is whoever waits for the future that is told
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
