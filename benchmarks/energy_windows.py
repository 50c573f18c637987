"""What a window costs: `energymon query` of an hour, a day and thirty days of a store, a direct window, `exec`.

The stores are generated: four counters at ticks of 100 ms, and a tick an hour that one of them missed. Prints a line
per demand (asked, measured, verdict); exits 1 when one falls short. The joules are compared with what the counters
counted. A direct window reads two emulated sockets, beside the time that reading them takes by itself; `exec` runs
`sleep`, beside `sleep` alone. `--quick` leaves out the thirty days, which are 5 GB on disk.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path
from statistics import median
from typing import Final

from bench import REPO, Line, at_most, make_parser, run, spread
from energy_truth import sockets

from energymon import Meter, SqliteStore
from energymon.database import connect
from energymon.sensors.discover import SensorConfig

NS: Final = 1_000_000_000
TICK_NS: Final = NS // 10
BEGIN_NS: Final = 1_700_000_000 * NS
HOUR_S: Final = 3600
SPANS_H: Final = {"1 h": 1, "24 h": 24, "30 days": 720}
WATTS: Final = {
    ("package-0", "cpu"): 90.0,
    ("package-1", "cpu"): 70.0,
    ("package-0", "dram"): 9.0,
    ("gpu-0", "gpu"): 300.0,
}
ASKED_S: Final = 0.5
ASKED_MB: Final = 100
TURNS: Final = 5
ASKED_US: Final = 50
READS: Final = 1000
ASKED_MS: Final = 50
EXECS: Final = 11
_READINGS: Final = """INSERT INTO readings SELECT :begin_ns + value * :tick_ns, s.id, :begin_ns + value * :tick_ns,
    value * s.tick_j, CASE value WHEN 0 THEN 'start' ELSE '' END, 1000000, 2000
    FROM each CROSS JOIN of_series s WHERE s.id > 1 OR value = 0 OR value % 36000 <> 18000"""
_TICKS: Final = """INSERT INTO ticks
    SELECT 'n', :begin_ns + first * :tick_ns, :begin_ns + last * :tick_ns, :tick_ns, missed
    FROM (SELECT max(0, 36000 * value - 17999) AS first, 36000 * value + 17999 AS last, 0 AS missed FROM hours
          UNION ALL SELECT 36000 * value + 18000, 36000 * value + 18000, 1 FROM hours
          UNION ALL SELECT 36000 * max(value) + 18001, 36000 * max(value) + 35999, 0 FROM hours)"""


def main() -> int:
    """Run the parts; 0 when every demand is met."""
    options = make_parser(__doc__, "an hour and a day", [*SPANS_H, "direct", "exec"]).parse_args()
    spans = {name: hours for name, hours in SPANS_H.items() if hours <= 24 or not options.quick}
    parts = {name: lambda name=name, hours=hours: measure(name, hours) for name, hours in spans.items()}
    return run(parts | {"direct": measure_direct, "exec": measure_exec}, options)


def measure(name: str, hours: int) -> Iterator[Line]:
    """Query the whole of a store of so many hours, but for a tick at either end."""
    with tempfile.TemporaryDirectory(prefix="energymon-") as folder:
        store = Path(folder) / "energy.sqlite"
        generate(store, hours)
        start_ns, end_ns = BEGIN_NS + TICK_NS // 3, BEGIN_NS + hours * HOUR_S * NS - 2 * TICK_NS + TICK_NS // 3
        turns = [query(store, start_ns, end_ns) for _ in range(TURNS)]
        seconds, megabytes = (median(values) for values in zip(*(turn[:2] for turn in turns), strict=True))
        total = turns[0][2]["total"]
        truth_j = sum(WATTS.values()) * (end_ns - start_ns) / NS
        of = f"{hours * HOUR_S * 40 / 1e6:.2f} M readings, {store.stat().st_size / 1e6:.0f} MB"
        yield at_most(f"{name}: CPU time, s", ASKED_S, seconds, f"{seconds:.2f} ({of})", seconds=[t[0] for t in turns])
        yield at_most(f"{name}: memory, MB", ASKED_MB, megabytes, f"{megabytes:.0f}")
        off_j = abs(total["joules"] - truth_j)
        yield at_most(f"{name}: off the truth, J", round(total["error_j"], 1), off_j, f"{off_j:.2g} of {truth_j:.0f}")


def measure_direct() -> Iterator[Line]:
    """Take the edges of direct windows, and read the same counters beside them."""
    with tempfile.TemporaryDirectory(prefix="energymon-") as name:
        config = SensorConfig(sensors=("powercap",), sysfs=Path(name) / "sys")
        with sockets(Path(name), update_ms=1.0, interval_ms=1000.0), Meter(config=config) as meter:
            (sensor,) = meter._sensors
            beside_us = []
            for _ in range(READS):
                time.sleep(0.005)
                begin_ns = time.perf_counter_ns()
                sensor.sample()
                read_ns = time.perf_counter_ns()
                meter.edge()
                beside_us.append((time.perf_counter_ns() - read_ns - (read_ns - begin_ns)) / 1e3)
    shown = spread(beside_us, 1)
    yield at_most("a direct read beside the counters' own, µs", ASKED_US, median(beside_us), shown, us=beside_us)


def measure_exec() -> Iterator[Line]:
    """Run `sleep` alone and by `exec` in turns, with the modules compiled to bytecode."""
    with tempfile.TemporaryDirectory(prefix="energymon-") as name:
        folder = Path(name)
        os.environ |= {"PYTHONPYCACHEPREFIX": str(folder / "bytecode"), "PYTHONDONTWRITEBYTECODE": ""}
        with sockets(folder, update_ms=1.0, interval_ms=1000.0):
            hosts = {"two sockets": folder / "sys", "no sensor": folder / "none"}
            for (host, sysfs), command in product(hosts.items(), (["sleep", "1"], ["true"])):
                options = ["--sysfs", sysfs, "--nvml", folder / "none.so", "--json", folder / "out"]
                argv = [sys.executable, "-m", "energymon", "exec", *options, "--", *command]
                wall_s(argv)
                added_ms = [1e3 * (wall_s(argv) - wall_s(command)) for _ in range(EXECS)]
                asked = ASKED_MS if command == ["sleep", "1"] else None
                what = f"exec adds to `{' '.join(command)}`, {host}, ms"
                yield at_most(what, asked, median(added_ms), spread(added_ms, 0), ms=added_ms)


def wall_s(argv: Sequence[str | Path]) -> float:
    """Return how long a command takes, s."""
    begin_s = time.perf_counter()
    subprocess.run(argv, cwd=REPO, check=True)
    return time.perf_counter() - begin_s


def generate(path: Path, hours: int) -> None:
    """Write a store of so many hours at 100 ms, of counters that grow evenly."""
    channels = [
        {"device": d, "domain": of, "source": "rapl-perf" if of != "gpu" else "nvml-counter", "lag_s": 0.001}
        for d, of in WATTS
    ]
    with SqliteStore.create(path) as store:
        store.begin_session("n", BEGIN_NS, TICK_NS, {"sensors": [{"sensor": "generated", "channels": channels}]})
    database = connect(path, "rw")
    # Written once and never undone: a log would double the time.
    database.execute("PRAGMA journal_mode = OFF")
    database.execute("PRAGMA synchronous = OFF")
    database.execute("BEGIN")
    database.executemany(
        "INSERT INTO series (node, device, domain, source) VALUES ('n', :device, :domain, :source)", channels
    )
    database.execute("CREATE TEMP TABLE of_series (id INTEGER PRIMARY KEY, tick_j REAL)")
    database.executemany("INSERT INTO of_series (tick_j) VALUES (?)", [(w * TICK_NS / NS,) for w in WATTS.values()])
    counted = "WITH RECURSIVE {}(value) AS (SELECT 0 UNION ALL SELECT value + 1 FROM {} WHERE value + 1 < {})"
    grid = {"begin_ns": BEGIN_NS, "tick_ns": TICK_NS}
    database.execute(f"{counted.format('each', 'each', hours * HOUR_S * 10)} {_READINGS}", grid)
    database.execute(f"{counted.format('hours', 'hours', hours)} {_TICKS}", grid)
    database.execute("COMMIT")
    database.execute("PRAGMA journal_mode = WAL")
    database.close()


def query(store: Path, start_ns: int, end_ns: int) -> tuple[float, float, dict[str, dict[str, float]]]:
    """Run `energymon query` in a process of its own; return its CPU time, s, its memory, MB, and its answer.

    Raises RuntimeError when it fails.
    """
    argv = [
        sys.executable,
        "-m",
        "energymon",
        "query",
        "--store",
        store,
        f"--start={start_ns}",
        f"--end={end_ns}",
        "--json",
    ]
    with subprocess.Popen(argv, cwd=REPO, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        answer = process.stdout.read()
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise RuntimeError(f"query ended with status {process.returncode}")
    return used.ru_utime + used.ru_stime, used.ru_maxrss / 1e3, json.loads(answer)


if __name__ == "__main__":
    sys.exit(main())
