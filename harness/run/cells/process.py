"""The driver's end of a cell's process: it sends and takes lines of JSON, and asks where a silent one is."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sysconfig
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Self

import psutil

from harness.cell.messages import CellSpec, CellState
from harness.errors import CellError
from harness.run.cells.template import Templates
from harness.testbed.base import Node
from joulefeed.child import ChildError

_STACK_S = 2.0
_EXIT_S = 10.0
_WRITTEN_S = 60.0
_FRAME = re.compile(r'^  File "(.+)", line (\d+) in (.+)$', re.MULTILINE)


class ProcessEnded(CellError):
    """The cell's process ended without a word."""


class CellProcess:
    """A `python -m harness.cell` on a node; ended with its workers when the context is left."""

    def __init__(self, node: Node, log: Path, python: str, templates: Templates) -> None:
        """Start it with a `python`, and from one of the `templates` where it can be forked."""
        self._node, self._python, self._log = node, python, log
        self._child, self.template = templates.start(node, log, python)
        """The process, and the id of the one that it was forked from; None where it has imported everything itself."""

    @property
    def pid(self) -> int:
        """The cell's process id."""
        return self._child.pid

    def wait_ended(self) -> None:
        """Wait until a cell that is done has written all of its files. Raises CellError when it does not end."""
        try:
            self._child.process.wait(_WRITTEN_S)
        except subprocess.TimeoutExpired as error:
            raise CellError(f"the cell's process on host {self._node.host}: no end within {_WRITTEN_S:g} s") from error

    @property
    def status(self) -> int | None:
        """Its exit status; None while it runs."""
        return self._child.process.poll()

    def send(self, message: CellSpec | Mapping[str, object]) -> None:
        """Send one line. Raises CellError when the cell is gone."""
        line = message.to_json() if isinstance(message, CellSpec) else json.dumps(message).encode()
        try:
            self._child.send(line + b"\n")
        except ChildError as error:
            raise self._gone(error) from error

    def take(self) -> CellState | None:
        """Return the next state if it has come; None where none has. Raises CellError when the cell failed or died."""
        try:
            line = self._child.read_line(0)
        except ChildError as error:
            raise self._gone(error) from error
        if line is None:
            return None
        state = CellState.from_json(line)
        if state.state == "failed":
            raise CellError(f"{state.kind}: {state.message}")
        return state

    @property
    def output_fd(self) -> int:
        """Descriptor that can be read when a state comes."""
        return self._child.output_fd

    def place(self) -> str:
        """Return where the cell's main thread is, of the stacks that it writes into its log when it is asked."""
        if self._node.is_remote:
            return f"its process is on host {self._node.host}"
        if psutil.Process(self.pid).status() == psutil.STATUS_STOPPED:
            return f"its process {self.pid} is stopped; kill -CONT goes on with one"
        start = self._log.stat().st_size
        self._child.process.send_signal(signal.SIGUSR1)
        deadline = time.monotonic() + _STACK_S
        frames: list[tuple[str, str, str]] = []
        while time.monotonic() < deadline and self._child.is_alive:
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
            return f"its process {self.pid} does not report where it is"
        packages = str(Path(self._python).parent.parent / "lib")
        libraries = (sysconfig.get_path("stdlib"), sysconfig.get_path("purelib"), packages)
        own = next((frame for frame in frames if not frame[0].startswith(libraries)), frames[-1])
        path, line, name = frames[0]
        inside = "" if own == frames[0] else f", in {name} of {path}, line {line}"
        return f"it is in {own[2]} of {own[0]}, line {own[1]}{inside}"

    def _gone(self, error: ChildError) -> ProcessEnded:
        # For another host it is the id of the connection.
        whose = f"on host {self._node.host}" if self._node.is_remote else str(self.pid)
        return ProcessEnded(f"the cell's process {whose} {error}")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        # A cell that is done exits by itself at the end of its stdin; one that was cut short is signalled at once.
        self._child.stop(eof_s=_EXIT_S if kind is None else 0)
