"""The database of the nosql loader: serve and prepare tables, store shards in a database, make keys and splits."""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
from ipaddress import ip_address
from pathlib import Path
from typing import NoReturn

from joulefeed.signals import run_program
from joulefeed.version import PrintVersion
from loaders.errors import LoaderConfigError, LoaderError, SplitError
from loaders.nosql.form import KEYSPACE, NAME, linked_tables, open_form, prepare
from loaders.nosql.ingest import ingest
from loaders.nosql.keys import USER, load_client_keys, make_keys
from loaders.nosql.options import DaemonOptions
from loaders.nosql.schema import PORT, Table
from loaders.nosql.server.process import CassandraServer
from loaders.nosql.session import Login
from loaders.records.shards.commands import Commands, progress_bar
from loaders.shared.daemon_flags import add_flags, read_flags, resolve_address, run_command

_SHOWN = 8
"""Classes of a split that are printed."""


def main(argv: list[str] | None = None) -> int:
    """Run a command and return its exit status: 0 when done, 2 after an error."""
    parser = argparse.ArgumentParser(prog="python -m loaders.nosql", description=__doc__, allow_abbrev=False)
    parser.add_argument("--version", action=PrintVersion)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    serve = commands.add_parser(
        "serve",
        allow_abbrev=False,
        help="serve a folder of tables with a Cassandra server until SIGTERM or Ctrl-C",
        description="Serve a folder of tables with a Cassandra server until SIGTERM or Ctrl-C. A JSON line on standard "
        "output says when it is ready and at which endpoint; its warnings and errors go to standard error at the end.",
    )
    add_flags(serve, DaemonOptions)
    serve.set_defaults(run=_serve)

    making = commands.add_parser(
        "prepare",
        allow_abbrev=False,
        help="make a folder of tables of a shard folder, for `serve --root`",
        description="Make the tables of a shard folder with a Cassandra server of their own on loopback, which ends "
        "with the command. The folder takes as much room as the shards. When the command is run again it goes on where "
        "it ended.",
    )
    making.add_argument(
        "--shards",
        type=Path,
        required=True,
        metavar="DIR",
        help="shard folder, as `python -m loaders.streaming convert` makes it",
    )
    making.add_argument(
        "--out",
        type=Path,
        required=True,
        metavar="DIR",
        help="folder of the tables: a new or an empty one, or one that is half made",
    )
    making.set_defaults(run=_prepare)

    storing = commands.add_parser(
        "ingest",
        allow_abbrev=False,
        help="store a shard folder in a database that runs",
        description="Store every record of a shard folder in the tables KEYSPACE.NAME and KEYSPACE.NAME_metadata. When "
        "it is run again it goes on where it ended. The database writes its tables to disk when it chooses to, or "
        "with `nodetool flush KEYSPACE`.",
    )
    storing.add_argument(
        "--shards",
        type=Path,
        required=True,
        metavar="DIR",
        help="shard folder, as `python -m loaders.streaming convert` makes it",
    )
    storing.add_argument("--host", default="127.0.0.1", help="a server of the database (default: %(default)s)")
    storing.add_argument("--port", type=int, default=PORT, help="its port (default: %(default)s)")
    storing.add_argument("--keyspace", default=KEYSPACE, help="keyspace of the tables (default: %(default)s)")
    storing.add_argument("--name", default=NAME, help="name of the table of data (default: %(default)s)")
    storing.add_argument("--keys", type=Path, metavar="DIR", help="the client's half of what `keygen` made")
    storing.add_argument(
        "--replication", type=_copies, default=1, metavar="N", help="copies of a row, for a new keyspace (default: 1)"
    )
    storing.add_argument(
        "--timeout-s",
        type=_seconds,
        default=30.0,
        metavar="S",
        help="how long a request may take (default: %(default)g)",
    )
    storing.set_defaults(run=_ingest)

    keygen = commands.add_parser(
        "keygen",
        allow_abbrev=False,
        help="make keys for a server and its clients",
        description="Make keys for a server and its clients: DIR/daemon for the storage node, DIR/client for those "
        "that train. Each half has a key, certificates that are valid for 30 days and the password; only its owner can "
        "read it.",
    )
    keygen.add_argument("folder", type=Path, metavar="DIR", help="folder to make them in")
    keygen.set_defaults(run=_keygen)

    _add_splits(commands)
    arguments = parser.parse_args(argv)
    return run_command(lambda: arguments.run(arguments))


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
        table = Table.parse(arguments.endpoint)
        metadata = fetch_metadata(table, id=arguments.id or SAMPLE_ID, login=_log_in(arguments.keys), **columns)
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


def _log_in(keys: Path | None) -> Login | None:
    if keys is None:
        return None
    client = load_client_keys(keys)
    return Login(USER, client.password, client.context())


def _copies(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= 1000:
        raise argparse.ArgumentTypeError(f"{text!r}: expected a whole number, 1 or more")
    return int(text)


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds <= 86_400:
        raise argparse.ArgumentTypeError(f"{text!r}: expected seconds, more than 0")
    return seconds


def _serve(arguments: argparse.Namespace) -> None:
    options = read_flags(DaemonOptions, vars(arguments))
    host, port = resolve_address(options.listen)
    if options.keys is None and not options.no_auth and not ip_address(host).is_loopback:
        raise LoaderConfigError(
            f"--listen {options.listen}: without keys anyone who reaches it could read and change the tables: give "
            "--keys DIR (made by `python -m loaders.nosql keygen`), or --no-auth where the network is trusted"
        )
    form = open_form(options.root)
    signal.signal(signal.SIGTERM, _end)
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
    ):
        endpoint = Table(server.host, server.port, KEYSPACE, NAME).endpoint
        served = {"endpoint": endpoint, "samples": form.samples, "bytes": form.nbytes}
        sys.stdout.write(json.dumps({"ready": True, "pid": os.getpid(), **served}) + "\n")
        sys.stdout.flush()
        failure = server.wait(sys.stdin.fileno() if options.until_eof else None)
        sys.stderr.write(server.log_lines() + "\n")
        if failure is not None:
            raise LoaderError(failure)


def _end(*_: object) -> NoReturn:
    raise SystemExit(0)


def _prepare(arguments: argparse.Namespace) -> None:
    with progress_bar("samples stored") as bar:
        prepare(arguments.shards, arguments.out, bar)


def _ingest(arguments: argparse.Namespace) -> None:
    table = Table.parse(Table(arguments.host, arguments.port, arguments.keyspace, arguments.name).endpoint)
    with progress_bar("samples stored") as bar:
        stored = ingest(
            arguments.shards,
            table,
            login=_log_in(arguments.keys),
            progress=bar,
            replication=arguments.replication,
            timeout_s=arguments.timeout_s,
        )
    sys.stdout.write(f"{table.endpoint}  {stored} samples stored now\n")


def _keygen(arguments: argparse.Namespace) -> None:
    daemon, client = make_keys(arguments.folder)
    sys.stdout.write(f"{daemon}  for serve --keys, on the storage node\n{client}  for keys=, on the compute nodes\n")


if __name__ == "__main__":
    run_program(main)
