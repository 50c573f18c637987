"""The database of the nosql loader: serve and prepare tables, make keys and splits."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from ipaddress import ip_address
from pathlib import Path

from joulefeed.signals import run_program
from loaders.errors import LoaderConfigError, SplitError
from loaders.nosql.form import KEYSPACE, NAME, linked_tables, open_form
from loaders.nosql.keys import load_client_keys
from loaders.nosql.options import DaemonOptions
from loaders.nosql.schema import DatabaseTable
from loaders.nosql.server.process import CassandraServer
from loaders.shared.daemon.command import Commands, DaemonCommand, Served, log_at_end, serve_until_end
from loaders.shared.daemon.flags import resolve_address

_SHOWN = 8
"""Classes of a split that are printed."""


@contextmanager
def _serving(options: DaemonOptions) -> Iterator[Served]:
    host, port = resolve_address(options.listen)
    if options.keys is None and not options.no_auth and not ip_address(host).is_loopback:
        raise LoaderConfigError(
            f"--listen {options.listen}: without keys anyone who reaches it could read and change the tables: give "
            "--keys DIR (made by `python -m loaders.nosql keygen`), or --no-auth where the network is trusted"
        )
    form = open_form(options.root)
    with (
        linked_tables(options.root.absolute()) as tables,
        CassandraServer(
            tables,
            host,
            port=port,
            keys=options.keys,
            heap_mb=options.heap_mb,
            disk_access=options.disk_access,
            removes_home=True,
            timeout_s=options.start_s,
        ) as server,
        log_at_end(server),
    ):
        endpoint = DatabaseTable(server.host, server.port, KEYSPACE, NAME).endpoint
        yield Served({"endpoint": endpoint, "samples": form.samples, "bytes": form.nbytes}, server)


def _add_splits(commands: Commands) -> None:
    splits = commands.add_parser(
        "splits",
        allow_abbrev=False,
        help="make training, validation and test splits, or folds, of a dataset's metadata",
        description="Make splits of the samples that a file or a database lists, store them and print a report. No "
        "entity, such as a patient, is in two splits. The same metadata, arguments and seed give the same splits.",
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
        help="share of the samples of each split: train=0.8,validation=0.1,test=0.1; the sum is 1, with --folds less",
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
        "--out", type=Path, required=True, metavar="FILE.parquet", help="file of ids and splits to write"
    )
    splits.set_defaults(run=_make_splits)


def _read_proportions(text: str) -> dict[str, float]:
    try:
        pairs = [(name.strip(), float(share)) for name, _, share in (each.partition("=") for each in text.split(","))]
    except ValueError:
        pairs = []
    if not pairs or len(dict(pairs)) != len(pairs):
        raise argparse.ArgumentTypeError(f"{text!r}: expected NAME=SHARE, each name once: train=0.8,test=0.2")
    return dict(pairs)


def _make_splits(arguments: argparse.Namespace) -> None:
    from loaders.nosql.splits import SAMPLE_ID, describe, fetch_metadata, make_splits, read_metadata, save_splits

    columns = {"label": arguments.label, "entity": arguments.entity}
    if arguments.endpoint is not None:
        table = DatabaseTable.parse(arguments.endpoint)
        login = None if arguments.keys is None else load_client_keys(arguments.keys)
        metadata = fetch_metadata(table, id=arguments.id or SAMPLE_ID, login=login, **columns)
    else:
        if arguments.out.absolute() == arguments.metadata.absolute():
            raise SplitError(f"--out {arguments.out} would replace the metadata: choose another name")
        metadata = read_metadata(arguments.metadata, id=arguments.id or "id", **columns)
    splits = make_splits(
        metadata, arguments.proportions, folds=arguments.folds, balance=arguments.balance, seed=arguments.seed
    )
    report = describe(splits, metadata)
    save_splits(splits, arguments.out, report)
    for name, part in report.items():
        counts = [f"{part['samples']} samples", *([f"{part['entities']} entities"] if "entities" in part else [])]
        shares = [f"{label} {count}" for label, count in sorted(part.get("classes", {}).items())[:_SHOWN]]
        sys.stdout.write(f"{name}: {', '.join(counts)}{'; classes: ' if shares else ''}{', '.join(shares)}\n")
    sys.stdout.write(f"{arguments.out}: stored\n")


main = DaemonCommand(
    "loaders.nosql",
    __doc__,
    DaemonOptions,
    lambda options: serve_until_end(_serving(options), until_eof=options.until_eof),
    serves="serve a folder of tables with a Cassandra server",
    log="Its warnings and errors go to standard error at the end.",
    prepares="make a folder of tables of a shard folder, with a Cassandra server of their own on loopback",
    keys="Each half has a key, certificates that are valid for 30 days and the password; only its owner can read it.",
    add_more=_add_splits,
).main

if __name__ == "__main__":
    run_program(main)
