"""Lists a real tree of class/…/name.jpg, or of other files in folders."""

from __future__ import annotations

import os
import random
import stat
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple, TypeVar

from harness.errors import DatasetError

T = TypeVar("T")
Result = TypeVar("Result")

_THREADS: Final = 16
"""Remote storage answers many requests as fast as one."""


@dataclass(frozen=True, slots=True)
class SampleFile:
    """A file whose name says that it is a sample."""

    path: str
    """Relative to the root, '/' between parts."""
    label: int
    size: int
    """Bytes."""
    mtime_ns: int


class Listing(NamedTuple):
    """The samples below a root."""

    files: Sequence[SampleFile]
    """In the order of their paths; a label is a position of its folder among those of the root that hold samples."""
    classes: int
    """Folders of the root that hold samples."""
    ignored: int
    """Files that are no samples by their names."""


def limited(items: Sequence[T], limit: int | None, seed: int) -> Sequence[T]:
    """Return at most `limit` items, chosen by `seed`, in their order; `items` itself where that is all of them."""
    if limit is None or limit >= len(items):
        return items
    return [items[position] for position in sorted(random.Random(seed).sample(range(len(items)), limit))]  # noqa: S311


def in_threads(
    function: Callable[[T], Result], items: Iterable[T], on_done: Callable[[int], None] = lambda done: None
) -> list[Result]:
    """Call a function that waits for storage on every item, many at a time; return the results in order.

    `on_done` is called with how many are done. An exception of either is raised here, and waiting calls are dropped.
    """
    results: list[Result] = []
    pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="in-threads")
    try:
        for result in pool.map(function, items):
            results.append(result)
            on_done(len(results))
    finally:
        pool.shutdown(cancel_futures=True)
    return results


def entries_of(root: Path, layout: str) -> list[os.DirEntry[str]]:
    """Return what a root holds, by name and without hidden files; raises DatasetError naming dataset.root."""
    try:
        with os.scandir(root) as entries:
            return sorted((entry for entry in entries if not entry.name.startswith(".")), key=lambda entry: entry.name)
    except (FileNotFoundError, NotADirectoryError) as error:
        what = "is a file" if isinstance(error, NotADirectoryError) else "does not exist"
        raise DatasetError(f"dataset.root={root}: {what}; expected a folder of {layout}") from error
    except OSError as error:
        raise _unreadable(root, error) from error


def list_tree(root: Path, *, noun: str, suffixes: tuple[str, ...], layout: str, hint: str) -> Listing:
    """List the samples under the folders of a root, without hidden files and folders.

    Samples are files with one of the suffixes, which are lower case, in any case. Messages call them `noun`, and say
    the layout of their paths below the root and a hint about it.

    Raises DatasetError naming dataset.root when it is missing, no folder, not readable, or without samples.
    """
    top = entries_of(root, layout)
    folders = [entry.name for entry in top if os.path.isdir(entry)]  # noqa: PTH112 - of a link in a circle False
    read = in_threads(lambda name: _read_class(root, name, suffixes), folders)
    found = [files for files, _ in read if files]
    if not found:
        loose = sum(entry.name not in folders and entry.name.lower().endswith(suffixes) for entry in top)
        missing = f"its {loose} {noun} are in no {layout.partition('/')[0]} folder"
        problem = missing if loose else f"holds no {noun}"
        raise DatasetError(f"dataset.root={root}: {problem}; expected {layout}{hint}")
    samples = [
        SampleFile(path, label, status.st_size, status.st_mtime_ns)
        for label, files in enumerate(found)
        for path, status in files
    ]
    ignored = sum(count for _, count in read) + len(top) - len(folders)
    return Listing(samples, len(found), ignored)


def _read_class(root: Path, name: str, suffixes: tuple[str, ...]) -> tuple[list[tuple[str, os.stat_result]], int]:
    """Return paths and status of the samples below a folder of the root, and how many other files there are."""

    def fail(error: OSError) -> None:
        raise _unreadable(root, error) from error

    base = str(root / name)
    files: dict[str, os.stat_result] = {}
    ignored = 0
    seen: set[tuple[int, int]] = set()
    for folder, folders, names in os.walk(base, onerror=fail, followlinks=True):
        status = os.stat(folder)  # noqa: PTH116
        # A link may lead back to a folder that holds it.
        if (status.st_dev, status.st_ino) in seen:
            folders.clear()
            continue
        seen.add((status.st_dev, status.st_ino))
        folders[:] = [inner for inner in folders if not inner.startswith(".")]
        for file in names:
            if file.startswith("."):
                continue
            path = f"{folder}/{file}"
            status = _stat(path)
            if file.lower().endswith(suffixes) and (stat.S_ISREG(status.st_mode) or stat.S_ISLNK(status.st_mode)):
                files[name + path[len(base) :]] = status
            else:
                ignored += 1
    return sorted(files.items()), ignored


def _stat(path: str) -> os.stat_result:
    """Return the status of a link's target; of the link itself where there is none, and is then judged as broken."""
    try:
        return os.stat(path)  # noqa: PTH116
    except OSError:
        return os.lstat(path)


def _unreadable(root: Path, error: OSError) -> DatasetError:
    return DatasetError(
        f"dataset.root={root}: {error.filename} cannot be listed ({error.strerror}); "
        "give this user leave to read it and all folders above it"
    )
