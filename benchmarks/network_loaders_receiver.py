"""The receiver of benchmarks/network_loaders.py: a process on the compute node, in the loader's environment.

It reads `Orders` as one JSON object from standard input and prints `Received` as one. It imports the loader alone,
because an environment of a loader's own has few packages.
"""

from __future__ import annotations

import importlib
import itertools
import json
import os
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

TICKS_S = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Orders:
    """What to receive, and for how long."""

    target: str
    """Import path of the loader."""
    arguments: dict[str, Any]
    """Keyword arguments of the loader."""
    pids: list[int]
    """Processes that serve; their CPU time and that of their children count."""
    seconds: float
    omit_s: float
    """The first seconds, which are not counted."""


@dataclass(frozen=True, slots=True)
class Received:
    """The figures of one measurement."""

    seconds: float
    nbytes: int
    """Bytes of whole records."""
    samples: int
    loader_cpu_s: float
    server_cpu_s: float
    longest_s: float
    """Longest wait for a batch."""

    @property
    def gbit(self) -> float:
        """Goodput in Gbit/s."""
        return 8e-9 * self.nbytes / self.seconds

    @property
    def cpu_s_per_gb(self) -> float:
        """CPU seconds of server and loader per GB of records."""
        return 1e9 * (self.loader_cpu_s + self.server_cpu_s) / self.nbytes if self.nbytes else 0.0


def tree_cpu_s(pids: Iterable[int]) -> float:
    """Return the CPU seconds of processes and of all their descendants, those that have ended included."""
    total, left = 0, list(pids)
    while left:
        pid = left.pop()
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            # utime, stime, and those of children that were waited for (proc_pid_stat(5)).
            total += sum(map(int, fields[11:15]))
            for task in Path(f"/proc/{pid}/task").iterdir():
                left += map(int, (task / "children").read_text().split())
        except (FileNotFoundError, ProcessLookupError):
            continue
    return total / TICKS_S


def batches(loader: Any) -> Iterator[Any]:
    """Yield the batches of epoch after epoch."""
    for epoch in itertools.count():
        yield from loader.epoch(epoch)


def receive(orders: Orders) -> Received:
    """Read in a tight loop: take each batch and drop it."""
    module, _, name = orders.target.rpartition(".")
    loader = getattr(importlib.import_module(module), name)(**orders.arguments)
    try:
        taken = batches(loader)
        begin = time.perf_counter() + orders.omit_s
        while time.perf_counter() < begin:
            next(taken)
        nbytes = samples = 0
        longest_s, me = 0.0, [os.getpid()]
        before = tree_cpu_s(me), tree_cpu_s(orders.pids)
        started = now = time.perf_counter()
        while now < started + orders.seconds:
            batch, last = next(taken), now
            now = time.perf_counter()
            longest_s = max(longest_s, now - last)
            nbytes += sum(len(frame) for frame in batch.frames)
            samples += len(batch)
        own, served = tree_cpu_s(me) - before[0], tree_cpu_s(orders.pids) - before[1]
        taken.close()  # type: ignore[attr-defined]
    finally:
        loader.close()
    return Received(now - started, nbytes, samples, own, served, longest_s)


if __name__ == "__main__":
    # What a wrapped system prints is no part of the answer.
    answer = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    print(json.dumps(asdict(receive(Orders(**json.load(sys.stdin))))), file=answer, flush=True)
