"""Whether two ways to the same joules agree: a board's counter and its power, integrated."""

from __future__ import annotations

from collections import deque
from typing import Final

from energymon.clock.monotonic import NS

__all__ = ["DIVERGES", "Divergence", "divergence"]

DIVERGES: Final = 0.1
"""Share of the counter's joules by which the power's may differ."""
_SPAN_NS: Final = 10 * NS
"""Both ways lag by up to 0.1 s and sample a quarter of the time (arXiv 2312.02741); over this long that evens out."""
_STEP_NS: Final = NS


def divergence(counter_j: float, power_j: float) -> float:
    """Return by which share of the counter's joules the integrated power's differ; infinite beside none of its own."""
    if counter_j == power_j:
        return 0.0
    return abs(power_j - counter_j) / counter_j if counter_j > 0 else float("inf")


class Divergence:
    """Compares two cumulative series over the last ten seconds, at every reading of both."""

    __slots__ = ("_diverges", "_kept")

    def __init__(self) -> None:
        self._kept: deque[tuple[int, float, float]] = deque()
        self._diverges = False

    def restart(self) -> None:
        """Forget all before: one of the series started again."""
        self._kept.clear()

    def update(self, now_ns: int, counter_j: float, power_j: float) -> str:
        """Take the cumulative joules at one instant; return a message when a difference comes or goes, else ""."""
        kept = self._kept
        if not kept or now_ns - kept[-1][0] >= _STEP_NS:
            kept.append((now_ns, counter_j, power_j))
        if now_ns - kept[0][0] < _SPAN_NS:
            return ""
        since_ns, counter_0, power_0 = kept[0]
        if len(kept) > 1 and now_ns - kept[1][0] >= _SPAN_NS:
            kept.popleft()
        share = divergence(counter_j - counter_0, power_j - power_0)
        if (share > DIVERGES) is self._diverges:
            return ""
        self._diverges = not self._diverges
        both = f"{counter_j - counter_0:.0f} J, integrated power {power_j - power_0:.0f} J"
        verb = "differ by" if self._diverges else "agree again, to"
        return f"counter and power {verb} {share:.0%} over {(now_ns - since_ns) / NS:.0f} s: counter {both}"
