"""The context of an object that owns something: it is closed when the context is left."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    import socket


class Closing(ABC):
    """Base of what owns a descriptor, a connection, a thread or a process."""

    __slots__ = ()

    @abstractmethod
    def close(self) -> None:
        """Release it; may be called twice."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@contextmanager
def receives_for(connection: socket.socket, seconds: float) -> Iterator[None]:
    """Have a connection receive nothing more after so long, s: its own timeout is that of each part that comes."""
    import socket  # `energymon exec` is to start at once

    def end() -> None:
        with suppress(OSError):
            connection.shutdown(socket.SHUT_RD)

    timer = threading.Timer(seconds, end)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
