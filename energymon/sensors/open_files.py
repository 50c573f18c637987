"""Descriptors that stay open, are read together, and are opened again after a failure."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from energymon.ticker.ticker import Raw

__all__ = ["CLOSED", "Entry", "OpenFiles"]

CLOSED: Final = -1


class Entry(Protocol):
    """Something with a descriptor to read."""

    @property
    def fd(self) -> int:
        """The descriptor, -1 when it is closed."""
        ...

    def open(self) -> None:
        """Open it, closing the file that was open before. Raises OSError."""
        ...

    def close(self) -> None:
        """Close it; may be called twice."""
        ...


class OpenFiles:
    """Reads `call(fd, *args)` of every entry in one go.

    One thread reads; `distrust` may be called from another. What failed is opened again in the next read.
    """

    __slots__ = ("_args", "_broken", "_call", "_entries", "_errors", "_fds")

    def __init__(self, entries: Sequence[Entry], call: Callable[..., bytes], *args: int) -> None:
        self._entries = entries
        self._call = call
        self._args = args
        self._broken: deque[int] = deque()
        self._errors: dict[int, OSError] = {}
        self._fds = [entry.fd for entry in entries]

    def read(self) -> Raw:
        """Return [t, value, t, value, …, t]: what each entry holds between two times, monotonic ns.

        A value is bytes, or the OSError that came instead; an entry's own times are those beside its value.
        """
        if self._broken:
            self._reopen()
        call, args, now_ns = self._call, self._args, time.monotonic_ns
        raw: Raw = [now_ns()]
        for fd in self._fds:
            try:
                value: bytes | OSError = call(fd, *args)
            except OSError as error:
                value = self._failed(len(raw) // 2, error)
            raw += value, now_ns()
        return raw

    def distrust(self, index: int) -> None:
        """Have an entry opened again before the next read: what it holds cannot be true."""
        self._broken.append(index)

    @property
    def whole(self) -> bool:
        """Whether every entry is open and trusted."""
        return not self._broken and not self._errors and CLOSED not in self._fds

    def close(self) -> None:
        """Close every entry; may be called twice."""
        self._fds = [CLOSED] * len(self._fds)
        for entry in self._entries:
            entry.close()

    def _failed(self, index: int, error: OSError) -> OSError:
        # A traceback would keep this frame, and the values read with it, for as long as the error waits.
        error.__traceback__ = None
        self._broken.append(index)
        return self._errors.get(index, error)

    def _reopen(self) -> None:
        broken = {self._broken.popleft() for _ in range(len(self._broken))}
        for index in broken:
            try:
                self._entries[index].open()
                self._errors.pop(index, None)
            except OSError as error:
                error.__traceback__ = None
                self._errors[index] = error
            self._fds[index] = self._entries[index].fd
