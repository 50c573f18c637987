"""A process that has imported what every cell needs, and is forked for each of them: an import takes seconds."""

from __future__ import annotations

import gc
import importlib
import os
import select
import signal
import socket
import sys
from contextlib import suppress
from typing import Final

import numpy

from joulefeed.child import die_with_parent

FLAG: Final = "--template"
"""Argument of `python -m harness.cell`."""
_FILES: Final = 4
"""Descriptors in a message: stdin, stdout and stderr of the cell, and a pipe for its process id and its end."""
_MODULES: Final = ("torch", "harness.cell.content", "harness.workloads.accelerator", "loaders.pipeline.callables")
_STDIN: Final = 0


def fork_cells() -> bool:
    """Fork a cell for each message on stdin, a socket; return True in a cell, False in this process at its end.

    A message has the descriptors of one cell. Two lines come through its pipe: the process id, and the exit status,
    negative for a signal. A cell leads a process group, and the kernel kills it when this process ends.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for module in _MODULES:
        importlib.import_module(module)
    # A collection in a cell would write to every object, and so copy every page.
    gc.freeze()
    control = socket.socket(fileno=os.dup(_STDIN))
    living: dict[int, tuple[int, int]] = {}
    poller = select.poll()
    poller.register(control, select.POLLIN)
    while True:
        for ready, _ in poller.poll():
            if ready in living:
                poller.unregister(ready)
                pid, pipe = living.pop(ready)
                _, status = os.waitpid(pid, 0)
                _tell(pipe, os.waitstatus_to_exitcode(status))
                os.close(pipe)
                os.close(ready)
                continue
            _, files, _, _ = socket.recv_fds(control, 1, _FILES)
            if len(files) < _FILES:
                return False
            parent, pid = os.getpid(), os.fork()
            if not pid:
                die_with_parent(parent)
                os.setpgid(0, 0)
                numpy.random.seed()  # else every cell has the same numbers that nobody has seeded
                for number, file in enumerate(files[:3]):
                    os.dup2(file, number)
                for own in (control.detach(), *files, *living, *(pipe for _, pipe in living.values())):
                    os.close(own)
                return True
            # The harness may signal its group as soon as it has the process id.
            with suppress(OSError):
                os.setpgid(pid, pid)
            for file in files[:3]:
                os.close(file)
            _tell(files[3], pid)
            watched = os.pidfd_open(pid)
            living[watched] = pid, files[3]
            poller.register(watched, select.POLLIN)


def templates() -> tuple[int, ...]:
    """Return the id of the process that this cell was forked from; nothing for one that was not."""
    return (os.getppid(),) if FLAG in sys.argv else ()


def _tell(pipe: int, number: int) -> None:
    with suppress(BrokenPipeError):
        os.write(pipe, b"%d\n" % number)
