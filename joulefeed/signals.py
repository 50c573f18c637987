"""How SIGINT, SIGTERM and SIGHUP end a program, in all three packages.

The first of them is the exception Interrupted in the main thread, so that all that the program has made is removed. One
that comes later ends the process at once, as a kill does: children end with their parent, and a run's reaper removes
the rest. Before a program begins and after it has ended, there is nothing to remove, and the first one ends it at once.
"""

from __future__ import annotations

import _thread
import atexit
import os
import signal
import sys
import time
from contextlib import contextmanager, suppress

TYPE_CHECKING = False
if TYPE_CHECKING:  # no signal is heard before this module is imported, so it imports little
    from collections.abc import Callable, Iterator
    from types import FrameType
    from typing import Any, Final, NoReturn

_NUMBERS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_ONE_REQUEST_S: Final = 0.5
"""Signals so soon after the first belong to it: a terminal, its shell and `timeout` may send one each."""
_AGAIN_S: Final = 0.01
_LONGEST_IMPORT_S: Final = 10.0
"""How long a signal waits for the end of an import; then it ends the process at once."""

ignored: Final[list[signal.Signals]] = []
"""The signals that this program was started to ignore, by `nohup` for example; what it runs for a user ignores them."""


class Interrupted(BaseException):
    """A signal asks the program to end. Like KeyboardInterrupt it is no Exception, so that no library swallows it."""

    def __init__(self, signum: int, remedy: str = "") -> None:
        """Take the signal's number, and what the user can do next, which is part of the message."""
        super().__init__(f"interrupted by signal {signum:d}" + (f"; {remedy}" if remedy else ""))
        self.signum = signum
        self.exit_status = 128 + signum


def _leave(signum: int, how: str = "") -> NoReturn:
    """End the process now, with one line."""
    with suppress(OSError):
        shows_cursor = b"\x1b[?25h" if os.isatty(2) else b""  # a progress display hides it
        os.write(2, f"{Interrupted(signum)}{how}\n".encode() + shows_cursor)
    os._exit(128 + signum)


def _raise(signum: int) -> NoReturn:
    raise Interrupted(signum)


class _State:
    """What this process has heard, and what it does with a first signal."""

    def __init__(self) -> None:
        self.act: Callable[[int], object] = _leave
        self.is_held = False
        self.first: int | None = None
        self.first_s = 0.0
        """When it came, monotonic."""
        self.is_put_off = False
        """Whether it waits for the end of an import."""
        self.status: int | None = None
        """The exit status of the program that has ended."""


_state = _State()


def _take(signum: int, frame: FrameType | None) -> None:
    now_s = time.monotonic()
    if _state.first is None:
        _state.first, _state.first_s = signum, now_s
    elif not _state.is_put_off:
        if now_s - _state.first_s > _ONE_REQUEST_S:
            _leave(signum, " again; ended at once")
        return
    # An exception in the middle of the import of a C++ library aborts the process.
    _state.is_put_off = _state.act is _raise and _is_importing(frame)
    if not _state.is_put_off:
        _state.act(signum)
    elif now_s - _state.first_s > _LONGEST_IMPORT_S:
        _leave(signum)
    else:
        _send_again(signum)


def _is_importing(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            return True
        frame = frame.f_back
    return False


def _send_again(signum: int) -> None:
    """Send this thread, the main one, a signal again in a moment."""

    def send(thread: int) -> None:
        time.sleep(_AGAIN_S)
        signal.pthread_kill(thread, signum)

    _thread.start_new_thread(send, (_thread.get_ident(),))


def begin_program() -> None:
    """Let a signal end this process at once, with one line: it has made nothing yet.

    The packages call it where `python -m` imports them, because imports may take seconds.
    """
    if signal.getsignal(signal.SIGINT) is not _take:
        # The function that is registered first runs last.
        atexit.register(_end)
        os.register_at_fork(after_in_child=_begin_child)
        for number in _NUMBERS:
            if signal.signal(number, _take) is signal.SIG_IGN:
                ignored.append(number)


def _begin_child() -> None:
    """Let a signal end a process that is forked, and that does not handle it; what there is to say, its parent says."""
    _state.act, _state.first, _state.status = lambda signum: os._exit(128 + signum), None, None


def _end() -> None:
    """End the process after a whole program: while the interpreter frees its objects, no signal is heard."""
    if _state.status is not None:
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError):
                if stream is not None:  # closed by the caller
                    stream.flush()
        os._exit(_state.status)


def run_program(program: Callable[[], int | None]) -> NoReturn:
    """Run a whole program, and exit with the status that it returns; a signal is one line, and 128 and its number."""
    begin_program()
    status = 1
    try:
        with signals_raise():
            status = program() or 0
    except SystemExit as end:
        _state.status = status = end.code if isinstance(end.code, int) else int(end.code is not None)
        raise
    except BaseException as error:
        # A library may have raised its own error instead of the signal's.
        interrupt = error if isinstance(error, Interrupted) else interrupted()
        if interrupt is None:
            raise
        status = interrupt.exit_status
        print(interrupt, file=sys.stderr)
    finally:
        _state.act, _state.first = lambda _: os._exit(status), None
    _state.status = status
    sys.exit(status)


def interrupted() -> Interrupted | None:
    """Return the signal that has come in this program, which a library may have swallowed; None where none has."""
    return None if _state.first is None else Interrupted(_state.first)


@contextmanager
def _acting(act: Callable[[int], object], *, is_held: bool = False) -> Iterator[None]:
    before = _state.act, _state.is_held
    _state.act, _state.is_held = act, is_held
    handlers = [signal.signal(number, _take) for number in _NUMBERS]
    try:
        yield
    finally:
        for number, handler in zip(_NUMBERS, handlers, strict=True):
            signal.signal(number, handler)
        _state.act, _state.is_held = before
        if handlers[0] is not _take:
            _state.first = None


@contextmanager
def signals_raise() -> Iterator[None]:
    """Raise Interrupted on the first signal; one that comes later ends the process at once."""
    before = sys.unraisablehook

    def hook(unraisable: Any) -> None:
        if not isinstance(unraisable.exc_value, Interrupted):
            before(unraisable)
            return
        # The signal came in a destructor or a callback, which no exception can leave. It comes again, outside of it.
        _state.first = None
        _send_again(unraisable.exc_value.signum)

    sys.unraisablehook = hook
    try:
        with _acting(_raise):
            yield
    finally:
        sys.unraisablehook = before


class NotedSignal:
    """The first signal that came in a block of `signals_noted`."""

    number: int | None = None

    def note(self, number: int) -> None:
        """Take it."""
        self.number = number


@contextmanager
def signals_noted() -> Iterator[NotedSignal]:
    """Let the first signal be noted and nothing else; the block looks at it, ends, and raises Interrupted itself.

    Signals that are held stay so.
    """
    noted = NotedSignal()
    if _state.is_held:
        yield noted
    else:
        with _acting(noted.note):
            yield noted


@contextmanager
def signals_held() -> Iterator[None]:
    """Let a first signal wait until the block has ended. It is lost where an error is in flight, which says more."""
    held = NotedSignal()
    with _acting(held.note, is_held=True):
        yield
    if held.number is not None and sys.exception() is None:
        _state.first = None
        signal.raise_signal(held.number)
