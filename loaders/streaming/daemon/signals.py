"""Signals that ask a process to stop, as something that a poller can wait for."""

from __future__ import annotations

import os
import signal
from types import TracebackType
from typing import Self

__all__ = ["StopSignals"]


class StopSignals:
    """Turns SIGTERM and SIGINT into a readable descriptor while it is entered, in the main thread."""

    def __init__(self) -> None:
        self.descriptor, self._write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    def __enter__(self) -> Self:
        self._wakeup = signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        self._handlers = {number: signal.signal(number, lambda *_: None) for number in (signal.SIGTERM, signal.SIGINT)}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._wakeup)
        os.close(self.descriptor)
        os.close(self._write)
