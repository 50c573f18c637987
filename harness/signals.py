"""SIGINT, SIGTERM and SIGHUP as one exception, raised once; what it ends is then ended undisturbed."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn

from harness.errors import Interrupted

__all__ = ["run_program", "signals_held", "signals_raise"]

_NUMBERS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def run_program(program: Callable[[], int | None], nothing_done: str) -> NoReturn:
    """Run a whole program and exit with the status that it returns; it imports what it needs, which takes a while.

    A signal that it does not handle itself ends it with one line, of which `nothing_done` is the end, and with its
    status; while the interpreter ends no signal is heard any more.
    """
    try:
        with signals_raise():
            status = program() or 0
    except Interrupted as error:
        print(f"{error}; {nothing_done}", file=sys.stderr)
        status = error.exit_status
    finally:
        for number in _NUMBERS:
            signal.signal(number, signal.SIG_IGN)
    sys.exit(status)


@contextmanager
def signals_raise() -> Iterator[None]:
    """Raise Interrupted on the first signal, and ignore those that follow while the run is torn down."""

    def handler(signum: int, frame: FrameType | None) -> None:
        for number in _NUMBERS:
            signal.signal(number, signal.SIG_IGN)
        raise Interrupted(signum)

    with _handled_by(handler):
        yield


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
