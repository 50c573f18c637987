"""One arm of the loaders' benchmark, in a process of its own that runs epochs when its turn comes.

The first line on stdin is the order as JSON, every further one the seconds of a turn; what a turn came to goes to
stdout as a line of JSON. The arm ends with stdin.
"""

from __future__ import annotations

import json
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import psutil
from loaders_arms import ARMS, Epoch

from loaders.base import Samples

LEAD = 6
"""Batches of an epoch that are not of its steady state: those that were ready beforehand, or came of a cold start."""
TAIL = 2
"""Batches at its end that are not, for a worker after the other has nothing left to do."""
_QUIET_S = 0.1
_LONGEST_WAIT_S = 5.0


@dataclass(frozen=True, slots=True)
class Order:
    """What an arm is to do."""

    arm: str
    """One of ARMS."""
    samples: str
    """A file of `Samples.save`."""
    workers: int
    batch_size: int = 32


@dataclass(frozen=True, slots=True)
class Turn:
    """What the epochs of one turn came to."""

    images_per_s: float
    steady_per_s: float
    """Images per second between the first batches of an epoch and its last."""
    start_s: float
    """Seconds that beginning and ending an epoch take, beyond its images at the steady rate; below 0 where batches
    were ready beforehand."""
    cpu_s_per_image: float
    """Of the process and its workers."""

    def epoch_s(self, images: int) -> float:
        """Return the seconds of an epoch of so many images."""
        return self.start_s + images / self.steady_per_s


def run_turn(epoch: Epoch, first: int, seconds: float) -> tuple[Turn, int]:
    """Run whole epochs for about so many seconds, from number `first` on; return also how many there were."""
    cpu_s, took, slopes, images = _cpu_s(), 0.0, list[float](), 0
    number = first
    while number == first or took + took / (number - first) / 2 < seconds:
        began = time.perf_counter()
        sizes, arrivals = [], []
        for size in epoch(number):
            sizes.append(size)
            arrivals.append(time.perf_counter() - began)
        took += time.perf_counter() - began
        slopes.append(_seconds_per_image(sizes, arrivals))
        images += sum(sizes)
        number += 1
    # What an engine makes ahead of the next epoch is this arm's, and would be in the other's way.
    _wait_until_idle()
    epochs = number - first
    per_image_s = float(np.mean(slopes))
    start_s = (took - images * per_image_s) / epochs
    return Turn(images / took, 1 / per_image_s, start_s, (_cpu_s() - cpu_s) / images), epochs


def _seconds_per_image(sizes: list[int], arrivals: list[float]) -> float:
    """Return the slope of the line through the arrivals of an epoch's steady state.

    Batches of several workers come in lumps, so the first and the last alone would measure it less well.
    """
    done = np.cumsum(sizes)
    inner = slice(LEAD, -TAIL) if len(sizes) >= 2 * (LEAD + TAIL) else slice(None)
    if len(done[inner]) < 2:
        return arrivals[-1] / float(done[-1])
    return float(np.polyfit(done[inner], arrivals[inner], 1)[0])


def _wait_until_idle() -> None:
    before, deadline = _cpu_s(), time.monotonic() + _LONGEST_WAIT_S
    while time.monotonic() < deadline:
        time.sleep(_QUIET_S)
        now = _cpu_s()
        if now - before <= _QUIET_S / 5:
            return
        before = now


def _cpu_s() -> float:
    """Return the CPU seconds of this process and its workers, which live through all epochs."""
    process = psutil.Process()
    used = [each.cpu_times() for each in (process, *process.children(recursive=True))]
    return sum(each.user + each.system for each in used)


def main() -> None:
    """Run one epoch that does not count, and then whatever turns are asked for."""
    # What an engine prints is not an answer.
    answers, sys.stdout = sys.stdout, sys.stderr
    order = Order(**json.loads(sys.stdin.readline()))
    with ARMS[order.arm](Samples.load(Path(order.samples)), order.workers, order.batch_size) as epoch:
        _, number = run_turn(epoch, 0, 0.0)
        print("ready", file=answers, flush=True)
        for line in sys.stdin:
            turn, epochs = run_turn(epoch, number, json.loads(line))
            number += epochs
            print(json.dumps(asdict(turn)), file=answers, flush=True)


if __name__ == "__main__":
    main()
