"""What a converter reads: items that are listed first, and read one by one when their shard is written."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from loaders.errors import LoaderConfigError, LoaderError, SampleError
from loaders.records.shards.classes import Classes, assign_labels
from loaders.records.shards.example import Feature

if TYPE_CHECKING:  # only a source with columns needs it
    import pyarrow as pa


@dataclass(frozen=True, slots=True)
class Item:
    """One sample as it was listed."""

    name: str
    """Its file relative to the source, '/' between parts."""
    label: int
    """-1 where there is none."""
    size: int
    """Bytes of the file when it was listed."""
    mtime_ns: int
    payload_size: int
    """Bytes of the payload, as far as the listing shows; shards are divided by it."""
    features: dict[str, Feature] = field(default_factory=dict)
    """What else is stored with the sample."""
    companion: str | None = None
    """Another file that is stored with the sample, relative to the source."""
    companion_size: int = 0
    """Its bytes when it was listed."""
    files: Mapping[str, str] = field(default_factory=dict)
    """The sample's further files, relative to the source, by the columns that name them; `size` is of all files."""


@dataclass(frozen=True, slots=True)
class Broken:
    """A file that cannot be converted."""

    name: str
    """Relative to the source."""
    why: str
    """In words that name the file and say what to do."""
    sample_id: int | None = None
    """None where it was not listed."""


@dataclass(frozen=True, slots=True)
class Content:
    """One sample as it is stored."""

    payload_name: str
    payload: bytes | memoryview
    features: Mapping[str, Feature] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SampleListing:
    """The samples of one kind below a folder; a sample's id is its position."""

    kind: str
    root: Path
    items: tuple[Item, ...]
    label_feature: str
    """The int64 feature that holds the label."""
    path_feature: str
    """The bytes feature that holds the item's name."""
    read: Callable[[Path, Item, int], Content]
    """From the root, the item and its id; a function of a module, so that other processes can call it."""
    labels: Mapping[str, int] = field(default_factory=dict)
    """The label of every class by its name, where they are known; of classes too that have no sample here."""
    ignored: int = 0
    """Files that are not of this kind by their names."""
    columns: Mapping[str, pa.Array] = field(default_factory=dict)
    """Columns of the dataset by name, storable; each row is stored with its sample."""
    broken: tuple[Broken, ...] = ()
    """Files that cannot be samples, as was seen when they were listed."""

    @property
    def is_enumerated(self) -> bool:
        """Whether the labels are 0, 1, … and no two classes have the same."""
        return sorted(self.labels.values()) == list(range(len(self.labels)))

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the classes in the order of their labels."""
        return tuple(sorted(self.labels, key=lambda name: self.labels[name]))


def source_folder(root: Path) -> Path:
    """Return the folder to read; raises LoaderConfigError when it is not one."""
    if not root.is_dir():
        problem = "it is not a folder" if root.exists() else "there is no such folder"
        raise LoaderConfigError(f"{root}: {problem}; name the folder that holds the data")
    return root


def list_files(root: Path) -> Iterator[tuple[str, Path]]:
    """Yield the relative name and the path of every file below a folder in the order of names, hidden ones left out.

    Links are followed, but into no folder a second time. Raises LoaderConfigError naming a folder that cannot be read.
    """

    def refuse(error: OSError) -> None:
        raise LoaderConfigError(f"{error.filename}: {error.strerror}; make it readable or take it away") from error

    found: list[tuple[str, Path]] = []
    seen: set[tuple[int, int]] = set()
    for folder, inner, files in os.walk(source_folder(root), onerror=refuse, followlinks=True):
        here = Path(folder).stat()
        if (here.st_dev, here.st_ino) in seen:
            inner.clear()
            continue
        seen.add((here.st_dev, here.st_ino))
        inner[:] = sorted(name for name in inner if not name.startswith("."))
        below = Path(folder).relative_to(root)
        found.extend(((below / name).as_posix(), Path(folder, name)) for name in files if not name.startswith("."))
    yield from sorted(found)


@dataclass(frozen=True, slots=True)
class Tree:
    """The files of one kind below a folder."""

    files: tuple[tuple[str, Path], ...]
    """Relative name and path."""
    labels: Mapping[str, int]
    """Label of every class folder; empty where the files are in the root."""
    ignored: int
    """Number of other files."""

    def label(self, name: str) -> int:
        """Return the label of a file by its relative name, -1 without classes."""
        return self.labels.get(name.partition("/")[0], -1)


def list_tree(root: Path, suffixes: tuple[str, ...], missing: str, classes: Classes | None) -> Tree:
    """List the files with these suffixes below a folder; a label is the place of the class folder, or as given.

    Raises LoaderConfigError naming a folder that cannot be read, with `missing` where there is no such file, or naming
    a file that is beside class folders.
    """
    found = list(list_files(root))
    files = tuple((name, path) for name, path in found if path.suffix.lower() in suffixes)
    if not files:
        raise LoaderConfigError(f"{root}: no {missing}")
    loose = [name for name, _ in files if "/" not in name]
    folders = sorted({name.partition("/")[0] for name, _ in files if "/" in name})
    if loose and folders:
        raise LoaderConfigError(
            f"{root / loose[0]}: it lies beside class folders such as {folders[0]}; move it into one of them or away"
        )
    return Tree(files, assign_labels(folders, classes, root), len(found) - len(files))


def make_item(name: str, path: Path, label: int) -> Item:
    """Return a file as an item whose payload is the file; raises SampleError when its status cannot be read."""
    try:
        status = path.stat()
        check_regular(status, path)
    except OSError as error:
        raise SampleError(f"{path}: {error.strerror}; restore it or take it away") from error
    return Item(name, label, status.st_size, status.st_mtime_ns, status.st_size)


def list_items(
    files: Iterable[tuple[str, Path]], make: Callable[[str, Path], Item], broken: list[Broken] | None
) -> tuple[Item, ...]:
    """Return the items of files, by relative name and path, as `try_item` makes each."""
    found = (try_item(name, partial(make, name, path), broken) for name, path in files)
    return tuple(item for item in found if item is not None)


def try_item(name: str, item: Callable[[], Item], broken: list[Broken] | None) -> Item | None:
    """Return an item; where it cannot be listed raise LoaderError, or add it to `broken` and return None."""
    try:
        return item()
    except LoaderError as error:
        if broken is None:
            raise
        broken.append(Broken(name, str(error)))
        return None


def read_regular(path: Path) -> bytes:
    """Return a file's bytes; raises OSError for anything else, such as a FIFO, which may never end."""
    with open(path, "rb", opener=_open_without_waiting) as file:
        check_regular(os.fstat(file.fileno()), path)
        return file.read()


def _open_without_waiting(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)


def check_regular(status: os.stat_result, path: Path) -> None:
    """Raise IsADirectoryError for a folder, and OSError for anything else that is not a regular file."""
    if stat.S_ISDIR(status.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, "it is a FIFO, socket or device, expected a regular file", str(path))


def read_file(path: Path, sample_id: int, size: int) -> bytes:
    """Return a file's bytes; raises SampleError when it cannot be read or is not of the size that was listed."""
    try:
        content = read_regular(path)
    except OSError as error:
        raise SampleError(f"sample {sample_id}, {path}: {error.strerror}; restore it or take it away") from error
    if len(content) != size:
        raise SampleError(
            f"sample {sample_id}, {path}: {len(content)} bytes, {size} when the tree was scanned; scan it again"
        )
    return content
