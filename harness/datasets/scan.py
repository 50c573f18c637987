"""Lists a real tree of class/…/name.jpg, or of other files in folders."""

from __future__ import annotations

import hashlib
import os
import random
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, TypeVar

from harness.datasets.threads import in_threads
from harness.errors import DatasetError

__all__ = ["IMAGES", "Kind", "Listing", "SampleFile", "limited", "list_tree"]

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Kind:
    """Which files of a tree are samples, and how messages speak of them."""

    noun: str
    suffixes: tuple[str, ...]
    """In lower case; files may have any."""
    layout: str
    """Of a path below the root."""
    hint: str
    """What else is to be known of the layout."""


IMAGES: Final = Kind(
    "images",
    (".jpg", ".jpeg", ".png"),
    "class/name.jpg",
    " (or .jpeg, .png, in any case), for ImageNet the folder that holds n01440764 and its like",
)


@dataclass(frozen=True, slots=True)
class SampleFile:
    """A file that its name says is a sample, an image for one."""

    path: str
    """Relative to the root, '/' between parts."""
    label: int
    size: int
    """Bytes."""
    mtime_ns: int


@dataclass(frozen=True, slots=True)
class Listing:
    """What a root holds."""

    root: Path
    files: tuple[SampleFile, ...]
    """In the order of their paths."""
    classes: tuple[str, ...]
    """Folders of the root that hold samples, in order; a label is a position here."""
    ignored: int
    """Files that are no samples by their names."""

    def fingerprint(self) -> str:
        """Return a hash of every path, size and time of change."""
        digest = hashlib.sha256()
        for file in self.files:
            digest.update(f"{file.path}\0{file.size}\0{file.mtime_ns}\n".encode(errors="surrogateescape"))
        return digest.hexdigest()[:16]

    def limited(self, limit: int | None, seed: int) -> Listing:
        """Return the listing with at most `limit` of its files, chosen by `seed`; itself where that is all of them."""
        files = limited(self.files, limit, seed)
        return self if files is self.files else replace(self, files=tuple(files))


def limited(items: Sequence[T], limit: int | None, seed: int) -> Sequence[T]:
    """Return at most `limit` items, chosen by `seed`, in their order; what was given where that is all of them."""
    if limit is None or limit >= len(items):
        return items
    chosen = random.Random(seed).sample(range(len(items)), limit)  # noqa: S311
    return [items[position] for position in sorted(chosen)]


def list_tree(root: Path, kind: Kind = IMAGES) -> Listing:
    """List the samples under the folders of a root; hidden files and folders are passed over.

    Raises DatasetError naming dataset.root when it is missing, no folder, not readable, or without samples.
    """
    try:
        top = _entries(root)
    except FileNotFoundError as error:
        raise DatasetError(f"dataset.root={root}: does not exist; expected a folder of {kind.layout}") from error
    except NotADirectoryError as error:
        raise DatasetError(f"dataset.root={root}: is a file; expected a folder of {kind.layout}") from error
    except OSError as error:
        raise _unreadable(root, root, error) from error
    folders = [entry for entry in top if _is_folder(entry)]
    found = [one for one in in_threads(lambda entry: _Class.read(root, entry, kind), folders) if one.files]
    loose = sum(_is_sample(entry, kind) for entry in top if not _is_folder(entry))
    if not found:
        held = (
            f"its {loose} {kind.noun} are in no {kind.layout.split('/')[0]} folder"
            if loose
            else f"holds no {kind.noun}"
        )
        raise DatasetError(f"dataset.root={root}: {held}; expected {kind.layout}{kind.hint}")
    files = [
        SampleFile(path, label, status.st_size, status.st_mtime_ns)
        for label, one in enumerate(found)
        for path, status in one.files
    ]
    ignored = sum(one.ignored for one in found) + len(top) - len(folders)
    return Listing(root, tuple(files), tuple(one.name for one in found), ignored)


@dataclass(frozen=True, slots=True)
class _Class:
    name: str
    files: list[tuple[str, os.stat_result]]
    ignored: int

    @classmethod
    def read(cls, root: Path, entry: os.DirEntry[str], kind: Kind) -> _Class:
        files: list[tuple[str, os.stat_result]] = []
        ignored = 0
        for path, file in _walk(root, entry.name, set()):
            status = _stat(file)
            if _is_sample(file, kind) and (stat.S_ISREG(status.st_mode) or stat.S_ISLNK(status.st_mode)):
                files.append((path, status))
            else:
                ignored += 1
        return cls(entry.name, sorted(files, key=lambda item: item[0]), ignored)


def _walk(root: Path, inside: str, seen: set[tuple[int, int]]) -> Iterator[tuple[str, os.DirEntry[str]]]:
    folder = root / inside
    try:
        status = folder.stat()
        entries = _entries(folder)
    except OSError as error:
        raise _unreadable(root, folder, error) from error
    # A link may lead back to a folder that holds it.
    if (status.st_dev, status.st_ino) in seen:
        return
    seen.add((status.st_dev, status.st_ino))
    for entry in entries:
        path = f"{inside}/{entry.name}"
        if _is_folder(entry):
            yield from _walk(root, path, seen)
        else:
            yield path, entry


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    with os.scandir(folder) as entries:
        return sorted((e for e in entries if not e.name.startswith(".")), key=lambda e: e.name)


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link that leads in a circle
        return False


def _is_sample(entry: os.DirEntry[str], kind: Kind) -> bool:
    return entry.name.lower().endswith(kind.suffixes)


def _stat(entry: os.DirEntry[str]) -> os.stat_result:
    """Return what a path leads to; of a link to nothing, the link, so that it is judged as a file that is broken."""
    try:
        return entry.stat()
    except OSError:
        return entry.stat(follow_symlinks=False)


def _unreadable(root: Path, folder: Path, error: OSError) -> DatasetError:
    return DatasetError(
        f"dataset.root={root}: {folder} cannot be listed ({error.strerror}); "
        "give this user leave to read it and all folders above it"
    )
