"""What a claim says of a number: its bound, the tolerance, and how it is written (pure)."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from harness.report.labels import factor, joules, megabytes, percent, seconds, significant

Style = Literal["factor", "less", "percent", "seconds", "joules", "megabytes", "knee", "number"]
STYLES: Final[Mapping[str, Style]] = {
    "s": "seconds",
    "J": "joules",
    "share": "percent",
    "bytes": "megabytes",
    "": "number",
}
"""How a metric is written, by its unit."""

NEAR_BEST: Final = 0.95
"""Share of the best value from which on the knee is reached, and more workers are worth no more."""


@dataclass(frozen=True, slots=True)
class Bound:
    """What the paper's number is to ours, and how far ours may be off."""

    kind: str
    """at_least, at_most or within."""
    paper: float
    shown: str = ""
    """The paper's number in its own words, where they say more."""
    relative: float = 0.0
    absolute: float = 0.0
    factor: float = 1.0

    @property
    def low(self) -> float:
        """The least value that passes, where there is one."""
        return self.paper * (1 - self.relative) / self.factor - self.absolute

    @property
    def high(self) -> float:
        """The greatest value that passes, where there is one."""
        return self.paper * (1 + self.relative) * self.factor + self.absolute

    def holds(self, value: float) -> bool:
        """Return whether a value passes."""
        # A value that equals the bound passes, however its last bit was rounded.
        slack = 1e-9 * max(1.0, abs(self.paper))
        above = value >= self.low - slack
        below = value <= self.high + slack
        return {"at_least": above, "at_most": below, "within": above and below}[self.kind]

    def expected(self, style: Style) -> str:
        """Write the paper's number."""
        # The less a ratio is, the more of a saving it is written as.
        low, high = ("≤ ", "≥ ") if style == "less" else ("≥ ", "≤ ")
        sign = {"at_least": low, "at_most": high, "within": ""}[self.kind]
        return self.shown or sign + written(self.paper, style)

    def tolerance(self, style: Style) -> str:
        """Write what passes."""
        low, high = (written(value, style) for value in (self.low, self.high))
        saving = style == "less"
        if self.kind == "within":
            first, last = (high, low) if saving else (low, high)
            return f"passes at {first}" if first == last else f"passes from {first} to {last}"
        edge = low if self.kind == "at_least" else high
        return f"passes from {edge} on" if (self.kind == "at_least") != saving else f"passes up to {edge}"


def combined(how: str, values: Mapping[Any, float]) -> float:
    """Make one number of several, by the value of the key that they are of; spread is (greatest - least) / least."""
    known: Sequence[float] = list(values.values())
    if how == "least":
        return min(known)
    if how == "greatest":
        return max(known)
    if how == "mean":
        return statistics.fmean(known)
    if how == "spread":
        return (max(known) - min(known)) / min(known)
    return find_knee(values)


def find_knee(values: Mapping[Any, float]) -> float:
    """Return the least key whose value is within 5 % of the greatest value."""
    best = max(values.values())
    return float(min(key for key, value in values.items() if value >= NEAR_BEST * best))


def written(value: float, style: Style) -> str:
    """Write a number."""
    if style == "number":
        return significant(value) if value != round(value) else f"{value:g}"
    if style == "less":
        return f"{percent(1 - value)} less" if value <= 1 else f"{percent(value - 1)} more"
    if style == "knee":
        return f"knee at {value:g}"
    return {"factor": factor, "percent": percent, "seconds": seconds, "joules": joules, "megabytes": megabytes}[style](
        value
    )
