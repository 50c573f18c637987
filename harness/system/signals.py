"""A whole program: its signals, its output and its errors.

SIGINT, SIGTERM and SIGHUP are one exception, raised once; the clean-up after it is not interrupted.
"""

from __future__ import annotations

import codecs
import io
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Any, Final, NoReturn, TextIO

from harness.errors import DiskError, Interrupted

_ASCII: Final = dict(
    zip("×−–→≤≥±†…▇✓✗", ["x", "-", "-", "->", "<=", ">=", "+-", "*", "...", "#", "+", "x"], strict=True)
)
_NUMBERS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def run_program(program: Callable[[], int | None], nothing_done: str) -> NoReturn:
    """Run a whole program and exit with the status that it returns; it imports what it needs, which takes a while.

    A signal that it does not handle itself ends it with one line, which ends with `nothing_done`, and with its status;
    signals are ignored while the interpreter ends. When the reader of its output goes (`| head`), the program goes on
    and the rest of its output is dropped.
    """
    status = 0
    if sys.flags.safe_path:  # python -P: what this program starts is to find its packages as it does
        os.environ["PYTHONSAFEPATH"] = "1"
    try:
        with signals_raise(), _lasting_output():
            status = _version() if "--version" in sys.argv[1:] else program() or 0
    except Interrupted as error:
        print(f"{error}; {nothing_done}", file=sys.stderr)
        status = error.exit_status
    except DiskError as error:
        print(f"error: {error}", file=sys.stderr)
        status = status or error.exit_status
    finally:
        for number in _NUMBERS:
            signal.signal(number, signal.SIG_IGN)
    sys.exit(status)


def _version() -> int:
    from energymon.system.version import version_text

    print(version_text())
    return 0


class _Output(io.FileIO):
    """A descriptor that can be written to after its reader has gone or its disk is full: the rest is dropped."""

    failure: OSError | None = None
    """Why output is lost; None where it is not, or where nobody reads it any more."""

    def write(self, data: Any) -> int:
        try:
            return super().write(data)
        except OSError as error:
            self.failure = None if isinstance(error, BrokenPipeError) else error
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, self.fileno())
            os.close(null)
            return memoryview(data).nbytes


@contextmanager
def _lasting_output() -> Iterator[None]:
    """Let standard output and error outlive their readers; raises DiskError at the end where output was lost."""
    codecs.register_error(__name__, _plain)
    outputs: dict[str, _Output] = {}
    for name in ("stdout", "stderr"):
        stream: TextIO | None = getattr(sys, name)
        if stream is not None:  # closed by the caller
            stream.flush()
            outputs[name] = _Output(stream.fileno(), "w", closefd=False)
            by_line = name == "stderr" or stream.isatty()
            buffered = io.BufferedWriter(outputs[name])
            setattr(sys, name, io.TextIOWrapper(buffered, stream.encoding, __name__, line_buffering=by_line))
    yield
    for name, output in outputs.items():
        getattr(sys, name).flush()
        if output.failure is not None:
            raise DiskError(f"{name} could not be written: {output.failure.strerror}; make room where it goes")


def _plain(error: UnicodeError) -> tuple[str, int]:
    """Write characters that the output's encoding does not have in ASCII: an error handler of codecs."""
    assert isinstance(error, UnicodeEncodeError)
    return "".join(_ASCII.get(one, "?") for one in error.object[error.start : error.end]), error.end


@contextmanager
def signals_raise() -> Iterator[None]:
    """Raise Interrupted on the first signal, and ignore those that follow while the run is torn down."""

    def handler(signum: int, frame: FrameType | None) -> None:
        for number in _NUMBERS:
            signal.signal(number, signal.SIG_IGN)
        raise Interrupted(signum)

    with _handled_by(handler):
        yield


@dataclass(slots=True)
class NotedSignal:
    """The first signal that came in a block of `signals_noted`."""

    number: int | None = None


@contextmanager
def signals_noted() -> Iterator[NotedSignal]:
    """Let the first signal be noted and nothing else; the block looks at it, ends, and raises Interrupted itself.

    Signals that are held stay so.
    """
    noted = NotedSignal()

    def handler(signum: int, frame: FrameType | None) -> None:
        noted.number = noted.number or signum

    is_held = signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    with _handled_by(signal.SIG_IGN if is_held else handler):
        yield noted


@contextmanager
def signals_held() -> Iterator[None]:
    """Let no signal disturb the block."""
    with _handled_by(signal.SIG_IGN):
        yield


@contextmanager
def _handled_by(handler: Callable[[int, FrameType | None], None] | signal.Handlers) -> Iterator[None]:
    before = [signal.signal(number, handler) for number in _NUMBERS]
    try:
        yield
    finally:
        for number, old in zip(_NUMBERS, before, strict=True):
            signal.signal(number, old)
