"""MDS shards in an object store: make them of TFRecord shards, and serve them."""

from __future__ import annotations

import argparse
import json
import os
import select
import shutil
import signal
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from joulefeed.signals import run_program
from loaders.errors import StreamError
from loaders.mosaic.options import BUCKET, INDEX, PREFIX, DaemonOptions
from loaders.shared.daemon_flags import add_flags, read_flags, resolve_one_address, run_command
from loaders.shared.objects.keys import load_keys
from loaders.shared.objects.server import ObjectServer
from loaders.shared.served_folder import link_file, served_folder

_LOOK_MS = 500
_STATE = ".minio.sys"
_FORMAT = "format.json"


def main(argv: list[str] | None = None) -> int:
    """Run a command and return its exit status: 0 when done, 2 after an error."""
    parser = argparse.ArgumentParser(prog="python -m loaders.mosaic", description=__doc__, allow_abbrev=False)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    serve = commands.add_parser(
        "serve",
        allow_abbrev=False,
        help="serve a folder that `prepare` made until SIGTERM or Ctrl-C",
        description="Serve a folder that `prepare` made with MinIO until SIGTERM or Ctrl-C. A JSON line on standard "
        "output says when it is ready and at which endpoint.",
    )
    add_flags(serve, DaemonOptions)
    serve.set_defaults(run=_serve)
    prepare = commands.add_parser(
        "prepare",
        allow_abbrev=False,
        help="make MDS shards of a folder of TFRecord shards; needs mosaicml-streaming",
        description="Make what `serve` serves of a folder of TFRecord shards. JSON lines on standard output say how "
        "far it is.",
    )
    prepare.add_argument("--root", type=Path, required=True, metavar="DIR", help="folder of TFRecord shards")
    prepare.add_argument("--out", type=Path, required=True, metavar="DIR", help="new or empty folder")
    prepare.set_defaults(run=_prepare)
    arguments = parser.parse_args(argv)
    return run_command(lambda: arguments.run(arguments))


def _prepare(arguments: argparse.Namespace) -> None:
    from loaders.mosaic.mds import prepare

    arguments.out.mkdir(parents=True, exist_ok=True)
    prepare(arguments.root, arguments.out, lambda *said: print(json.dumps({"progress": said}), flush=True))


def _serve(arguments: argparse.Namespace) -> None:
    options = read_flags(DaemonOptions, vars(arguments))
    if options.keys is None:
        raise StreamError("--keys: expected the daemon's half of the keys: S3 knows no server without an access key")
    host, port = resolve_one_address(options.listen)
    keys = load_keys(options.keys)
    # Before anything is started, so that nothing outlives this process.
    stopped, stop = os.pipe()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: os.write(stop, b"x"))
    with _linked(options.root) as folder, ObjectServer(keys, host, port=port, folder=folder) as server:
        endpoint = f"s3://{BUCKET}/{PREFIX}?endpoint={server.endpoint}"
        print(json.dumps({"ready": True, "pid": os.getpid(), "endpoint": endpoint}), flush=True)
        poller = select.poll()
        poller.register(stopped, select.POLLIN)
        if options.until_eof:
            poller.register(sys.stdin.fileno(), select.POLLIN | select.POLLHUP)
        while not any(_has_ended(descriptor, stopped) for descriptor, _ in poller.poll(_LOOK_MS)):
            if failure := server.failure():
                raise StreamError(failure)


def _has_ended(descriptor: int, stopped: int) -> bool:
    return descriptor == stopped or not os.read(descriptor, 4096)


@contextmanager
def _linked(root: Path) -> Iterator[Path]:
    """Yield a folder with links to the objects of `root`, because a server writes into its folder."""
    if not (root / BUCKET / PREFIX / INDEX).is_dir():  # MinIO keeps an object as a folder
        raise StreamError(f"--root {root}: has no MDS shards: expected a folder that `prepare` made to its end")
    with ExitStack() as held:
        try:
            folder = held.enter_context(served_folder(root))
            shutil.copytree(root / BUCKET, folder / BUCKET, copy_function=link_file)
            (folder / _STATE).mkdir()
            shutil.copyfile(root / _STATE / _FORMAT, folder / _STATE / _FORMAT)
        except (OSError, shutil.Error) as error:
            raise StreamError(f"the objects of {root} cannot be linked or copied to serve them: {error}") from error
        yield folder


if __name__ == "__main__":
    run_program(main)
