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

from harness.compare.sides import Key, Metric, Side
from harness.report.intervals import Cells, Estimate, Ratio, divide, estimate, student_quantile, student_tail, widen
from harness.report.summary import find_joule_errors

Verdict: TypeAlias = Literal["slower", "faster", "same", "undecided"]

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
    ratio: Ratio
    """`after` over `before`; of joules, its interval holds what sensors may show wrongly, too."""
    error: Estimate
    """The ratio with its standard error over repeats."""
    verdict: Verdict = "undecided"
    more_turns: int | None = None
    """Of an undecided row: repeats that each side lacks, if the differences stay as they are; None beyond 200."""

    def is_beyond(self, limit: float) -> bool:
        """Whether all of the interval lies above a limit, or all of it below."""
        return self.ratio.interval is not None and not self.ratio.interval.holds(limit)


def compare(before: Side, after: Side, *, same_within: float = SAME_WITHIN) -> list[ComparedRow]:
    """Compare the rows that both sides have: seconds of each, and joules of those that sensors measured.

    Two sides are the same where the 95 % interval of their ratio lies within 1 ± `same_within`. Of joules "slower" is
    more of them. A row that has no valid epoch on a side is undecided.
    """
    rows = [*_list_ratios(before, after)]
    return [
        _with_verdict(row, same_within, len(rows), is_different=different)
        for row, different in zip(rows, differ(rows), strict=True)
    ]


def _list_ratios(before: Side, after: Side) -> Iterator[ComparedRow]:
    in_turns = before.alternates_with(after)
    metrics: tuple[Metric, ...] = ("seconds", "joules")
    for metric in metrics:
        own, other = before.values(metric), after.values(metric)
        for key in [key for key in own if key in other]:
            first = estimate([_cells(own[key], in_turns)], typical=before.typical(metric))
            second = estimate([_cells(other[key], in_turns)], typical=after.typical(metric))
            if first.value <= 0 or second.value <= 0:
                continue
            ratio = divide(second, first)
            interval = ratio.interval
            if metric == "joules" and interval is not None:
                interval = widen(interval, *find_joule_errors(after.joules(key), before.joules(key)))
            trusted = key not in before.untrusted | after.untrusted
            found = Ratio(ratio.value, interval, is_single=interval is None, trusted=trusted)
            yield ComparedRow(key=key, metric=metric, before=first.value, after=second.value, ratio=found, error=ratio)


def _cells(by_folder: Sequence[Mapping[int, Sequence[float]]], in_turns: bool) -> Cells:
    """Return the units of a side: its folders, by turn where they were measured in turns, or one folder's repeats."""
    if len(by_folder) == 1:
        # Repeat 1 of one run is no pair of repeat 1 of another run.
        return list(by_folder[0].values())
    folders = [[value for cell in cells.values() for value in cell] for cells in by_folder]
    return dict(enumerate(folders)) if in_turns else folders


def _with_verdict(row: ComparedRow, same_within: float, rows: int, *, is_different: bool) -> ComparedRow:
    interval = row.ratio.interval
    if not row.ratio.trusted or interval is None:
        return replace(row, more_turns=1 if interval is None else None)
    if max(interval.high, 1 / max(interval.low, 1e-9)) <= 1 + same_within:
        return replace(row, verdict="same")
    if is_different and row.is_beyond(1.0):
        return replace(row, verdict="slower" if row.ratio.value > 1 else "faster")
    return replace(row, more_turns=_lacking_turns(row.error, same_within, rows))


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


def _lacking_turns(ratio: Estimate, same_within: float, rows: int) -> int | None:
    """Return the repeats that each side lacks until a row of so many is decided, if ratio and spread stay as they are.

    The first one that Holm's method takes needs the chance of a false alarm of all rows together.
    """
    if not ratio.freedom or not ratio.log or not ratio.error:
        return 1
    pairs = ratio.freedom + 1 if ratio.turns else ratio.freedom / 2 + 1
    distance = abs(math.log(ratio.value))
    for turns in range(math.ceil(pairs) + 1, _MOST_TURNS):
        error = ratio.error * math.sqrt(pairs / turns)
        freedom = turns - 1 if ratio.turns else 2 * turns - 2
        differs = student_quantile(1 - _FALSE_ALARMS / 2 / rows, freedom) * error < distance
        if differs or distance + student_quantile(0.975, freedom) * error <= math.log1p(same_within):
            return turns - math.floor(pairs)
    return None


@dataclass(frozen=True, slots=True)
class Gate:
    """What makes a comparison fail: a row that is slower, or whose ratio of `metric` lies above 1 + `by`."""

    by: float = 0.0
    metric: Metric = "seconds"

    def judge(self, rows: Iterable[ComparedRow], *, is_whole: bool = True) -> Literal["passes", "fails", "undecided"]:
        """Return whether any row surely fails, none does, or it is not known of some.

        A comparison is not whole where a side lacks rows of the other one.
        """
        judged = [row for row in rows if row.metric == self.metric]
        limit = 1 + self.by
        if not self.by:
            fails = [row.verdict == "slower" for row in judged]
            passes = [row.verdict in ("same", "faster") for row in judged]
        else:
            above = [row.ratio.trusted and row.ratio.value > limit and row.is_beyond(limit) for row in judged]
            fails = [all(both) for both in zip(above, differ(judged, limit), strict=True)]
            intervals = [row.ratio.interval if row.ratio.trusted else None for row in judged]
            passes = [interval is not None and interval.high <= limit for interval in intervals]
        if any(fails):
            return "fails"
        return "passes" if judged and all(passes) and is_whole else "undecided"
