"""`python -m energymon exec | run | send | query | sessions | export | doctor | calibrate | clock | ...`."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Callable, Container, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeAlias

from energymon.errors import EnergyError, OptionError
from energymon.sensors.boards import ALL, VISIBLE
from energymon.sensors.discover import SENSORS, SensorConfig
from energymon.sensors.estimate import IDLE_FRACTION, TDP_W_PER_CPU
from joulefeed.signals import run_program
from joulefeed.version import PrintVersion

_STATUS_ERROR = 2
_INSTANT: Final = "now, UTC ns, or ISO 8601, which is UTC too unless it has an offset, 2026-01-31T12:00:00+01:00"

_SERVER: Final = {
    "INFLUXDB_V2_URL": ("url", "URL", "the server; an agent sends nothing without it"),
    "INFLUXDB_V2_ORG": ("org", "NAME", "organisation"),
    "INFLUXDB_V2_BUCKET": ("bucket", "NAME", "bucket of the readings, which must exist"),
    "INFLUXDB_V2_TOKEN_FILE": ("token-file", "FILE", "file that holds the token; a dashboard's has all access"),
    "INFLUXDB_V2_SSL_CA_CERT": ("ca", "FILE", "certificates to trust for https"),
}
"""Options of an InfluxDB server by the variables that they stand for: name, metavariable and help."""

# An error's usage needs no terminal's width: to ask for it argparse imports shutil, which takes 2 ms.
_FORM: Final = argparse.HelpFormatter if {"-h", "--help"} & {*sys.argv} else partial(argparse.HelpFormatter, width=98)
_Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; return its exit status.

    That is the command's for exec, else 0, 1 for doctor on a host of which something has no figure, 1 for calibrate
    where a source failed, 2 for an error, and 3 for a query that knows no joules at all.
    """
    argv = sys.argv[1:] if argv is None else argv
    options = _parser(argv).parse_args(argv)
    try:
        if options.prints:
            _require_stdout()
        status = int(options.command(options))
        if sys.stdout is not None:
            sys.stdout.flush()
    except BrokenPipeError:
        sys.stdout = None
        return _STATUS_ERROR
    except (EnergyError, OSError) as error:
        return _failed(error)
    return status


def _failed(error: Exception) -> int:
    """Say on stderr what went wrong, if anybody hears it; return the exit status."""
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError:
        # Flushed again at exit otherwise, which fails again.
        sys.stdout = None
    with suppress(OSError):
        if sys.stderr is not None:
            print(f"energymon: {error}", file=sys.stderr)
    return _STATUS_ERROR


def _require_stdout() -> None:
    """Raise OptionError when there is nowhere to print to; print() would say nothing about it."""
    if sys.stdout is None:
        raise OptionError("stdout is closed; expected somewhere to print to")


def _exec(options: argparse.Namespace) -> int:
    from energymon.cli.exec import run_exec

    owner = "command" if options.attribute == "" else options.attribute
    return run_exec(options.argv, _sensors(options), owner, options.json)


def _run(options: argparse.Namespace) -> int:
    import platform

    from energymon.agent.main import AgentConfig, print_failure, run
    from energymon.clock.monotonic import duration_ns

    given = _given(options, AgentConfig.__dataclass_fields__)
    try:
        given["node"] = platform.node() if options.node is None else options.node
        given |= {"sensors": _sensors(options), "influxdb": _server(options) or None}
        if given["influxdb"] and options.INFLUXDB_V2_URL is None:
            raise OptionError("--influxdb-url is missing: the other --influxdb options say nothing without a server")
        given["keep_ns"] = None if options.keep is None else duration_ns("--keep", options.keep)
        return run(AgentConfig(**given))
    except EnergyError as error:
        print_failure(error)
        raise


def _server(options: argparse.Namespace) -> dict[str, str]:
    """Return the options of an InfluxDB server as the environment variables that they stand for."""
    return {name: str(value) for name in _SERVER if (value := getattr(options, name)) is not None}


def _send(options: argparse.Namespace) -> int:
    from energymon.influx.sender import send

    limit_bytes = round(options.spool_limit_mb * 1e6) if options.spool_limit_mb else None
    return send(options.store, until_eof=options.until_eof, drain_s=options.drain_s, limit_bytes=limit_bytes)


def _doctor(options: argparse.Namespace) -> int:
    from energymon.agent.main import AgentConfig
    from energymon.cli.doctor import doctor

    # The agent's own check of the interval: what the doctor watches is what `run` would do.
    config = AgentConfig(Path(os.devnull), "doctor", options.interval_ms, sensors=_sensors(options))
    return doctor(config.sensors, config.interval_ns, options.seconds)


def _calibrate(options: argparse.Namespace) -> int:
    from energymon.cli.calibrate import run_calibrate

    if options.wall:
        raise OptionError("--wall: a meter that is asked once a second shows no edge of a load; expected none here")
    return run_calibrate(_sensors(options), options.device, options.raw, as_json=options.json)


def _query(options: argparse.Namespace) -> int:
    from energymon.cli.query import run_query

    return run_query(options)


def _sessions(options: argparse.Namespace) -> int:
    from energymon.cli.sessions import run_sessions

    return run_sessions(options.store, as_json=options.json)


def _unit(options: argparse.Namespace) -> int:
    text = Path(__file__).with_name("agent").joinpath("energymon.service").read_text()
    print(text.replace("@PYTHON@", sys.executable).replace("@GROUP@", options.group), end="")
    return 0


def _export(options: argparse.Namespace) -> int:
    from energymon.cli.export import export
    from energymon.cli.query import parse_instant
    from energymon.store import SqliteStore

    if options.out == "-":
        _require_stdout()
    start_ns = 0 if options.start is None else parse_instant(options.start)
    end_ns = 2**63 - 1 if options.end is None else parse_instant(options.end)
    with SqliteStore.open(options.store) as store:
        export(store, options.out, options.format, options.what, start_ns=start_ns, end_ns=end_ns, node=options.node)
    return 0


def _clock(options: argparse.Namespace) -> int:
    import json

    from energymon.clock.sync import Responder, split_address

    if (address := split_address(options.listen)) is None:
        raise OptionError(
            f"--listen {options.listen!r}: expected ADDRESS or ADDRESS:PORT, the port 0 to 65535 and an IPv6 address "
            "in brackets, [::1]:9000"
        )
    host, port = address
    signals = {signal.SIGTERM, signal.SIGINT}
    # Blocked before the responder's thread starts, so that they are this thread's to wait for.
    signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    with Responder(host, port or 0) as responder:
        shown = f"[{host}]" if ":" in host else host
        print(json.dumps({"ready": True, "address": f"{shown}:{responder.port}"}), flush=True)
        signal.sigwait(signals)
    return 0


def _dashboard(options: argparse.Namespace) -> int:
    import json

    from energymon.influx.dashboard import apply_dashboard, template
    from energymon.influx.settings import InfluxSettings

    environment = {**os.environ, **_server(options)}
    if options.print:
        print(json.dumps(template(environment.get("INFLUXDB_V2_BUCKET") or "energy"), indent=2))
    else:
        print(json.dumps(apply_dashboard(InfluxSettings.from_environment(environment))))
    return 0


def _sensors(options: argparse.Namespace) -> SensorConfig:
    given = _given(options, SensorConfig._fields)
    given["sensors"] = () if options.sensors == "auto" else tuple(options.sensors.split(","))
    given |= {"estimate": options.estimate == "missing", "delays_s": dict(options.delay_ms)}
    given["wall"] = tuple(given.get("wall", ()))  # `exec` has no such option
    return SensorConfig(**given)


def _given(options: argparse.Namespace, names: Container[str]) -> dict[str, Any]:
    """Return the options that are fields of these names."""
    return {name: value for name, value in vars(options).items() if name in names}


def _delay(text: str) -> tuple[str, float]:
    """Return the source and the seconds that "SOURCE=MS" says; raises ValueError."""
    source, _, ms = text.partition("=")
    return source, float(ms) / 1e3


def _above_zero(text: str) -> float:
    if not 0 < (number := float(text)) < float("inf"):
        raise argparse.ArgumentTypeError(f"{text}: expected a number above 0")
    return number


def _parser(argv: Sequence[str]) -> argparse.ArgumentParser:
    """Return the parser of all commands, or of the one that begins `argv`: the others take their time to describe."""
    parser = argparse.ArgumentParser("python -m energymon", description="Joules of this host.", formatter_class=_FORM)
    parser.add_argument("--version", action=PrintVersion)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    adders = (_add_exec, _add_run, _add_send, _add_query, _add_sessions, _add_export, _add_doctor, _add_calibrate)
    every = {add.__name__.removeprefix("_add_"): add for add in (*adders, _add_clock, _add_dashboard, _add_unit)}
    for name in argv[:1] if argv and argv[0] in every else every:
        every[name](commands)
    return parser


def _add_command(
    commands: _Commands,
    run: Callable[[argparse.Namespace], int],
    does: str,
    more: str = "",
    *parents: argparse.ArgumentParser,
    prints: bool = True,
    reads: bool = False,
) -> argparse.ArgumentParser:
    """Add the command that the function `run` is named after; its own page begins with `does` and `more`."""
    about = f"{does[0].upper()}{does[1:]}{more}" if more else None
    command = commands.add_parser(
        run.__name__[1:], parents=parents, help=does, description=about, formatter_class=_FORM
    )
    command.set_defaults(command=run, prints=prints)
    if reads:
        command.add_argument("--store", type=Path, required=True, metavar="FILE", help="the file that `run` writes")
    return command


def _sensing(*, samples: bool = True) -> argparse.ArgumentParser:
    """Return the options that `run`, `doctor` and `calibrate` share, and `exec`, which does not sample."""
    sensing = argparse.ArgumentParser(add_help=False, formatter_class=_FORM)
    add = sensing.add_argument
    if samples:
        add("--interval-ms", type=float, default=100.0, help="time between ticks, 1 to 10000 (100)")
    boards = ALL if samples else VISIBLE
    which = "all, visible, which CUDA_VISIBLE_DEVICES names, or indices of NVML and UUIDs, joined by commas"
    add("--boards", default=boards, metavar="WHICH", help=f"GPU boards: {which} ({boards})")
    add("--sensors", default="auto", help=f"auto, or which must be there: {','.join(SENSORS)}")
    estimates = "estimate CPU energy, labelled so, where no sensor measures it (off)"
    add("--estimate", choices=("off", "missing"), default="off", help=estimates)
    add("--cpu-tdp-w", type=float, help=f"TDP of all sockets, for the estimate ({TDP_W_PER_CPU} a logical CPU)")
    add("--cpu-idle-fraction", type=float, default=IDLE_FRACTION, help=f"idle power over TDP ({IDLE_FRACTION})")
    add("--sysfs", type=Path, default=Path("/sys"), metavar="ROOT", help="root of sysfs (/sys)")
    add("--nvml", type=Path, metavar="LIBRARY", help="NVML's library (the driver's libnvidia-ml.so.1)")
    delays = "how much older than its update a counter's value may be, such as nvml-counter=50; widens bounds (0)"
    add("--delay-ms", type=_delay, action="append", default=[], metavar="SOURCE=MS", help=delays)
    if samples:
        meters = "hwmon, hwmon:NAME, ipmi, redfish:URL, tasmota:URL or shelly:URL"
        wall = f"also measure the whole machine: {meters}; again for another supply's plug (none)"
        add("--wall", action="append", default=[], metavar="METER", help=wall)
        add("--wall-auth", type=Path, metavar="FILE", help="file with USER:PASSWORD for Redfish (ENERGYMON_WALL_AUTH)")
        add("--wall-ca", type=Path, metavar="FILE", help="certificates to trust for https (the system's)")
    return sensing


def _add_exec(commands: _Commands) -> None:
    does = "run a command and print what this host used meanwhile"
    more = (
        ", on stderr: joules, their error and accuracy, seconds. The exit status is the command's, 127 where it is "
        "missing, and 128 and the signal's number where a signal ended it."
    )
    command = _add_command(commands, _exec, does, more, _sensing(samples=False), prints=False)
    command.usage = "%(prog)s [options] -- COMMAND [ARGUMENT ...]"
    share = "the command's share of the CPU's joules by CPU time, which is no measurement, or that of a control group"
    command.add_argument("--attribute", nargs="?", const="", metavar="CGROUP", help=f"show {share}'s folder")
    command.add_argument("--json", nargs="?", const="-", metavar="FILE", help="write JSON, to stderr without a FILE")
    command.add_argument("argv", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)


def _add_run(commands: _Commands) -> None:
    run = _add_command(commands, _run, "sample into a store until SIGTERM or SIGINT", "", _sensing(), prints=False)
    add = run.add_argument
    add("--store", type=Path, required=True, help="SQLite file, made if missing, one agent a file")
    add("--node", help="name of this host in the readings (the host name)")
    add("--until-eof", action="store_true", help="stop at the end of stdin too, commit at a line")
    # A program's temporary store goes with the program, even when that is killed.
    add("--remove-at-eof", type=Path, help=argparse.SUPPRESS)
    add("--idle-s", type=float, default=0.0, help="record the first seconds as the idle baseline (0: none)")
    group = "let the members of this group, and no other users, read the store and have windows read the sensors"
    add("--group", metavar="NAME", help=group)
    add("--keep", metavar="DURATION", help="delete readings that are older, such as 30d (keep all)")
    add("--prometheus", metavar="[ADDRESS:]PORT", help="answer GET /metrics there, on 127.0.0.1 without an address")
    add("--run", metavar="NAME", help="tag of the energy tuples in InfluxDB (the session)")
    add("--controller", metavar="HOST:PORT", help="measure this clock against `python -m energymon clock` there")
    influxdb = run.add_argument_group(
        "InfluxDB",
        "Readings go to the store first and from there to the server; the token is read from INFLUXDB_V2_TOKEN or a "
        "file, and the other settings from INFLUXDB_V2_ORG, _BUCKET and so on where they are not given.",
    )
    _add_server(influxdb, "influxdb-")
    limit = "most that the store takes on disk (1024)"
    influxdb.add_argument("--spool-limit-mb", type=float, default=1024.0, metavar="MB", help=limit)


def _add_server(command: argparse._ActionsContainer, prefix: str = "") -> None:
    for variable, (name, metavar, text) in _SERVER.items():
        command.add_argument(f"--{prefix}{name}", dest=variable, metavar=metavar, help=text)


def _add_send(commands: _Commands) -> None:
    does = "send what a store holds and InfluxDB does not have yet"
    more = "; the server is in INFLUXDB_V2_*. The exit status is 1 when something stays in the store."
    send = _add_command(commands, _send, does, more, prints=False, reads=True)
    send.add_argument("--until-eof", action="store_true", help="go on while an agent writes, until stdin ends")
    drain = "how long to go on after the end of stdin while the server answers, or without it while nothing can be sent"
    send.add_argument("--drain-s", type=float, default=10.0, help=f"{drain}, s (10)")
    limit = "delete sent readings, oldest first, when the store nears this size"
    send.add_argument("--spool-limit-mb", type=float, help=limit)


def _add_query(commands: _Commands) -> None:
    query = _add_command(commands, _query, "joules between two instants", reads=True)
    add = query.add_argument
    add("--start", metavar="INSTANT", help=f"{_INSTANT}; without times, all that the store has")
    add("--end", metavar="INSTANT", help="the same")
    add("--last", metavar="DURATION", help="the last 60s, 5m, 2h or 1d that the store has")
    add("--node", action="append", help="a node, and another one with each repetition (all)")
    add("--net", action="store_true", help="subtract the recorded idle baseline (`run --idle-s`)")
    clock = "the clock of the instants: the controller's, or each node's own (controller)"
    add("--clock", choices=("controller", "own"), default="controller", help=clock)
    period = "say where a sensor resonates with a load that repeats so often"
    add("--period-ms", type=_above_zero, metavar="MS", help=period)
    add("--co2-g-per-kwh", type=_above_zero, metavar="G", help="show the grams of CO2, at so many a kWh")
    add("--price-per-kwh", type=_above_zero, metavar="PRICE", help="show the cost, at this price of a kWh")
    form = query.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="the same as --format json")
    form.add_argument("--format", choices=("text", "json", "csv", "parquet"), help="(the suffix of FILE, or text)")
    add("--out", metavar="FILE", help="file of --format csv or parquet (stdout)")


def _add_sessions(commands: _Commands) -> None:
    does = "what a store has: each run of an agent, its sources and gaps"
    _add_command(commands, _sessions, does, reads=True).add_argument("--json", action="store_true", help="print JSON")


def _add_export(commands: _Commands) -> None:
    does = "readings or energy tuples as Parquet or CSV"
    add = _add_command(commands, _export, does, prints=False, reads=True).add_argument
    add("--format", choices=("parquet", "csv"), help="(the suffix of FILE)")
    add("--what", choices=("readings", "tuples"), default="readings", help="(readings)")
    add("--out", required=True, metavar="FILE", help="file, FIFO or device to write; - is stdout")
    add("--start", metavar="INSTANT", help=f"{_INSTANT} (the first reading)")
    add("--end", metavar="INSTANT", help="the same (the last reading)")
    add("--node", help="one node (all)")


def _add_doctor(commands: _Commands) -> None:
    does = "show what this host can measure, and what it cannot"
    more = ". The exit status is 1 where nothing is measured or a part of the host has no figure."
    doctor = _add_command(commands, _doctor, does, more, _sensing())
    doctor.add_argument("--seconds", type=float, default=10.0, help="how long ticks are watched for jitter (10)")


def _add_calibrate(commands: _Commands) -> None:
    does = "put devices under a known load, and store what their sensors sample of it"
    more = (
        ". Takes half a minute a board, which needs torch with CUDA, and as long for the processors; nothing else "
        "should run meanwhile. The exit status is 1 where a source could not be calibrated."
    )
    add = _add_command(commands, _calibrate, does, more, _sensing()).add_argument
    add("--device", action="append", default=[], help="gpu-0, or cpu for all processors; again for more (all)")
    add("--raw", type=Path, metavar="FOLDER", help="keep the readings and the load there too")
    add("--json", action="store_true", help="print JSON")


def _add_clock(commands: _Commands) -> None:
    clock = _add_command(commands, _clock, "answer agents that measure their clocks against this one")
    clock.add_argument("--listen", required=True, metavar="ADDRESS[:PORT]", help="where, and nowhere else")


def _add_dashboard(commands: _Commands) -> None:
    does = "make or renew the dashboard of an InfluxDB 2 server: power of every node, epochs of a run"
    more = (
        ". Prints whether it changed anything, and the dashboard's URL, as JSON. Other settings are read from "
        "INFLUXDB_V2_*."
    )
    dashboard = _add_command(commands, _dashboard, does, more)
    _add_server(dashboard)
    dashboard.add_argument("--print", action="store_true", help="print the template, for `influx apply`, and end")


def _add_unit(commands: _Commands) -> None:
    unit = _add_command(commands, _unit, "print a systemd unit: the agent as root with few rights, for a group")
    unit.add_argument("--group", default="energymon", metavar="NAME", help="the group, which must exist (energymon)")


if __name__ == "__main__":
    run_program(main)
