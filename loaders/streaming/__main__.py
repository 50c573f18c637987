"""Command line: `python -m loaders.streaming serve --root SHARDS --listen HOST:PORT`."""

from __future__ import annotations

import argparse
import json
import socket
import sys
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

from loaders.errors import LoaderError, StreamError
from loaders.streaming.daemon import Daemon
from loaders.streaming.store import ShardStore


def main(argv: list[str] | None = None) -> int:
    """Run a command and return its exit status: 0 after a stop that was asked for, 2 after an error."""
    parser = argparse.ArgumentParser(prog="python -m loaders.streaming", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    serve = commands.add_parser("serve", help="serve a shard folder until SIGTERM or Ctrl-C")
    serve.add_argument("--root", type=Path, required=True, help="shard folder made by loaders.streaming.convert")
    serve.add_argument("--listen", required=True, metavar="HOST:PORT", help="address; port 0 is any free one")
    serve.add_argument("--threads", type=int, default=1, help="threads that move bytes (default: %(default)s)")
    serve.add_argument("--until-eof", action="store_true", help="stop as well when standard input ends")
    arguments = parser.parse_args(argv)
    try:
        _serve(arguments)
    except LoaderError as error:
        sys.stderr.write(f"error: {error}\n")
        return 2
    return 0


def _serve(arguments: argparse.Namespace) -> None:
    host, port = _address(arguments.listen)
    if not 1 <= arguments.threads <= 64:
        raise StreamError(f"--threads {arguments.threads}: expected 1 to 64")
    with (
        ShardStore(arguments.root) as store,
        Daemon(store, host, port, threads=arguments.threads, log=_log) as daemon,
    ):
        served = {"endpoint": daemon.endpoint, "samples": store.catalog.samples, "bytes": store.nbytes}
        sys.stdout.write(json.dumps({"ready": True, **served}) + "\n")
        sys.stdout.flush()
        _log("started", **served)
        daemon.serve(until_eof=sys.stdin.fileno() if arguments.until_eof else None)
        _log("stopped", **asdict(daemon.served))


def _address(listen: str) -> tuple[str, int]:
    """Return the numeric host and the port of HOST:PORT, where an IPv6 host stands in brackets."""
    host, _, port = listen.rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65_535:
        raise StreamError(f"--listen {listen}: expected HOST:PORT, such as 127.0.0.1:0")
    try:
        found = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM)
    except OSError as error:
        raise StreamError(f"--listen {listen}: no such host: {error.strerror}") from error
    return str(found[0][4][0]), int(port)


def _log(event: str, **fields: object) -> None:
    """Write one JSON line to standard error."""
    line = {"t_utc": datetime.now(UTC).isoformat(timespec="milliseconds"), "event": event, **fields}
    sys.stderr.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    sys.exit(main())
