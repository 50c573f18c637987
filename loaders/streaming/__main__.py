"""The streaming service: serve a shard folder, ask a daemon how it is, make keys and shards."""

from __future__ import annotations

import argparse
import json
import os
import socket
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from energymon.system.version import PrintVersion
from loaders.errors import LoaderError, StreamError
from loaders.streaming.daemon.log import log
from loaders.streaming.options import LISTEN, DaemonOptions, add_flags, read_flags
from loaders.streaming.shards.commands import add_commands

if TYPE_CHECKING:
    from loaders.streaming.daemon.listener import Listener
    from loaders.streaming.daemon.store import ShardStore
    from loaders.streaming.keys import KeyPair


def main(argv: list[str] | None = None) -> int:
    """Run a command and return its exit status: 0 when done, 1 for no health, 2 after an error, 130 after Ctrl-C."""
    parser = argparse.ArgumentParser(prog="python -m loaders.streaming", description=__doc__, allow_abbrev=False)
    parser.add_argument("--version", action=PrintVersion)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    _add_serve(commands)
    _add_health(commands)
    _add_keygen(commands)
    add_commands(commands)
    arguments = parser.parse_args(argv)
    return _status(lambda: arguments.run(arguments))


def _status(run: Callable[[], int | None]) -> int:
    try:
        return run() or 0
    except LoaderError as error:
        sys.stderr.write(f"error: {error}\n")
        return 2
    except KeyboardInterrupt:
        return 130


def _add_serve(commands: argparse._SubParsersAction[Any]) -> None:
    serve = commands.add_parser(
        "serve",
        allow_abbrev=False,
        help="serve a shard folder until SIGTERM or Ctrl-C",
        description="Serve a shard folder until SIGTERM or Ctrl-C. A JSON line on standard output says when it is "
        "ready and at which endpoint; the log goes to standard error, one JSON object a line.",
    )
    add_flags(serve, DaemonOptions)
    serve.set_defaults(run=_serve)


def _add_health(commands: argparse._SubParsersAction[Any]) -> None:
    health = commands.add_parser(
        "health",
        allow_abbrev=False,
        help="ask a daemon how it is",
        description="Print a daemon's uptime, connections, memory and counters as JSON. The exit status is 0 when "
        "it answers and 1 when it does not.",
    )
    health.add_argument(
        "--endpoint", default=f"tcp://{LISTEN}", metavar="tcp://HOST:PORT", help="where it is (default: %(default)s)"
    )
    health.add_argument("--keys", type=Path, metavar="DIR", help="the client's half of what `keygen` made")
    health.add_argument(
        "--timeout-s", type=float, default=5.0, metavar="S", help="how long to wait, in s (default: %(default)g)"
    )
    health.set_defaults(run=_health)


def _add_keygen(commands: argparse._SubParsersAction[Any]) -> None:
    keygen = commands.add_parser(
        "keygen",
        allow_abbrev=False,
        help="make keys for a daemon and its clients",
        description="Make new keys: DIR/daemon for `serve --keys` and DIR/client for the loader's keys= argument. "
        "Copy to a host only the half that it needs.",
    )
    keygen.add_argument("folder", type=Path, metavar="DIR", help="folder to make them in")
    keygen.set_defaults(run=_keygen)


def _serve(arguments: argparse.Namespace) -> int:
    from loaders.streaming.daemon.buffers import send_buffer
    from loaders.streaming.daemon.listener import Listener
    from loaders.streaming.daemon.store import ShardStore
    from loaders.streaming.daemon.supervisor import supervise
    from loaders.streaming.keys import load_daemon_keys

    options = read_flags(vars(arguments))
    host, port = _address(options.listen)
    keys = load_daemon_keys(options.keys) if options.keys is not None else None
    buffer = send_buffer(options.bandwidth_gbit, options.rtt_ms)
    listener = Listener(host, port, send_buffer=buffer, congestion=options.congestion)
    with ShardStore(options.root, options.links_into) as store:

        def serve(is_restart: bool) -> int:
            return _status(lambda: _serve_once(options, store, host, listener, keys, buffer, is_restart=is_restart))

        return supervise(serve, store.find_unreadable, log)


def _serve_once(
    options: DaemonOptions,
    store: ShardStore,
    host: str,
    listener: Listener,
    keys: KeyPair | None,
    buffer: int | None,
    *,
    is_restart: bool,
) -> None:
    """Serve until a signal comes, and on a first start say that it is ready."""
    from loaders.streaming.daemon.daemon import Daemon
    from loaders.streaming.daemon.server_socket import is_loopback
    from loaders.streaming.timestamps import TimestampLogger

    events = TimestampLogger(options.events, daemon=options.listen) if options.events is not None else None
    with Daemon(
        store,
        host,
        listener,
        log=log,
        threads=options.threads,
        keys=keys,
        no_auth=options.no_auth,
        events=events,
    ) as daemon:
        served = {"endpoint": daemon.endpoint, "samples": store.catalog.samples, "bytes": store.nbytes}
        if keys is None:
            log(
                "unauthenticated",
                endpoint=daemon.endpoint,
                reached_by="this host" if is_loopback(host) else "anyone who can reach the address",
                protection="none: who reaches the address reads the shards, who is on the way changes what is sent",
            )
        else:
            log(
                "encrypted",
                endpoint=daemon.endpoint,
                protection="CURVE: only the client of these keys is served, nobody else reads or changes a byte",
            )
        log(
            "restarted" if is_restart else "started",
            **served,
            shards=len(store.catalog.shards),
            keys=keys is not None,
            threads=options.threads,
            send_buffer=buffer or "tuned by TCP",
            congestion=daemon.congestion,
            max_clients=daemon.max_connections,
        )
        if not is_restart:
            sys.stdout.write(json.dumps({"ready": True, "pid": os.getpid(), **served}) + "\n")
            sys.stdout.flush()
        why = daemon.serve(until_eof=sys.stdin.fileno() if options.until_eof else None)
        log("stopping", reason=why)
    log("stopped", **asdict(daemon.served))


def _health(arguments: argparse.Namespace) -> int:
    from loaders.streaming.receiver.session import health

    try:
        report = health(arguments.endpoint, timeout_s=arguments.timeout_s, keys=arguments.keys)
    except StreamError as error:
        sys.stdout.write(json.dumps({"healthy": False, "reason": str(error)}) + "\n")
        return 1
    sys.stdout.write(json.dumps({"healthy": True, **report}) + "\n")
    return 0


def _keygen(arguments: argparse.Namespace) -> None:
    from loaders.streaming.keys import make_keys

    daemon, client = make_keys(arguments.folder)
    sys.stdout.write(f"{daemon}  for serve --keys, on the storage node\n{client}  for keys=, on the compute nodes\n")


def _address(listen: str) -> tuple[str, int]:
    """Return the numeric host and the port of HOST:PORT, where an IPv6 host stands in brackets."""
    host, _, port = listen.rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    host = host[1:-1] if bracketed else host
    if not host or set(host) & set("[]/") or not port.isascii() or not port.isdecimal() or int(port) > 65_535:
        raise StreamError(f"--listen {listen}: expected HOST:PORT, such as 127.0.0.1:0; *:PORT is every IPv4 address")
    try:
        # An empty host is every address (getaddrinfo(3)); of "*" the resolver would make ::1.
        known = (None, socket.AF_INET) if host == "*" else (host, socket.AF_UNSPEC)
        found = socket.getaddrinfo(known[0], int(port), known[1], socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as error:
        raise StreamError(f"--listen {listen}: no such host: {error.strerror}") from error
    return str(found[0][4][0]), int(port)


if __name__ == "__main__":
    sys.exit(main())
