"""Whether a shard folder is whole: every checksum, and every line of every index against its record."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from loaders.streaming.errors import ShardError
from loaders.streaming.shards.index import MANIFEST, ShardSet, index_path, load_index, load_manifest
from loaders.streaming.shards.indexer import Features, derive_index
from loaders.streaming.shards.parallel import each

__all__ = ["Verified", "verify_folder"]

_SHOWN = 10


@dataclass(frozen=True, slots=True)
class Verified:
    """A folder that is whole."""

    shards: int
    samples: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class _Task:
    path: Path
    features: Features
    counted: bool


def verify_folder(root: Path, *, workers: int = 1, progress: Callable[[int, int], None] | None = None) -> Verified:
    """Read every record of a shard folder and check it; `progress` is called with (shards done, shards in all).

    Raises ShardError naming every shard that is damaged, each with the first thing that is wrong with it.
    """
    opened = ShardSet.open(root)
    _check_ids(opened)
    problems: list[str] = []
    features, counted = _features(root)
    tasks = [_Task(shard.path, features, counted) for shard in opened.shards]
    for done, (_, problem) in enumerate(each(_problem, tasks, workers), 1):
        if problem:
            problems.append(problem)
        if progress is not None:
            progress(done, len(tasks))
    if problems:
        shown = sorted(problems)[:_SHOWN]
        more = [f"and {len(problems) - _SHOWN} more"] if len(problems) > _SHOWN else []
        raise ShardError(
            "\n  ".join([f"{root}: {len(problems)} of {len(tasks)} shards are damaged; copy them again", *shown, *more])
        )
    return Verified(len(tasks), opened.samples, opened.nbytes)


def _check_ids(opened: ShardSet) -> None:
    ids = np.concatenate([shard.records["id"] for shard in opened.shards])
    unique, counts = np.unique(ids, return_counts=True)
    if len(unique) != len(ids):
        raise ShardError(f"{opened.root}: two records have the id {int(unique[counts > 1][0])}; index the folder again")


def _problem(task: _Task) -> str:
    """Return the first thing that is wrong with a shard, nothing when it is whole."""
    try:
        stored = load_index(task.path).records
        derived = derive_index(task.path, task.features, stored["size"].tolist()).records
    except ShardError as error:
        return str(error)
    columns = [name for name in stored.dtype.names or () if name != "id" or not task.counted]
    for name in columns:
        if (wrong := np.flatnonzero(stored[name] != derived[name])).size:
            row = int(wrong[0])
            return (
                f"{index_path(task.path)}: {name} of record {row} is {stored[name][row]}, in the shard it is "
                f"{derived[name][row]}; index the folder again"
            )
    return ""


def _features(root: Path) -> tuple[Features, bool]:
    """Return by which features the folder was indexed, and whether its samples are counted through."""
    manifest = load_manifest(root)
    try:
        return Features(**manifest.get("features", {})), bool(manifest.get("counted", False))
    except TypeError as error:
        raise ShardError(f"{root / MANIFEST}: `features`: {error}; index the folder again") from error
