"""Worker processes of torch's DataLoader: they end with their parent, leave nothing, and share memory with it."""

from __future__ import annotations

import ctypes
import multiprocessing.process
import multiprocessing.util
import os
import shutil
import signal
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import ClassVar, Final

import torch

from loaders.errors import LoaderError, WorkerError
from loaders.pipeline import Tensors
from loaders.shared.compat import (
    DEATH_PREFIX,
    SHARED_MEMORY,
    TIMEOUT_PREFIX,
    end_iterator,
    iterator_workers,
    remove_memory,
)

_PR_SET_PDEATHSIG: Final = 1
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
    _behind: ClassVar[Callable[[int, FrameType | None], object]]

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
                raise to_loader_error(error) from None


def _on_child(number: int, frame: FrameType | None) -> None:
    WorkerDeaths.on_child(number, frame)


_counting = threading.Lock()


def begin_worker(parent: int, bound: bool, folder: str, worker_id: int) -> None:
    """Let the worker die with its parent, leaving nothing, and leave Ctrl-C to the parent.

    `folder` is the parent's, for sockets: a worker that was not forked would make one, and leave it.
    """
    multiprocessing.process.current_process()._config["tempdir"] = folder  # type: ignore[attr-defined]

    # Handlers run between two steps of Python, and so never in the middle of torch's making of shared memory.
    def end(_number: int, _frame: FrameType | None) -> None:
        os._exit(0)

    def end_as_orphan(_number: int, _frame: FrameType | None) -> None:
        sockets = Path(multiprocessing.util.get_temp_dir())
        # The thread that sends batches may put its socket there while the folder is being emptied.
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


def end_workers(iterator: object) -> None:
    """End a DataLoader iterator and its workers within seconds, in the middle of a read too."""
    # DataLoader has no public end, and its own waits 5 s for each worker that is at work.
    workers = iterator_workers(iterator)
    for worker in workers:
        worker.terminate()
    deadline = time.monotonic() + _GRACE_S
    for worker in workers:
        worker.join(max(0.0, deadline - time.monotonic()))
        worker.kill()
    end_iterator(iterator)
    remove_memory(workers)


def dead_worker(iterator: object) -> WorkerError | None:
    """Return an error that names the first worker that has ended, None if all are alive."""
    for worker in iterator_workers(iterator):
        worker.join(timeout=0.1)
        if worker.exitcode is not None:
            end = f"was killed by signal {-worker.exitcode}" if worker.exitcode < 0 else "exited unexpectedly"
            return WorkerError(f"PyTorch's DataLoader worker (pid {worker.pid}) {end}")
    return None


def is_timeout(error: Exception) -> bool:
    """Return whether torch raised this error because a batch was not there in time."""
    return str(error).startswith(TIMEOUT_PREFIX)


def to_loader_error(error: Exception) -> LoaderError:
    """Return torch's error as one of this package: a WorkerError where a worker died."""
    if str(error).startswith(DEATH_PREFIX):
        return WorkerError(f"PyTorch's {error}")
    return LoaderError(f"PyTorch's DataLoader failed: {error}")


def in_main_thread() -> bool:
    """Return whether this is the main thread, the only one that may handle signals."""
    return threading.current_thread() is threading.main_thread()


def check_room(needed: int) -> None:
    """Raise LoaderError where shared memory has no room for so many bytes.

    torch would write to pages that are not there, which kills the worker.
    """
    free = _free_bytes()
    if free is not None and needed > free:
        raise _no_room(needed, free)


def share(tensors: Tensors) -> None:
    """Move the tensors of a batch to shared memory; raise LoaderError where there is no room.

    torch would do it in a thread of its queue, which prints the failure, and the batch would never come.
    """
    each = [tensors.data, tensors.labels, *tensors.extra.values()]
    left: list[torch.Tensor] = [tensor for tensor in each if not tensor.is_shared()]  # type: ignore[no-untyped-call]
    needed = sum(tensor.untyped_storage().nbytes() for tensor in left)
    check_room(needed)
    try:
        for tensor in left:
            tensor.share_memory_()  # type: ignore[no-untyped-call]
    except RuntimeError as error:
        # Another worker took the room since.
        raise _no_room(needed, _free_bytes() or 0) from error


def _free_bytes() -> int | None:
    try:
        of = os.statvfs(SHARED_MEMORY)
    except OSError:
        return None
    return of.f_bavail * of.f_frsize


def _no_room(needed: int, free: int) -> LoaderError:
    return LoaderError(
        f"{SHARED_MEMORY} has {free / 1e6:.1f} MB left for a batch of {needed / 1e6:.1f} MB, in which workers hand it "
        f"over: enlarge it (mount -o remount,size=2G {SHARED_MEMORY}; docker run --shm-size=2g), or lower batch_size, "
        "num_workers or prefetch_factor"
    )
