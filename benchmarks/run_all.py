"""Runs all benchmarks one after another, each with a time limit, and writes the tables of the docs from their raw runs.

A benchmark that fails or takes too long is ended, and the next one begins; what its parts had measured by then is kept.
Prints what each came to; exits 1 when one falls short or fails. Use a machine that does nothing else: hours, and less
than one with --quick.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass

from bench import HERE, REPO, make_parser
from raw_runs import RESULTS
from tables import main as write_tables

from joulefeed.child import Child

FALLS_SHORT = 1
GRACE_S = 60.0
"""For a benchmark that is ended to remove its namespaces and servers."""


@dataclass(frozen=True, slots=True)
class Benchmark:
    """A script, and how long it may take."""

    name: str
    limit_min: float
    quick_limit_min: float


BENCHMARKS = (
    Benchmark("link", 10, 3),
    Benchmark("overhead", 15, 3),
    Benchmark("experiments", 60, 15),
    Benchmark("energy_truth", 20, 8),
    Benchmark("monitor", 30, 5),
    Benchmark("energy_windows", 30, 5),
    Benchmark("influxdb", 10, 5),
    Benchmark("loaders", 40, 12),
    Benchmark("sample_aware", 60, 25),
    Benchmark("streaming", 80, 20),
    Benchmark("streaming_small", 15, 5),
    Benchmark("network_loaders", 60, 25),
    Benchmark("compare", 5, 2),
    Benchmark("advise", 260, 20),
    Benchmark("hosts", 40, 12),
    Benchmark("install", 30, 30),
    Benchmark("sabotage", 60, 10),
)
"""Those that compare tenths of a percent come first, those that disturb the machine last."""


def main() -> int:
    """Run the benchmarks; 0 when each ran and none falls short."""
    names = {each.name: each for each in BENCHMARKS}
    parser = make_parser(__doc__, "the short form of each", names)
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    ends = {}
    for name in options.only or names:
        print(f"\n{name}.py", flush=True)
        argv = [sys.executable, str(HERE / f"{name}.py"), "--results", str(options.results)]
        limit_min = names[name].quick_limit_min if options.quick else names[name].limit_min
        ends[name] = run_benchmark([*argv, "--quick"] if options.quick else argv, 60 * limit_min)
    print()
    for name, end in ends.items():
        print(f"{name:<18} {end}")
    if options.results == RESULTS:
        write_tables([])
    return 0 if all(end.startswith("met") for end in ends.values()) else 1


def run_benchmark(argv: list[str], limit_s: float) -> str:
    """Run a benchmark and say how it ended."""
    began = time.monotonic()
    with Child(
        argv, cwd=REPO, stdin=subprocess.DEVNULL, stdout=None, env={**os.environ, "PYTHONUNBUFFERED": "1"}
    ) as child:
        try:
            status = child.process.wait(limit_s)
        except subprocess.TimeoutExpired:
            status = None
        finally:
            child.stop(term_s=GRACE_S)
    minutes = (time.monotonic() - began) / 60
    if status is None:
        return f"ended after its limit of {minutes:.0f} min"
    words = {0: "met", FALLS_SHORT: "falls short"}.get(status, f"failed with status {status}")
    return f"{words}, {minutes:.1f} min"


if __name__ == "__main__":
    sys.exit(main())
