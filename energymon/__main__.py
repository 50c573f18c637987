"""`python -m energymon run | query | doctor`."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from energymon.errors import ConfigError, EnergyError
from energymon.sensors.discover import SENSORS, SensorConfig
from energymon.sensors.estimate import IDLE_FRACTION, TDP_W_PER_CPU

_STATUS_ERROR = 2


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; return its exit status: 0, 1 for doctor on a host without sensors, 2 for an error."""
    options = _parser().parse_args(argv)
    try:
        return int(options.command(options))
    except EnergyError as error:
        print(f"energymon: {error}", file=sys.stderr)
        return _STATUS_ERROR
    except BrokenPipeError:
        sys.stdout = None
        return _STATUS_ERROR


def _run(options: argparse.Namespace) -> int:
    from energymon.agent import AgentConfig, run

    return run(
        AgentConfig(
            store=options.store,
            node=options.node,
            interval_ms=options.interval_ms,
            until_eof=options.until_eof,
            sensors=_sensors(options),
        )
    )


def _doctor(options: argparse.Namespace) -> int:
    from energymon.doctor import doctor

    return doctor(_sensors(options), round(options.interval_ms * 1e6))


def _query(options: argparse.Namespace) -> int:
    from energymon.query import query
    from energymon.stores.sqlite import SqliteStore

    with SqliteStore.open(options.store) as store:
        windows = query(store, _instant(options.start), _instant(options.end), options.node)
    if options.json:
        print(json.dumps([window.to_json() for window in windows]))
        return 0
    for window in windows:
        seconds = (window.end_ns - window.start_ns) / 1e9
        print(f"{window.node}: {seconds:.3f} s, {window.missed_share:.2%} of ticks missed")
        for e in window.energies:
            bound = "estimate, no bound" if e.error_j is None else f"± {e.error_j:.3f} J"
            note = ", interpolated" if e.interpolated else ""
            print(f"  {e.domain:<4}  {e.device:<14}  {e.source:<14}  {e.joules:14.3f} J  {bound}{note}")
        if not window.energies:
            print("  no series covers this window")
        for event in window.events:
            print(f"  {event.kind}: {event.message}")
    return 0


def _instant(text: str) -> int:
    """Return UTC ns from an integer of ns or an ISO 8601 time; one without an offset is UTC."""
    if text.isdigit():
        return int(text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise ConfigError(f"{text!r} is no instant: expected UTC ns or ISO 8601, 2025-01-31T12:00:00.5Z") from error
    since = (moment if moment.tzinfo else moment.replace(tzinfo=UTC)) - datetime(1970, 1, 1, tzinfo=UTC)
    return (since.days * 86_400 + since.seconds) * 1_000_000_000 + since.microseconds * 1000


def _sensors(options: argparse.Namespace) -> SensorConfig:
    names = () if options.sensors == "auto" else tuple(options.sensors.split(","))
    return SensorConfig(
        sensors=names,
        estimate=options.estimate == "missing",
        cpu_tdp_w=options.cpu_tdp_w,
        cpu_idle_fraction=options.cpu_idle_fraction,
        sysfs=options.sysfs,
        nvml=options.nvml,
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="energymon", description="Joules of this host, tick by tick.")
    commands = parser.add_subparsers(required=True)

    sensing = argparse.ArgumentParser(add_help=False)
    sensing.add_argument("--interval-ms", type=float, default=100.0, help="time between ticks, 1 to 10000 (100)")
    sensing.add_argument("--sensors", default="auto", help=f"auto, or which must be there: {','.join(SENSORS)}")
    sensing.add_argument(
        "--estimate",
        choices=("off", "missing"),
        default="off",
        help="estimate CPU energy, labelled so, where no sensor measures it (off)",
    )
    sensing.add_argument(
        "--cpu-tdp-w",
        type=float,
        help=f"TDP of all sockets, for the estimate ({TDP_W_PER_CPU} a logical CPU)",
    )
    sensing.add_argument(
        "--cpu-idle-fraction",
        type=float,
        default=IDLE_FRACTION,
        help=f"idle power over TDP ({IDLE_FRACTION})",
    )
    sensing.add_argument("--sysfs", type=Path, default=Path("/sys"), metavar="ROOT", help="root of sysfs (/sys)")
    sensing.add_argument("--nvml", default="pynvml", metavar="MODULE", help="module with NVML's functions (pynvml)")

    run = commands.add_parser("run", parents=[sensing], help="sample into a store until SIGTERM or SIGINT")
    run.add_argument("--store", type=Path, required=True, help="SQLite file, made if missing, one agent a file")
    run.add_argument("--node", required=True, help="name of this host in the readings")
    run.add_argument("--until-eof", action="store_true", help="stop at the end of stdin too")
    run.set_defaults(command=_run)

    query = commands.add_parser("query", help="joules between two instants")
    query.add_argument("--store", type=Path, required=True, help="the file that `run` writes")
    query.add_argument("--start", required=True, help="UTC ns, or ISO 8601")
    query.add_argument("--end", required=True, help="UTC ns, or ISO 8601")
    query.add_argument("--node", help="one node (all)")
    query.add_argument("--json", action="store_true", help="print JSON")
    query.set_defaults(command=_query)

    doctor = commands.add_parser("doctor", parents=[sensing], help="what this host can measure, and what is missing")
    doctor.set_defaults(command=_doctor)
    return parser


if __name__ == "__main__":
    sys.exit(main())
