"""Arms of the loaders' benchmark that take turns: each a process that waits for its turn and then runs whole epochs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from statistics import median

from bench import HERE, PYTHONPATH
from loaders_engines import Order, Turn

REALISTIC_IMAGES = 87_000
"""The 10 GB of ImageNet that the EMLIO paper trains on, at 115 kB an image."""
_PATIENCE_S = 20

Pair = tuple[Turn, Turn]
"""A turn of ours and one of the other arm, one right after the other."""


class Arm:
    """One engine's process."""

    def __init__(self, order: Order) -> None:
        self.order = order
        self._process = subprocess.Popen(
            [sys.executable, "-P", str(HERE / "loaders_engines.py")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": PYTHONPATH},
            text=True,
        )
        self._say(json.dumps(asdict(order)))

    def ready(self) -> None:
        """Wait until the epoch that does not count is over."""
        self._answer()

    def turn(self, seconds: float) -> Turn:
        """Run whole epochs for about so long."""
        self._say(json.dumps(seconds))
        return Turn(**json.loads(self._answer()))

    def close(self) -> None:
        """End the process; one that does not end by itself is killed."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(_PATIENCE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _say(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()

    def _answer(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the arm {self.order.arm!r} ended with status {self._process.wait()}: see above")
        return line


@contextmanager
def arms(orders: Sequence[Order]) -> Iterator[list[Arm]]:
    """Start arms, all at a time; they are ready when they are returned."""
    with ExitStack() as stack:
        started = []
        for order in orders:
            arm = Arm(order)
            stack.callback(arm.close)
            started.append(arm)
        for arm in started:
            arm.ready()
        yield started


def alternate(ours: Arm, other: Arm, *, pairs: int, seconds: float) -> list[Pair]:
    """Take turns in the order ABBA, so that whatever drifts on the machine drifts for both."""
    found = []
    for number in range(pairs):
        first, second = (ours, other) if number % 2 == 0 else (other, ours)
        turns = {id(arm): arm.turn(seconds) for arm in (first, second)}
        found.append((turns[id(ours)], turns[id(other)]))
    return found


def medians(pairs: Sequence[Pair], figure: Callable[[Turn], float], form: str) -> str:
    """Return the medians of a figure of ours and of the other arm, in words."""
    return " and ".join(format(median(map(figure, turns)), form) for turns in zip(*pairs, strict=True))


def realistic(ours: Turn, other: Turn) -> float:
    """Return the ratio of throughputs over an epoch of REALISTIC_IMAGES, its start included."""
    return other.epoch_s(REALISTIC_IMAGES) / ours.epoch_s(REALISTIC_IMAGES)


def measured(ours: Turn, other: Turn) -> float:
    """Return the ratio of throughputs over the epochs as they were run."""
    return ours.images_per_s / other.images_per_s


def cpu(ours: Turn, other: Turn) -> float:
    """Return the other's CPU time per image over ours: below 1 where ours costs more."""
    return other.cpu_s_per_image / ours.cpu_s_per_image
