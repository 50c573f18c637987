"""What the energy agent costs and how punctual it is, beside the EMLIO paper's way: `perf stat` forked every tick.

Runs the agent on a fixture of two sockets with DRAM and four boards, idle and with every core busy in Python and torch.
Prints a line per demand (asked, measured, verdict); exits 1 when one falls short. `--quick` takes one minute instead
of a quarter of an hour.
"""

from __future__ import annotations

import contextlib
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from bench import REPO, Line, at_least, at_most, cpu_s, make_parser, run, status_kb

from energymon import SqliteStore

FIXTURE = REPO / "tests" / "energymon"
BOARDS = 4
DELTA_S = 0.1
BUSY = """
import torch
torch.set_num_threads(1)
a = torch.rand(128, 128)
while True:
    for _ in range(20):
        a @ a
    sum(i * i for i in range(20_000))
"""
BARE = """
import sys, time
from pathlib import Path
from energymon.clock.monotonic import Clock, next_tick
from energymon.ticker.ticker import ticker_library
from joulefeed.scheduling import raise_priority
from energymon.sensors.discover import SensorConfig, discover
from energymon.ticker.ticker import Ticker
interval_ns, seconds = int(sys.argv[1]) * 1_000_000, float(sys.argv[2])
found = discover(SensorConfig(sysfs=Path(sys.argv[3]), nvml=Path(sys.argv[4])), interval_ns)
groups = [sensor.operations() for sensor in found.sensors]
library = ticker_library()
assert not isinstance(library, str), library
raise_priority(-10)
used_s, began = time.thread_time(), time.monotonic()
while time.monotonic() - began < seconds:
    clock = Clock()
    options = dict(interval_ns=interval_ns, offset_ns=clock.offset_ns, wall_ns=clock.wall_ns, readings=1, slow_ns=10**9)
    ticker = Ticker(library, groups, **options)
    ticker.stop(clock.now_ns() + round(min(seconds, 4.0) * 1e9))
    ticker.run(next_tick(clock.now_ns(), interval_ns))
print((time.thread_time() - used_s) / (time.monotonic() - began))
"""


@dataclass(frozen=True, slots=True)
class Found:
    """One agent's life."""

    core_share: float
    rss_mb: float
    jitter: dict[str, float]
    seconds: float


def main() -> int:
    """Run the benchmark; 0 when every demand is met."""
    options = make_parser(__doc__, "one minute; ten minutes without a missed tick are not").parse_args()
    return run({"agent": lambda: measure(options.quick)}, options)


def measure(quick: bool) -> Iterator[Line]:
    """Run agents on the fixture, idle and busy, beside a bare loop, a forked command and a Python loop."""
    seconds, busy_s = (12.0, 12.0) if quick else (30.0, 600.0)
    yield Line("sensors read", "", "fake: sysfs files and an NVML library of the tests; real RAPL costs more a read")
    with tempfile.TemporaryDirectory(prefix="joulefeed-monitor-") as name, fixture(Path(name)) as options:
        folder = Path(name)
        found = {("idle", 100): agent(folder / "idle.sqlite", 100, seconds, options)}
        found["idle", 10] = agent(folder / "10ms.sqlite", 10, seconds, options)
        bare = {("idle", each): bare_ticks(each, seconds / 3, options) for each in (100, 10)}
        with every_core_busy():
            found["busy", 100] = agent(folder / "busy.sqlite", 100, busy_s, options)
            found["busy", 10] = agent(folder / "busy10.sqlite", 10, seconds, options)
            bare |= {("busy", each): bare_ticks(each, seconds / 3, options) for each in (100, 10)}
    for (host, interval_ms), each in found.items():
        share, least = 100 * each.core_share, 100 * bare[host, interval_ms]
        words = f"{share:.3f} (the same readings in a bare compiled loop, nothing stored: {least:.3f})"
        what = f"CPU at {interval_ms} ms, {host} host, % of a core"
        yield at_most(what, 0.25 if interval_ms == 100 else 1.5, share, words, bare=least, agent=each)
    rss_mb = max(each.rss_mb for each in found.values())
    yield at_most("resident memory, MB", 60, rss_mb, f"{rss_mb:.0f}")
    busy = found["busy", 100]
    for percentile, most in (("p50", 50), ("p99", 1000)):
        skew_us = busy.jitter[f"skew_{percentile}_us"]
        yield at_most(f"skew of a tick, busy host, {percentile}, us", most, skew_us, f"{skew_us:.3g}")
    missed = busy.jitter["missed"]
    yield at_most(f"ticks missed in {busy.seconds:.0f} s, busy host", 0, missed, f"{missed:.0f}")
    fork_share, fork = forked(seconds)
    ratio = fork_share / found["idle", 100].core_share
    yield at_least(f"{fork}: its CPU over ours", 10, ratio, f"{ratio:.3g} ({100 * fork_share:.2f} % of a core)")
    woken_pct = 100 * woken(seconds)
    yield Line(
        "bare Python loop that wakes every 100 ms, % of a core", "", f"{woken_pct:.3f}", raw={"value": woken_pct}
    )


@contextlib.contextmanager
def fixture(folder: Path) -> Iterator[list[str]]:
    """Drive the tree and the boards from another process; yield the agent's options for them."""
    library = folder / "libnvidia-ml.so.1"
    flags = ["-O2", "-shared", "-fPIC", "-Wl,-soname,libnvidia-ml.so.1"]
    subprocess.run(["cc", *flags, "-o", library, FIXTURE / "nvml" / "fake_nvml.c", "-lpthread"], check=True)
    control = folder / "nvml.json"
    control.write_text(f"boards {BOARDS}\n")
    os.environ["FAKE_NVML"] = str(control)
    tree = subprocess.Popen(
        [sys.executable, FIXTURE / "trees.py", "--root", folder / "sys", "--tree", "intel-two-sockets"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert tree.stdout is not None
    tree.stdout.readline()
    try:
        yield ["--sysfs", str(folder / "sys"), "--nvml", str(library)]
    finally:
        tree.communicate()


def agent(store: Path, interval_ms: int, seconds: float, options: list[str]) -> Found:
    """Run an agent for a while; its cost is that of the time between two looks, start-up left out."""
    argv = [sys.executable, "-m", "energymon", "run", "--store", str(store), "--node", "bench"]
    process = subprocess.Popen(
        [*argv, "--interval-ms", str(interval_ms), *options], stdout=subprocess.PIPE, cwd=REPO, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline(), "the agent did not start"
    time.sleep(1.0)
    began, before_s = time.monotonic(), cpu_s([process.pid])
    time.sleep(seconds)
    elapsed, used_s = time.monotonic() - began, cpu_s([process.pid]) - before_s
    rss_mb = status_kb(process.pid, "VmHWM") / 1e3
    process.send_signal(signal.SIGTERM)
    process.wait()
    with SqliteStore.open(store) as opened:
        (session,) = opened.sessions()
        missed = sum(ticks.count for ticks in opened.ticks(0, 2**63 - 1) if ticks.missed)
    jitter = dict(session.description["jitter"])  # type: ignore[call-overload]
    return Found(used_s / elapsed, rss_mb, {**jitter, "missed": missed}, elapsed)


@contextlib.contextmanager
def every_core_busy() -> Iterator[None]:
    """Keep a process of Python and torch work on every core."""
    processes = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in range(os.cpu_count() or 1)]
    time.sleep(8.0)
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def forked(seconds: float) -> tuple[float, str]:
    """Fork the paper's command every tick, or its equal; return the share of a core and the command."""
    argv = ["perf", "stat", "-a", "-x,", "-e", "power/energy-pkg/,power/energy-ram/", "sleep", str(DELTA_S)]
    name = "perf stat a tick"
    if shutil.which("perf") is None:
        argv, name = ["sleep", str(DELTA_S)], "fork of sleep a tick (no perf here)"
    elif subprocess.run(argv, capture_output=True, check=False).returncode:
        # Without RAPL two events that every kernel has cost the same fork, set-up and output.
        argv[5] = "cpu-clock,task-clock"
        name = "perf stat a tick (two software events, no RAPL here)"
    before_s = used_s()
    began = time.monotonic()
    while time.monotonic() - began < seconds:
        subprocess.run(argv, capture_output=True, check=True)
    return (used_s() - before_s) / (time.monotonic() - began), name


def used_s() -> float:
    """Return the CPU time of this process and its children, s."""
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def bare_ticks(interval_ms: int, seconds: float, options: list[str]) -> float:
    """Take the same readings in C and throw them away: what any sampler costs at least."""
    argv = [sys.executable, "-c", BARE, str(interval_ms), str(seconds), *options[1::2]]
    done = subprocess.run(argv, cwd=REPO, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=True)
    return float(done.stdout)


def woken(seconds: float) -> float:
    """Wake every tick and do nothing: what any sampler in Python costs at least."""
    before_s, began = time.thread_time(), time.monotonic()
    while time.monotonic() - began < seconds:
        time.sleep(DELTA_S)
    return (time.thread_time() - before_s) / (time.monotonic() - began)


if __name__ == "__main__":
    sys.exit(main())
