"""A conversion that can be killed and goes on: shards are made in a folder beside the one that is wanted."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import NamedTuple

from loaders.errors import SampleError, ShardError
from loaders.records.shards.classes import save_classes
from loaders.records.shards.convert.listing import Broken, SampleListing
from loaders.records.shards.convert.shard import ShardTask, hash_listing, plan_shards, skipped_path, write_shard
from loaders.records.shards.index import MANIFEST, load_index, read_key, save_manifest, write_atomically
from loaders.records.shards.output import OutputError, check_workers, exclusive_lock, run_tasks

SKIPPED = "skipped.json"
"""The file of a shard folder that lists the samples that were left out."""
_MAX_BROKEN = 1000
"""Broken samples after which a conversion that is to fail ends: a mount that is gone breaks all of them."""

_LISTING = "listing"
"""Names the file of the work folder that says which listing its shards are of."""


class Job(NamedTuple):
    """What became of the samples of a conversion."""

    taken_over: int
    """Samples whose shards were there already."""
    skipped: tuple[Broken, ...]


def run_job(
    source: SampleListing,
    out: Path,
    *,
    key: str,
    seed: int,
    shard_bytes: int,
    workers: int = 1,
    keep: bool = False,
    again: bool = False,
    skip: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> Job:
    """Make `out` a shard folder with this key, whole or not at all; return the number of samples taken over or skipped.

    The whole shards of a killed conversion of the same listing are taken over. A folder with the same key stays as it
    is.

    Raises OutputError when another process converts to `out` or it has other content, OSError naming the file that
    cannot be written, SampleError naming the samples that cannot be read.

    Args:
        source: The samples.
        out: The folder.
        key: Stored with the shards; `key_of_skipped` changes it where samples are left out.
        seed: Of the order of the samples.
        shard_bytes: Bytes of a shard, at most.
        workers: Processes (default: 1).
        keep: Whether whole shards stay after an error, for the next try (default: False).
        again: Whether a folder with the same key is made again (default: False).
        skip: Whether broken samples are left out and listed beside the shards (default: False).
        progress: Called with (samples done, samples in all) (default: not called).
    """
    check_workers(workers)
    if not out.name or out.name == "..":
        raise OutputError(f"{out}: it cannot be replaced; choose a folder with a name")
    work = out.with_name(f".{out.name}.convert.partial")
    tasks = plan_shards(source, work, seed=seed, shard_bytes=shard_bytes, skip=skip)
    out.parent.mkdir(parents=True, exist_ok=True)
    with exclusive_lock(out.with_name(f".{out.name}.convert.lock"), out):
        _check_replaceable(out)
        stored = read_key(out)
        if not again and (stored == key or (skip and stored == key_of_skipped(key))):
            (out / _LISTING).unlink(missing_ok=True)
            return Job(len(source.items), _skipped_before(out))
        try:
            listing = hash_listing(source, key)
            open_tasks, taken_over = _prepare(work, tasks, listing)
            found = _write(open_tasks, len(source.items), taken_over, workers, progress, source.broken)
            broken = [*source.broken, *found]
            if broken and not skip:
                raise broken_error(broken, len(source.items) + len(source.broken))
            kept, skipped = _without_skipped(tasks, source)
            if source.labels:
                save_classes(work, source.labels)
            save_manifest(
                work,
                key=key_of_skipped(key) if skipped else key,
                seed=seed,
                shards=[task.path for task in kept],
                kind=source.kind,
                listing=listing,
                classes=source.classes if source.is_enumerated else source.labels,
            )
            if skipped:
                with write_atomically(work / SKIPPED) as file:
                    file.write(json.dumps([asdict(one) for one in skipped], indent=1).encode() + b"\n")
            for task in tasks:
                skipped_path(task.path).unlink(missing_ok=True)
            _put_in_place(work, out)
            (out / _LISTING).unlink()
        except BaseException:
            if not keep or not any(work.glob("*.index.npy")):
                shutil.rmtree(work, ignore_errors=True)
            raise
    return Job(taken_over, tuple(skipped))


def key_of_skipped(key: str) -> str:
    """Return the key of shards that lack the broken samples of a source."""
    return f"{key}-skipped"


def broken_error(broken: Sequence[Broken], total: int) -> SampleError:
    """Return the error that names all files that cannot be converted."""
    if len(broken) == 1:
        return SampleError(broken[0].why)
    stopped = "; more were not looked at" if len(broken) >= _MAX_BROKEN else ""
    return SampleError(
        f"{len(broken)} of {total} samples cannot be converted{stopped}; mend or remove these files, or leave them out "
        "with --on-error skip:\n" + "\n".join(one.why for one in broken)
    )


def _without_skipped(tasks: list[ShardTask], source: SampleListing) -> tuple[list[ShardTask], list[Broken]]:
    """Return the tasks whose shards have samples, and all that was left out."""
    skipped = list(source.broken)
    kept = []
    for task in tasks:
        left_out = _skipped_of(skipped_path(task.path))
        skipped += left_out
        if len(left_out) < len(task.ids):
            kept.append(task)
    if not kept:
        raise broken_error(skipped, len(source.items) + len(source.broken))
    return kept, skipped


def _skipped_of(path: Path) -> tuple[Broken, ...]:
    return tuple(Broken(**one) for one in json.loads(path.read_text())) if path.is_file() else ()


def _skipped_before(out: Path) -> tuple[Broken, ...]:
    return _skipped_of(out / SKIPPED)


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
        with write_atomically(stored) as file:
            file.write(listing.encode())
    for partial in work.glob(".*.tmp"):
        partial.unlink()
    (work / MANIFEST).unlink(missing_ok=True)
    left = [task for task in tasks if not _is_whole(task)]
    return left, sum(len(task.ids) for task in tasks) - sum(len(task.ids) for task in left)


def _is_whole(task: ShardTask) -> bool:
    # The index is written last and both reached the disk before they got their names.
    left_out = {one.sample_id for one in _skipped_of(skipped_path(task.path))} if task.skip else set()
    expected = tuple(sample_id for sample_id in task.ids if sample_id not in left_out)
    if not expected:
        return True
    try:
        return tuple(load_index(task.path).records["id"].tolist()) == expected
    except ShardError:
        return False


def _write(
    tasks: list[ShardTask],
    total: int,
    done: int,
    workers: int,
    progress: Callable[[int, int], None] | None,
    known: Sequence[Broken],
) -> list[Broken]:
    """Write shards; return the samples that are broken, all of them but for those beyond _MAX_BROKEN."""
    broken: list[Broken] = []
    if progress is not None and done:
        progress(done, total)
    if workers == 1 and progress is not None:
        for task in tasks:
            before = done
            made = write_shard(task, lambda written, before=before: progress(before + written, total))  # type: ignore[misc]
            done += made.samples
            broken += made.broken
            if not task.skip and len(known) + len(broken) >= _MAX_BROKEN:
                break
        return broken
    for _, made in run_tasks(write_shard, tasks, workers):
        done += made.samples
        broken += made.broken
        if progress is not None:
            progress(done, total)
        if not tasks[0].skip and len(known) + len(broken) >= _MAX_BROKEN:
            break
    return broken


def _put_in_place(work: Path, out: Path) -> None:
    # Readers of an older folder keep what they have open.
    old = out.with_name(f".{out.name}.old.partial")
    shutil.rmtree(old, ignore_errors=True)
    if out.exists():
        out.rename(old)
    work.rename(out)
    shutil.rmtree(old, ignore_errors=True)
