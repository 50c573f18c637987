"""Two processes of a daemon: one serves, the other one starts it again where a mapped shard was cut under it.

To touch a page that a shard no longer has ends a process by SIGBUS; ZeroMQ aborts where the kernel refuses to send such
a page. The kernel can be asked for neither an error nor a copy without the CPU time of a copy. The process that serves
keeps nothing of its clients, so the next one goes on: clients connect again and repeat their requests, and those for
the shard that was cut are refused by its size.
"""

from __future__ import annotations

import mmap
import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress

from joulefeed.child import die_with_parent
from joulefeed.signals import Interrupted, signals_raise
from loaders.errors import StreamError
from loaders.streaming.daemon.counters import Log

_CAUSES = {
    signal.SIGBUS: "a shard became shorter, or its disk fails",
    signal.SIGABRT: "ZeroMQ could not send from a shard that became shorter, or it failed by itself",
}
"""Signals after which another process serves."""
_PAUSE_S = 0.1
"""Between two processes, so that one that cannot serve costs little CPU time."""
_MOST = 100
"""Ends in a daemon's life; more of them have another cause."""


def supervise(serve: Callable[[bool, Callable[[], None]], int], *, log: Log) -> int:
    """Run `serve` in a process that is forked; return its exit status.

    `serve` gets whether it is the first one, and what to call once it serves; it returns the exit status. It is called
    in this process' child, in which the caller goes on as in this one. A signal to this process is passed on to it, and
    it is killed with this process. Call it before threads are started and sockets of ZeroMQ are made.

    Raises StreamError naming the signal that ended the process: one that is none of a cut shard's, or any before it
    served, or for the hundredth time.
    """
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # inherited as ignored, it would take the exit status
    serves, ends = mmap.mmap(-1, 1), 0
    while True:
        serves[0] = 0
        parent, child = os.getpid(), os.fork()
        if not child:
            die_with_parent(parent)
            with signals_raise():
                return serve(ends == 0, lambda: serves.__setitem__(0, 1))
        status, is_stopped = _wait(child)
        if status >= 0:
            return status
        ended_by = signal.Signals(-status)
        if ended_by in _CAUSES and is_stopped:
            return 0
        ends += 1
        if ended_by not in _CAUSES or not serves[0] or ends == _MOST:
            hint = " (out of memory? see dmesg)" if ended_by == signal.SIGKILL else ""
            raise StreamError(f"the process that serves was ended by {ended_by.name}{hint}")
        log("restarted", reason=f"{ended_by.name}: {_CAUSES[ended_by]}")
        time.sleep(_PAUSE_S)


def _wait(child: int) -> tuple[int, bool]:
    """Wait for a child; return its exit status or the negative number of the signal that ended it, and whether a
    signal to this process was passed on to it.
    """
    is_stopped = False
    while True:
        try:
            # It stays a child until its status is taken below, whatever signal comes in between.
            os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
            break
        except Interrupted as interrupt:
            is_stopped = True
            with suppress(ProcessLookupError):
                os.kill(child, interrupt.signum)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), is_stopped
