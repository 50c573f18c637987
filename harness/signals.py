"""SIGINT, SIGTERM and SIGHUP as one exception, raised once; what it ends is then ended undisturbed."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from harness.errors import Interrupted

__all__ = ["signals_held", "signals_raise"]

_NUMBERS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


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
