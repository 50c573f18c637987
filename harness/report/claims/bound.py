"""The bound of a claim: what the paper's number is to ours, the tolerance, and how it is written (pure)."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from harness.report.intervals import Interval
from harness.report.labels import factor, joules, megabytes, percent, seconds, significant
from joulefeed.table import Style as CellStyle

Verdict = Literal["PASS", "FAIL", "INCONCLUSIVE", "NOT CHECKED"]
PASS: Final = "PASS"  # noqa: S105
FAIL: Final = "FAIL"
INCONCLUSIVE: Final = "INCONCLUSIVE"
"""The interval holds values that pass and values that fail, or there is none."""
NOT_CHECKED: Final = "NOT CHECKED"
MARKS: Final[Mapping[str, tuple[str, CellStyle]]] = {
    PASS: ("✓", "good"),
    FAIL: ("✗", "bad"),
    INCONCLUSIVE: ("≈", "warn"),
    NOT_CHECKED: ("–", "dim"),
}
"""How tables mark a verdict, and its style."""

Style = Literal["factor", "less", "percent", "seconds", "milliseconds", "joules", "megabytes", "knee", "number"]
STYLES: Final[Mapping[str, Style]] = {
    "s": "seconds",
    "ms": "milliseconds",
    "J": "joules",
    "share": "percent",
    "bytes": "megabytes",
    "": "number",
}
"""How a metric is written, by its unit."""

NEAR_BEST: Final = 0.95
"""Share of the best value from which on the knee is reached, and more workers are worth no more."""

EQUAL_WITHIN: Final = 0.05
"""Half the width, as a share of the value, of the widest interval that shows two numbers to be equal."""


@dataclass(frozen=True, slots=True)
class Bound:
    """What the paper's number is to ours, and how far ours may be off."""

    kind: str
    """above, below, at_least, at_most or within; above and below are strict. equal: no difference shows."""
    paper: float
    shown: str = ""
    """The paper's number in its own words, where they say more."""
    relative: float = 0.0
    absolute: float = 0.0
    factor: float = 1.0
    until: float | None = None
    """The upper end of a range that the paper gives in place of a number."""

    @property
    def low(self) -> float:
        """The least value that passes, where there is one."""
        return self.paper * (1 - self.relative) / self.factor - self.absolute

    @property
    def high(self) -> float:
        """The greatest value that passes, where there is one."""
        return (self.until or self.paper) * (1 + self.relative) * self.factor + self.absolute

    def holds(self, value: float) -> bool:
        """Return whether a value passes."""
        # A value that equals the bound passes, however its last bit was rounded.
        slack = 1e-9 * max(1.0, abs(self.paper))
        match self.kind:
            case "above":
                return value > self.paper + slack
            case "below":
                return value < self.paper - slack
            case "equal":
                return abs(value - self.paper) <= slack
        above, below = value >= self.low - slack, value <= self.high + slack
        return {"at_least": above, "at_most": below, "within": above and below}[self.kind]

    def judge(self, interval: Interval) -> Verdict:
        """Return PASS where every value of an interval passes, FAIL where none does, else INCONCLUSIVE.

        `equal` is about the interval itself: PASS where it holds the value and is narrow, for a wide one holds it
        whatever differs.
        """
        if self.kind == "equal":
            is_narrow = (interval.high - interval.low) / 2 <= EQUAL_WITHIN * self.paper
            return FAIL if not interval.holds(self.paper) else PASS if is_narrow else INCONCLUSIVE
        if math.isnan(interval.low) or math.isnan(interval.high):
            return INCONCLUSIVE
        ends = (self.holds(interval.low), self.holds(interval.high))
        spans = self.kind == "within" and interval.low < self.low < interval.high
        return PASS if all(ends) else INCONCLUSIVE if any(ends) or spans else FAIL

    def expected(self, style: Style) -> str:
        """Write the paper's number."""
        # The less a ratio is, the more of a saving it is written as.
        low, high, above, below = ("≤ ", "≥ ", "< ", "> ") if style == "less" else ("≥ ", "≤ ", "> ", "< ")
        sign = {"at_least": low, "at_most": high, "above": above, "below": below}.get(self.kind, "")
        return self.shown or sign + self.number(style)

    def number(self, style: Style) -> str:
        """Write the paper's number without what it is to ours."""
        ends = dict.fromkeys(_write_published(end, style) for end in (self.paper, self.until or self.paper))
        return " to ".join(ends)

    def tolerance(self, style: Style) -> str:
        """Write what passes."""
        low, high = (written(value, style) for value in (self.low, self.high))
        saving = style == "less"
        if self.kind == "within":
            first, last = (high, low) if saving else (low, high)
            return f"passes at {first}" if first == last else f"passes from {first} to {last}"
        if self.kind == "equal":
            return f"passes where the interval holds {low} and is at most {percent(2 * EQUAL_WITHIN)} wide"
        if self.kind in ("above", "below"):
            return f"passes {'above' if (self.kind == 'above') != saving else 'below'} {low}"
        edge = low if self.kind == "at_least" else high
        return f"passes from {edge} on" if (self.kind == "at_least") != saving else f"passes up to {edge}"


def combined(how: str, values: Mapping[Any, float]) -> float:
    """Make one number of several, by the value of the key that they are of.

    spread is (greatest - least) / least, growth the value at the greatest key over that at the least.
    """
    known: Sequence[float] = list(values.values())
    if how == "least":
        return min(known)
    if how == "greatest":
        return max(known)
    if how == "mean":
        return statistics.fmean(known)
    if how == "spread":
        return (max(known) - min(known)) / min(known)
    if how == "growth":
        return values[max(values)] / values[min(values)]
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
    if style == "milliseconds":
        return f"{significant(value)} ms"
    if style == "knee":
        return f"knee at {value:g}"
    return {"factor": factor, "percent": percent, "seconds": seconds, "joules": joules, "megabytes": megabytes}[style](
        value
    )


def write_interval(interval: Interval, style: Style) -> str:
    """Write the ends of an interval, of a saving the lesser one first."""
    ends = (interval.high, interval.low) if style == "less" else (interval.low, interval.high)
    first, last = (written(end, style) for end in ends)
    return first if first == last else f"{first} to {last}"


def _write_published(value: float, style: Style) -> str:
    """Write a number of a paper with its own digits, or with three where it is a ratio of two."""
    unit = {"factor": "×", "percent": " %", "milliseconds": " ms"}.get(style)
    if unit is None:
        return written(value, style)
    number = 100 * value if style == "percent" else value
    return f"{number:g}{unit}" if math.isclose(number, round(number, 2), rel_tol=1e-9) else f"{number:.3g}{unit}"
