"""A conversion that can be killed and goes on: shards are made in a folder beside the one that is wanted."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

from loaders.streaming.errors import ShardError
from loaders.streaming.shards.classes import CLASSES, save_classes
from loaders.streaming.shards.convert.plan import listing_key, shard_tasks
from loaders.streaming.shards.convert.shard import ShardTask, write_shard
from loaders.streaming.shards.convert.source import Source
from loaders.streaming.shards.index import MANIFEST, load_index, save_manifest, stored_key, written_whole
from loaders.streaming.shards.output import OutputError, alone
from loaders.streaming.shards.parallel import check_workers, each

__all__ = ["run_job"]

_LISTING = "listing"
"""Names the file of the work folder that says which listing its shards are of."""


def run_job(
    source: Source,
    out: Path,
    *,
    key: str,
    seed: int,
    shard_bytes: int,
    workers: int = 1,
    keep: bool = False,
    again: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> int:
    """Make `out` a shard folder with this key, whole or not at all; return how many samples were there already.

    Shards that a killed conversion of the same listing left are taken over. After an error the whole ones stay for
    the next try if `keep`, else nothing is left. A folder that has the key already is left as it is, unless
    `again`. `progress` is called with (samples done, samples in all).

    Raises OutputError when another process converts to `out` or when it holds something else, OSError naming
    the file that cannot be written, SampleError naming the sample that cannot be read.
    """
    check_workers(workers)
    if not out.name or out.name == "..":
        raise OutputError(f"{out}: it cannot be made anew; choose a folder with a name")
    work = out.with_name(f".{out.name}.convert.partial")
    tasks = shard_tasks(source, work, seed=seed, shard_bytes=shard_bytes)
    out.parent.mkdir(parents=True, exist_ok=True)
    with alone(out.with_name(f".{out.name}.convert.lock"), out):
        _check_replaceable(out)
        if not again and stored_key(out) == key:
            (out / _LISTING).unlink(missing_ok=True)
            if source.labels and not (out / CLASSES).is_file():  # made by an older version
                save_classes(out, source.labels)
            return len(source.items)
        try:
            open_tasks, taken_over = _prepare(work, tasks, listing_key(source, key))
            _write(open_tasks, len(source.items), taken_over, workers, progress)
            if source.labels:
                save_classes(work, source.labels)
            save_manifest(
                work,
                key=key,
                seed=seed,
                shards=[task.path for task in tasks],
                kind=source.kind,
                classes=source.classes if source.is_enumerated else source.labels,
            )
            _put_in_place(work, out)
            (out / _LISTING).unlink()
        except BaseException:
            if not keep or not any(work.glob("*.index.npy")):
                shutil.rmtree(work, ignore_errors=True)
            raise
    return taken_over


def _check_replaceable(out: Path) -> None:
    """Raise OutputError when `out` is there and is no shard folder, which alone is replaced."""
    if out.is_dir() and not (out / MANIFEST).is_file() and any(out.iterdir()):
        raise OutputError(f"{out}: the folder holds something else than shards; choose another or empty it")
    if out.exists() and not out.is_dir():
        raise OutputError(f"{out}: it is no folder; choose another name")


def _prepare(work: Path, tasks: list[ShardTask], listing: str) -> tuple[list[ShardTask], int]:
    """Make the work folder; return the tasks whose shards are not whole yet and the samples in those that are."""
    stored = work / _LISTING
    if not stored.is_file() or stored.read_text() != listing:
        shutil.rmtree(work, ignore_errors=True)
        work.mkdir()
        with written_whole(stored) as file:
            file.write(listing.encode())
    for partial in work.glob(".*.tmp"):
        partial.unlink()
    (work / MANIFEST).unlink(missing_ok=True)
    left = [task for task in tasks if not _is_whole(task)]
    return left, sum(len(task.ids) for task in tasks) - sum(len(task.ids) for task in left)


def _is_whole(task: ShardTask) -> bool:
    # The index is written last and both reached the disk before they got their names.
    try:
        return tuple(load_index(task.path).records["id"].tolist()) == task.ids
    except ShardError:
        return False


def _write(
    tasks: list[ShardTask],
    total: int,
    done: int,
    workers: int,
    progress: Callable[[int, int], None] | None,
) -> None:
    if progress is not None and done:
        progress(done, total)
    if workers == 1 and progress is not None:
        for task in tasks:
            before = done
            done += write_shard(task, lambda written, before=before: progress(before + written, total))  # type: ignore[misc]
        return
    for _, written in each(write_shard, tasks, workers):
        done += written
        if progress is not None:
            progress(done, total)


def _put_in_place(work: Path, out: Path) -> None:
    # Readers of an older folder keep what they have open.
    old = out.with_name(f".{out.name}.old.partial")
    shutil.rmtree(old, ignore_errors=True)
    if out.exists():
        out.rename(old)
    work.rename(out)
    shutil.rmtree(old, ignore_errors=True)
