"""The shard folder: TFRecord files, an index beside each, and a manifest that is written last."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from loaders.streaming.errors import ShardError

__all__ = [
    "MANIFEST",
    "RECORD",
    "Shard",
    "ShardSet",
    "index_path",
    "save_index",
    "save_manifest",
    "stored_key",
]

RECORD = np.dtype(
    [
        ("offset", "<i8"),
        ("size", "<i8"),
        ("image", "<i8"),
        ("image_size", "<i8"),
        ("label", "<i8"),
        ("id", "<i8"),
    ]
)
"""A record: offset and size in the shard, its image's offset in the record and size, label, sample id."""

MANIFEST = "manifest.json"
_FORMAT = 1


@dataclass(frozen=True, slots=True)
class Shard:
    """One TFRecord file and the table of its records in file order."""

    path: Path
    nbytes: int
    records: npt.NDArray[Any]
    """Dtype RECORD, shape (number of records,)."""


@dataclass(frozen=True, slots=True)
class ShardSet:
    """A converted dataset."""

    root: Path
    key: str
    """What the dataset was converted from, as the caller named it."""
    shards: tuple[Shard, ...]

    @property
    def samples(self) -> int:
        """Number of records in all shards."""
        return sum(len(shard.records) for shard in self.shards)

    @classmethod
    def open(cls, root: Path) -> ShardSet:
        """Read the manifest and the indexes of a shard folder and check them against the files.

        Raises ShardError naming the file that is missing or does not fit.
        """
        manifest = _manifest(root)
        try:
            key, names = str(manifest["key"]), [str(entry["name"]) for entry in manifest["shards"]]
        except (KeyError, TypeError) as error:
            raise ShardError(f"{root / MANIFEST}: expected `key` and `shards`; convert the data again") from error
        return cls(root, key, tuple(_open_shard(root, name) for name in names))


def index_path(shard: Path) -> Path:
    """Return where the index of a shard lies."""
    return shard.with_suffix(".index.npy")


def save_index(shard: Path, records: npt.NDArray[Any]) -> None:
    """Write the index of a shard beside it."""
    np.save(index_path(shard), records.astype(RECORD, copy=False), allow_pickle=False)


def save_manifest(root: Path, *, key: str, seed: int, shards: list[Path]) -> None:
    """Write the manifest that makes a folder a shard folder."""
    content = {
        "format": _FORMAT,
        "key": key,
        "seed": seed,
        "shards": [{"name": shard.name, "bytes": shard.stat().st_size} for shard in shards],
    }
    (root / MANIFEST).write_text(json.dumps(content, indent=1) + "\n")


def stored_key(root: Path) -> str | None:
    """Return the key of a shard folder, None where there is no whole one of this format."""
    try:
        return ShardSet.open(root).key
    except ShardError:
        return None


def _manifest(root: Path) -> dict[str, Any]:
    path = root / MANIFEST
    try:
        manifest = json.loads(path.read_text())
    except OSError as error:
        raise ShardError(
            f"{root} is not a shard folder: {path.name} cannot be read ({error.strerror}); "
            "make one with loaders.streaming.convert"
        ) from error
    except ValueError as error:
        raise ShardError(f"{path} is not JSON ({error}); convert the data again") from error
    if not isinstance(manifest, dict) or manifest.get("format") != _FORMAT:
        raise ShardError(f"{path}: expected format {_FORMAT}; convert the data again")
    return manifest


def _open_shard(root: Path, name: str) -> Shard:
    path = root / name
    if path.parent != root or name in ("", ".", ".."):
        raise ShardError(f"{root / MANIFEST}: shard {name!r} is not a file name in the folder")
    try:
        nbytes = path.stat().st_size
        records = np.load(index_path(path), allow_pickle=False)
    except OSError as error:
        raise ShardError(f"{error.filename or path}: {error.strerror}; convert the data again") from error
    except ValueError as error:
        raise ShardError(f"{index_path(path)}: {error}; convert the data again") from error
    _check_index(path, nbytes, records)
    return Shard(path, nbytes, records)


def _check_index(path: Path, nbytes: int, records: npt.NDArray[Any]) -> None:
    where = index_path(path)
    if records.dtype != RECORD or records.ndim != 1 or not len(records):
        raise ShardError(f"{where}: expected one or more records of {RECORD}; convert the data again")
    ends = records["offset"] + records["size"]
    contiguous = records["offset"][0] == 0 and bool((records["offset"][1:] == ends[:-1]).all())
    inside = bool(
        (records["size"] > 0).all()
        and (records["image"] >= 0).all()
        and (records["image_size"] >= 0).all()
        and (records["image"] + records["image_size"] <= records["size"]).all()
    )
    if not contiguous or not inside or ends[-1] != nbytes:
        raise ShardError(f"{where} does not describe {path.name} ({nbytes} bytes); convert the data again")
