"""tf.data service over a shard folder."""

from __future__ import annotations

import os
from ipaddress import ip_address

from joulefeed.signals import run_program
from loaders.errors import LoaderConfigError
from loaders.shared.daemon.command import DaemonCommand, say_ready, wait_for_eof
from loaders.shared.daemon.flags import resolve_one_address
from loaders.tfdata.options import DaemonOptions
from loaders.tfdata.server import Service, confine


def _serve(options: DaemonOptions) -> None:
    host, port = resolve_one_address(options.listen)
    if not ip_address(host).is_loopback and not options.no_auth:
        raise LoaderConfigError(
            f"--listen {options.listen}: tf.data service authenticates nobody, and who reaches it can read any file "
            "that this user can read; listen on 127.0.0.1, or give --no-auth where the network is trusted"
        )
    confine(host)
    service = Service(options.root, host, port, workers=options.workers, threads=options.threads)
    say_ready(service.describe())
    try:
        wait_for_eof(until_eof=options.until_eof)
    finally:
        # A server's end waits for requests under way, and a client's may wait for as long as it likes. Nothing is
        # stored.
        os._exit(0)


main = DaemonCommand(
    "loaders.tfdata",
    __doc__,
    DaemonOptions,
    _serve,
    serves="run a dispatcher and workers of tf.data service over a shard folder",
).main

if __name__ == "__main__":
    run_program(main)
