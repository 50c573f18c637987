"""A whole program of this package: its signals, its version, its end, and output that may end before it does."""

from __future__ import annotations

import atexit
import codecs
import ctypes
import io
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NoReturn, TextIO

from harness.errors import DiskError
from joulefeed import signals
from joulefeed.child import Child

_END_S: Final = 120.0
"""Within this a run that is ended has stored what it measured, and taken its testbed down."""

_ASCII: Final = dict(
    zip("×−–→≤≥±†…▇✓✗", ["x", "-", "-", "->", "<=", ">=", "+-", "*", "...", "#", "+", "x"], strict=True)
)


def run_program(program: Callable[[], int | None]) -> NoReturn:
    """Run a whole program and exit with the status that it returns; a signal ends it with one line and its status.

    When the reader of its output goes (`| head`), the program goes on and the rest of its output is dropped.
    """
    if sys.flags.safe_path:  # python -P: what this program starts is to find its packages as it does
        os.environ["PYTHONSAFEPATH"] = "1"
    signals.run_program(lambda: _with_output(program))


def _with_output(program: Callable[[], int | None]) -> int:
    status = 0
    try:
        with _lasting_output():
            status = _version() if "--version" in sys.argv[1:] else program() or 0
    except DiskError as error:
        print(f"error: {error}", file=sys.stderr)
        status = status or error.exit_status
    return status


def run_harness(
    words: Sequence[str], report: int, *, cwd: Path | None = None, env: Mapping[str, str] | None = None
) -> int:
    """Run `python -m harness` with these words as a child, its report to a descriptor; return its exit status.

    A signal that ends this program ends the child first, which keeps what it has measured. It is killed where it takes
    more than two minutes for that.
    """
    with Child(
        [sys.executable, "-m", "harness", *words],
        stdin=subprocess.DEVNULL,
        stdout=report,
        cwd=cwd,
        env=env,
        group_killed_with_parent=True,
        grace_without_parent_s=_END_S,
    ) as child:
        try:
            return child.process.wait()
        finally:
            child.stop(term_s=_END_S)


def run_to_end(program: Callable[[], int]) -> NoReturn:
    """Run a whole program, and end the process with the status that it returns.

    The program imports what it needs. After status 0 the process ends as soon as its threads are joined, the functions
    of `atexit` have run and all output is written. The interpreter would free every module and object first, which
    takes a second where torch is loaded, and which the kernel does at once. After another status or an exception the
    interpreter ends as usual.
    """
    is_whole = False

    def end() -> None:
        if is_whole:
            sys.stdout.flush()
            sys.stderr.flush()
            # What libraries wrote with C's stdio.
            ctypes.CDLL(None).fflush(None)
            os._exit(0)

    # The function that is registered first runs last.
    atexit.register(end)
    status = program()
    is_whole = status == 0
    sys.exit(status)


def _version() -> int:
    from joulefeed.version import version_text

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
