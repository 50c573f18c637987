"""The emulated link against what a regime asks of it; needs root.

Prints a line per demand (asked, measured, verdict) and exits 1 when one falls short. Medians over repeats on a
link that carries nothing else; `--quick` takes under 50 s.
"""

from __future__ import annotations

import contextlib
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from bench import Line, at_most, make_parser, namespaces, run, spread

from harness.config.regime import Regime
from harness.testbed.base import Node, ProbeResult
from harness.testbed.link import STORAGE_ADDRESS, Link, open_link
from harness.testbed.link.measure.probe import MODULE, probe, probe_server, rtt_probe

RTT_ASKED_MS = (0.1, 1.0, 10.0, 30.0, 150.0)
RATE_ASKED_GBIT = (1.0, 5.0)
RATE_AT_RTT_MS = (1.0, 30.0)
LOADED_ASKED_MS = (10.0, 30.0)
RTT_TOLERANCE_MS, RTT_TOLERANCE = 0.1, 0.03
RATE_TOLERANCE = 0.05
LOADED_FACTOR = 1.6
START_S = 0.5
IDLE_RATE_GBIT = 5.0


@dataclass(frozen=True, slots=True)
class Bench:
    """A link between two namespaces of its own, with a probe's server at its storage end."""

    link: Link
    compute: Node
    port: int

    def idle_rtt(self, regime: Regime) -> ProbeResult:
        """Measure the idle round trip."""
        return rtt_probe(self.compute, STORAGE_ADDRESS, seconds=0.2 + 2 * regime.rtt_ms / 1e3)

    def full(self, regime: Regime) -> ProbeResult:
        """Measure the round trip and the rate."""
        return probe(self.compute, STORAGE_ADDRESS, self.port, regime)

    def loaded(self, regime: Regime) -> ProbeResult:
        """Measure the round trip while a few flows saturate the link, once they have ramped up."""
        seconds = 0.5 + 10 * regime.rtt_ms / 1e3
        arguments = json.dumps({"seconds": 6 * seconds, "flows": 4})
        argv = [sys.executable, *MODULE, "measure", STORAGE_ADDRESS, str(self.port), arguments]
        with self.compute.start(argv, stdout=subprocess.DEVNULL) as flows:
            # A quarter of the time is for its own round trips; what stands in the queue in slow start passes.
            time.sleep(START_S + 2.5 * seconds)
            found = rtt_probe(self.compute, STORAGE_ADDRESS, seconds=seconds)
            assert flows.is_alive
            flows.process.wait(20 * seconds)
        return found


@contextlib.contextmanager
def open_bench(kind: str) -> Iterator[Bench]:
    """Make the namespaces and the link, and remove them again."""
    with (
        namespaces("storage", "compute") as (storage, compute),
        open_link(storage, compute, kind=kind) as link,
        probe_server(Node("storage", Path(storage).name, STORAGE_ADDRESS, namespace=storage)) as server,
    ):
        yield Bench(link, Node("compute", Path(compute).name, namespace=compute), server)


def measure(kind: str, repeats: int) -> Iterator[Line]:
    """Yield every demand as soon as it is judged."""
    with open_bench(kind) as bench:
        yield Line("kind of link", "", bench.link.kind)
        yield from judged(bench, repeats)


def judged(bench: Bench, repeats: int) -> Iterator[Line]:
    """Judge idle round trips, rates, loaded round trips, and dropped packets."""
    yield Line("idle RTT without delay, ms", "", f"{bench.link.floor_ms:.3f}")
    for rtt_ms in RTT_ASKED_MS:
        regime = Regime(name=f"rtt_{rtt_ms:g}ms", rtt_ms=rtt_ms, rate_gbit=IDLE_RATE_GBIT)
        bench.link.set(regime)
        values = [bench.idle_rtt(regime).rtt_ms_median for _ in range(repeats)]
        allowed = max(RTT_TOLERANCE_MS, RTT_TOLERANCE * rtt_ms)
        met = abs(statistics.median(values) - rtt_ms) <= allowed
        yield Line("idle RTT, ms", f"{rtt_ms:g} ± {allowed:.2g}", spread(values, 3), met, {"rtt_ms": values})
    for rtt_ms in RATE_AT_RTT_MS:
        for rate_gbit in RATE_ASKED_GBIT:
            regime = Regime(name=f"rate_{rate_gbit:g}gbit", rtt_ms=rtt_ms, rate_gbit=rate_gbit)
            bench.link.set(regime)
            values = [bench.full(regime).rate_gbit or 0.0 for _ in range(repeats)]
            met = abs(statistics.median(values) / rate_gbit - 1) <= RATE_TOLERANCE
            asked = f"{rate_gbit:g} ± {RATE_TOLERANCE:.0%}"
            yield Line(f"rate at {rtt_ms:g} ms, Gbit/s", asked, spread(values, 3), met, {"rate_gbit": values})
    for rtt_ms in LOADED_ASKED_MS:
        for rate_gbit in RATE_ASKED_GBIT:
            regime = Regime(name=f"loaded_{rtt_ms:g}ms", rtt_ms=rtt_ms, rate_gbit=rate_gbit)
            bench.link.set(regime)
            values = [bench.loaded(regime).rtt_ms_median for _ in range(max(1, repeats - 2))]
            limit = LOADED_FACTOR * rtt_ms
            what = f"RTT at {rtt_ms:g} ms, loaded with {rate_gbit:g} Gbit/s, ms"
            yield at_most(what, limit, statistics.median(values), spread(values, 1), "g", rtt_ms=values)
    drops = bench.link.counters().drops
    yield Line("packets dropped by a full queue", "0", str(drops), drops == 0, {"drops": drops})


def main() -> int:
    """Measure and print; return the exit status."""
    parser = make_parser(__doc__, "fewer repeats, under 50 s")
    parser.add_argument("--kind", choices=("auto", "netem", "relay"), default="auto", help="kind of link")
    options = parser.parse_args()
    repeats = 3 if options.quick else 7
    return run({"link": lambda: measure(options.kind, repeats)}, options)


if __name__ == "__main__":
    sys.exit(main())
