"""Calls from one process to another: each request, and each answer, is one line of JSON.

```
caller                                        other process
{"do": NAME, ARGUMENT: VALUE, ...}   ------>  handlers[NAME](**arguments)
                                     <------  {"progress": [VALUE, ...]}, any number of them
                                     <------  {"answer": VALUE}, or {"error": MESSAGE, "kind": CLASS}
```
"""

from __future__ import annotations

import inspect
import json
import socket
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, Protocol

from joulefeed.child import read_line

MAX_LINE_BYTES: Final = 64 << 20


class CallError(Exception):
    """The other process refused a call, or did not answer; `kind` is the name of its error's class, or empty."""

    def __init__(self, message: str, kind: str = "") -> None:
        super().__init__(message)
        self.kind = kind


class Channel(Protocol):
    """A connection to another process; `joulefeed.child.Child` is one."""

    def send(self, message: bytes) -> None:
        """Send a message; raises an error of its own where the other process is gone."""

    def read_line(self, timeout_s: float) -> bytes | None:
        """Return the next line without its end; None where none comes in time. Raises where there will be none."""


class SocketChannel:
    """The lines of a connected socket."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection, self._buffer = connection, bytearray()

    def send(self, message: bytes) -> None:
        """Send a message; raises OSError where the other end is gone, or takes too long for the socket's limit."""
        self._connection.sendall(message)

    def read_line(self, timeout_s: float) -> bytes | None:
        """Return the next line; None where none comes in time. Raises EOFError where there will be none."""
        return read_line(self._connection.fileno(), self._buffer, timeout_s, MAX_LINE_BYTES)


def call(
    channel: Channel,
    do: str,
    *,
    timeout_s: float,
    progress: Callable[..., object] = lambda *values: None,
    **arguments: object,
) -> Any:
    """Ask the other process to do something, and return its answer.

    Args:
        channel: the connection to it.
        do: name of the handler.
        timeout_s: how long it may be silent, in s; each report of progress begins it again.
        progress: called with the values of each report; does nothing by default.
        arguments: what the handler takes, as JSON has it.

    Raises:
        CallError: the handler raised an error, or the process was silent for too long.
        ChildError: the process is gone, where the channel is a Child.
    """
    channel.send(request(do, **arguments))
    return wait_answer(channel, do, timeout_s=timeout_s, progress=progress)


def request(do: str, **arguments: object) -> bytes:
    """Return the line that asks for something, for several processes that work at a time, or another way to send it."""
    return json.dumps({"do": do, **arguments}).encode() + b"\n"


def wait_answer(
    channel: Channel, do: str, *, timeout_s: float, progress: Callable[..., object] = lambda *values: None
) -> Any:
    """Return the answer to a request that was sent, as `call` does. Raises CallError, and ChildError of a Child."""
    while (line := channel.read_line(timeout_s)) is not None:
        try:
            answer = json.loads(line)
        except ValueError:
            answer = None
        match answer:
            case {"progress": [*values]}:
                progress(*values)
            case {"answer": value}:
                return value
            case {"error": str(message), "kind": str(kind)}:
                raise CallError(message, kind)
            case _:
                raise CallError(f"answered {line[:200]!r} to {do!r}; expected an answer in JSON")
    raise CallError(f"gave no answer to {do!r} within {timeout_s:g} s")


class Answers:
    """The other end: answers the calls of one caller.

    Args:
        handlers: function of each name. Its parameters are the arguments of the call; what it returns must be JSON.
        errors: classes of errors that are answers; others end the process.
        write: sends a line; to standard output by default.
    """

    def __init__(
        self,
        handlers: Mapping[str, Callable[..., object]],
        errors: tuple[type[Exception], ...] = (),
        write: Callable[[str], object] | None = None,
    ) -> None:
        self._handlers, self._errors = dict(handlers), errors
        self._write = _write_to_stdout if write is None else write

    def progress(self, *values: object) -> None:
        """Report the progress of the call that is being answered."""
        self._send({"progress": values})

    def answer(self, line: str | bytes) -> None:
        """Answer one call."""
        try:
            arguments = json.loads(line)
            handler = self._handlers[do := arguments.pop("do")]
        except (ValueError, KeyError, TypeError, AttributeError):
            known = ", ".join(self._handlers)
            self._refuse(f"{line[:200]!r}: expected a JSON object whose `do` is one of {known}", "ValueError")
            return
        try:
            inspect.signature(handler).bind(**arguments)
        except TypeError as error:
            self._refuse(f"{do}: {error}", "TypeError")
            return
        try:
            self._send({"answer": handler(**arguments)})
        except self._errors as error:
            self._refuse(str(error), type(error).__name__)

    def run(self, lines: Iterable[str | bytes] | None = None) -> None:
        """Answer calls until the lines end; those of standard input by default."""
        for line in sys.stdin if lines is None else lines:
            self.answer(line)

    def _refuse(self, message: str, kind: str) -> None:
        self._send({"error": message, "kind": kind})

    def _send(self, message: Mapping[str, object]) -> None:
        self._write(json.dumps(message) + "\n")


def _write_to_stdout(line: str) -> None:
    sys.stdout.write(line)
    sys.stdout.flush()
