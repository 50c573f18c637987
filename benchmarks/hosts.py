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
from statistics import median

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
    options = make_parser(__doc__, "one turn of two epochs of each loader: five minutes", PARTS).parse_args()
    turns = 1 if options.quick else 4
    return run({name: lambda part=part: part(turns) for name, part in PARTS.items()}, options)  # type: ignore[misc]


def _set_up(turns: int) -> Iterator[Line]:
    """Set hosts up from clean and again, switch their link, and take them back."""
    with namespace_hosts(storage=1, compute=1) as hosts:
        clean_s = _testbed(hosts, "up")
        again_s = [_testbed(hosts, "up") for _ in range(2 * turns)]
        yield at_most("two hosts from clean, s", 60, clean_s, f"{clean_s:.1f}")
        yield at_most("two hosts, unchanged, s", 15, median(again_s), spread(again_s, 1), seconds=again_s)
        switches = [_switch(hosts, rtt_ms) for rtt_ms in (0.1, 30.0) * (SWITCHES // 2)]
        yield at_most("a switch of the delay line, s", 3, max(switches), spread(switches), seconds=switches)
        down_s = _testbed(hosts, "down")
        yield Line("two hosts taken back, s", "", f"{down_s:.1f}", raw={"seconds": down_s})


def _epochs(turns: int) -> Iterator[Line]:
    """Compare epochs on hosts, which are set up already, with those of one machine."""
    with namespace_hosts(storage=1, compute=1) as hosts:
        _testbed(hosts, "up")
        yield from _compare(hosts, turns)


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


def _compare(hosts: Hosts, turns: int) -> Iterator[Line]:
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
        words = f"{ratio:.3f} ({spread(there)} s, on one machine {spread(here)} s, {len(there)} of each)"
        what = f"epoch of {loader} on hosts over one machine's"
        yield at_most(what, 1.01, ratio, words, hosts_s=list(there), machine_s=list(here))


PARTS = {"up": _set_up, "epochs": _epochs}


if __name__ == "__main__":
    os.environ.setdefault("ANSIBLE_TIMEOUT", "60")
    sys.exit(main())
