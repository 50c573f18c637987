"""Calls that wait for storage, many at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

__all__ = ["in_threads"]

Item = TypeVar("Item")
Result = TypeVar("Result")

_AT_ONCE: Final = 16
"""Far storage answers many requests as fast as one."""


def in_threads(
    function: Callable[[Item], Result], items: Iterable[Item], heard: Callable[[int], None] = lambda done: None
) -> list[Result]:
    """Return what the function returns of every item, in their order; `heard` is told how many are done.

    What either raises is raised here, and calls that have not begun are dropped.
    """
    results: list[Result] = []
    pool = ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="in-threads")
    try:
        for result in pool.map(function, items):
            results.append(result)
            heard(len(results))
    finally:
        pool.shutdown(cancel_futures=True)
    return results
