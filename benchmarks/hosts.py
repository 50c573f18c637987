"""What several hosts cost: how long two bare hosts take to set up, and an epoch on them beside one machine's.

The hosts are namespaces of this machine, joined by the delay line that a testbed of one machine has. The same bytes
cross it; runs on hosts and on one machine take turns. Needs root and Ansible (`make ansible`).
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from itertools import product
from pathlib import Path

import pandas as pd
from bench import REPO, Line, at_most, make_parser, run, spread

from harness.config.regime import Regime
from harness.errors import TestbedError
from tests.hosts.namespaces import Hosts, namespace_hosts

SWITCHES = 10
EXPERIMENT = ("+experiment=smoke", "~regimes.local", "~loaders.dali", "+regime@regimes.wan_30ms=wan_30ms")
SIZE = ("workloads.resnet50.batch_size=16", "figures=[]")
LOADERS = {
    "pytorch": ("~loaders.streaming", "dataset.samples=256", "regimes.wan_30ms.rate_gbit=1"),
    "streaming": ("~loaders.pytorch", "dataset.samples=1024", "regimes.wan_30ms.rate_gbit=0.2"),
}
"""By loader, what has an epoch take seconds and wait for the link: one that decodes all the time varies by a tenth."""
TIMEOUT_S = 900


def main() -> int:
    """Run the benchmark; 0 when every demand is met."""
    options = make_parser(__doc__, "one turn of two epochs of each loader: five minutes", ("up", "epochs")).parse_args()
    return run(_lines(options.only or ("up", "epochs"), turns=1 if options.quick else 4))


def _lines(parts: tuple[str, ...], turns: int) -> Iterator[Line]:
    with namespace_hosts(storage=1, compute=1) as hosts:
        clean_s = _testbed(hosts, "up")
        if "up" in parts:
            again_s = [_testbed(hosts, "up") for _ in range(2 * turns)]
            yield at_most("two hosts from clean, s", 60, clean_s, f"{clean_s:.1f}")
            yield at_most("two hosts, unchanged, s", 15, sorted(again_s)[len(again_s) // 2], spread(again_s, 1))
            switches = [_switch(hosts, rtt_ms) for rtt_ms in (0.1, 30.0) * (SWITCHES // 2)]
            yield at_most("a switch of the delay line, s", 3, max(switches), spread(switches))
        if "epochs" in parts:
            yield from _epochs(hosts, turns)
        if "up" in parts:
            yield Line("two hosts taken back, s", "", f"{_testbed(hosts, 'down'):.1f}")


def _testbed(hosts: Hosts, command: str) -> float:
    """Run a command of `python -m harness.testbed` on the hosts; returns how long it took, s. Raises TestbedError."""
    return _timed(["-m", "harness.testbed", command, "--inventory", str(hosts.inventory)])


def _timed(argv: list[str], statuses: tuple[int, ...] = (0,)) -> float:
    started = time.perf_counter()
    done = subprocess.run(
        [sys.executable, *argv], cwd=REPO, capture_output=True, text=True, check=False, timeout=TIMEOUT_S
    )
    if done.returncode not in statuses:
        raise TestbedError(f"{' '.join(argv[:3])}: {done.stderr.strip().splitlines()[-1:]}")
    return time.perf_counter() - started


def _switch(hosts: Hosts, rtt_ms: float) -> float:
    started = time.perf_counter()
    hosts.set_regime(Regime(name="bench", rtt_ms=rtt_ms, rate_gbit=1))
    return time.perf_counter() - started


def _epochs(hosts: Hosts, turns: int) -> Iterator[Line]:
    """Compare epochs on hosts, which are set up already, with those of one machine."""
    places = {
        "hosts": ("-m", "tests.hosts.lead", "testbed=ssh", f"testbed.inventory={hosts.inventory}"),
        "machine": ("-m", "harness", "testbed=netns", "testbed.link=relay"),
    }
    rows = []
    with tempfile.TemporaryDirectory(prefix="joulefeed-hosts-") as folder:
        for turn, loader in product(range(turns), LOADERS):
            for place in sorted(places, reverse=bool(turn % 2)):
                results = Path(folder) / place
                settings = (*SIZE, *LOADERS[loader], f"results_dir={results}", f"cache_dir={folder}/cache")
                # Rows that a busy machine makes invalid count as well: 6.
                _timed([*places[place], *EXPERIMENT, *settings], (0, 6))
                rows.append(pd.read_csv(results / "latest" / "epochs.csv").assign(place=place))
    epochs = pd.concat(rows).set_index(["loader", "place"])["duration_s"]
    for loader in LOADERS:
        there, here = (epochs[loader, place] for place in places)
        ratio = there.median() / here.median()
        print(f"{loader}: an epoch on hosts {spread(there)} s, on one machine {spread(here)} s, {len(there)} of each")
        yield at_most(f"epoch of {loader} on hosts over one machine's", 1.01, ratio, f"{ratio:.3f}")


if __name__ == "__main__":
    os.environ.setdefault("ANSIBLE_TIMEOUT", "60")
    sys.exit(main())
