"""How often a counter is updated, and so how old the value may be that it shows, as seen by who reads it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import Final, NamedTuple

from energymon.clock.monotonic import NS

_CHANGES: Final = 8
"""So many updates show a counter's period."""
_FEW: Final = 3
"""So many are waited for longer."""
_MARGIN: Final = 1.25
"""The longest time between updates that is to come, over the longest that was seen while probing."""


class Poll(NamedTuple):
    """One look at a counter."""

    before_ns: int
    after_ns: int
    """The read call's begin and end, monotonic ns."""
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
    from statistics import median

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
