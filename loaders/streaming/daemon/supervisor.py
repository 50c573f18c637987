"""Two processes of a daemon: one serves, the other one starts it again where a mapped shard was cut under it.

To touch a page that a shard no longer has ends a process by SIGBUS; ZeroMQ aborts where the kernel refuses to send such
a page. The kernel can be asked for neither an error nor a copy without the CPU time of a copy. The process that serves
keeps nothing of its clients, so the next one goes on: clients connect again and repeat their requests, and those for
the shard that was cut are refused by its size.
"""

from __future__ import annotations

import ctypes
import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress

from joulefeed.signals import Interrupted, signals_raise
from loaders.errors import StreamError
from loaders.streaming.daemon.counters import Log

_PR_SET_PDEATHSIG = 1
_ENDS_OF_A_CUT = (signal.SIGBUS, signal.SIGABRT)
_PAUSE_S = 0.1
"""Between two processes, so that one that cannot serve costs little CPU time."""


def supervise(serve: Callable[[bool], int], *, log: Log) -> int:
    """Run `serve` in a process that is forked; return its exit status.

    `serve` gets whether it is the first one, and returns the exit status. It is called in this process' child, in
    which the caller goes on as in this one. A signal to this process is passed on to it, and it is killed with this
    process. Call it before threads are started and sockets of ZeroMQ are made.

    Raises StreamError naming a signal other than those of a cut shard that ended the process.
    """
    is_first = True
    while True:
        parent, child = os.getpid(), os.fork()
        if not child:
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != parent:  # it ended before the kernel knew
                os._exit(1)
            with signals_raise():
                return serve(is_first)
        status = _wait(child)
        if status >= 0:
            return status
        if -status not in _ENDS_OF_A_CUT:
            raise StreamError(f"the process that serves was ended by {signal.Signals(-status).name}")
        log("restarted", reason=f"{signal.Signals(-status).name}: a shard became shorter, or its disk fails")
        is_first = False
        time.sleep(_PAUSE_S)


def _wait(child: int) -> int:
    """Wait for a child; return its exit status, or the negative number of the signal that ended it."""
    while True:
        try:
            return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        except Interrupted as interrupt:
            with suppress(ProcessLookupError):
                os.kill(child, interrupt.signum)
