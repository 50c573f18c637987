"""Starts cells: where nothing speaks against it, as forks of a process that has imported what all of them need."""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import IO, Final

from harness.cell.template import FLAG
from harness.errors import CellError
from harness.testbed.base import Node
from joulefeed.child import Child, read_line
from joulefeed.closing import Closing

_CELL: Final = ("-m", "harness.cell")
_START_S: Final = 300.0
"""A machine with cold caches takes a while to import torch."""
_STATUS_S: Final = 5.0


class Templates(Closing):
    """The processes that cells of this host are forked from, one in each network namespace; all end with the context.

    A cell gets a process of its own that imports everything itself on another host, in another environment, and where
    its memory is limited, since a limit counts the pages that a process of the group was the first to use.
    """

    def __init__(self) -> None:
        self._stack = ExitStack()
        self._templates: dict[Node, _Template] = {}

    def start(self, node: Node, log: Path, python: str) -> tuple[Child, int | None]:
        """Start a cell that appends its stderr to `log`; return it and its template's id, None where it has none.

        Raises CellError where it does not start.
        """
        if node.is_remote or node.memory_group is not None or python != sys.executable:
            argv = [python, *_CELL]
            return node.start(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log), None
        found = self._templates.get(node)
        if found is None or not found.child.is_alive:
            found = self._templates[node] = self._stack.enter_context(_Template(node))
        return found.fork(log), found.child.pid

    def close(self) -> None:
        """End them, and the cells that they were forked for."""
        self._stack.close()


class _Template(Closing):
    """A process that is forked for each cell of a node, as `harness.cell.template` says."""

    def __init__(self, node: Node) -> None:
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            argv = [sys.executable, *_CELL, FLAG]
            self.child = node.start(argv, stdin=theirs.fileno(), stdout=subprocess.DEVNULL, keep_stderr=True)

    def fork(self, log: Path) -> Child:
        """Start a cell. Raises CellError where this process has ended, or does not answer."""
        (their_in, our_in), (our_out, their_out), (our_end, their_end) = (os.pipe() for _ in range(3))
        stdin, stdout, end = os.fdopen(our_in, "wb", 0), os.fdopen(our_out, "rb", 0), os.fdopen(our_end, "rb", 0)
        stderr, buffer = log.open("ab+"), bytearray()
        try:
            try:
                socket.send_fds(self._control, [b"c"], [their_in, their_out, stderr.fileno(), their_end])
            finally:
                for descriptor in (their_in, their_out, their_end):
                    os.close(descriptor)
            line = read_line(our_end, buffer, _START_S)
        except (OSError, EOFError) as error:
            raise CellError(f"the process that cells are forked from {self.child.describe_end()}") from error
        if line is None:
            self.child.stop(eof_s=0, term_s=0)
            raise CellError(f"the process that cells are forked from: no cell within {_START_S:g} s")
        return Child.around(_Forked(int(line), stdin, stdout, end, buffer), stderr)

    def close(self) -> None:
        """End it."""
        self._control.close()
        self.child.stop()


class _Forked(subprocess.Popen[bytes]):
    """A process that is another one's child, as if it were this one's."""

    def __init__(self, pid: int, stdin: IO[bytes], stdout: IO[bytes], end: IO[bytes], buffer: bytearray) -> None:
        """Take its pipes; `end` brings its exit status, of which `buffer` may have some."""
        self.args, self.pid, self.stdin, self.stdout, self.stderr = _CELL, pid, stdin, stdout, None
        self.returncode: int | None = None
        self._end, self._buffer = end, buffer
        # It becomes readable when the process ends, whatever its parent does.
        self._watched = os.pidfd_open(pid)

    def poll(self) -> int | None:
        """Return its exit status; None while it runs."""
        with suppress(subprocess.TimeoutExpired):
            return self.wait(0)
        return None

    def wait(self, timeout: float | None = None) -> int:
        """Return its exit status, negative for a signal, when it has ended. Raises subprocess.TimeoutExpired."""
        if self.returncode is None:
            poller = select.poll()
            poller.register(self._watched, select.POLLIN)
            if not poller.poll(None if timeout is None else 1e3 * timeout):
                raise subprocess.TimeoutExpired(_CELL, timeout or 0.0)
            try:
                line = read_line(self._end.fileno(), self._buffer, _STATUS_S)
            except EOFError:
                line = None
            # Without its parent the kernel kills it.
            self.returncode = -signal.SIGKILL if line is None else int(line)
            self._end.close()
            os.close(self._watched)
        return self.returncode

    def send_signal(self, sig: int) -> None:
        """Send it a signal, while it runs."""
        if self.poll() is None:
            os.kill(self.pid, sig)
