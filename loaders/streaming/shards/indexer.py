"""Indexes for TFRecord files that others wrote."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from fnmatch import fnmatchcase
from pathlib import Path

import numpy as np
import numpy.typing as npt

from loaders.errors import LoaderConfigError
from loaders.streaming.errors import ShardError
from loaders.streaming.shards.example import ExampleView, Feature
from loaders.streaming.shards.index import (
    MANIFEST,
    RECORD,
    index_path,
    load_index,
    read_checksums,
    save_index,
    save_manifest,
)
from loaders.streaming.shards.output import alone
from loaders.streaming.shards.parallel import each
from loaders.streaming.shards.tfrecord import FOOTER_BYTES, HEADER_BYTES, read_records

__all__ = ["LABELS", "PATTERNS", "PAYLOADS", "Features", "derive_index", "index_folder", "payload_span"]

PATTERNS = ("*.tfrecord", "*.tfrecords", "*.tfrec", "*.tfrecord-*", "*-of-*")
"""Names of TFRecord files."""
PAYLOADS = ("image/encoded", "audio/encoded", "volume/encoded", "image_raw", "image", "audio", "data")
"""Features that are tried as the payload, in this order, where none is named."""
LABELS = ("image/class/label", "label")
"""Features that are tried as the label, in this order, where none is named."""
_ID = "id"
_SHOWN = 20


@dataclass(frozen=True, slots=True)
class Features:
    """Names of the features that hold a sample's payload (bytes), label and id (int64)."""

    payload: str | None = None
    """None: the first of PAYLOADS that is there, else the only feature of bytes."""
    label: str | None = None
    """None: the first of LABELS that is there, else -1 for every sample."""
    id: str | None = None
    """None: `id` where it is there, else the samples are counted through in the order of files."""


@dataclass(frozen=True, slots=True)
class _Task:
    shard: Path
    features: Features


def index_folder(
    root: Path,
    features: Features | None = None,
    *,
    pattern: str | None = None,
    workers: int = 1,
    progress: Callable[[int, int], None] | None = None,
) -> tuple[int, int]:
    """Make a folder of TFRecord files a shard folder; return the numbers of shards and of samples.

    Every checksum is checked on the way. Files without records are left out. `progress` is called with (files done,
    files in all).

    Raises ShardError naming the file and byte that is damaged, or the feature that is not there; OSError when the
    folder cannot be written, OutputError when another process indexes it.
    """
    shards = _shards(root, pattern)
    with alone(root / ".index.lock", root):
        for left in (*root.glob(".*.index.npy.*.tmp"), *root.glob(f".{MANIFEST}.*.tmp")):
            left.unlink()  # by one that was killed
        return _index_all(root, shards, features or Features(), workers, progress)


def _index_all(
    root: Path, shards: list[Path], features: Features, workers: int, progress: Callable[[int, int], None] | None
) -> tuple[int, int]:
    # Until all indexes are there, the folder is none that can be served.
    (root / MANIFEST).unlink(missing_ok=True)
    counts = [0] * len(shards)
    counted = False
    results = each(_index, [_Task(shard, features) for shard in shards], workers)
    for done, (place, (count, numbered)) in enumerate(results, 1):
        counts[place] = count
        counted = counted or not numbered
        if progress is not None:
            progress(done, len(shards))
    kept = [shard for shard, count in zip(shards, counts, strict=True) if count]
    if not kept:
        raise ShardError(f"{root}: none of its {len(shards)} TFRecord files has a record")
    if counted:
        _count_through(kept)
    _check_ids(kept)
    digest = hashlib.sha256()
    for shard in kept:
        digest.update(shard.name.encode(errors="surrogateescape") + b"\0" + index_path(shard).read_bytes())
    key = f"index:{digest.hexdigest()[:16]}"
    save_manifest(root, key=key, seed=None, shards=kept, features=asdict(features), counted=counted)
    return len(kept), sum(counts)


def payload_span(example: ExampleView, name: str | None, where: str) -> tuple[int, int]:
    """Return offset and size of an Example's payload; raises ShardError, which starts with `where`."""
    if name is None:
        name = next((known for known in PAYLOADS if known in example and example.spans(known)), None)
    if name is None:
        named = [feature for feature in example.names if example.spans(feature)]
        if len(named) != 1:
            raise ShardError(f"{where}: which feature is the payload? {_has(example)}; choose with --payload-feature")
        name = named[0]
    spans = example.spans(name) if name in example else []
    if len(spans) != 1:
        problem = "there is no such feature" if name not in example else f"it has {len(spans)} values of bytes, not one"
        raise ShardError(f"{where}: --payload-feature {name}: {problem}; {_has(example)}")
    return spans[0]


def _shards(root: Path, pattern: str | None) -> list[Path]:
    if not root.is_dir():
        raise LoaderConfigError(f"{root}: no such folder; name the one that holds the TFRecord files")
    patterns = PATTERNS if pattern is None else (pattern,)
    shards = sorted(
        path
        for path in root.iterdir()
        if any(fnmatchcase(path.name, wanted) for wanted in patterns) and not _is_ours(path) and path.is_file()
    )
    if not shards:
        raise ShardError(f"{root}: no TFRecord file ({', '.join(patterns)}); choose with --pattern")
    if len({index_path(shard) for shard in shards}) != len(shards):
        raise ShardError(f"{root}: two files whose indexes would have one name; rename one of them")
    return shards


def _is_ours(path: Path) -> bool:
    return path.name == MANIFEST or path.name.startswith(".") or path.name.endswith(".index.npy")


def _index(task: _Task) -> tuple[int, bool]:
    """Write one shard's index; return the number of records and whether they have ids of their own."""
    rows, numbered = derive_index(task.shard, task.features)
    if len(rows):
        save_index(task.shard, rows)
    return len(rows), numbered


def derive_index(
    shard: Path, features: Features, sizes: Sequence[int] | None = None
) -> tuple[npt.NDArray[np.void], bool]:
    """Return a shard's index, dtype RECORD, from its records alone, and whether they have ids of their own.

    Raises ShardError naming the record that is damaged, not of its size in `sizes`, or lacks a feature.
    """
    rows: list[tuple[int, int, int, int, int, int, int]] = []
    offset, numbered = 0, True
    for payload in read_records(shard, sizes):
        where = f"{shard} at byte {offset}"
        size = HEADER_BYTES + len(payload) + FOOTER_BYTES
        try:
            example = ExampleView(payload)
            at, payload_size = payload_span(example, features.payload, where)
            label = _number(example, features.label, LABELS, "label", where)
            sample_id = _number(example, features.id, (_ID,), "id", where)
        except ShardError as error:
            raise error if str(error).startswith(where) else ShardError(f"{where}: {error}") from error
        numbered = numbered and sample_id is not None
        rows.append(
            (
                *(offset, size, HEADER_BYTES + at, payload_size),
                *(-1 if label is None else label, len(rows) if sample_id is None else sample_id, 0),
            )
        )
        offset += size
    records = np.array(rows, RECORD)
    records["checksum"] = read_checksums(shard, records)
    return records, numbered


def _number(example: ExampleView, name: str | None, known: tuple[str, ...], option: str, where: str) -> int | None:
    """Return the one number of a feature, None where none is named and none of the known ones is there."""
    wanted = name or next((candidate for candidate in known if candidate in example), None)
    if wanted is None:
        return None
    values: Feature = example[wanted] if wanted in example else []  # noqa: SIM401 -- it is no mapping
    if len(values) == 1 and isinstance(values[0], int):
        return values[0]
    if name is None:
        return None
    problem = "it is not one whole number" if name in example else "there is no such feature"
    raise ShardError(f"{where}: --{option}-feature {name}: {problem}; {_has(example)}")


def _has(example: ExampleView) -> str:
    names = [repr(name)[1:-1] for name in example.names[:_SHOWN]] + ["…"] * (len(example.names) > _SHOWN)
    return f"the record has {', '.join(names) or 'no features'}"


def _count_through(shards: list[Path]) -> None:
    first = 0
    for shard in shards:
        records = load_index(shard).records
        records["id"] = np.arange(first, first + len(records))
        save_index(shard, records)
        first += len(records)


def _check_ids(shards: list[Path]) -> None:
    ids = np.concatenate([load_index(shard).records["id"] for shard in shards])
    unique, counts = np.unique(ids, return_counts=True)
    if len(unique) != len(ids):
        twice = int(unique[counts > 1][0])
        raise ShardError(
            f"{shards[0].parent}: two records have the id {twice}; choose with --id-feature, "
            "or leave out the file that is there twice"
        )
