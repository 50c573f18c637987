"""What `energymon query` takes for a window of an hour, a day and thirty days of a store: seconds, and memory.

The stores are generated: four counters at ticks of 100 ms, and a tick an hour that one of them missed. Prints a line
per demand (asked, measured, verdict); exits 1 when one falls short. The joules are compared with what the counters
counted. `--quick` leaves out the thirty days, which are 5 GB on disk.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Final

from bench import REPO, Line, at_most, make_parser, run

from energymon import SqliteStore
from energymon.database import connect

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
    options = make_parser(__doc__, "an hour and a day", SPANS_H).parse_args()
    spans = {name: hours for name, hours in SPANS_H.items() if hours <= 24 or not options.quick}
    return run({name: lambda name=name, hours=hours: measure(name, hours) for name, hours in spans.items()}, options)


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
