"""How often a counter is updated, and so how old the value may be that it shows, as seen by who reads it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import Final

from energymon.clock.monotonic import NS

_CHANGES: Final = 8
"""So many updates show a counter's period."""
_FEW: Final = 3
"""So many are waited for longer."""
_MARGIN: Final = 1.25
"""The longest time between updates that is to come, over the longest that was seen while probing."""


@dataclass(frozen=True, slots=True)
class Updates:
    """What polling a counter showed."""

    median_ms: float
    longest_ms: float


@dataclass(frozen=True, slots=True)
class Poll:
    """One look at a counter."""

    before_ns: int
    after_ns: int
    """The read call's begin and end, monotonic ns."""
    value: object


def updates(shown: Iterable[tuple[int, object]]) -> Updates | None:
    """Return the times between changes of a value; `shown` are (time in ns, value) in order.

    None when fewer than two changes were seen: their distance is then unknown.
    """
    changes = [after for before, after in pairwise(shown) if before[1] != after[1]]
    gaps_ms = [(after[0] - before[0]) / 1e6 for before, after in pairwise(changes)]
    return Updates(median(gaps_ms), max(gaps_ms)) if gaps_ms else None


def polled(
    reads: Sequence[Callable[[], object | None]], *, step_s: float, usual_s: float, longest_s: float
) -> list[list[Poll]]:
    """Poll counters together until each has changed some times; return what each showed, the unchanged left out.

    `reads` return a value, or None where it cannot be read. Polling ends after `longest_s`, and after `usual_s` once
    each counter has changed a few times at least. Kept are the looks on either side of a change.
    """
    shown: list[list[Poll]] = [[] for _ in reads]
    changes = [0] * len(reads)
    began_ns = time.monotonic_ns()
    while reads and min(changes) <= _CHANGES:
        for i, read in enumerate(reads):
            before_ns = time.monotonic_ns()
            value = read()
            look = Poll(before_ns, time.monotonic_ns(), value)
            seen = shown[i]
            if value is None:
                continue
            if seen and seen[-1].value != value:
                changes[i] += 1
            elif len(seen) > 1 and seen[-2].value == value:
                seen.pop()
            seen.append(look)
        elapsed_s = (time.monotonic_ns() - began_ns) / NS
        if elapsed_s > longest_s or (elapsed_s > usual_s and min(changes) > _FEW):
            break
        time.sleep(step_s)
    return shown


def lag_of(shown: Sequence[Poll]) -> float | None:
    """Return how old, s, the value of a counter may be that was polled; None when fewer than two updates were seen.

    That is the longest time between two updates, with a margin. Where the poller was held up around an update, the
    time between updates is taken to be what it surely was.
    """
    changes = [(before, after) for before, after in pairwise(shown) if before.value != after.value]
    gaps = [
        # (surely at least, surely at most)
        (then[0].before_ns - first[1].after_ns, then[1].after_ns - first[0].before_ns)
        for first, then in pairwise(changes)
    ]
    if not gaps:
        return None
    blur_ns = 2 * median(most - least for least, most in gaps)
    return _MARGIN * max(most if most - least <= blur_ns else least for least, most in gaps) / NS


class Age:
    """Finds how old the value of a counter may be at each reading.

    A value is no older than the counter's lag, and no older than the last reading that showed another one. A value
    that outlasts the lag shows that the lag is longer; from then on it is taken to be as long as was seen.
    """

    __slots__ = ("_before_ns", "_joules", "_outlasted", "_shown_ns", "_since_ns", "lag_ns")

    def __init__(self, lag_s: float) -> None:
        self.lag_ns = round(lag_s * NS)
        self._outlasted = False
        self._joules: float | None = None
        self._since_ns = self._shown_ns = self._before_ns = 0

    def restart(self) -> None:
        """Forget all values before: the counter began at another value."""
        self._joules = None
        self._outlasted = False

    def mark(self) -> tuple[int, bool, float | None, int, int, int]:
        """Return what `back_to` takes."""
        return self.lag_ns, self._outlasted, self._joules, self._since_ns, self._shown_ns, self._before_ns

    def back_to(self, mark: tuple[int, bool, float | None, int, int, int]) -> None:
        """Undo all updates since `mark`."""
        self.lag_ns, self._outlasted, self._joules, self._since_ns, self._shown_ns, self._before_ns = mark

    def since_ns(self, joules: float, before_ns: int, after_ns: int) -> int:
        """Take a reading and the begin and end of its read call; return the earliest instant it may be of.

        All are ns of the monotonic clock. Readings come in order.
        """
        if joules != self._joules:
            if self._outlasted:
                self.lag_ns = max(self.lag_ns, after_ns - self._since_ns)
                self._outlasted = False
            self._since_ns = before_ns - self.lag_ns if self._joules is None else self._before_ns
            self._joules, self._shown_ns = joules, after_ns
        elif before_ns - self._shown_ns > self.lag_ns:
            self._outlasted = True
        self._before_ns = before_ns
        return self._since_ns if self._outlasted else max(self._since_ns, before_ns - self.lag_ns)

    def early_ns(
        self, joules: Sequence[float], before_ns: Sequence[int], after_ns: Sequence[int], t_ns: Sequence[int]
    ) -> list[int]:
        """Return for several readings what `since_ns` returns, as ns before `t_ns`."""
        since_ns = self.since_ns
        return [
            t - since_ns(value, before, after)
            for value, before, after, t in zip(joules, before_ns, after_ns, t_ns, strict=True)
        ]
