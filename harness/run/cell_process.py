"""The harness's side of a cell process: what it says is read line by line, with a deadline."""

from __future__ import annotations

import json
import os
import re
import selectors
import signal
import subprocess
import sys
import sysconfig
import time
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import psutil

from harness.errors import CellError
from harness.system.process import end_group
from harness.testbed.base import Node

__all__ = ["CellProcess", "first_line"]

_STACK_S = 2.0
_FRAME = re.compile(r'^  File "(.+)", line (\d+) in (.+)$', re.MULTILINE)


def first_line(process: subprocess.Popen[bytes], timeout_s: float) -> bytes:
    """Return the first line that a child prints; what there is of it when the child ends or takes too long."""
    assert process.stdout is not None
    line, deadline = b"", time.monotonic() + timeout_s
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        while not line.endswith(b"\n") and selector.select(max(0.0, deadline - time.monotonic())):
            if not (chunk := os.read(process.stdout.fileno(), 65536)):
                break
            line += chunk
    return line


class CellProcess:
    """A `python -m harness.cell` on a node; ended with its workers when the context is left."""

    def __init__(self, node: Node, log: Path, stall_s: float) -> None:
        """Start it; `stall_s` is for how long it may say nothing."""
        self._stall_s = stall_s
        with log.open("ab") as file:
            self._process: subprocess.Popen[bytes] = node.popen(
                [sys.executable, "-m", "harness.cell"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=file,
            )
        self._log = log
        self._buffer = b""
        assert self._process.stdout is not None
        self._out = self._process.stdout.fileno()
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._out, selectors.EVENT_READ)

    @property
    def pid(self) -> int:
        """The cell's process id."""
        return self._process.pid

    def say(self, message: dict[str, Any]) -> None:
        """Send one line; raises CellError when the cell is gone."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(message).encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError as error:
            raise self._gone() from error

    def hear(self, deadline: float, doing: str) -> dict[str, Any]:
        """Return the next state, for which the cell is `doing` something, such as "importing its modules".

        Raises CellError when the cell failed, died, is past `deadline` (`time.monotonic()`), or is silent for too long.
        """
        stalled = time.monotonic() + self._stall_s
        while b"\n" not in self._buffer:
            left = min(deadline, stalled) - time.monotonic()
            if left <= 0 or not self._selector.select(min(left, 1.0)):
                if time.monotonic() >= deadline:
                    raise CellError(f"took longer than cell_timeout_s while {doing}; raise it, or look at {self._log}")
                if time.monotonic() >= stalled:
                    raise CellError(
                        f"no progress for {self._stall_s / 60:.3g} min (cell_stall_min) while {doing}: "
                        f"{self._place()}; {self._log} has the stacks of its threads"
                    )
                continue
            chunk = os.read(self._out, 65536)
            if not chunk:
                raise self._gone()
            self._buffer += chunk
        line, _, self._buffer = self._buffer.partition(b"\n")
        state: dict[str, Any] = json.loads(line)
        if state["state"] == "failed":
            raise CellError(f"{state['kind']}: {state['message']}")
        return state

    def _place(self) -> str:
        """Return where the cell's main thread is, of the stacks that it writes into its log when it is asked."""
        if psutil.Process(self.pid).status() == psutil.STATUS_STOPPED:
            return f"its process {self.pid} is stopped; kill -CONT goes on with one"
        start = self._log.stat().st_size
        self._process.send_signal(signal.SIGUSR1)
        deadline = time.monotonic() + _STACK_S
        frames: list[tuple[str, str, str]] = []
        while time.monotonic() < deadline and self._process.poll() is None:
            time.sleep(0.1)
            with self._log.open("rb") as file:
                file.seek(start)
                told = file.read().decode(errors="replace")
            # The main thread is the oldest, and the last.
            if found := _FRAME.findall(told.rpartition("(most recent call first):")[2]):
                if found == frames:
                    break
                frames = found
        if not frames:
            return f"its process {self.pid} does not tell where it is"
        libraries = (sysconfig.get_path("stdlib"), sysconfig.get_path("purelib"))
        own = next((frame for frame in frames if not frame[0].startswith(libraries)), frames[-1])
        path, line, name = frames[0]
        inside = "" if own == frames[0] else f", in {name} of {path}, line {line}"
        return f"it is in {own[2]} of {own[0]}, line {own[1]}{inside}"

    def _gone(self) -> CellError:
        try:
            status = self._process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            return CellError("the cell's process closed its output without a result")
        if status < 0:
            name = signal.Signals(-status).name
            hint = " (out of memory? see dmesg)" if name == "SIGKILL" else ""
            return CellError(f"the cell's process {self.pid} was killed by {name}{hint}")
        lines = self._log.read_text(errors="replace").strip().splitlines()
        return CellError(f"the cell's process exited with status {status}: {lines[-1] if lines else 'no output'}")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._selector.close()
        if self._process.stdin is not None:
            with suppress(BrokenPipeError):
                self._process.stdin.close()
        # A cell that is done exits by itself; one that was cut short is told to.
        if kind is None:
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(timeout=10)
        end_group(self._process)
        if self._process.stdout is not None:
            self._process.stdout.close()
