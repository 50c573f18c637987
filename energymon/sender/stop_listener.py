"""Waiting that ends early when the process is to end."""

from __future__ import annotations

import os
import select
import signal

__all__ = ["StopListener"]


class StopListener:
    """Waits, and hears meanwhile that the sender shall end: the end of stdin, SIGTERM or SIGINT."""

    def __init__(self, *, until_eof: bool) -> None:
        self.eof = False
        self.killed = False
        self._fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._until_eof = until_eof
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)

    def wait(self, timeout_s: float) -> None:
        """Return after `timeout_s`, or as soon as there is something to hear or another thread calls `wake`."""
        if self.killed:
            return
        heeded = [self._fd, *([0] if self._until_eof and not self.eof else [])]
        ready, _, _ = select.select(heeded, [], [], max(0.0, timeout_s))
        if 0 in ready and not os.read(0, 4096):
            self.eof = True
        if self._fd in ready:
            os.eventfd_read(self._fd)

    def wake(self) -> None:
        """Have `wait` return."""
        os.eventfd_write(self._fd, 1)

    def _on_signal(self, number: int, frame: object) -> None:
        self.killed = True
        self.wake()
