"""The rows of two sides compared: ratio, interval, and one of four verdicts (pure).

A side is one or several results folders. The unit is the repeat of one folder, or the folder where a side has several.
Sides whose folders were measured in turns are compared in pairs. Holm's method keeps the chance of any false alarm in a
report at 5 % (Holm, A Simple Sequentially Rejective Multiple Test Procedure, 1979).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal, TypeAlias

from harness.compare.sides import Key, Side
from harness.report.intervals import Cells, Estimate, Interval, divide, estimate, student_quantile, student_tail

Verdict: TypeAlias = Literal["slower", "faster", "same", "undecided"]
Metric: TypeAlias = Literal["seconds", "joules"]

SAME_WITHIN: Final = 0.02
"""Share within which two sides are the same."""
_FALSE_ALARMS: Final = 0.05
_MOST_TURNS: Final = 200
"""Turns that nobody would measure."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedRow:
    """One loader on one workload in one regime, on both sides."""

    key: Key
    metric: Metric
    before: float
    """The first side's median of settled epochs, s or J."""
    after: float
    ratio: float
    """`after` over `before`."""
    interval: Interval | None
    """Its 95 % interval; None where a side has one repeat."""
    verdict: Verdict
    more_turns: int | None = None
    """Of an undecided row: repeats that each side lacks, if the differences stay as they are; None beyond 200."""
    trusted: bool = True
    """Whether both sides have valid rows."""
    error: Estimate
    """The ratio with its standard error."""

    @property
    def least_difference(self) -> float | None:
        """The smallest difference, as a share, that would have been found."""
        if self.interval is None or self.interval.low <= 0:
            return None
        return math.sqrt(self.interval.high / self.interval.low) - 1


def compare(before: Side, after: Side, *, same_within: float = SAME_WITHIN) -> list[ComparedRow]:
    """Compare the rows that both sides have: seconds of each, and joules of those that sensors measured.

    Two sides are the same where the 95 % interval of their ratio lies within 1 ± `same_within`. Of joules "slower" is
    more of them.
    """
    return _with_verdicts([*_list_ratios(before, after)], same_within)


def _list_ratios(before: Side, after: Side) -> Iterator[ComparedRow]:
    in_turns = before.alternates_with(after)
    for metric in ("seconds", "joules"):
        own, other = before.values(metric), after.values(metric)
        for key in [key for key in own if key in other]:
            first, second = (
                estimate([_cells(side.values(metric)[key], in_turns)], typical=side.typical(metric))
                for side in (before, after)
            )
            if first.value <= 0 or second.value <= 0:
                continue
            ratio = divide(second, first)
            trusted = key not in before.untrusted | after.untrusted
            yield ComparedRow(
                key=key,
                metric=metric,
                before=first.value,
                after=second.value,
                ratio=ratio.value,
                interval=ratio.interval,
                verdict="undecided",
                trusted=trusted,
                error=ratio,
            )


def _cells(by_folder: Sequence[Mapping[int, Sequence[float]]], in_turns: bool) -> Cells:
    """Return the units of a side: its folders, by turn where they were measured in turns, or one folder's repeats."""
    if len(by_folder) == 1:
        # Repeat 1 of one run is no pair of repeat 1 of another run.
        return list(by_folder[0].values())
    folders = [[value for cell in cells.values() for value in cell] for cells in by_folder]
    return dict(enumerate(folders)) if in_turns else folders


def _with_verdicts(rows: Sequence[ComparedRow], same_within: float) -> list[ComparedRow]:
    is_different = differ(rows)
    judged = []
    for row, different in zip(rows, is_different, strict=True):
        interval = row.interval
        if interval is not None and max(interval.high, 1 / max(interval.low, 1e-9)) <= 1 + same_within:
            verdict: Verdict = "same"
        elif different:
            verdict = "slower" if row.ratio > 1 else "faster"
        else:
            verdict = "undecided"
        more = _lacking_turns(row.error, same_within) if verdict == "undecided" else None
        judged.append(replace(row, verdict=verdict, more_turns=more))
    return judged


def differ(rows: Sequence[ComparedRow], than: float = 1.0) -> list[bool]:
    """Return for each row whether its ratio differs from `than`, at 5 % for all rows of the report together (Holm)."""
    chances = [chance_of(row.error, than) for row in rows]
    order = sorted(range(len(rows)), key=chances.__getitem__)
    found = [False] * len(rows)
    for rank, place in enumerate(order):
        if chances[place] * (len(rows) - rank) > _FALSE_ALARMS:
            break
        found[place] = True
    return found


def chance_of(ratio: Estimate, than: float = 1.0) -> float:
    """Return how likely so large a distance from `than` is by chance, 0 to 1; 1 of one repeat, which has no error."""
    if not ratio.freedom or not ratio.log:
        return 1.0
    distance = abs(math.log(ratio.value / than))
    if not ratio.error:
        return 0.0 if distance else 1.0
    return 2 * student_tail(distance / ratio.error, ratio.freedom)


def _lacking_turns(ratio: Estimate, same_within: float) -> int | None:
    """Return the repeats that each side lacks until the row is decided, if ratio and spread stay as they are."""
    if not ratio.freedom or not ratio.log or not ratio.error:
        return 1
    pairs = ratio.freedom + 1 if ratio.turns else ratio.freedom / 2 + 1
    deviation = ratio.error * math.sqrt(pairs)
    distance = abs(math.log(ratio.value))
    for turns in range(math.ceil(pairs) + 1, _MOST_TURNS):
        freedom = turns - 1 if ratio.turns else 2 * turns - 2
        half = student_quantile(0.975, freedom) * deviation / math.sqrt(turns)
        if half < distance or distance + half <= math.log1p(same_within):
            return turns - math.floor(pairs)
    return None


@dataclass(frozen=True, slots=True)
class Gate:
    """What makes a comparison fail: a ratio of `metric` above 1 + `by`."""

    by: float = 0.0
    metric: Metric = "seconds"

    def judge(self, rows: Iterable[ComparedRow]) -> Literal["passes", "fails", "undecided"]:
        """Return whether any row surely lies above the limit, none does, or it is not known of some."""
        judged = [row for row in rows if row.metric == self.metric]
        limit = 1 + self.by
        above = [found and row.ratio > limit for row, found in zip(judged, differ(judged, limit), strict=True)]
        if any(above):
            return "fails"
        if not self.by:
            return "undecided" if any(row.verdict == "undecided" for row in judged) or not judged else "passes"
        below = [row.interval is not None and row.interval.high <= limit for row in judged]
        return "passes" if all(below) and judged else "undecided"
