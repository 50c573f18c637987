"""The shard folder: TFRecord files, an index beside each, and a manifest that is written last."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias

import numpy as np
import numpy.typing as npt

from joulefeed.npy import load_npy
from loaders.errors import ShardError

RECORD = np.dtype(
    [
        ("offset", "<i8"),
        ("size", "<i8"),
        ("image", "<i8"),
        ("image_size", "<i8"),
        ("label", "<i8"),
        ("id", "<i8"),
        ("checksum", "<u4"),
    ]
)
"""A record: offset and size in the shard, its image's (or other payload's) offset in the record and size, label, id.

A label of -1 stands for none. The checksum is the masked CRC-32C with which the record ends: two indexes are equal only
where the records are.
"""

MANIFEST = "manifest.json"
Records: TypeAlias = npt.NDArray[np.void]
"""A table of records, dtype RECORD, shape (records,)."""
_FORMAT = 1
_READERS = 16
"""Threads that wait for the disk."""
_LOOKED_AT = 4
"""Records of a shard that are compared to its index when it is served."""


@dataclass(frozen=True, slots=True)
class Shard:
    """One TFRecord file and the table of its records in file order."""

    path: Path
    nbytes: int
    records: Records
    """Dtype RECORD, shape (number of records,)."""


@dataclass(frozen=True, slots=True)
class ShardSet:
    """A converted dataset."""

    root: Path
    key: str
    """What the dataset was converted from, as the caller named it."""
    shards: tuple[Shard, ...]
    is_shuffled: bool = True
    """Whether its records were shuffled when the shards were written."""

    @property
    def samples(self) -> int:
        """Number of records in all shards."""
        return sum(len(shard.records) for shard in self.shards)

    @property
    def nbytes(self) -> int:
        """Bytes of all shards."""
        return sum(shard.nbytes for shard in self.shards)

    @classmethod
    def open(cls, root: Path) -> ShardSet:
        """Read the manifest and the indexes of a shard folder and check them against the files.

        Raises ShardError naming the file that is missing or does not fit.
        """
        manifest, paths = read_manifest(root)
        with ThreadPoolExecutor(_READERS) as threads:
            shards = tuple(threads.map(load_index, paths))
        return cls(root, str(manifest["key"]), shards, manifest.get("seed") is not None)


def index_path(shard: Path) -> Path:
    """Return where the index of a shard lies."""
    # Others name shards name.tfrecord-00000-of-00010: only our own suffix may go without two becoming one.
    return (
        shard.with_suffix(".index.npy") if shard.suffix == ".tfrecord" else shard.with_name(f"{shard.name}.index.npy")
    )


def save_index(shard: Path, records: Records) -> None:
    """Write the index of a shard beside it, whole or not at all."""
    with write_atomically(index_path(shard)) as file:
        np.save(file, records.astype(RECORD, copy=False), allow_pickle=False)


def save_manifest(root: Path, *, key: str, seed: int | None, shards: list[Path]) -> None:
    """Write the manifest that makes a folder a shard folder; `seed` is None where the records were not shuffled."""
    content = {
        "format": _FORMAT,
        "key": key,
        "seed": seed,
        "shards": [{"name": shard.name, "bytes": shard.stat().st_size} for shard in shards],
    }
    with write_atomically(root / MANIFEST) as file:
        file.write(json.dumps(content, indent=1).encode() + b"\n")


@contextmanager
def write_atomically(path: Path) -> Iterator[BinaryIO]:
    """Open a file that takes its name when the block ends well and its bytes are on the disk; raises OSError."""
    # Of this thread alone: two that write the same file must not write into one another's.
    partial = path.with_name(f".{path.name}.{os.getpid()}-{threading.get_native_id()}.tmp")
    try:
        with partial.open("wb", buffering=2**20) as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    except OSError as error:
        # The error of a full disk has no file name.
        raise OSError(error.errno, error.strerror, str(error.filename or path)) from error
    finally:
        partial.unlink(missing_ok=True)


def read_key(root: Path) -> str | None:
    """Return the key of a shard folder, None where there is no whole one of this format."""
    try:
        return ShardSet.open(root).key
    except ShardError:
        return None


def load_index(shard: Path) -> Shard:
    """Return a shard with its index, which is checked against the file.

    Raises ShardError naming the file that is missing or does not fit.
    """
    where = index_path(shard)
    try:
        nbytes = shard.stat().st_size
        records = load_npy(where.read_bytes())
    except OSError as error:
        raise ShardError(f"{error.filename or shard}: {error.strerror}; convert or index the data again") from error
    except (ValueError, EOFError) as error:
        raise ShardError(f"{where}: {error}; convert or index the data again") from error
    known = isinstance(records, np.ndarray) and records.dtype == RECORD and records.ndim == 1
    if not known or not len(records):
        raise ShardError(f"{where}: expected one or more records of {RECORD}; convert or index the data again")
    if not _fits(records, nbytes):
        raise ShardError(f"{where} does not describe {shard.name} ({nbytes} bytes); convert or index the data again")
    return Shard(shard, nbytes, records)


def read_checksums(shard: Path, records: Records) -> npt.NDArray[np.uint32]:
    """Return the checksums that records of a shard state of their payloads, shape (records,).

    Raises ShardError naming the shard where it cannot be read or is too short.
    """
    try:
        file = os.open(shard, os.O_RDONLY | os.O_CLOEXEC)
        try:
            stated = [os.pread(file, 4, end - 4) for end in (records["offset"] + records["size"]).tolist()]
        finally:
            os.close(file)
    except OSError as error:
        raise ShardError(f"{shard}: {error.strerror}; convert or index the data again") from error
    if any(len(checksum) != 4 for checksum in stated):
        raise ShardError(f"{shard}: the file became shorter while it was read; copy or convert it again")
    return np.frombuffer(b"".join(stated), "<u4")


def check_content(shards: Sequence[Shard]) -> None:
    """Check that shards are those that were indexed: a few records of each, or all where it is newer than its index.

    What a few records do not show, the receiver finds: the checksums of the index go with every batch.

    Raises ShardError naming the record that was another one when its shard was indexed.
    """
    with ThreadPoolExecutor(_READERS) as threads:
        for _ in threads.map(_check_content, shards):
            pass


def _check_content(shard: Shard) -> None:
    which = np.unique(np.linspace(0, len(shard.records) - 1, _LOOKED_AT).astype(int))
    if shard.path.stat().st_mtime_ns > index_path(shard.path).stat().st_mtime_ns:
        which = np.arange(len(shard.records))
    differs = read_checksums(shard.path, shard.records[which]) != shard.records["checksum"][which]
    if differs.any():
        raise ShardError(
            f"{shard.path}: record {which[differs][0]} is not the one that was indexed; restore the shard, or index or "
            "convert the data again"
        )


def read_manifest(root: Path) -> tuple[dict[str, Any], list[Path]]:
    """Return what the manifest of a shard folder says, and the shards that it lists.

    Raises ShardError naming what is wrong with it.
    """
    path = root / MANIFEST
    try:
        manifest = json.loads(path.read_text())
    except OSError as error:
        raise ShardError(
            f"{root} is not a shard folder: {path.name} cannot be read ({error.strerror}); make one with "
            "`python -m loaders.streaming convert`, or `index` where TFRecord files are there already"
        ) from error
    except ValueError as error:
        raise ShardError(f"{path} is not JSON ({error}); convert the data again") from error
    if not isinstance(manifest, dict) or manifest.get("format") != _FORMAT:
        raise ShardError(f"{path}: expected format {_FORMAT}; convert the data again")
    try:
        _, names = manifest["key"], [str(entry["name"]) for entry in manifest["shards"]]
    except (KeyError, TypeError) as error:
        raise ShardError(f"{path}: expected `key` and `shards`; convert the data again") from error
    if not names or len(set(names)) != len(names):
        raise ShardError(f"{path}: no shards, or one of them twice; convert the data again")
    for name in names:
        if (root / name).parent != root or name in ("", ".", ".."):
            raise ShardError(f"{path}: shard {name!r} is not a file name in the folder")
    return manifest, [root / name for name in names]


def _fits(records: Records, nbytes: int) -> bool:
    offset, size, image, image_size = (records[name] for name in ("offset", "size", "image", "image_size"))
    # Each number alone comes first, so that no sum of two can wrap.
    if not ((offset >= 0) & (offset < nbytes) & (size > 0) & (size <= nbytes)).all():
        return False
    if not ((image >= 0) & (image_size >= 0) & (image <= size) & (image_size <= size - image)).all():
        return False
    ends = offset + size
    return bool(offset[0] == 0 and (offset[1:] == ends[:-1]).all() and ends[-1] == nbytes)
