"""A bounded queue between one producing and one consuming thread that either side may close."""

from __future__ import annotations

import threading
from collections import deque
from typing import Generic, TypeVar

__all__ = ["Channel"]

Item = TypeVar("Item")


class Channel(Generic[Item]):
    """Holds at most `capacity` items; the end, or the error that ended it, comes after the last one."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._items: deque[Item] = deque()
        self._changed = threading.Condition()
        self._closed = False
        self._error: BaseException | None = None

    def put(self, item: Item) -> bool:
        """Add an item once there is room; return whether anyone still wants items."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or len(self._items) < self._capacity)
            if not self._closed:
                self._items.append(item)
                self._changed.notify_all()
            return not self._closed

    def get(self) -> Item | None:
        """Return the next item once there is one, None at the end; raise the error that the channel ended with."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or bool(self._items))
            if self._items:
                item = self._items.popleft()
                self._changed.notify_all()
                return item
            if self._error is not None:
                raise self._error
            return None

    def close(self, error: BaseException | None = None) -> None:
        """Take no more items; what is in the channel can still be taken, then `error` is raised."""
        with self._changed:
            if not self._closed:
                self._closed, self._error = True, error
            self._changed.notify_all()
