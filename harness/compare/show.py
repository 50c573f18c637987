"""A comparison as a table on the terminal, Markdown for a pull request, a page with a figure, and JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from html import escape
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Final

from harness.compare.sides import Key, Metric, Side, list_subjects, list_unlike
from harness.compare.verdicts import SAME_WITHIN, ComparedRow, Verdict, compare
from harness.errors import ResultsError
from harness.report.labels import factor, joules, least_difference, percent, regime_labels, seconds, spell
from joulefeed.table import Style, Table, TableCell, TableColumn, print_table, to_html, to_markdown

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from rich.console import Console

_ROUND: Final = (0.1, 0.2, 0.5, 2.0, 5.0, 10.0, 0.7, 0.8, 1.25, 1.5, 0.9, 1.1, 0.95, 1.05, 0.98, 1.02, 0.99, 1.01)
"""Ratios that an axis names; the first ones first."""
_WORDS: Final[Mapping[tuple[Metric, Verdict], str]] = {
    ("joules", "slower"): "more joules",
    ("joules", "faster"): "fewer joules",
}
_STYLES: Final[Mapping[Verdict, Style]] = {"slower": "bad", "faster": "good", "same": "", "undecided": "warn"}


@dataclass(frozen=True)
class SidesCompared:
    """Two sides, compared."""

    before: Side
    after: Side
    rows: Sequence[ComparedRow]
    unlike: Mapping[str, Sequence[str]]
    """Differences of the sides that were accepted, by kind."""
    subjects: Sequence[str]
    """Code and settings in which they differ, and which are compared."""
    same_within: float = SAME_WITHIN

    @classmethod
    def of(
        cls, before: Side, after: Side, *, same_within: float = SAME_WITHIN, accepted: Collection[str] = ()
    ) -> SidesCompared:
        """Compare two sides; raises ResultsError naming each difference that is not accepted, and without a row."""
        unlike = list_unlike(before, after)
        refused = {kind: lines for kind, lines in unlike.items() if kind not in accepted}
        if refused:
            listed = "\n".join(f"  {kind}: {line}" for kind, lines in refused.items() for line in lines)
            raise ResultsError(
                f"{after.name} is not like {before.name}:\n{listed}\n"
                f"--accept {' '.join(refused)} compares them all the same"
            )
        rows = compare(before, after, same_within=same_within)
        if not rows:
            raise ResultsError(
                f"{after.name} and {before.name} have no row in common: expected a loader that both have"
            )
        return cls(before, after, rows, unlike, list_subjects(before, after), same_within)

    def print(self, console: Console) -> None:
        """Print the table, and what a reader has to know beside it."""
        console.print(self.title, style="bold", highlight=False, markup=False, soft_wrap=True)
        print_table(self.table(), console)
        for line in self.remarks():
            console.print(line, style="dim", highlight=False, markup=False, soft_wrap=True)

    @property
    def one_sided(self) -> dict[str, set[Key]]:
        """Rows that one side alone has, by its name."""
        own, other = (set(side.keys) for side in (self.before, self.after))
        found = {self.before.name: own - other, self.after.name: other - own}
        return {name: keys for name, keys in found.items() if keys}

    @property
    def title(self) -> str:
        """Names both sides."""
        return f"{self.after.name} over {self.before.name}"

    def name(self, row: ComparedRow) -> str:
        """Return the name of a row: loader, workload and regime."""
        regime = regime_labels(self.before.runs[0])[row.key.regime]
        return f"{spell(row.key.loader)} · {spell(row.key.workload)} · {regime}"

    def table(self) -> Table:
        """Return the rows as a table."""
        in_turns = self.before.alternates_with(self.after)
        notes = [
            "medians of settled epochs",
            "interval: 95 %, over repeats" + (" in turns" if in_turns else ""),
            f"same: the interval lies within {percent(self.same_within)}",
            "finds: the smallest difference that these repeats can show",
            "slower and faster of a report together are wrong in 5 % (Holm)",
        ]
        if any(not row.ratio.trusted for row in self.rows):
            notes.append("† a side has no valid row")
        heads: list[TableColumn | str] = [
            *("", "baseline", "candidate", "ratio", "95 % interval"),
            TableColumn("finds", optional=1),
            TableColumn("verdict", left=True),
        ]
        return Table(heads, [self._write(row) for row in self.rows], notes)

    def _write(self, row: ComparedRow) -> list[TableCell | str]:
        write = seconds if row.metric == "seconds" else joules
        found, style = row.ratio, _STYLES[row.verdict]
        interval = f"{found.interval.low:.3f} to {found.interval.high:.3f}" if found.interval else "one repeat"
        least = least_difference(found)
        ratio = TableCell(f"{found.value:.3f}" + "†" * (not found.trusted), style)
        return [self.name(row), write(row.before), write(row.after), ratio, interval, least, _verdict(row)]

    def remarks(self) -> list[str]:
        """Return what a reader has to know beside the table."""
        lines = [f"compared: {line}" for line in self.subjects]
        for kind, differences in self.unlike.items():
            lines += [f"accepted, {kind}: {line}" for line in differences]
        for side, keys in self.one_sided.items():
            names = ", ".join(sorted(f"{spell(key.loader)} in {key.regime}" for key in keys))
            lines.append(f"only in {side}: {names}")
        joules_of = [row.key for row in self.rows if row.metric == "joules"]
        every = [row for key in joules_of for side in (self.before, self.after) for row, _ in side.joules(key)]
        if any(row.energy_accuracy_j is None for row in every):
            lines.append("the sensors' accuracy is unknown, and so not in the intervals of joules")
        if not any(row.metric == "joules" for row in self.rows):
            lines.append("joules are not compared: no sensor measured them on both sides")
        if len(self.before.runs) == len(self.after.runs) == 1:
            lines.append(
                "one run a side: what changes from one run to the next is not in the intervals; "
                "--run measures both in turns"
            )
        return lines

    def to_markdown(self) -> str:
        """Return the comparison for a comment of a pull request."""
        table = self.table()
        named = replace(table, columns=["row", *table.columns[1:]])
        lines = [f"### {self.title}", "", to_markdown(named), "", table.explanation, ""]
        return "\n".join([*lines, *(f"- {line}" for line in self.remarks())]) + "\n"

    def to_json(self) -> str:
        """Return the ratios in bencher's metric format (bencher.dev, Bencher Metric Format)."""
        found: dict[str, dict[str, dict[str, float]]] = {}
        for row in self.rows:
            values = {"value": row.ratio.value}
            if row.ratio.interval is not None:
                values |= {"lower_value": row.ratio.interval.low, "upper_value": row.ratio.interval.high}
            found.setdefault(self.name(row), {})[f"{row.metric}-ratio"] = values
            found[self.name(row)][row.metric] = {"value": row.after}
        return json.dumps(found, indent=1, ensure_ascii=False) + "\n"

    def to_html(self) -> str:
        """Return a page with the figure and the table."""
        from harness.report.figures.style import make_page, use_house_style

        table, image = self.table(), StringIO()
        with use_house_style(self.title):
            self.draw().savefig(image, format="svg", metadata={"Date": None})
        drawn = image.getvalue()[image.getvalue().index("<svg") :]
        remarks = "".join(f"<li>{escape(line)}</li>" for line in self.remarks())
        return make_page(
            self.title,
            f'<figure class="chart">{drawn}</figure><div class="scroll">{to_html(table)}</div>'
            f"<p>{escape(table.explanation)}</p><ul>{remarks}</ul>",
        )

    def draw(self) -> Figure:
        """Draw each row's ratio with its interval, and the band of what counts as the same."""
        from matplotlib.figure import Figure

        from harness.report.figures.style import BAD, FAINT, GRID, INK, MUTED

        colours = {"slower": BAD, "faster": "#2f9e8a", "same": INK, "undecided": FAINT}
        figure = Figure(figsize=(8, 1.1 + 0.34 * len(self.rows)), layout="constrained")
        axes = figure.subplots()
        axes.axvspan(1 / (1 + self.same_within), 1 + self.same_within, color=GRID, zorder=0)
        axes.axvline(1, color=MUTED, linewidth=0.8)
        for place, row in enumerate(self.rows):
            colour = colours[row.verdict]
            if (interval := row.ratio.interval) is not None:
                axes.plot([interval.low, interval.high], [place, place], color=colour, linewidth=2)
            axes.plot([row.ratio.value], [place], "o", color=colour, markersize=5)
        axes.set_xscale("log")
        ends = [end for row in self.rows if (one := row.ratio.interval) for end in (one.low, one.high)]
        ends += [row.ratio.value for row in self.rows] + [1 / (1 + self.same_within), 1 + self.same_within]
        low, high = max(min(ends), 0.05) / 1.02, min(max(ends), 20) * 1.02
        axes.set_xlim(low, high)
        ticks = _ticks(low, high)
        axes.set_xticks(ticks, [factor(tick) for tick in ticks])
        axes.minorticks_off()
        unit = {"seconds": "s", "joules": "J"}
        axes.set_yticks(range(len(self.rows)), [f"{self.name(row)}, {unit[row.metric]}" for row in self.rows])
        axes.set_ylim(len(self.rows) - 0.4, -0.6)
        axes.grid(visible=False, axis="y")
        axes.set_xlabel("candidate over baseline, with its 95 % interval; grey: the same")
        return figure


def _verdict(row: ComparedRow) -> TableCell:
    word = _WORDS.get((row.metric, row.verdict), row.verdict)
    detail = ""
    if row.verdict == "undecided" and row.ratio.trusted:
        more = row.more_turns
        detail = f"{more} more repeats would decide" if more else "200 more repeats would not decide"
    return TableCell(word, _STYLES[row.verdict], detail)


def _ticks(low: float, high: float) -> list[float]:
    """Return round ratios between two ends, as far from each other as their labels need; 1 is one of them."""
    apart = 0.1 * math.log(high / low)
    found = [1.0]
    for value in _ROUND:
        if low <= value <= high and all(abs(math.log(value / other)) >= apart for other in found):
            found.append(value)
    return sorted(found)


def print_jobs_compared(folders: Sequence[Path], console: Console) -> None:
    """Compare every job of a --multirun with its first one, and print that, or why they cannot be compared."""
    first, *others = (Side.read([folder]) for folder in folders)
    for other in others:
        try:
            SidesCompared.of(first, other).print(console)
        except ResultsError as error:
            console.print(f"not compared: {error}", style="dim", highlight=False, markup=False, soft_wrap=True)
