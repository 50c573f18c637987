"""Which samples lie on which node; the same split for loaders that read files and for those that are streamed to.

A shard is the unit: a node that stores a shard stores the files of its samples too, as in EMLIO's sharded scenario
(section 5.2).
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from harness.datasets import DatasetHandle, Progress
from harness.datasets.cache import building, only_builder, storage_errors
from harness.datasets.shards import intact
from harness.errors import DatasetError
from loaders.base import Samples
from loaders.streaming.shards.index import Shard, ShardSet, index_path, save_manifest, stored_key

__all__ = ["HALF_SHARDS", "PlacedData", "Role", "place", "split"]

Role = Literal["compute", "storage"]
HALF_SHARDS: Final = 8
"""The least number of shards of a dataset that is cut in half: enough for halves of about equal size."""


@dataclass(frozen=True, slots=True)
class PlacedData:
    """A dataset on its nodes."""

    kind: str
    """remote, half or local."""
    on_compute: npt.NDArray[np.bool_]
    """Which samples lie on the compute node, by id; the others lie on the storage node."""
    sizes: npt.NDArray[np.int64]
    shards: Mapping[Role, Path]
    """The shard folder of each node that has samples; empty where nothing is streamed."""

    @property
    def split(self) -> bool:
        """Whether both nodes have samples."""
        return bool(self.on_compute.any()) and not bool(self.on_compute.all())

    def describe(self) -> dict[str, Any]:
        """Return kind, and samples and bytes that lie on the storage node."""
        remote = ~self.on_compute
        nbytes = int(self.sizes[remote].sum())
        return {"kind": self.kind, "remote_samples": int(remote.sum()), "remote_bytes": nbytes}

    def seen_from_compute(self, samples: Samples) -> Samples:
        """Return the samples with paths below `local/` and `remote/`, one root for both.

        The columns whose names end in `_path` are such paths too.
        """
        columns = {
            name: pa.array(self._seen(column.to_pylist())) if name.endswith("_path") else column
            for name, column in samples.columns.items()
        }
        return replace(samples, paths=tuple(self._seen(samples.paths)), columns=columns)

    def _seen(self, paths: Sequence[str]) -> list[str]:
        return [f"{'local' if here else 'remote'}/{path}" for here, path in zip(self.on_compute, paths, strict=True)]


def place(kind: str, handle: DatasetHandle, shards: Path | None, cache: Path, progress: Progress) -> PlacedData:
    """Return where the samples of a dataset lie.

    `shards` is the folder of all its shards; `half` needs it, and makes a folder for each node in `cache`.

    Raises DatasetError when the cache cannot be written or the dataset has too few shards to be cut.
    """
    samples = handle.samples
    if kind != "half":
        local = kind == "local"
        folders: dict[Role, Path] = {} if shards is None else {"compute" if local else "storage": shards}
        return PlacedData(kind, np.full(len(samples), local), samples.sizes, folders)
    if shards is None:
        raise ValueError("placement=half is decided by shards, and there are none")
    whole = ShardSet.open(shards)
    parts = split(whole.shards)
    on_compute = np.zeros(len(samples), np.bool_)
    for shard in parts["compute"]:
        on_compute[shard.records["id"]] = True
    return PlacedData(kind, on_compute, samples.sizes, _folders(whole, parts, samples, cache, progress))


def split(shards: Sequence[Shard]) -> dict[Role, list[Shard]]:
    """Give each shard to the node that has fewer bytes so far, the largest first; raises DatasetError for one shard."""
    if len(shards) < 2:
        raise DatasetError("placement=half: the dataset has one shard, expected at least 2; take more samples")
    parts: dict[Role, list[Shard]] = {"compute": [], "storage": []}
    held = dict.fromkeys(parts, 0)
    for shard in sorted(shards, key=lambda shard: (-shard.nbytes, shard.path.name)):
        node = min(held, key=lambda role: held[role])
        parts[node].append(shard)
        held[node] += shard.nbytes
    return {role: sorted(part, key=lambda shard: shard.path.name) for role, part in parts.items()}


def _folders(
    whole: ShardSet, parts: Mapping[Role, Sequence[Shard]], samples: Samples, cache: Path, progress: Progress
) -> dict[Role, Path]:
    found: dict[Role, Path] = {}
    for role, part in parts.items():
        names = " ".join(shard.path.name for shard in part)
        key = hashlib.sha256(f"{whole.key}:{names}".encode()).hexdigest()[:16]
        target = cache / "shards" / f"{whole.root.name}-{role}-{key}"
        with only_builder(target, progress):
            if stored_key(target) != key or not intact(target, samples, progress):
                with building(target) as partial, storage_errors(partial):
                    linked = [_link(shard.path, partial) for shard in part]
                    save_manifest(partial, key=key, seed=0, shards=linked)
        found[role] = target
    return found


def _link(shard: Path, folder: Path) -> Path:
    for file in (shard, index_path(shard)):
        try:
            os.link(file, folder / file.name)
        except OSError:  # a file system without hard links
            shutil.copyfile(file, folder / file.name)
    return folder / shard.name
