"""Indexes for TFRecord files that others wrote, and the check of a whole folder against its indexes."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from loaders.errors import LoaderConfigError, ShardError
from loaders.records.shards.example import ExampleView, Feature
from loaders.records.shards.index import (
    MANIFEST,
    RECORD,
    ShardSet,
    index_path,
    load_index,
    load_manifest,
    read_checksums,
    save_index,
    save_manifest,
)
from loaders.records.shards.output import OutputError, exclusive_lock, run_tasks
from loaders.records.shards.tfrecord import FOOTER_BYTES, HEADER_BYTES, read_records

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
    """None: the first of PAYLOADS that is there, else the only feature of bytes; the same one in all records."""
    label: str | None = None
    """None: the first of LABELS that is there, else -1 for every sample; empty: -1 for every sample."""
    id: str | None = None
    """None: `id` where it is there, else the samples are counted through in the order of files; empty: counted."""


class _Found(NamedTuple):
    """The features in which a record's payload, label and id were found, None where there is none."""

    payload: str
    label: str | None
    id: str | None


@dataclass(frozen=True, slots=True)
class Derived:
    """What the records of a shard say."""

    records: npt.NDArray[np.void]
    """Dtype RECORD, shape (number of records,)."""
    found: _Found | None
    """None without records."""

    @property
    def numbered(self) -> bool:
        """Whether the records have ids of their own."""
        return self.found is not None and self.found.id is not None


def index_folder(
    root: Path,
    features: Features | None = None,
    *,
    out: Path | None = None,
    pattern: str | None = None,
    workers: int = 1,
    progress: Callable[[int, int], None] | None = None,
) -> tuple[int, int]:
    """Make a folder of TFRecord files a shard folder; return the numbers of shards and of samples.

    Every checksum is checked on the way. Files without records are left out. Where `root` cannot be written, `out` is
    made the shard folder, of links to the files. `progress` is called with (files done, files in all).

    Raises ShardError naming the file and byte that is damaged, or the feature that is not there or cannot be kept as
    it is, in which case nothing was written; OSError when the folder cannot be written, OutputError when another
    process indexes it or a link's name is taken.
    """
    shards = _shards(root, pattern)
    folder = root if out is None else out
    folder.mkdir(parents=True, exist_ok=True)
    with exclusive_lock(folder / ".index.lock", folder):
        for left in (*folder.glob(".*.index.npy.*.tmp"), *folder.glob(f".{MANIFEST}.*.tmp")):
            left.unlink()  # by one that was killed
        if out is not None:
            shards = [_linked(shard, out) for shard in shards]
        return _index_all(folder, shards, features or Features(), workers, progress)


def _linked(shard: Path, out: Path) -> Path:
    link = out / shard.name
    if link.exists() and not link.samefile(shard):
        raise OutputError(f"{link}: another file is there; choose another folder with --out")
    if not link.exists():
        link.unlink(missing_ok=True)  # it leads nowhere
        link.symlink_to(shard.resolve())
    return link


def _index_all(
    root: Path, shards: list[Path], features: Features, workers: int, progress: Callable[[int, int], None] | None
) -> tuple[int, int]:
    results: dict[int, Derived] = {}
    for place, result in run_tasks(partial(derive_index, features=features), shards, workers):
        results[place] = result
        if progress is not None:
            progress(len(results), len(shards))
    derived = {shard: results[place] for place, shard in enumerate(shards) if len(results[place].records)}
    if not derived:
        raise ShardError(f"{root}: none of its {len(shards)} TFRecord files has a record")
    _check_alike(derived)
    counted = not next(iter(derived.values())).numbered
    if counted:
        first = 0
        for one in derived.values():
            one.records["id"] = np.arange(first, first + len(one.records))
            first += len(one.records)
    remedy = "choose with --id-feature, or leave out the file that is there twice"
    _check_ids(root, (one.records for one in derived.values()), remedy)
    kept = _kept(root)
    # Until all indexes are there, the folder is none that can be served.
    (root / MANIFEST).unlink(missing_ok=True)
    digest = hashlib.sha256()
    for shard, one in derived.items():
        save_index(shard, one.records)
        digest.update(shard.name.encode(errors="surrogateescape") + b"\0" + index_path(shard).read_bytes())
    key = f"index:{digest.hexdigest()[:16]}"
    save_manifest(root, key=key, seed=None, shards=list(derived), features=asdict(features), counted=counted, **kept)
    return len(derived), sum(len(one.records) for one in derived.values())


def _kept(root: Path) -> dict[str, object]:
    """Return what a converter wrote about the classes, which an index says nothing of."""
    try:
        manifest = load_manifest(root)
    except ShardError:  # none, or a damaged one, which is about to be replaced
        return {}
    return {name: manifest[name] for name in ("kind", "classes") if name in manifest}


def _payload(example: ExampleView, name: str | None, where: str) -> tuple[str, tuple[int, int]]:
    """Return name, and offset and size, of an Example's payload; raises ShardError, which starts with `where`."""
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
    return name, spans[0]


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


def derive_index(shard: Path, features: Features, sizes: Sequence[int] | None = None) -> Derived:
    """Return a shard's index from its records alone.

    Raises ShardError naming the record that is damaged, not of its size in `sizes`, lacks a feature, or has one that
    is of another kind or found by another name than in the records before it.
    """
    rows: list[tuple[int, int, int, int, int, int, int]] = []
    offset = 0
    first: _Found | None = None
    for payload in read_records(shard, sizes):
        where = f"{shard} at byte {offset}"
        size = HEADER_BYTES + len(payload) + FOOTER_BYTES
        try:
            example = ExampleView(payload)
            payload_name, (at, payload_size) = _payload(example, features.payload, where)
            label_name, label = _number(example, features.label, LABELS, "label", where)
            id_name, sample_id = _number(example, features.id, (_ID,), "id", where)
        except ShardError as error:
            raise error if str(error).startswith(where) else ShardError(f"{where}: {error}") from error
        found = _Found(payload_name, label_name, id_name)
        if first is not None:
            _check_same(first, found, where)
        # A record without a label says nothing of where the others have theirs.
        first = found if first is None or first.label is None else first
        rows.append((offset, size, HEADER_BYTES + at, payload_size, label, sample_id, 0))
        offset += size
    records = np.array(rows, RECORD)
    records["checksum"] = read_checksums(shard, records)
    return Derived(records, first)


def _number(
    example: ExampleView, name: str | None, known: tuple[str, ...], option: str, where: str
) -> tuple[str | None, int]:
    """Return name and value of a feature of one number; None and -1 where none is wanted or none of the known is there.

    Raises ShardError, which starts with `where`, where it is something else: a number instead would change the data.
    """
    usual = (one for one in known if one in example and example[one])  # noqa: RUF019 -- it is no mapping
    wanted = name if name is not None else next(usual, "")
    if not wanted:
        return None, -1
    values: Feature = example[wanted] if wanted in example else []  # noqa: SIM401 -- it is no mapping
    if len(values) == 1 and isinstance(values[0], int):
        return wanted, values[0]
    if name is not None:
        problem = "it is not one whole number" if name in example else "there is no such feature"
        raise ShardError(f"{where}: --{option}-feature {name}: {problem}; {_has(example)}")
    kind = {bytes: "bytes", float: "float"}.get(type(values[0]), "whole number")
    instead = "-1 for all samples" if option == "label" else "numbers in the order of the records"
    raise ShardError(
        f"{where}: its {option} is in feature {wanted}, which has {len(values)} value{'s' * (len(values) > 1)} of "
        f"type {kind}, expected one whole number; choose another with --{option}-feature NAME, or --{option}-feature "
        f"'' for {instead}: a pipeline reads the feature as column {wanted}"
    )


def _check_same(first: _Found, other: _Found, where: str) -> None:
    """Raise ShardError, which starts with `where`, unless two records have all three in the same features."""
    if other.payload != first.payload:
        raise ShardError(
            f"{where}: its payload is in feature {other.payload}, that of records before it in {first.payload}; choose "
            "with --payload-feature"
        )
    if other.label != first.label and None not in (other.label, first.label):
        raise ShardError(
            f"{where}: its label is in feature {other.label}, that of records before it in {first.label}; choose with "
            "--label-feature"
        )
    if other.id != first.id:
        lacks, has = ("it", "records before it have") if other.id is None else ("records before it", "it has")
        raise ShardError(
            f"{where}: {lacks} has no id, and {has} one; use --id-feature '' for numbers in the order of the records"
        )


def _check_alike(derived: Mapping[Path, Derived]) -> None:
    first: _Found | None = None
    for shard, one in derived.items():
        assert one.found is not None, "it has records"
        if first is not None:
            _check_same(first, one.found, str(shard))
        first = one.found if first is None or first.label is None else first


def _has(example: ExampleView) -> str:
    names = [repr(name)[1:-1] for name in example.names[:_SHOWN]] + ["…"] * (len(example.names) > _SHOWN)
    return f"the record has {', '.join(names) or 'no features'}"


def _check_ids(root: Path, shards: Iterable[npt.NDArray[np.void]], remedy: str) -> None:
    """Raise ShardError, with what to do, where two records of these indexes have one id."""
    ids = np.concatenate([records["id"] for records in shards])
    unique, counts = np.unique(ids, return_counts=True)
    if len(unique) != len(ids):
        raise ShardError(f"{root}: two records have the id {int(unique[counts > 1][0])}; {remedy}")


_MAX_SHOWN_PROBLEMS = 10


@dataclass(frozen=True, slots=True)
class Verified:
    """A folder that is whole."""

    shards: int
    samples: int
    nbytes: int


def verify_folder(root: Path, *, workers: int = 1, progress: Callable[[int, int], None] | None = None) -> Verified:
    """Read every record of a shard folder and check it; `progress` is called with (shards done, shards in all).

    Raises ShardError naming every shard that is damaged, each with the first thing that is wrong with it.
    """
    opened = ShardSet.open(root)
    _check_ids(root, (shard.records for shard in opened.shards), "index the folder again")
    problems: list[str] = []
    find_problem = partial(_find_problem, *_indexed_features(root))
    paths = [shard.path for shard in opened.shards]
    for done, (_, problem) in enumerate(run_tasks(find_problem, paths, workers), 1):
        if problem:
            problems.append(problem)
        if progress is not None:
            progress(done, len(paths))
    if problems:
        shown = sorted(problems)[:_MAX_SHOWN_PROBLEMS]
        more = [f"and {len(problems) - _MAX_SHOWN_PROBLEMS} more"] if len(problems) > _MAX_SHOWN_PROBLEMS else []
        raise ShardError(
            "\n  ".join([f"{root}: {len(problems)} of {len(paths)} shards are damaged; copy them again", *shown, *more])
        )
    return Verified(len(paths), opened.samples, opened.nbytes)


def _find_problem(features: Features, counted: bool, path: Path) -> str:
    """Return the first thing that is wrong with a shard, nothing when it is whole."""
    try:
        stored = load_index(path).records
        derived = derive_index(path, features, stored["size"].tolist()).records
    except ShardError as error:
        return str(error)
    columns = [name for name in stored.dtype.names or () if name != "id" or not counted]
    for name in columns:
        if (wrong := np.flatnonzero(stored[name] != derived[name])).size:
            row = int(wrong[0])
            return (
                f"{index_path(path)}: {name} of record {row} is {stored[name][row]}, in the shard it is "
                f"{derived[name][row]}; index the folder again"
            )
    return ""


def _indexed_features(root: Path) -> tuple[Features, bool]:
    """Return by which features the folder was indexed, and whether its samples are counted through."""
    manifest = load_manifest(root)
    try:
        return Features(**manifest.get("features", {})), bool(manifest.get("counted", False))
    except TypeError as error:
        raise ShardError(f"{root / MANIFEST}: `features`: {error}; index the folder again") from error
