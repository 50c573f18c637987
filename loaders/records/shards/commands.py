"""A progress bar on standard error."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from energymon.system.signals import Interrupted

if TYPE_CHECKING:
    from loaders.records.shards.convert import SampleListing


@contextmanager
def progress_bar(text: str) -> Iterator[Callable[[int, int], None]]:
    """Show a bar from the first call of what it yields, with (done, in all), to the end of the block."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    bars = Progress(*columns, console=Console(stderr=True))
    task = bars.add_task(text, total=None)

    def show(done: int, total: int) -> None:
        bars.start()  # not before there is something to show: an error that comes first stands alone
        bars.update(task, completed=done, total=total)

    try:
        yield show
    finally:
        if bars.live.is_started:
            bars.stop()


# What reads and writes data is imported by the command that needs it: the daemon has no use for it.


Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"
"""The commands of a parser."""

_KINDS = ("image-tree", "coco", "numpy", "audio")
_MIB = 2**20
_SHOWN = 4


def add_commands(commands: Commands) -> None:
    """Add the commands; each sets `run`, which takes the parsed arguments and raises LoaderError."""
    convert = commands.add_parser("convert", help="make a shard folder of image trees, COCO, NumPy volumes or audio")
    convert.add_argument("--from", dest="kind", required=True, choices=_KINDS, help="what the source holds")
    convert.add_argument("source", type=Path, metavar="SRC", help="folder of the source")
    convert.add_argument("--out", type=Path, required=True, metavar="DIR", help="shard folder to make")
    convert.add_argument("--seed", type=int, default=0, help="of the order of the samples (default: %(default)s)")
    convert.add_argument("--shard-mib", type=int, default=64, help="most MiB of a shard (default: %(default)s)")
    convert.add_argument("--replace", action="store_true", help="replace shards that are in DIR already")
    convert.add_argument("--annotations", type=Path, metavar="FILE", help="COCO's JSON file")
    convert.add_argument("--images", type=Path, metavar="FOLDER", help="folder of COCO's images")
    convert.add_argument(
        "--classes",
        type=Path,
        metavar="FILE",
        help="labels of the classes: the classes.json of another split, or its shard folder (default: the places of "
        "the classes in SRC)",
    )
    convert.add_argument(
        "--own-classes",
        action="store_true",
        help="take the places of the classes in SRC even if a shard folder beside DIR has other labels for them",
    )
    convert.add_argument(
        "--on-error",
        choices=("raise", "skip"),
        default="raise",
        help="whether files that are broken end the conversion, all of them named, or are left out and listed in "
        "DIR/skipped.json (default: %(default)s)",
    )
    convert.set_defaults(run=_convert)

    index = commands.add_parser("index", help="make a folder of TFRecord files that others wrote a shard folder")
    index.add_argument("--root", type=Path, required=True, metavar="DIR", help="folder of TFRecord files")
    index.add_argument(
        "--out",
        type=Path,
        metavar="DIR",
        help="shard folder to make of links to the files, where --root cannot be written",
    )
    index.add_argument("--payload-feature", metavar="NAME", help="feature of the sample's bytes (default: a usual one)")
    index.add_argument(
        "--label-feature", metavar="NAME", help="feature of its label (default: a usual one, or -1); '' for -1"
    )
    index.add_argument(
        "--id-feature", metavar="NAME", help="feature of its id (default: `id`, or counted through); '' to count"
    )
    index.add_argument("--pattern", help="names of the files (default: *.tfrecord, *-of-* and alike)")
    index.set_defaults(run=_index)

    verify = commands.add_parser("verify", help="check every checksum and index of a shard folder")
    verify.add_argument("--root", type=Path, required=True, metavar="DIR", help="shard folder")
    verify.set_defaults(run=_verify)

    for command in (convert, index, verify):
        command.add_argument(
            "--workers", type=int, default=os.cpu_count() or 1, help="processes (default: %(default)s)"
        )


def _convert(arguments: argparse.Namespace) -> None:
    from loaders.errors import LoaderConfigError
    from loaders.records.shards.convert import convert_source

    if arguments.shard_mib < 1:
        raise LoaderConfigError(f"--shard-mib {arguments.shard_mib}: expected 1 or more")
    if arguments.seed < 0:
        raise LoaderConfigError(f"--seed {arguments.seed}: expected 0 or more")
    began = time.monotonic()
    source = _source(arguments)
    _say(
        f"{len(source.items)} samples listed in {arguments.source}"
        + (f", {len(source.classes)} classes" if source.classes else "")
        + (f"; {source.ignored} other files left out" if source.ignored else "")
    )
    try:
        with progress_bar("converting") as progress:
            done = convert_source(
                source,
                arguments.out.resolve(),
                seed=arguments.seed,
                shard_bytes=arguments.shard_mib * _MIB,
                workers=arguments.workers,
                replace=arguments.replace,
                progress=progress,
                check_classes=arguments.classes is None and not arguments.own_classes,
                on_error=arguments.on_error,
            )
    except Interrupted as stop:
        remedy = "run the same command again: it goes on with the shards that are whole"
        raise Interrupted(stop.signum, remedy) from stop
    _say(
        f"{arguments.out}: {done.samples} samples"
        + (f", {done.taken_over} of them from before" if done.taken_over else "")
        + f", {time.monotonic() - began:.1f} s"
        + (f"; {len(done.skipped)} left out, listed in {arguments.out / 'skipped.json'}" if done.skipped else "")
    )


def _source(arguments: argparse.Namespace) -> SampleListing:
    from loaders.errors import LoaderConfigError
    from loaders.records.shards.classes import load_classes
    from loaders.records.shards.convert import KINDS, coco

    root = arguments.source.absolute()
    if arguments.classes is not None and arguments.own_classes:
        raise LoaderConfigError("--classes and --own-classes: give one of the two")
    classes = load_classes(arguments.classes) if arguments.classes is not None else None
    if arguments.kind == "coco":
        return coco(root, arguments.annotations, arguments.images, classes=classes, broken=[])
    if arguments.annotations or arguments.images:
        raise LoaderConfigError(f"--annotations and --images are for --from coco, not {arguments.kind}")
    return KINDS[arguments.kind](root, classes=classes, broken=[])


def _index(arguments: argparse.Namespace) -> None:
    from loaders.records.shards.index import list_shards
    from loaders.records.shards.indexer import Features, index_folder
    from loaders.records.shards.output import output_errors

    features = Features(arguments.payload_feature, arguments.label_feature, arguments.id_feature)
    root, out = arguments.root.absolute(), arguments.out and arguments.out.absolute()
    with (
        progress_bar("indexing") as progress,
        output_errors(out or root, "choose a folder that can be written with --out"),
    ):
        shards, samples = index_folder(
            root, features, out=out, pattern=arguments.pattern, workers=arguments.workers, progress=progress
        )
    folder = arguments.out or arguments.root
    _say(f"{folder}: {samples} samples in {shards} shards{_mixed(folder)}")
    behind = {path.resolve().parent for path in list_shards(folder)} - {folder.resolve()}
    if behind:
        serve = " ".join(f"--links-into {shlex.quote(str(path))}" for path in sorted(behind)[:_SHOWN])
        more = f", and {len(behind) - _SHOWN} more folders" if len(behind) > _SHOWN else ""
        _say(f"its shards are links: serve --root {shlex.quote(str(folder))} {serve}{more}")


def _mixed(root: Path) -> str:
    """Return the text for shards that are sorted by class, "" for others."""
    from loaders.records.shards.index import load_manifest
    from loaders.records.shards.mixing import BATCH, ENOUGH, SLICE_RECORDS, Mixing

    mixing = Mixing.of(load_manifest(root).get("mixing"))
    if mixing is None or mixing.usual >= ENOUGH * mixing.shuffled:
        return ""
    return (
        f"; samples of a class lie together: with slices of {SLICE_RECORDS} a batch of {BATCH} has {mixing.usual:.3g} "
        f"classes where a full shuffle has {mixing.shuffled:.3g}, so loaders that are given no others take "
        f"slice_records={mixing.slice_records} and shuffle_window={mixing.shuffle_window}, and have {mixing.chosen:.3g}"
    )


def _verify(arguments: argparse.Namespace) -> None:
    from loaders.records.shards.indexer import verify_folder

    began = time.monotonic()
    with progress_bar("verifying") as progress:
        whole = verify_folder(arguments.root.absolute(), workers=arguments.workers, progress=progress)
    seconds = time.monotonic() - began
    _say(
        f"{arguments.root}: whole; {whole.samples} samples in {whole.shards} shards, {whole.nbytes / 1e6:.1f} MB, "
        f"{whole.nbytes / 1e6 / seconds:.0f} MB/s"
    )


def _say(text: str) -> None:
    # Names of files need not be text.
    sys.stdout.write(text.encode(errors="backslashreplace").decode() + "\n")
    sys.stdout.flush()
