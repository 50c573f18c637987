"""Indexes for TFRecord files that others wrote."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from loaders.errors import LoaderConfigError, ShardError
from loaders.records.shards.example import ExampleView
from loaders.records.shards.index import MANIFEST, RECORD, index_path, read_checksums, save_index, save_manifest
from loaders.records.shards.output import exclusive_lock
from loaders.records.shards.tfrecord import FOOTER_BYTES, HEADER_BYTES, read_records
from loaders.records.workers import run_tasks

PATTERNS = ("*.tfrecord", "*.tfrecords", "*.tfrec", "*.tfrecord-*", "*-of-*")
"""Names of TFRecord files."""
PAYLOADS = ("image/encoded", "audio/encoded", "volume/encoded", "image_raw", "image", "audio", "data")
"""Features that are tried as the payload, in this order, where none is named."""
LABELS = ("image/class/label", "label")
"""Features that are tried as the label, in this order, where none is named."""
_SHOWN = 20


@dataclass(frozen=True, slots=True)
class Features:
    """Names of the features that hold a sample's payload (bytes), label and id (int64)."""

    payload: str | None = None
    """None: the first of PAYLOADS that is there, else the only feature of bytes."""
    label: str | None = None
    """None: the first of LABELS that is there, else -1 for every sample; empty: -1 for every sample."""
    id: str | None = None
    """None: `id` where it is there, else the samples are numbered in the order of files; empty: numbered."""


class _UsedFeatures(NamedTuple):
    """The features in which a record's payload, label and id were found, None where there is none."""

    payload: str
    label: str | None
    id: str | None


class _Derived(NamedTuple):
    """The content of a shard's index."""

    records: npt.NDArray[np.void]
    """Dtype RECORD, shape (number of records,)."""
    found: _UsedFeatures | None
    """None without records."""


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

    Raises ShardError naming the file and byte that is damaged, or the feature that is not there or not the same in all
    records, in which case nothing was written; OSError when the folder cannot be written, OutputError when another
    process indexes it.
    """
    shards = _list_shards(root, pattern)
    with exclusive_lock(root / ".index.lock", root):
        for left in (*root.glob(".*.index.npy.*.tmp"), *root.glob(f".{MANIFEST}.*.tmp")):
            left.unlink()  # by one that was killed
        return _index_all(root, shards, features or Features(), workers, progress)


def _index_all(
    root: Path, shards: list[Path], features: Features, workers: int, progress: Callable[[int, int], None] | None
) -> tuple[int, int]:
    results: dict[int, _Derived] = {}
    for place, result in run_tasks(partial(_derive, features=features), shards, workers):
        results[place] = result
        if progress is not None:
            progress(len(results), len(shards))
    derived: dict[Path, npt.NDArray[np.void]] = {}
    first: _UsedFeatures | None = None
    samples = 0
    for place, shard in enumerate(shards):
        records, found = results[place]
        if found is None:
            continue
        first = first or found
        _check_same(first, found, str(shard))
        if found.id is None:
            records["id"] = np.arange(samples, samples + len(records))
        derived[shard] = records
        samples += len(records)
    if not derived:
        raise ShardError(f"{root}: none of its {len(shards)} TFRecord files has a record")
    unique, counts = np.unique(np.concatenate([records["id"] for records in derived.values()]), return_counts=True)
    if len(unique) != samples:
        raise ShardError(
            f"{root}: two records have the id {int(unique[counts > 1][0])}; choose with --id-feature, or leave out the "
            "file that is there twice"
        )
    # Until all indexes are there, the folder is none that can be served.
    (root / MANIFEST).unlink(missing_ok=True)
    digest = hashlib.sha256()
    for shard, records in derived.items():
        save_index(shard, records)
        digest.update(shard.name.encode(errors="surrogateescape") + b"\0" + index_path(shard).read_bytes())
    save_manifest(root, key=f"index:{digest.hexdigest()[:16]}", seed=None, shards=list(derived))
    return len(derived), samples


def _list_shards(root: Path, pattern: str | None) -> list[Path]:
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


def _derive(shard: Path, features: Features) -> _Derived:
    """Return a shard's index from its records alone; raises ShardError naming the record that cannot be indexed."""
    rows: list[tuple[int, int, int, int, int, int, int]] = []
    offset = 0
    first: _UsedFeatures | None = None
    for payload in read_records(shard):
        where = f"{shard} at byte {offset}"
        size = HEADER_BYTES + len(payload) + FOOTER_BYTES
        try:
            example = ExampleView(payload)
            payload_name, (at, payload_size) = _find_payload(example, features.payload)
            label_name, label = _find_number(example, "label", features.label, LABELS)
            id_name, sample_id = _find_number(example, "id", features.id, ("id",))
        except ShardError as error:
            raise ShardError(f"{where}: {error}") from error
        found = _UsedFeatures(payload_name, label_name, id_name)
        first = first or found
        _check_same(first, found, where)
        rows.append((offset, size, HEADER_BYTES + at, payload_size, label, sample_id, 0))
        offset += size
    records = np.array(rows, RECORD)
    records["checksum"] = read_checksums(shard, records)
    return _Derived(records, first)


def _find_payload(example: ExampleView, name: str | None) -> tuple[str, tuple[int, int]]:
    """Return name, and offset and size, of an Example's payload; raises ShardError."""
    if name is None:
        with_bytes = [feature for feature in example if example.spans(feature)]
        name = next((known for known in PAYLOADS if known in with_bytes), None)
        if name is None and len(with_bytes) == 1:
            name = with_bytes[0]
    spans = example.spans(name) if name is not None else []
    if name is None or len(spans) != 1:
        wrong = "which feature is the payload?" if name is None else f"feature {name!r} is not one value of bytes"
        raise ShardError(f"{wrong} {_list_features(example)}; choose with --payload-feature")
    return name, spans[0]


def _find_number(example: ExampleView, what: str, name: str | None, usual: Sequence[str]) -> tuple[str | None, int]:
    """Return name and value of a feature of one number; None and -1 where none is wanted or no usual one is there.

    Raises ShardError where it is something else: another number in its place would change the data.
    """
    if name is None:
        name = next((one for one in usual if example.get(one)), "")
    if not name:
        return None, -1
    values = example.get(name, [])
    if len(values) == 1 and isinstance(values[0], int):
        return name, values[0]
    instead = "-1 for all samples" if what == "label" else "numbers in the order of the records"
    wrong = "not one whole number" if values else "missing"
    raise ShardError(
        f"its {what} in feature {name!r} is {wrong}; {_list_features(example)}; "
        f"choose another with --{what}-feature NAME, or --{what}-feature '' for {instead}"
    )


def _check_same(first: _UsedFeatures, other: _UsedFeatures, where: str) -> None:
    """Raise ShardError, which starts with `where`, unless two records have all three in the same features."""
    for what, before, now in zip(_UsedFeatures._fields, first, other, strict=True):
        if before != now:
            raise ShardError(
                f"{where}: its {what} is in {_describe(now)}, in the records before it in {_describe(before)}; choose "
                f"with --{what}-feature"
            )


def _describe(name: str | None) -> str:
    return "no feature" if name is None else f"feature {name}"


def _list_features(example: ExampleView) -> str:
    names = [repr(name)[1:-1] for name in list(example)[:_SHOWN]] + ["…"] * (len(example) > _SHOWN)
    return f"the record has {', '.join(names) or 'no features'}"
