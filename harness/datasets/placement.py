"""The shards of a dataset, and which samples lie on which node.

The split is the same for loaders that read files and for those that are streamed to. A shard is the unit: a node that
stores a shard stores the files of its samples too, as in EMLIO's sharded scenario (section 5.2).
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from mmap import PROT_READ, mmap
from pathlib import Path
from typing import Final, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from harness.datasets import DatasetHandle, Progress
from harness.datasets.cache import building, only_builder, short_hash, storage_errors
from harness.datasets.scan import in_threads
from harness.errors import DatasetError
from harness.system.disk import check_room
from loaders.base import Samples
from loaders.records.shards.convert import convert
from loaders.records.shards.index import Shard, ShardSet, index_path, read_key, save_manifest
from loaders.records.shards.tfrecord import count_intact
from loaders.shared.daemon.programs import link_file

Role = Literal["compute", "storage"]
SPLIT: Final = ("half", "sharded")
"""Placements by which each of two nodes has half of the samples."""
HALF_SHARDS: Final = 8
"""The smallest number of shards of a dataset that is cut in half: enough for halves of about equal size."""

_SEED: Final = 0
_SHARD_BYTES: Final = 64 * 2**20
_RECORD_SLACK: Final = 512
"""Bytes of a record and its index beside the sample's files and columns."""
_COLUMN_SLACK: Final = 3
"""Bytes of a column's features for one of its own, at most about."""
_COLUMNS: Final = ":columns 1"
"""Raised when columns are stored in another way, so that no older shards are taken for newer ones."""


@dataclass(frozen=True, slots=True)
class PlacedData:
    """A dataset on its nodes."""

    kind: str
    """remote, half, local or sharded."""
    on_compute: npt.NDArray[np.bool_]
    """Which samples lie on the compute node, by id; the others lie on the storage nodes."""
    sizes: npt.NDArray[np.int64]
    shards: Mapping[str, Path]
    """The shard folder of each part: compute, storage, storage-2, …; empty where nothing is streamed."""
    storage_of: npt.NDArray[np.int16] | None = None
    """Place of each sample's storage node among several, by id, -1 on the compute node; None for one storage node."""

    @property
    def storages(self) -> int:
        """Number of storage nodes that have samples."""
        return 1 if self.storage_of is None else int(self.storage_of.max()) + 1

    @property
    def split(self) -> bool:
        """Whether several nodes have samples, so that paths say which."""
        return self.storages > 1 or (bool(self.on_compute.any()) and not bool(self.on_compute.all()))

    def describe(self) -> dict[str, object]:
        """Return kind, samples and bytes that lie on storage nodes, and how many these are."""
        remote = ~self.on_compute
        nbytes = int(self.sizes[remote].sum())
        about = {"kind": self.kind, "remote_samples": int(remote.sum()), "remote_bytes": nbytes}
        return about | {"storages": self.storages}

    def is_local(self, role: Role) -> npt.NDArray[np.bool_]:
        """Return which samples lie on the node of a role, by id."""
        return self.on_compute if role == "compute" else ~self.on_compute

    def seen_from(self, role: Role, samples: Samples) -> Samples:
        """Return the samples with paths below `local/`, `remote/`, `remote-2/`, … of one root, as a node sees them.

        The columns whose names end in `_path` are such paths too.
        """
        columns = {
            name: pa.array(self._seen(role, column.to_pylist())) if name.endswith("_path") else column
            for name, column in samples.columns.items()
        }
        return replace(samples, paths=tuple(self._seen(role, samples.paths)), columns=columns)

    def _seen(self, role: Role, paths: Sequence[str]) -> list[str]:
        far = np.zeros(len(paths), np.int16) if self.storage_of is None else self.storage_of
        return [
            f"{'local' if here else numbered('remote', place)}/{path}"
            for here, place, path in zip(self.is_local(role), far.tolist(), paths, strict=True)
        ]


def numbered(name: str, place: int) -> str:
    """Return the name of one of several: storage, storage-2, …"""
    return f"{name}-{place + 1}" if place else name


def place(
    kind: str, handle: DatasetHandle, shards: Path | None, cache: Path, progress: Progress, storages: int = 1
) -> PlacedData:
    """Return where the samples of a dataset lie.

    `shards` is the folder of all its shards; several nodes with samples need it, and each gets a folder in `cache`.

    Raises DiskError when the cache cannot be written, DatasetError when the dataset has too few shards to be cut,
    ValueError where there are no shards then.
    """
    samples = handle.samples
    if not is_cut(kind, storages):
        local = kind == "local"
        folders = {} if shards is None else {"compute" if local else "storage": shards}
        return PlacedData(kind, np.full(len(samples), local), samples.sizes, folders)
    if shards is None:
        raise ValueError(f"placement={kind} is decided by shards, and there are none")
    whole = ShardSet.open(shards)
    parts = split(whole.shards, kind, storages)
    storage_of = np.full(len(samples), -1, np.int16)
    for number in range(storages):
        for shard in parts[numbered("storage", number)]:
            storage_of[shard.records["id"]] = number
    folders = _folders(whole, parts, samples, cache, progress)
    return PlacedData(kind, storage_of < 0, samples.sizes, folders, None if storages == 1 else storage_of)


def is_cut(kind: str, storages: int) -> bool:
    """Return whether several nodes have parts of a dataset."""
    return kind in SPLIT or (storages > 1 and kind != "local")


def split(shards: Sequence[Shard], kind: str = "half", storages: int = 1) -> dict[str, list[Shard]]:
    """Give each shard to the node that has fewest bytes so far, the largest first: half of them to the compute node.

    Raises DatasetError for fewer shards than nodes.
    """
    shares = {"compute": storages} if kind in SPLIT else {}
    shares |= {numbered("storage", number): 1 for number in range(storages)}
    if len(shards) < len(shares):
        many = "one shard" if len(shards) == 1 else f"{len(shards)} shards"
        raise DatasetError(
            f"placement={kind}: the dataset has {many}, expected at least {len(shares)}; take more samples"
        )
    parts: dict[str, list[Shard]] = {name: [] for name in shares}
    placed_bytes = dict.fromkeys(parts, 0)
    for shard in sorted(shards, key=lambda shard: (-shard.nbytes, shard.path.name)):
        node = min(placed_bytes, key=lambda name: placed_bytes[name] / shares[name])
        parts[node].append(shard)
        placed_bytes[node] += shard.nbytes
    return {name: sorted(part, key=lambda shard: shard.path.name) for name, part in parts.items()}


def _folders(
    whole: ShardSet, parts: Mapping[str, Sequence[Shard]], samples: Samples, cache: Path, progress: Progress
) -> dict[str, Path]:
    found: dict[str, Path] = {}
    for role, part in parts.items():
        names = " ".join(shard.path.name for shard in part)
        key = short_hash([f"{whole.key}:{names}"])
        target = cache / "shards" / f"{whole.root.name}-{role}-{key}"
        with only_builder(target, progress):
            if read_key(target) != key or not _intact(target, samples, progress):
                with building(target) as partial, storage_errors(partial):
                    linked = [_link(shard.path, partial) for shard in part]
                    save_manifest(partial, key=key, seed=0, shards=linked)
        found[role] = target
    return found


def _link(shard: Path, folder: Path) -> Path:
    for file in (shard, index_path(shard)):
        link_file(str(file), str(folder / file.name))
    return folder / shard.name


def open_shards(
    handle: DatasetHandle,
    cache: Path,
    progress: Progress,
    min_shards: int = 1,
    converting: Callable[[int], AbstractContextManager[object]] = nullcontext,
) -> Path:
    """Return the folder of a dataset's shards, about `min_shards` or more, converted unless they are there whole.

    A conversion runs in the context that `converting` returns for its bytes.

    Raises DiskError when the cache cannot be written or lacks room, LoaderConfigError for a column that a record
    cannot hold, SampleError when a file changed.
    """
    total = int(handle.samples.sizes.sum())
    shard_bytes = min(_SHARD_BYTES, -(-total // min_shards)) if min_shards > 1 else _SHARD_BYTES
    text = f"{handle.content_hash}:{_SEED}:{shard_bytes}{_COLUMNS if handle.samples.columns else ''}"
    key = short_hash([text])
    out = cache / "shards" / f"{handle.name}-{key}"
    columns = sum(column.nbytes for column in handle.samples.columns.values())
    needed = total + _RECORD_SLACK * len(handle.samples) + _COLUMN_SLACK * columns
    with only_builder(out, progress):
        if read_key(out) != key:
            check_room("cache_dir", out.parent, needed)
        elif not _intact(out, handle.samples, progress):
            progress(f"shards of {handle.name} have changed in the cache: converting it again", 1, 1)
            with storage_errors(out):
                shutil.rmtree(out)
        is_whole = read_key(out) == key
        with storage_errors(out, needed), nullcontext() if is_whole else converting(total):
            return convert(
                handle.samples,
                out,
                key=key,
                seed=_SEED,
                shard_bytes=shard_bytes,
                progress=lambda done, total: progress(f"converting {handle.name} to shards", done, total),
            )


def _intact(folder: Path, samples: Samples, progress: Progress) -> bool:
    """Return whether every record of a shard folder has the bytes with which it was written, and its sample's label."""
    shards = ShardSet.open(folder).shards
    records = np.concatenate([shard.records for shard in shards])
    if not ((records["id"] >= 0) & (records["id"] < len(samples))).all():
        return False
    if not np.array_equal(records["label"], samples.labels[records["id"]]):
        return False
    what = f"checking the shards of {folder.name}"
    return all(in_threads(_has_its_records, shards, lambda done: progress(what, done, len(shards))))


def _has_its_records(shard: Shard) -> bool:
    with shard.path.open("rb") as file, mmap(file.fileno(), 0, prot=PROT_READ) as mapped, memoryview(mapped) as view:
        return count_intact(view, shard.records["checksum"].tolist()) == len(shard.records)
