"""The command `splits`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from loaders.errors import SplitError

if TYPE_CHECKING:
    from loaders.nosql.splits.metadata import Metadata

    Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"


def add_commands(commands: Commands) -> None:
    """Add the command; it sets `run`, which takes the parsed arguments and raises LoaderError."""
    splits = commands.add_parser(
        "splits",
        allow_abbrev=False,
        help="make training, validation and test splits, or folds, of a dataset's metadata",
        description="Make splits of the samples that a file or a database lists, store them and print the report. "
        "An entity, such as a patient, is never in two splits. The same metadata, arguments and seed give the same "
        "splits, in whatever order the rows are.",
    )
    source = splits.add_mutually_exclusive_group(required=True)
    source.add_argument("--metadata", type=Path, metavar="FILE", help="Parquet or CSV file with a row for each sample")
    source.add_argument("--endpoint", metavar="cassandra://HOST:PORT/KEYSPACE.NAME", help="dataset of a database")
    splits.add_argument("--keys", type=Path, metavar="DIR", help="the client's half of what `keygen` made")
    splits.add_argument(
        "--id", metavar="COLUMN", help="column of the ids (default: id of a file, sample_id of a database)"
    )
    splits.add_argument("--label", metavar="COLUMN", help="column of the classes")
    splits.add_argument("--entity", metavar="COLUMN", help="column of the entities, such as patient_id")
    splits.add_argument(
        "--proportions",
        type=_read_proportions,
        default={},
        metavar="NAME=SHARE,...",
        help="share of the samples of each split, such as train=0.8,validation=0.1,test=0.1; the sum is 1, with "
        "--folds less than 1",
    )
    splits.add_argument("--folds", type=int, default=0, metavar="K", help="K folds of what the proportions leave")
    splits.add_argument(
        "--balance",
        choices=("stratified", "equal", "none"),
        help="stratified: classes in the proportions of the dataset; equal: as many samples of each class in a split, "
        "the surplus left out; none: without regard to classes (default: stratified with --label)",
    )
    splits.add_argument("--seed", type=int, default=0, help="of the random choices (default: %(default)s)")
    splits.add_argument(
        "--out", type=Path, required=True, metavar="NAME.json", help="report to write; the ids go to NAME.parquet"
    )
    splits.set_defaults(run=_make)


def _read_proportions(text: str) -> dict[str, float]:
    shares: dict[str, float] = {}
    for each in text.split(","):
        name, equals, share = each.partition("=")
        try:
            value = float(share)
        except ValueError:
            equals = ""
        if not equals or name.strip() in shares:
            raise argparse.ArgumentTypeError(f"{each!r}: expected NAME=SHARE, each name once: train=0.8,test=0.2")
        shares[name.strip()] = value
    return shares


def _make(arguments: argparse.Namespace) -> None:
    from loaders.nosql.splits import make_splits, save_splits
    from loaders.nosql.splits.report import show

    metadata, source = _read(arguments)
    splits = make_splits(
        metadata, arguments.proportions, folds=arguments.folds, balance=arguments.balance, seed=arguments.seed
    )
    report = save_splits(splits, arguments.out, source=source)
    sys.stdout.write(f"{show(report)}\n{arguments.out}: stored\n")


def _read(arguments: argparse.Namespace) -> tuple[Metadata, str]:
    """Return the metadata, and where they come from."""
    columns = {"label": arguments.label, "entity": arguments.entity}
    if arguments.endpoint is not None:
        from loaders.nosql.keys import USER, load_client_keys
        from loaders.nosql.schema import Table
        from loaders.nosql.session import Login
        from loaders.nosql.splits.database import SAMPLE_ID, fetch_metadata

        table = Table.parse(arguments.endpoint)
        keys = None if arguments.keys is None else load_client_keys(arguments.keys)
        login = None if keys is None else Login(USER, keys.password, keys.context())
        return fetch_metadata(table, id=arguments.id or SAMPLE_ID, login=login, **columns), table.endpoint
    from loaders.nosql.splits import read_metadata

    path: Path = arguments.metadata
    if arguments.out.with_suffix(".parquet").absolute() == path.absolute():
        raise SplitError(f"--out {arguments.out} would replace the metadata in {path}: choose another name")
    return read_metadata(path, id=arguments.id or "id", **columns), path.name
