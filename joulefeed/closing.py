"""The context of an object that owns something: it is closed when the context is left."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Self


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
