"""How often a counter is updated, and so how old the value may be that it shows, as seen by who reads it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import Final, NamedTuple

from energymon.clock.monotonic import NS

_MARGIN: Final = 1.25
"""The longest time between updates that is to come, over the longest that was seen while probing."""


class Poll(NamedTuple):
    """One look at a counter: when its read call began and ended, monotonic ns, and what it showed."""

    before_ns: int
    after_ns: int
    value: object


def period_ms(shown: Iterable[tuple[int, object]]) -> float | None:
    """Return the median time between changes of a value, ms; `shown` are (time in ns, value) in order.

    None when fewer than two changes were seen.
    """
    from statistics import median

    changes = [after for before, after in pairwise(shown) if before[1] != after[1]]
    return median((after[0] - before[0]) / 1e6 for before, after in pairwise(changes)) if len(changes) > 1 else None


def polled(
    reads: Sequence[Callable[[], object | None]], *, step_s: float, usual_s: float, longest_s: float
) -> list[list[Poll]]:
    """Poll counters together; return the looks on either side of the changes of each.

    `reads` return a value, or None where it cannot be read. Polling ends when each counter has changed nine times,
    after `usual_s` when each has changed four times, and after `longest_s`.
    """
    shown: list[list[Poll]] = [[] for _ in reads]
    changes = [0] * len(reads)
    began_ns = time.monotonic_ns()
    while reads and min(changes) <= 8:
        for i, read in enumerate(reads):
            before_ns = time.monotonic_ns()
            value = read()
            after_ns = time.monotonic_ns()
            if value is None:
                continue
            seen = shown[i]
            if seen and seen[-1].value != value:
                changes[i] += 1
            elif len(seen) > 1 and seen[-2].value == value:
                seen.pop()
            seen.append(Poll(before_ns, after_ns, value))
        elapsed_s = (time.monotonic_ns() - began_ns) / NS
        if elapsed_s > longest_s or (elapsed_s > usual_s and min(changes) > 3):
            break
        time.sleep(step_s)
    return shown


def lag_of(shown: Sequence[Poll]) -> float | None:
    """Return how old, s, the value of a counter may be that was polled; None when fewer than two updates were seen.

    That is the longest time between two updates, with a margin. Where the poller was held up around an update, the
    least time that it can have been is taken.
    """
    from statistics import median

    changes = [(before, after) for before, after in pairwise(shown) if before.value != after.value]
    # Each is (at least, at most).
    gaps = [(b[0].before_ns - a[1].after_ns, b[1].after_ns - a[0].before_ns) for a, b in pairwise(changes)]
    if not gaps:
        return None
    blur_ns = 2 * median(most - least for least, most in gaps)
    return _MARGIN * max(most if most - least <= blur_ns else least for least, most in gaps) / NS
