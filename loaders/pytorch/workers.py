"""The life and death of torch's DataLoader workers: begun with a tie to their parent, ended without a trace."""

from __future__ import annotations

import ctypes
import multiprocessing
import multiprocessing.util
import os
import shutil
import signal
import threading
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, ClassVar, Final

from loaders.errors import LoaderError, WorkerError

__all__ = ["WorkerDeaths", "begin_worker", "dead_worker", "end_workers", "explained", "in_main_thread"]

_PR_SET_PDEATHSIG: Final = 1
_SHARED_MEMORY: Final = Path("/dev/shm")  # noqa: S108
_GRACE_S: Final = 1.0
"""How long a worker may take to end by itself; one whose read hangs on a dead mount is killed then."""


class WorkerDeaths:
    """Makes the RuntimeError that torch raises anywhere in the main thread when a worker dies a WorkerError.

    torch looks at the workers of all loaders at every SIGCHLD, so there is one handler for all of them, and an end
    that any loader expects raises nothing.
    """

    # Weakly held, so that a loader that is dropped unclosed watches no longer.
    _watching: ClassVar[weakref.WeakSet[WorkerDeaths]] = weakref.WeakSet()
    _expecting: ClassVar[int] = 0
    _behind: ClassVar[Any] = None

    def watch(self) -> None:
        """Stand in front of torch's SIGCHLD handler, which is there once workers were started."""
        self._watching.add(self)
        current = signal.getsignal(signal.SIGCHLD)
        if in_main_thread() and callable(current) and current is not _on_child:
            WorkerDeaths._behind = current
            signal.signal(signal.SIGCHLD, _on_child)

    @contextmanager
    def expected(self) -> Iterator[None]:
        """Raise nothing while the workers are ended on purpose; the last loader to do so puts torch's handler back."""
        with _counting:
            WorkerDeaths._expecting += 1
        try:
            yield
        finally:
            self._watching.discard(self)
            if not self._watching and in_main_thread() and signal.getsignal(signal.SIGCHLD) is _on_child:
                signal.signal(signal.SIGCHLD, WorkerDeaths._behind)
            with _counting:
                WorkerDeaths._expecting -= 1

    @classmethod
    def on_child(cls, number: int, frame: FrameType | None) -> None:
        """Ask torch which worker died, and raise what it says as a WorkerError."""
        try:
            cls._behind(number, frame)
        except RuntimeError as error:
            if not cls._expecting:
                raise explained(error) from None


def _on_child(number: int, frame: FrameType | None) -> None:
    WorkerDeaths.on_child(number, frame)


_counting = threading.Lock()


def begin_worker(parent: int, bound: bool, worker_id: int) -> None:
    """Let the worker die with its parent, leaving nothing, and leave Ctrl-C to the parent."""

    # Handlers run between two steps of Python, and so never in the middle of torch's making of shared memory.
    def end(_number: int, _frame: FrameType | None) -> None:
        os._exit(0)

    def end_as_orphan(_number: int, _frame: FrameType | None) -> None:
        sockets = Path(multiprocessing.util.get_temp_dir())
        # The thread that hands batches over may put its socket there while the folder is being emptied.
        for _ in range(100):
            if not sockets.exists():
                break
            shutil.rmtree(sockets, ignore_errors=True)
        os._exit(1)

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, end)
    # The kernel ties a child to the thread that made it, so only the main one is a tie that may be made.
    if bound:
        signal.signal(signal.SIGHUP, end_as_orphan)
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGHUP)
        if os.getppid() != parent:
            end_as_orphan(signal.SIGHUP, None)


def end_workers(iterator: Any) -> None:
    """End a DataLoader iterator and its workers within seconds, in the middle of a read too."""
    # DataLoader has no public end, and its own waits 5 s for each worker that is at work.
    workers = list(getattr(iterator, "_workers", ()))
    for worker in workers:
        worker.terminate()
    deadline = time.monotonic() + _GRACE_S
    for worker in workers:
        worker.join(max(0.0, deadline - time.monotonic()))
        worker.kill()
    if hasattr(iterator, "_shutdown_workers"):
        if workers:
            # A worker that ended while it looked at this event holds its lock for ever, and torch would
            # wait for that.
            iterator._workers_done_event = multiprocessing.Event()
        iterator._shutdown_workers()
    for worker in workers:
        # What torch calls a batch's memory in the moment between its making and its unlinking.
        for memory in _SHARED_MEMORY.glob(f"torch_{worker.pid}_*"):
            memory.unlink(missing_ok=True)


def dead_worker(iterator: Any) -> WorkerError | None:
    """Return an error that names the first worker that has ended, None if all are alive."""
    for worker in getattr(iterator, "_workers", ()):
        worker.join(timeout=0.1)
        if worker.exitcode is not None:
            end = f"was killed by signal {-worker.exitcode}" if worker.exitcode < 0 else "exited unexpectedly"
            return WorkerError(f"PyTorch's DataLoader worker (pid {worker.pid}) {end}")
    return None


def explained(error: Exception) -> LoaderError:
    """Return what torch raised as an error of this package; a WorkerError where it tells of a worker's death."""
    # torch has no type for it, only this wording.
    if str(error).startswith("DataLoader worker (pid"):
        return WorkerError(f"PyTorch's {error}")
    return LoaderError(f"PyTorch's DataLoader failed: {error}")


def in_main_thread() -> bool:
    """Return whether this is the main thread, the only one that may handle signals."""
    return threading.current_thread() is threading.main_thread()
