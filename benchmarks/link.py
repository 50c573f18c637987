"""The emulated link against what a regime asks of it; needs root.

Prints a line per demand (asked, measured, verdict) and exits 1 when one falls short. Medians over repeats on a
link that carries nothing else; `--quick` takes under 50 s.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import statistics
import subprocess
import sys
import uuid
from collections.abc import Iterator
from dataclasses import dataclass

# The folder has a loaders.py, which must not hide the package of that name: it is to be searched last.
sys.path.append(sys.path.pop(0))

from table import Line, show

from harness.config.regime import Regime
from harness.errors import TestbedError
from harness.testbed.base import Node, ProbeResult
from harness.testbed.link import STORAGE_ADDRESS, Link, open_link
from harness.testbed.probe import ProbeServer, loaded_probe, probe, rtt_probe

RTT_ASKED_MS = (0.1, 1.0, 10.0, 30.0, 150.0)
RATE_ASKED_GBIT = (1.0, 5.0)
RATE_AT_RTT_MS = (1.0, 30.0)
LOADED_ASKED_MS = (10.0, 30.0)
RTT_TOLERANCE_MS, RTT_TOLERANCE = 0.1, 0.03
RATE_TOLERANCE = 0.05
LOADED_FACTOR = 1.6
IDLE_RATE_GBIT = 5.0


@dataclass(frozen=True, slots=True)
class Bench:
    """A link between two namespaces of its own, with a probe's server at its storage end."""

    link: Link
    storage: str
    compute: str
    server: ProbeServer

    def run(self, argv: list[str]) -> str:
        """Run a command on the compute side; raise TestbedError when it fails."""
        command = ["nsenter", f"--net={self.compute}", "--", *argv]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise TestbedError(done.stderr.strip())
        return done.stdout

    def idle_rtt(self, regime: Regime) -> ProbeResult:
        """Measure the idle round trip."""
        return rtt_probe(self.run, STORAGE_ADDRESS, self.server.port, seconds=0.2 + 2 * regime.rtt_ms / 1e3)

    def full(self, regime: Regime) -> ProbeResult:
        """Measure the round trip and the rate."""
        return probe(self.run, STORAGE_ADDRESS, self.server.port, regime)

    def loaded(self, regime: Regime) -> ProbeResult:
        """Measure the round trip while flows saturate the link."""
        return loaded_probe(self.run, STORAGE_ADDRESS, self.server.port, regime, seconds=1.0)


@contextlib.contextmanager
def open_bench(kind: str) -> Iterator[Bench]:
    """Make the namespaces and the link, and remove them again."""
    run_id = uuid.uuid4().hex[:8]
    names = [f"jfb-{run_id}-{role}" for role in ("storage", "compute")]
    with contextlib.ExitStack() as stack:
        for name in names:
            subprocess.run(["ip", "netns", "add", name], check=True)
            stack.callback(subprocess.run, ["ip", "netns", "del", name], check=False)
        storage, compute = (f"/run/netns/{name}" for name in names)
        link = stack.enter_context(open_link(storage, compute, kind=kind))

        server = stack.enter_context(ProbeServer(Node("storage", run_id, STORAGE_ADDRESS, namespace=storage)))
        yield Bench(link, storage, compute, server)


def spread(values: list[float], digits: int) -> str:
    """Write the median and the range of repeats."""
    low, middle, high = min(values), statistics.median(values), max(values)
    return f"{middle:.{digits}f} ({low:.{digits}f} to {high:.{digits}f})"


def measure(bench: Bench, repeats: int) -> Iterator[Line]:
    """Yield every demand as soon as it is judged."""
    for rtt_ms in RTT_ASKED_MS:
        regime = Regime(name=f"rtt_{rtt_ms:g}ms", rtt_ms=rtt_ms, rate_gbit=IDLE_RATE_GBIT)
        bench.link.set(regime)
        values = [bench.idle_rtt(regime).rtt_ms_median for _ in range(repeats)]
        allowed = max(RTT_TOLERANCE_MS, RTT_TOLERANCE * rtt_ms)
        met = abs(statistics.median(values) - rtt_ms) <= allowed
        yield Line("idle RTT, ms", f"{rtt_ms:g} ± {allowed:.2g}", spread(values, 3), met)
    for rtt_ms in RATE_AT_RTT_MS:
        for rate_gbit in RATE_ASKED_GBIT:
            regime = Regime(name=f"rate_{rate_gbit:g}gbit", rtt_ms=rtt_ms, rate_gbit=rate_gbit)
            bench.link.set(regime)
            values = [bench.full(regime).rate_gbit or 0.0 for _ in range(repeats)]
            met = abs(statistics.median(values) / rate_gbit - 1) <= RATE_TOLERANCE
            yield Line(
                f"rate at {rtt_ms:g} ms, Gbit/s", f"{rate_gbit:g} ± {RATE_TOLERANCE:.0%}", spread(values, 3), met
            )
    for rtt_ms in LOADED_ASKED_MS:
        for rate_gbit in RATE_ASKED_GBIT:
            regime = Regime(name=f"loaded_{rtt_ms:g}ms", rtt_ms=rtt_ms, rate_gbit=rate_gbit)
            bench.link.set(regime)
            values = [bench.loaded(regime).rtt_ms_median for _ in range(max(1, repeats - 2))]
            limit = LOADED_FACTOR * rtt_ms
            yield Line(
                f"loaded RTT at {rate_gbit:g} Gbit/s, ms",
                f"<= {limit:g}",
                spread(values, 1),
                statistics.median(values) <= limit,
            )
    drops = bench.link.counters().drops
    yield Line("packets dropped by a full queue", "0", str(drops), drops == 0)


def main() -> int:
    """Measure and print; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer repeats, under 50 s")
    parser.add_argument("--kind", choices=("auto", "netem", "relay"), default="auto", help="kind of link")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        with open_bench(options.kind) as bench:
            print(f"link: {bench.link.kind}, {os.cpu_count()} CPUs, load {os.getloadavg()[0]:.1f}")
            return 1 if show(measure(bench, 3 if options.quick else 7)) else 0
    except TestbedError as error:
        print(f"benchmarks/link.py: {error}", file=sys.stderr)
        return error.exit_status


if __name__ == "__main__":
    sys.exit(main())
