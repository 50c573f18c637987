"""What the agent's main thread does between ticks: calls back when a descriptor is readable or a time has come."""

from __future__ import annotations

import select
import time
from collections.abc import Callable


class Loop:
    """Waits for descriptors and times, on one thread."""

    def __init__(self) -> None:
        self._poll = select.poll()
        self._readable: dict[int, Callable[[], None]] = {}
        self._timers: list[tuple[float, Callable[[], None]]] = []
        self._stopped = False

    def on_readable(self, fd: int, call: Callable[[], None]) -> None:
        """Call whenever `fd` can be read or has been closed at its other end."""
        self._readable[fd] = call
        self._poll.register(fd, select.POLLIN)

    def forget(self, fd: int) -> None:
        """Wait for `fd` no longer; to be called before it is closed."""
        del self._readable[fd]
        self._poll.unregister(fd)

    def later(self, in_s: float, call: Callable[[], None]) -> None:
        """Call once, in `in_s` seconds or soon after."""
        self._timers.append((time.monotonic() + in_s, call))

    def stop(self) -> None:
        """Let `run` return."""
        self._stopped = True

    def run(self) -> None:
        """Wait and call back until somebody stops it."""
        while not self._stopped:
            for fd, _ in self._poll.poll(self._timeout_ms()):
                if fd in self._readable:
                    self._readable[fd]()
            now = time.monotonic()
            due = [call for at, call in self._timers if at <= now]
            self._timers = [(at, call) for at, call in self._timers if at > now]
            for call in due:
                if not self._stopped:
                    call()

    def _timeout_ms(self) -> float | None:
        if not self._timers:
            return None
        # A millisecond more than is left, for poll rounds down and would come back early again and again.
        return max(0.0, min(at for at, _ in self._timers) - time.monotonic()) * 1e3 + 1
