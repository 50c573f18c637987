"""tf.data service over a shard folder."""

from __future__ import annotations

import argparse
import json
import os
import sys
from ipaddress import ip_address

from joulefeed.signals import run_program
from joulefeed.version import PrintVersion
from loaders.errors import LoaderConfigError
from loaders.shared.daemon_flags import add_flags, read_flags, resolve_one_address, run_command
from loaders.tfdata.options import DaemonOptions
from loaders.tfdata.server import Service, confine, wait_for_end


def main(argv: list[str] | None = None) -> int:
    """Run a command and return its exit status: 0 when done, 2 after an error."""
    parser = argparse.ArgumentParser(prog="python -m loaders.tfdata", description=__doc__, allow_abbrev=False)
    parser.add_argument("--version", action=PrintVersion)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    serve = commands.add_parser(
        "serve",
        allow_abbrev=False,
        help="serve a shard folder until SIGTERM or Ctrl-C",
        description="Run a dispatcher and workers of tf.data service over a shard folder until SIGTERM or Ctrl-C. A "
        "JSON line on standard output says when they are ready and at which endpoint.",
    )
    add_flags(serve, DaemonOptions)
    arguments = parser.parse_args(argv)
    return run_command(lambda: _serve(read_flags(DaemonOptions, vars(arguments))))


def _serve(options: DaemonOptions) -> None:
    host, port = resolve_one_address(options.listen)
    if not ip_address(host).is_loopback and not options.no_auth:
        raise LoaderConfigError(
            f"--listen {options.listen}: tf.data service authenticates nobody, and who reaches it can read any file "
            "that this user can read; listen on 127.0.0.1, or give --no-auth where the network is trusted"
        )
    confine(host)
    service = Service(options.root, host, port, workers=options.workers, threads=options.threads)
    sys.stdout.write(json.dumps({"ready": True, "pid": os.getpid(), **service.describe()}) + "\n")
    sys.stdout.flush()
    wait_for_end(until_eof=options.until_eof)
    # A server's end waits for requests under way, and a client's may wait for as long as it likes. Nothing is stored.
    os._exit(0)


if __name__ == "__main__":
    run_program(main)
