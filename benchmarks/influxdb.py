"""How fast the sender empties a backlog into a real InfluxDB server, and with how much memory.

A tuple is one tick of a host with cpu, dram and gpu: three readings and the tick, four lines. The store is filled with
a backlog, a fresh server is started, and the sender's process drains the one into the other. Beside it the bound: the
same lines, made beforehand, posted by a bare loop over `http.client`. Prints a line per demand (asked, measured,
verdict); exits 1 when one falls short. `--quick` sends a tenth.
"""

from __future__ import annotations

import http.client
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from bench import REPO, Line, at_least, at_most, make_parser, run, status_kb

from energymon import SqliteStore
from energymon.influx.cursor import StoreCursor
from tests.energymon.influx.bucket import Bucket
from tests.energymon.influx.server import Server, binary

T0 = 1_700_000_000_000_000_000
STEP = 100_000_000
BARE = 100_000
SERIES = (("package-0", "cpu", "rapl-perf"), ("package-0", "dram", "rapl-perf"), ("gpu-0", "gpu", "nvml-counter"))
ASKED_TUPLES_PER_S = 20_000
ASKED_MB = 200


def main() -> int:
    """Run the benchmark; 0 when every demand is met."""
    options = make_parser(__doc__, "a hundred thousand tuples instead of a million").parse_args()
    return run({"drain": lambda: measure(100_000 if options.quick else 1_000_000)}, options)


def measure(tuples: int) -> Iterator[Line]:
    """Fill a store, drain it into a fresh server, and post the same lines by a bare loop."""
    with tempfile.TemporaryDirectory(prefix="joulefeed-influxdb-") as name:
        folder = Path(name)
        store = fill(folder / "energy.sqlite", tuples)
        some = fill(folder / "some.sqlite", min(tuples, BARE))
        server = Server(binary(), folder / "server")
        try:
            bare_s, lines = bare(server, some)
            seconds, peak_mb = drain(server, store)
            with Bucket(server.settings("first")) as there:
                last = there.readings(T0 + tuples * STEP, T0 + tuples * STEP)[-1]
            arrived = last.tick_ns == T0 + (tuples - 1) * STEP
        finally:
            server.kill()
    rate, bound = tuples / seconds, lines / 4 / bare_s
    words = f"{rate:.0f} ({tuples:,} in {seconds:.1f} s)"
    yield at_least("tuples a second", ASKED_TUPLES_PER_S, rate, words, tuples=tuples, seconds=seconds)
    yield at_most("memory of the sender, peak, MB", ASKED_MB, peak_mb, f"{peak_mb:.0f}")
    yield Line("last reading of the backlog is in the bucket", "yes", "yes" if arrived else "no", arrived)
    yield Line("readings a second", "", f"{3 * rate:.0f}")
    raw = {"lines": lines, "seconds": bare_s}
    yield Line("bound: a bare loop posting ready lines, tuples a second", "", f"{bound:.0f}", raw=raw)
    yield Line("sender / bound", "", f"{rate / bound:.2f}")


def fill(path: Path, tuples: int) -> Path:
    """Make a store with this many ticks, as an agent at 100 ms leaves it."""
    with SqliteStore.create(path) as store:
        store.begin_session("node-1", T0, STEP, {})
    import sqlite3

    with sqlite3.connect(path) as db:
        db.executemany("INSERT INTO series (node, device, domain, source) VALUES ('node-1', ?, ?, ?)", SERIES)
        k = "WITH RECURSIVE t(k) AS (SELECT 0 UNION ALL SELECT k + 1 FROM t WHERE k < ? - 1)"
        db.execute(
            f"{k} INSERT INTO readings (tick_ns, series_id, t_ns, joules, flags)"
            f" SELECT {T0} + k * {STEP}, s.id, {T0} + k * {STEP} + 90000 + k % 7919,"
            " k * 1.2345678 * s.id, '' FROM t, series s",
            (tuples,),
        )
        db.execute("INSERT INTO ticks VALUES ('node-1', ?, ?, ?, 0)", (T0, T0 + (tuples - 1) * STEP, STEP))
    return path


def bare(server: Server, path: Path) -> tuple[float, int]:
    """Post lines that are ready, one request after the other; return seconds and lines.

    Raises RuntimeError when the server refuses them.
    """
    bodies: list[bytes] = []
    lines = 0
    with StoreCursor(path) as cursor:
        while (batch := cursor.next_batch()) is not None:
            bodies.append("\n".join(batch.lines).encode())
            lines += len(batch.lines)
            cursor.acknowledge(batch)
    connection = http.client.HTTPConnection("127.0.0.1", server.port)
    headers = {"Authorization": f"Token {server.token}"}
    target = f"/api/v2/write?org=home&bucket={server.bucket()}"
    started = time.perf_counter_ns()
    for body in bodies:
        connection.request("POST", target, body, headers)
        answer = connection.getresponse()
        answer.read()
        if answer.status != 204:
            raise RuntimeError(f"the server answered {answer.status}")
    return (time.perf_counter_ns() - started) / 1e9, lines


def drain(server: Server, path: Path) -> tuple[float, float]:
    """Run the sender until the store is drained; return seconds and its peak of memory, MB.

    Raises RuntimeError when the sender fails.
    """
    peak_kb = 0
    started = time.perf_counter_ns()
    sender = subprocess.Popen(
        [sys.executable, "-m", "energymon", "send", "--store", str(path)],
        cwd=REPO,
        env={**os.environ, **server.environment("first")},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    while sender.poll() is None:
        peak_kb = max(peak_kb, status_kb(sender.pid, "VmHWM"))
        time.sleep(0.05)
    seconds = (time.perf_counter_ns() - started) / 1e9
    if sender.returncode:
        raise RuntimeError(f"the sender ended with {sender.returncode}: {sender.communicate()[0].decode()}")
    sender.communicate()
    return seconds, peak_kb * 1024 / 1e6


if __name__ == "__main__":
    sys.exit(main())
