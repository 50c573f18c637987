"""From files to a folder of TFRecord shards: image trees, COCO, NumPy volumes and recordings."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from loaders.errors import LoaderConfigError
from loaders.records.shards.classes import check_splits
from loaders.records.shards.convert.coco import coco
from loaders.records.shards.convert.folders import audio_folder, image_tree, list_samples
from loaders.records.shards.convert.job import SKIPPED, broken_error, key_of_skipped, run_job
from loaders.records.shards.convert.listing import Broken, SampleListing
from loaders.records.shards.convert.shard import hash_content, hash_listing
from loaders.records.shards.convert.volumes import numpy_volumes
from loaders.records.shards.index import MANIFEST, load_manifest, read_key
from loaders.records.shards.output import OutputError, output_errors

if TYPE_CHECKING:
    from loaders.base import Samples
    from loaders.options import OnError

__all__ = [
    "KINDS",
    "SHARD_BYTES",
    "Converted",
    "OutputError",
    "SampleListing",
    "audio_folder",
    "coco",
    "convert",
    "convert_source",
    "image_tree",
    "numpy_volumes",
]

SHARD_BYTES: Final = 64 * 2**20
"""Bytes of a shard at most, if no single sample is larger."""

KINDS: Final[dict[str, Callable[..., SampleListing]]] = {
    "image-tree": image_tree,
    "coco": coco,
    "numpy": numpy_volumes,
    "audio": audio_folder,
}
"""How each kind of source is listed."""


@dataclass(frozen=True, slots=True)
class Converted:
    """What became of a conversion."""

    out: Path
    samples: int
    taken_over: int
    """Samples whose shards were there already."""
    skipped: tuple[Broken, ...] = ()
    """Files that were left out, as skipped.json beside the shards lists them."""


def convert_source(
    source: SampleListing,
    out: Path,
    *,
    seed: int = 0,
    shard_bytes: int = SHARD_BYTES,
    workers: int = 1,
    replace: bool = False,
    progress: Callable[[int, int], None] | None = None,
    check_classes: bool = False,
    on_error: OnError = "raise",
) -> Converted:
    """Write the samples into TFRecord shards; the same bytes for any number of workers.

    A killed conversion goes on with its whole shards. The labels of the classes are written to classes.json.

    Raises SampleError naming all samples that cannot be read or have changed, OutputError naming the folder or file
    that cannot be written and the remedy, WorkerError when a process was killed, LoaderConfigError without samples.

    Args:
        source: The samples, as `image_tree`, `coco`, `numpy_volumes` or `audio_folder` list them.
        out: The shard folder. One of the same shards stays as it is.
        seed: Of the order of the samples (default: 0).
        shard_bytes: Bytes of a shard, at most (default: 64 MiB).
        workers: Processes (default: 1).
        replace: Whether a folder of other shards is replaced (default: False).
        progress: Called with (samples done, samples in all) (default: not called).
        check_classes: Whether other labels than those of a shard folder beside `out` are refused (default: False).
        on_error: "raise", or "skip" to leave out samples that cannot be read and list them in skipped.json; the others
            keep their ids (default: "raise").
    """
    if source.broken and not source.items:
        raise broken_error(source.broken, len(source.broken))
    _check_apart(source.root, out)
    if check_classes:
        check_splits(source.labels, out, source.kind, source.root)
    key = hash_content(source, seed=seed, shard_bytes=shard_bytes)
    with output_errors(out):
        there = (out / MANIFEST).is_file()
        stored = read_key(out) if there and not replace else key
        if stored == key_of_skipped(key) and on_error == "raise":
            raise OutputError(
                f"{out}: it was made with --on-error skip and lacks the samples in {out / SKIPPED}; mend them and use "
                "--replace, or give --on-error skip again"
            )
        if stored not in (key, key_of_skipped(key)):
            raise OutputError(f"{out}: it holds other shards, or damaged ones; choose another folder or --replace")
        if there and not replace and not _is_made_of(source, key, out):
            raise OutputError(
                f"{source.root}: {out} was made of other files, or of these before they changed; convert them with "
                "--replace, or choose another folder"
            )
        job = run_job(
            source,
            out,
            key=key,
            seed=seed,
            shard_bytes=shard_bytes,
            workers=workers,
            keep=True,
            again=replace,
            skip=on_error == "skip",
            progress=progress,
        )
    left_out = sum(one.sample_id is not None for one in job.skipped)
    return Converted(out, len(source.items) - left_out, min(job.taken_over, len(source.items) - left_out), job.skipped)


def convert(
    samples: Samples,
    out: Path,
    *,
    key: str,
    seed: int = 0,
    shard_bytes: int = SHARD_BYTES,
    workers: int = 1,
    progress: Callable[[int, int], None] | None = None,
) -> Path:
    """Write the samples, shuffled by `seed`, into TFRecord shards of at most `shard_bytes` and return `out`.

    A record has the sample's file, its row of the dataset's columns, and the further files of columns whose names end
    in `_path` (`loaders.records.shards.columns`). A folder with this key stays as it
    is, shards under another key are replaced. The folder appears whole or not at all, and readers of an older one keep
    their open files. `progress` is called with (samples done, samples in all).

    Raises SampleError naming the sample that cannot be read or has changed, OSError when `out` cannot be
    written, OutputError when something else is there or another process converts to it, LoaderConfigError
    without samples and for a column that a record cannot hold.
    """
    if not len(samples):
        raise LoaderConfigError(f"nothing to convert: {samples.root} has no samples")
    if read_key(out) == key:
        return out

    source = list_samples(samples)
    run_job(source, out, key=key, seed=seed, shard_bytes=shard_bytes, workers=workers, progress=progress)
    return out


def _is_made_of(source: SampleListing, key: str, out: Path) -> bool:
    """Return whether the shards in `out` are of these very files; their key says no more than names and sizes."""
    return bool(load_manifest(out).get("listing") == hash_listing(source, key))


def _check_apart(root: Path, out: Path) -> None:
    root, out = root.resolve(), out.resolve()
    if out.is_relative_to(root) or root.is_relative_to(out):
        raise OutputError(f"{out}: it and the source, {root}, lie in one another; choose a folder elsewhere")
