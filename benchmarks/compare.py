"""Verdicts of `harness.compare` on the measured repeats of kept runs: false alarms, and an injected 3 % that is found.

False alarms: the repeats of every row of a kept run are divided at random into two sides, which are the same by
construction. A report that calls any of its rows slower or faster is a false alarm. Runs take turns until there are
200 reports.

The injected difference: eight repeats a side are drawn, with replacement, from those of a row whose spread is at most
2 %, and one side is 3 % slower.

Prints a line per demand (asked, measured, verdict); exits 1 when one falls short. `--quick` has 40 reports and 100
draws. Takes a minute.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import cycle, islice
from statistics import median

from bench import REPO, Line, at_least, at_most, make_parser, run

from harness.compare.sides import Key
from harness.compare.verdicts import compare
from harness.report.intervals import find_typical
from harness.results.epoch_row import EpochRow, read_rows, select_settled

Repeats = Mapping[int, Sequence[float]]
"""Seconds of the settled epochs of each repeat of a row."""
KEPT = REPO / "benchmarks/results/papers"
REPORTS, QUICK_REPORTS = 200, 40
DRAWS, QUICK_DRAWS = 1000, 100
LEAST_REPEATS = 4
"""Of a row: two a side."""
TURNS = 8
SPREAD = 0.02
SLOWER = 1.03


class Part:
    """A side, as `compare` takes it, with some of the repeats of a run."""

    untrusted: frozenset[Key] = frozenset()

    def __init__(self, values: Mapping[Key, Repeats]) -> None:
        """Take seconds of epochs by row."""
        self._values = {key: [each] for key, each in values.items()}

    def values(self, metric: str) -> Mapping[Key, list[Repeats]]:
        """Return the seconds; no joules."""
        return self._values if metric == "seconds" else {}

    def typical(self, _metric: str) -> float | None:
        """Return how far cells of this side usually lie apart."""
        return find_typical(each for (each,) in self._values.values())

    def alternates_with(self, _other: Part) -> bool:
        """Whether the repeats of both are pairs: no."""
        return False


def main() -> int:
    """Measure and print; return the exit status."""
    options = make_parser(__doc__, "fewer reports and draws", ["aa", "injected"]).parse_args()
    kept = read_kept()
    return run({"aa": partial(count_alarms, kept, options), "injected": partial(count_found, kept, options)}, options)


def read_kept() -> dict[str, dict[Key, Repeats]]:
    """Return seconds of valid settled epochs, by row, of each kept run; rows with few repeats are left out."""
    found = {}
    for path in sorted(KEPT.glob("*/epochs.parquet")):
        values: dict[Key, dict[int, list[float]]] = {}
        for row in select_settled(read_rows(path, EpochRow)):
            if row.is_valid:
                cells = values.setdefault(Key(row.workload, row.regime, row.loader), {})
                cells.setdefault(row.repeat, []).append(row.duration_s)
        if rows := {key: each for key, each in values.items() if len(each) >= LEAST_REPEATS}:
            found[path.parent.name] = rows
    return found


def count_alarms(kept: Mapping[str, Mapping[Key, Repeats]], options: argparse.Namespace) -> Iterator[Line]:
    """Compare halves of runs."""
    draw = random.Random(0)
    reports = QUICK_REPORTS if options.quick else REPORTS
    alarms: list[str] = []
    rows = 0
    for name, values in islice(cycle(kept.items()), reports):
        sides: tuple[dict, dict] = ({}, {})
        for key, repeats in values.items():
            numbers = draw.sample(sorted(repeats), len(repeats))
            half = len(numbers) // 2
            for side, mine in zip(sides, (numbers[:half], numbers[half : 2 * half]), strict=True):
                side[key] = {number: repeats[number] for number in mine}
        found = compare(*map(Part, sides))
        rows += len(found)
        if any(row.verdict in ("slower", "faster") for row in found):
            alarms.append(name)
    text = f"{len(alarms) / reports:.1%} of {reports} reports of {rows} rows, from {len(kept)} runs"
    yield at_most("false alarms, sides that are the same", 0.05, len(alarms) / reports, text, ".0%", alarms=alarms)


def count_found(kept: Mapping[str, Mapping[Key, Repeats]], options: argparse.Namespace) -> Iterator[Line]:
    """Compare draws of which one is slower."""
    draw = random.Random(0)
    steady = [values for rows in kept.values() for values in rows.values() if spread_of(values) <= SPREAD]
    draws = QUICK_DRAWS if options.quick else DRAWS
    key, verdicts = Key("w", "r", "l"), []
    for values in islice(cycle(steady), draws):
        before, after = (
            {turn: [by * each for each in draw.choice([*values.values()])] for turn in range(TURNS)}
            for by in (1.0, SLOWER)
        )
        (row,) = compare(Part({key: before}), Part({key: after}))
        verdicts.append(row.verdict)
    share = verdicts.count("slower") / draws
    text = f"{share:.1%} of {draws} draws from {len(steady)} rows, {TURNS} repeats a side"
    yield at_least("3 % slower is found, spread <= 2 %", 0.95, share, text, ".0%")


def spread_of(values: Mapping[int, Sequence[float]]) -> float:
    """Return (greatest - least) / median of the repeats."""
    means = [median(each) for each in values.values()]
    return (max(means) - min(means)) / median(means)


if __name__ == "__main__":
    sys.exit(main())
