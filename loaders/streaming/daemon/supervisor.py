"""Serving in a child process, which is started again when a mapped shard cannot be read any more.

ZeroMQ sends from the mapped pages of the shards. When a shard becomes shorter while it is served, or its disk fails,
touching a missing page ends the process: by SIGBUS, or within a system call by EFAULT, for which libzmq aborts
(tcp.cpp, tcp_write).
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Self

from joulefeed.signals import Interrupted, signals_raise
from loaders.streaming.daemon.counters import Log


class StopSignals:
    """Turns SIGTERM and SIGINT into a readable descriptor while it is entered, in the main thread."""

    def __init__(self) -> None:
        self.descriptor, self._write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    def __enter__(self) -> Self:
        self._wakeup = signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        self._handlers = {number: signal.signal(number, lambda *_: None) for number in (signal.SIGTERM, signal.SIGINT)}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._wakeup)
        os.close(self.descriptor)
        os.close(self._write)


_FAULTS = (signal.SIGBUS, signal.SIGABRT)
_STOPS = (signal.SIGTERM, signal.SIGINT)
_SOON_S = 1.0
"""A child that ends earlier is not started again, unless a shard was found that cannot be read."""
_PR_SET_PDEATHSIG = 1  # prctl(2)
_libc = ctypes.CDLL(None)


def supervise(serve: Callable[[bool], int], find_unreadable: Callable[[], Sequence[str]], log: Log) -> int:
    """Run `serve` in a child process until it ends; return its exit status.

    The argument of `serve` says whether it is a restart. After a fault `find_unreadable` returns why shards cannot be
    served any more. No other thread may run. SIGTERM and SIGINT go on to the child, which dies with this process.
    """
    child, stopped_by = 0, 0

    def forward(number: int, _: FrameType | None) -> None:
        nonlocal stopped_by
        stopped_by = number
        if child:
            os.kill(child, number)

    handlers = {number: signal.signal(number, forward) for number in _STOPS}
    try:
        is_restart = False
        while True:
            started = time.monotonic()
            parent = os.getpid()
            child = os.fork()
            if not child:
                for number, handler in handlers.items():
                    signal.signal(number, handler)
                _end_with(parent)
                _run(serve, is_restart)
            if stopped_by:
                os.kill(child, stopped_by)
            status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            child = 0
            if -status not in _FAULTS or stopped_by:
                break
            unreadable = find_unreadable()
            log("fault", signal=signal.Signals(-status).name, unreadable=unreadable)
            if not unreadable and time.monotonic() - started < _SOON_S:
                break
            is_restart = True
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
    return status if status >= 0 else 128 - status


def _run(serve: Callable[[bool], int], is_restart: bool) -> None:
    """Serve in this process, and end it without a return to its caller."""
    status = 1
    try:
        with signals_raise():
            status = serve(is_restart)
    except Interrupted as error:
        sys.stderr.write(f"{error}\n")
        status = error.exit_status
    except BaseException:
        sys.excepthook(*sys.exc_info())
        raise
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def _end_with(parent: int) -> None:
    """Have this process killed when its parent ends."""
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)
