"""The commands that make shard folders."""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path
from typing import TypeAlias

from loaders.shared.daemon.command import progress_bar

# What reads and writes data is imported by the command that needs it: the daemon has no use for it.


Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"
"""The commands of a parser."""

_MIB = 2**20


def add_commands(commands: Commands) -> None:
    """Add the commands; each sets `run`, which takes the parsed arguments and raises LoaderError."""
    convert = commands.add_parser("convert", help="make a shard folder of a tree of images")
    convert.add_argument(
        "--from", dest="kind", required=True, choices=("image-tree",), help="layout of the source: class/name.jpg"
    )
    convert.add_argument("source", type=Path, metavar="SRC", help="folder of the source")
    convert.add_argument("--out", type=Path, required=True, metavar="DIR", help="shard folder to make")
    convert.add_argument("--seed", type=int, default=0, help="of the order of the samples (default: %(default)s)")
    convert.add_argument("--shard-mib", type=int, default=64, help="most MiB of a shard (default: %(default)s)")
    convert.add_argument("--replace", action="store_true", help="replace other shards that are in DIR already")
    convert.set_defaults(run=_convert)

    index = commands.add_parser("index", help="make a folder of TFRecord files that others wrote a shard folder")
    index.add_argument("--root", type=Path, required=True, metavar="DIR", help="folder of TFRecord files")
    index.add_argument("--payload-feature", metavar="NAME", help="feature of the sample's bytes (default: a usual one)")
    index.add_argument(
        "--label-feature", metavar="NAME", help="feature of its label (default: a usual one, or -1); '' for -1"
    )
    index.add_argument(
        "--id-feature", metavar="NAME", help="feature of its id (default: `id`, or counted through); '' to count"
    )
    index.add_argument("--pattern", help="names of the files (default: *.tfrecord, *-of-* and alike)")
    index.set_defaults(run=_index)

    for command in (convert, index):
        command.add_argument(
            "--workers", type=int, default=os.cpu_count() or 1, help="processes (default: %(default)s)"
        )


def _convert(arguments: argparse.Namespace) -> None:
    from loaders.records.shards.convert import convert, hash_files, image_tree
    from loaders.records.shards.index import MANIFEST, read_key
    from loaders.records.shards.output import OutputError, output_errors
    from loaders.shared.options import check_whole

    check_whole("--shard-mib", arguments.shard_mib, 1)
    check_whole("--seed", arguments.seed, 0)
    began = time.monotonic()
    root, out = arguments.source.absolute(), arguments.out.resolve()
    if out.is_relative_to(root.resolve()) or root.resolve().is_relative_to(out):
        raise OutputError(f"{out}: it and the source, {root}, lie in one another; choose a folder elsewhere")
    samples = image_tree(root)
    key = f"image-tree:{hash_files(samples)}:{arguments.seed}:{arguments.shard_mib}"
    _say(f"{len(samples)} images in {max(0, int(samples.labels.max()) + 1)} classes listed in {arguments.source}")
    with output_errors(out):
        if (out / MANIFEST).is_file() and read_key(out) != key and not arguments.replace:
            raise OutputError(
                f"{out}: it holds shards of other files, of these before they changed, or damaged ones; choose another "
                "folder or --replace"
            )
        with progress_bar("converting") as progress:
            convert(
                samples,
                out,
                key=key,
                seed=arguments.seed,
                shard_bytes=arguments.shard_mib * _MIB,
                workers=arguments.workers,
                progress=progress,
            )
    _say(f"{arguments.out}: {len(samples)} samples, {time.monotonic() - began:.1f} s")


def _index(arguments: argparse.Namespace) -> None:
    from loaders.records.shards.indexer import Features, index_folder
    from loaders.records.shards.output import output_errors

    features = Features(arguments.payload_feature, arguments.label_feature, arguments.id_feature)
    root = arguments.root.absolute()
    with progress_bar("indexing") as progress, output_errors(root, "copy or link the files into one that can be"):
        shards, samples = index_folder(
            root, features, pattern=arguments.pattern, workers=arguments.workers, progress=progress
        )
    _say(
        f"{arguments.root}: {samples} samples in {shards} shards; batches are runs of neighbours: if records of one "
        "class lie together, give the loader a shuffle_window"
    )


def _say(text: str) -> None:
    # Names of files need not be text.
    sys.stdout.write(text.encode(errors="backslashreplace").decode() + "\n")
    sys.stdout.flush()
