"""A streaming daemon under floods: idle connections beyond its descriptors, one that fuzzes, thousands that ask.

Prints a line per demand (asked, measured, verdict) and exits 1 when one falls short. A keyed client's or an open one's
rate with the flood and without it are taken in turns, and each pair makes a ratio. Needs no right but to raise
`ulimit -n` to 4096. `--quick` takes half as many turns.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from statistics import median

from bench import HERE, Line, at_least, make_parser, memory_folder, run, status_kb
from streaming_peers import Load
from streaming_rig import LOCAL, Daemon, Keys, make_shards

from loaders.streaming import health
from loaders.streaming.daemon.store import ShardStore
from loaders.streaming.keys import make_keys

DESCRIPTORS, IDLE, MANY_SHARDS = 1024, 2000, 2200
FUZZES = ("small", "rubbish", "nested", "slices")
BUSY = (500, 2000, 3000)
MEMORY_MB = 300
"""What a flood may have a daemon hold; 3000 connections alone are 120."""


class Flood:
    """Peers that run until they are ended."""

    def __init__(self, daemon: Daemon, mode: str, fingerprint: str, count: int) -> None:
        port = int(daemon.endpoint.rpartition(":")[2])
        orders = json.dumps({"mode": mode, "port": port, "count": count, "fingerprint": fingerprint})
        argv = [sys.executable, "-P", str(HERE / "streaming_peers.py"), orders]
        self._process = LOCAL.compute.popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def end(self) -> Load:
        """End them; return what they did."""
        said, _ = self._process.communicate("", timeout=60)
        return Load(**json.loads(said))

    def kill(self) -> None:
        """End them at once."""
        self._process.kill()
        self._process.wait()


@contextmanager
def flood(daemon: Daemon, mode: str, fingerprint: str = "", count: int = 1) -> Iterator[Flood]:
    """Load a daemon, and see to it that the peers end."""
    peers = Flood(daemon, mode, fingerprint, count)
    try:
        yield peers
    finally:
        peers.kill()


def alternating(
    daemon: Daemon, mode: str, fingerprint: str, *, count: int, settle_s: float, turns: int
) -> tuple[list[float], list[float], float]:
    """Return a client's bytes a second without and with a flood, in turns, and the most memory, MB."""
    calm, flooded, most = [], [], 0.0
    for _ in range(turns):
        calm.append(receive(daemon))
        with flood(daemon, mode, fingerprint, count):
            time.sleep(settle_s)
            flooded.append(receive(daemon))
            most = max(most, status_kb(daemon.pid, "RssAnon") * 1024e-6)
    return calm, flooded, most


def receive(daemon: Daemon) -> float:
    """Return a client's bytes a second."""
    got = LOCAL.receive([daemon], streams=2, window=4, seconds=2.0, omit_s=0.5)
    return got.nbytes / got.seconds


def ratio_line(what: str, calm: Sequence[float], flooded: Sequence[float], more: str) -> Line:
    """Compare the turns with a flood to those right before them."""
    ratio = median(value / other for value, other in zip(flooded, calm, strict=True))
    measured = f"{ratio:.2f} ({1e-6 * median(flooded):.0f} of {1e-6 * median(calm):.0f} MB/s; {more})"
    return at_least(what, 0.5, ratio, measured, calm=calm, flooded=flooded)


def descriptors(folder: Path, turns: int) -> Iterator[Line]:
    """Serve many shards to a keyed client at a usual limit of descriptors, under connections without keys."""
    shards = make_shards(folder, 100_000, MANY_SHARDS * 100_000, MANY_SHARDS)
    keys = Keys(*make_keys(folder / "keys"))
    with LOCAL.daemon(shards, keys=keys, descriptors=DESCRIPTORS) as daemon:
        calm, flooded, _ = alternating(daemon, "idle", "", count=IDLE, settle_s=4.0, turns=turns)
        report = health(daemon.endpoint, timeout_s=30, keys=keys.client)
    what = f"keyed client: {IDLE} idle connections, {DESCRIPTORS} descriptors, {MANY_SHARDS} shards"
    yield ratio_line(what, calm, flooded, f"full {report['full']} times, {report['idle']} idle closed")


def fuzzing(folder: Path, turns: int) -> Iterator[Line]:
    """Serve an open client while one connection sends garbage, or costly requests."""
    shards = make_shards(folder, 100_000, 256_000_000)
    with ShardStore(shards.root) as store:
        fingerprint = store.catalog.fingerprint
    for mode in FUZZES:
        with LOCAL.daemon(shards) as daemon:
            calm, flooded, most = alternating(daemon, mode, fingerprint, count=1, settle_s=1.0, turns=turns)
            shed = health(daemon.endpoint, timeout_s=30)["shed"]
        yield ratio_line(f"open client: one connection fuzzes, {mode}", calm, flooded, f"{most:.0f} MB, {shed} shed")


def busy(folder: Path, turns: int) -> Iterator[Line]:
    """Answer thousands of connections that each wait for one small batch at a time."""
    shards = make_shards(folder, 2000, 20_000_000)
    with ShardStore(shards.root) as store:
        fingerprint = store.catalog.fingerprint
    rates: dict[int, list[float]] = {count: [] for count in BUSY}
    starved: dict[int, int] = dict.fromkeys(BUSY, 0)
    most: dict[int, float] = dict.fromkeys(BUSY, 0.0)
    for _ in range(turns):
        for count in BUSY:
            with LOCAL.daemon(shards) as daemon, flood(daemon, "busy", fingerprint, count) as peers:
                time.sleep(8.0)
                most[count] = max(most[count], status_kb(daemon.pid, "RssAnon") * 1024e-6)
                load = peers.end()
            rates[count].append(load.answers / load.seconds)
            starved[count] += load.starved
    for count in BUSY:
        ratio = median(one / other for one, other in zip(rates[count], rates[BUSY[0]], strict=True))
        measured = f"{ratio:.2f} ({median(rates[count]):.0f} answers/s; {starved[count]} starved, {most[count]:.0f} MB)"
        met = ratio >= 0.5 and not starved[count] and most[count] <= MEMORY_MB
        raw = {"value": ratio, "answers_per_s": rates[count], "starved": starved[count], "mb": most[count]}
        yield Line(f"{count} busy connections over {BUSY[0]}, none starved", ">= 0.5", measured, met, raw)


PARTS = {each.__name__: each for each in (descriptors, fuzzing, busy)}


def main() -> int:
    """Measure and print; return the exit status."""
    options = make_parser(__doc__, "fewer turns", PARTS).parse_args()
    with memory_folder("floods") as temporary:
        turns = 3 if options.quick else 7
        parts = {name: partial(part, temporary, turns) for name, part in PARTS.items()}
        return run(parts, options, widths=(70, 8, 60))


if __name__ == "__main__":
    sys.exit(main())
