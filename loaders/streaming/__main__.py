"""The streaming service: serve a shard folder, show the health of a daemon, make keys and shards."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from joulefeed.signals import run_program
from loaders.errors import StreamError
from loaders.records.shards.commands import Commands, add_commands
from loaders.shared.daemon.command import DaemonCommand, say_ready
from loaders.shared.daemon.flags import resolve_address
from loaders.streaming.daemon.counters import log
from loaders.streaming.settings import LISTEN, DaemonOptions

if TYPE_CHECKING:  # torch and DALI, which take seconds to import, are for the commands that need them
    from loaders.streaming.daemon.daemon import Daemon
    from loaders.streaming.daemon.store import ShardStore


def _add_more(commands: Commands) -> None:
    health = commands.add_parser(
        "health",
        allow_abbrev=False,
        help="show the health of a daemon",
        description="Print a daemon's uptime, connections and counters as JSON. The exit status is 0 when "
        "it answers and 1 when it does not.",
    )
    health.add_argument(
        "--endpoint", default=f"tcp://{LISTEN}", metavar="tcp://HOST:PORT", help="its address (default: %(default)s)"
    )
    health.add_argument("--keys", type=Path, metavar="DIR", help="the client's half of what `keygen` made")
    health.add_argument(
        "--timeout-s", type=float, default=5.0, metavar="S", help="how long to wait, in s (default: %(default)g)"
    )
    health.set_defaults(run=_health)

    add_commands(commands)


def _serve(options: DaemonOptions) -> int:
    from loaders.streaming.daemon.daemon import Daemon
    from loaders.streaming.daemon.listener import ListeningSocket, choose_send_buffer
    from loaders.streaming.daemon.store import ShardStore
    from loaders.streaming.daemon.supervisor import supervise
    from loaders.streaming.keys import load_daemon_keys
    from loaders.streaming.timestamps import TimestampLogger

    host, port = resolve_address(options.listen)
    keys = load_daemon_keys(options.keys) if options.keys is not None else None
    buffer = choose_send_buffer(options.bandwidth_gbit, options.rtt_ms)
    listener = ListeningSocket(host, port, send_buffer=buffer, congestion=options.congestion)
    given = options.model_dump(include={"threads", "high_water_mark", "no_auth"})

    def serve(is_first: bool, ready: Callable[[], None]) -> int:
        events = TimestampLogger(options.events, daemon=options.listen) if options.events is not None else None
        with Daemon(store, host, listener, log=log, keys=keys, events=events, **given) as daemon:
            ready()
            if is_first:
                _log_start(daemon, store, host, options, buffer)
            why = daemon.serve(until_eof=sys.stdin.fileno() if options.until_eof else None)
            log("stopping", reason=why)
        log("stopped", **asdict(daemon.counters))
        return 0

    with ShardStore(options.root) as store:
        return supervise(serve, log=log)


def _log_start(daemon: Daemon, store: ShardStore, host: str, options: DaemonOptions, buffer: int | None) -> None:
    """Log who is served and how, and say on standard output that the daemon is ready."""
    from loaders.streaming.daemon.listener import is_loopback

    served = {"endpoint": daemon.endpoint, "samples": store.catalog.samples, "bytes": store.nbytes}
    if options.keys is None:
        log(
            "unauthenticated",
            endpoint=daemon.endpoint,
            reached_by="this host" if is_loopback(host) else "anyone who can reach the address",
            protection="none: anyone who reaches the address reads the shards, anyone on the way can change them",
        )
    else:
        protection = "CURVE: only the client of these keys is served, nobody else reads or changes a byte"
        log("encrypted", endpoint=daemon.endpoint, protection=protection)
    log(
        "started",
        **served,
        shards=len(store.catalog.shards),
        keys=options.keys is not None,
        threads=options.threads,
        high_water_mark=options.high_water_mark,
        send_buffer=buffer or "tuned by TCP",
        congestion=daemon.congestion,
        max_clients=daemon.max_connections,
    )
    say_ready(served)


def _health(arguments: argparse.Namespace) -> int:
    from loaders.streaming.receiver.remote_daemon import health

    try:
        report = health(arguments.endpoint, timeout_s=arguments.timeout_s, keys=arguments.keys)
    except StreamError as error:
        sys.stdout.write(json.dumps({"healthy": False, "reason": str(error)}) + "\n")
        return 1
    sys.stdout.write(json.dumps({"healthy": True, **report}) + "\n")
    return 0


main = DaemonCommand(
    "loaders.streaming",
    __doc__,
    DaemonOptions,
    _serve,
    serves="serve a shard folder",
    log="The log goes to standard error, one JSON object a line.",
    keys="Copy to a host only the half that it needs.",
    add_more=_add_more,
).main

if __name__ == "__main__":
    run_program(main)
