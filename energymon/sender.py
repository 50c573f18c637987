"""`python -m energymon.sender`: the command and the process that empty an agent's store into an InfluxDB server."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from energymon.errors import ConfigError, StoreError
from energymon.influx.client import InfluxClient
from energymon.influx.sender import Sender, StopListener
from energymon.influx.settings import InfluxSettings
from energymon.influx.spool import BusyError, Spool

_POLL_S: Final = 1.0
_DRAIN_S: Final = 10.0
_ERROR = 2


def main(argv: Sequence[str] | None = None) -> int:
    """Run the sender; return 0 when all was sent, 1 when something stays in the store, 2 for an error."""
    options = _parser().parse_args(argv)
    try:
        settings = InfluxSettings.from_environment()
        if warning := settings.warning():
            print(f"energymon: {warning}", file=sys.stderr)
        stop = StopListener(until_eof=options.until_eof)
        limit = round(options.spool_limit_mb * 1e6) if options.spool_limit_mb else None
        with _open(options.store, stop, until_eof=options.until_eof) as spool, InfluxClient(settings) as client:
            return Sender(
                spool,
                client,
                stop,
                _say,
                until_eof=options.until_eof,
                drain_s=options.drain_s,
                limit_bytes=limit,
            ).run()
    except (ConfigError, StoreError) as error:
        _say("refused", str(error), None)
        return _ERROR


def _open(store: Path, stop: StopListener, *, until_eof: bool) -> Spool:
    """Open the store; an agent's sender waits for the one of the agent before it, which may still be draining."""
    reported = False
    while True:
        try:
            return Spool(store)
        except BusyError as error:
            if not until_eof or stop.eof or stop.killed:
                raise
            if not reported:
                _say("waiting", str(error), None)
                reported = True
        stop.wait(_POLL_S)


def _say(state: str, message: str, unsent: int | None) -> None:
    line = json.dumps({"state": state, "message": message, "unsent": unsent}) + "\n"
    # The agent may be gone; unsent readings stay in the store all the same. Nothing may be left in a buffer,
    # which would be written, and fail, at the end.
    with contextlib.suppress(BrokenPipeError):
        os.write(1, line.encode())


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m energymon.sender", description="Send what a store holds and InfluxDB does not have yet."
    )
    parser.add_argument("--store", type=Path, required=True, help="the SQLite file that `energymon run` writes")
    parser.add_argument(
        "--until-eof", action="store_true", help="go on sending what an agent writes until stdin ends, then drain"
    )
    parser.add_argument(
        "--drain-s",
        type=float,
        default=_DRAIN_S,
        help=f"how long to go on after the end of stdin while the server answers, or without it while nothing can be "
        f"sent, s ({_DRAIN_S:g})",
    )
    parser.add_argument(
        "--spool-limit-mb", type=float, help="delete sent readings, oldest first, when the store nears this size"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
