"""The tables that a run ends with on the terminal."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from textwrap import fill

from rich.console import Console, RenderableType
from rich.console import Group as Stack
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from harness.report.caveats import list_caveats
from harness.report.claims import FAIL, INCONCLUSIVE, NOT_CHECKED, PASS, Claim
from harness.report.costs import explain_costs, make_cost_table
from harness.report.distance import Slowdown, compare_distances
from harness.report.figures import make_figure_tables
from harness.report.figures.definition import FigureTable
from harness.report.intervals import Ratio
from harness.report.joules import explain_joules, leave_last_column_out, make_joule_table
from harness.report.labels import (
    UNKNOWN,
    factor,
    joules,
    marked_ratio,
    percent,
    regime_labels,
    seconds,
    significant,
    span,
    spell,
)
from harness.report.problems import list_problems
from harness.report.render import Report
from harness.report.summary import (
    Group,
    Stat,
    choose_base,
    compute_ratio,
    describe_medians,
    explain_marks,
    find,
    summarise,
)
from harness.report.terminal import fits, make_list, make_plain_table, print_whole
from harness.results.epoch_row import SPREAD_LIMIT
from harness.results.reader import Results

_RATIO, _INTERVAL, _SPREAD, _USE = "ratio", "95 %", "spread", "utilisation and throughput"
_COLUMNS = frozenset({_RATIO, _INTERVAL, _SPREAD, _USE})
"""What the table of medians has beside the medians where there is room."""
SHOWN_PROBLEMS = 12
_MAX_COSTS = 24
"""Rows of costs and joules; more of them, such as those of a sweep, are on the page alone."""

_MARKS = {PASS: ("✓", "green"), FAIL: ("✗", "red"), INCONCLUSIVE: ("≈", "yellow")}
_CLAIM_LEGEND = "✓ holds, ✗ does not, ≈ not decided. Below a number: its 95 % interval over repeats."
_PROBLEM_STYLES = {"warning": "yellow", "not run": "dim"}


def print_table(report: Report, console: Console) -> None:
    """Print a run: medians, slowdowns, claims, problems and what to know before reading them."""
    results = report.results
    groups = summarise(results)
    console.print()
    console.print(_headline(results, groups))
    for workload in results.workloads:
        _print_medians(console, results, groups, workload)
        costs = make_cost_table(results, groups, workload)
        if costs is not None and len(costs.rows) <= _MAX_COSTS:
            console.print()
            print_whole(console, _figure_table(costs))
            if workload == results.workloads[-1]:
                console.print(Text(explain_costs(costs), "dim"))
        parts = make_joule_table(results, groups, workload)
        if parts is not None and len(parts.rows) <= _MAX_COSTS:
            while not fits(console, _figure_table(parts)) and len(parts.columns) > 2:
                parts = leave_last_column_out(parts)
            console.print()
            print_whole(console, _figure_table(parts))
            console.print(Text(explain_joules(parts), "dim"))
        found = compare_distances(results, groups, workload)
        if any(slowdown.ours is not None for slowdown in found):
            console.print()
            print_whole(console, _distance(results, found))
    for table in make_figure_tables(results):
        console.print()
        print_whole(console, _figure_table(table))
    if report.claims:
        console.print()
        _print_claims(console, report.claims)
    for part in (_problems(results), _caveats(results, groups)):
        if part is not None:
            console.print()
            console.print(part)


def print_medians(report: Report, console: Console) -> None:
    """Print the medians of a run, and nothing else of it."""
    groups = summarise(report.results)
    for workload in report.results.workloads:
        _print_medians(console, report.results, groups, workload)


def _print_medians(console: Console, results: Results, groups: Sequence[Group], workload: str) -> None:
    console.print()
    if len(results.workloads) > 1:
        console.print(Text(spell(workload), "bold"))
    columns = _columns(console, results, groups, workload)
    print_whole(console, _medians(results, groups, workload, columns))
    console.print(_legend(results, groups, columns))


def _headline(results: Results, groups: Sequence[Group]) -> Text:
    planned, valid = sum(group.planned for group in groups), sum(group.valid for group in groups)
    text = Text.assemble((results.name, "bold"), "  ", (_of(valid, planned), choose_style(valid, planned)))
    text.append(" epochs valid")
    if results.unfinished:
        text.append(f", {_of(len(results.unfinished), len(results.cells))} cells without a result", "red")
    return text


def _columns(console: Console, results: Results, groups: Sequence[Group], workload: str) -> frozenset[str]:
    """Return what the table of medians has room for."""
    compared = choose_base(results) is not None
    every = _COLUMNS if compared else _COLUMNS - {_RATIO, _INTERVAL}
    choices = (every, every - {_USE}, every - {_INTERVAL, _USE}, every - {_INTERVAL, _USE, _SPREAD})
    roomy = (columns for columns in choices if fits(console, _medians(results, groups, workload, columns)))
    return next(roomy, frozenset())


def _medians(results: Results, groups: Sequence[Group], workload: str, columns: frozenset[str]) -> Table:
    labels = regime_labels(results)
    wide = _USE in columns
    spread = slice(None) if _SPREAD in columns else slice(1)
    all_estimated = _all_estimated(groups)
    beside = [name for name in (_SPREAD, _RATIO, _INTERVAL) if name in columns]
    energy = ("estimate" if all_estimated else "energy", *beside, *(("AU", "MB/s") if wide else ()))
    heads = ("regime", "loader", "epoch", *beside, *energy, "valid")
    table = make_plain_table(*heads, left=("regime", "loader"), gap=2 if wide else 1)
    for regime in results.regimes:
        here = [group for group in groups if (group.workload, group.regime) == (workload, regime)]
        for position, group in enumerate(here):
            base = None if group.loader in results.bounds else find(groups, workload, regime, choose_base(results))
            cells: list[str | Text] = [
                Text(spell(group.loader), "cyan" if group.loader == results.streaming else ""),
                *_stat(group, group.time_s, seconds(_median(group.time_s)))[spread],
            ]
            cells += _ratio(compute_ratio(group, base), columns)
            estimate = bool(group.estimated) and not all_estimated
            total = joules(_median(group.total_j)) + (" est." if estimate and group.total_j else "")
            cells += _stat(group, group.total_j, total)[spread]
            cells += _ratio(compute_ratio(group, base, lambda row: row.total_j), columns)
            if wide:
                cells += [percent(group.au), UNKNOWN if group.mb_per_s is None else significant(group.mb_per_s)]
            first = Text(labels[regime].replace(", ", ",\n"), "bold") if position == 0 else ""
            table.add_row(first, *cells, _valid(group), end_section=position == len(here) - 1)
    return table


def _median(stat: Stat | None) -> float | None:
    return None if stat is None else stat.median


def _stat(group: Group, stat: Stat | None, text: str) -> list[str | Text]:
    spread = stat.spread if stat else None
    style = "" if group.trusted else "dim"
    wide_spread = spread is not None and spread >= SPREAD_LIMIT
    return [Text(text, style), Text(percent(spread), "yellow" if wide_spread and group.trusted else "dim")]


def _ratio(found: Ratio | None, columns: frozenset[str]) -> list[str | Text]:
    texts = {_RATIO: _ratio_text(found), _INTERVAL: Text(span(found), "dim")}
    return [text for name, text in texts.items() if name in columns]


def _ratio_text(found: Ratio | None) -> Text:
    return Text(marked_ratio(found), "dim" if found is None or found.is_noise or not found.trusted else "")


def _valid(group: Group) -> Text:
    mark = "" if group.trusted or not group.measured else " †"
    return Text(_of(group.valid, group.planned) + mark, choose_style(group.valid, group.planned))


def choose_style(valid: int, planned: int) -> str:
    """Return the colour of how many of the planned rows are valid."""
    return "green" if valid == planned else "yellow" if valid else "red"


def _of(part: int, whole: int) -> str:
    return f"{part} of {whole}"


def _all_estimated(groups: Iterable[Group]) -> bool:
    known = [group for group in groups if group.total_j is not None]
    return bool(known) and all(group.estimated for group in known)


def _legend(results: Results, groups: Sequence[Group], columns: frozenset[str]) -> Text:
    counts = [len(group.time_s.values) for group in groups if group.time_s]
    parts = [describe_medians(groups)]
    if _SPREAD in columns and any(count > 1 for count in counts):
        parts.append("spread: largest − smallest, of the median")
    if _RATIO in columns and (base := choose_base(results)) is not None:
        parts.append(f"ratio: to {spell(base)} in the same regime, {explain_marks(groups)}")
    if _all_estimated(groups):
        parts.append("estimate: joules that no sensor measured")
    if any(group.measured and not group.trusted for group in groups):
        parts.append("†: no valid row behind it, but invalid ones")
    return Text("; ".join(parts) + ".", "dim")


def _distance(results: Results, found: Sequence[Slowdown]) -> Table:
    labels = regime_labels(results)
    near = found[0].near
    head = f"epoch against {labels[near]}"
    table = make_plain_table(head, left=(head,), gap=2)
    has_paper = any(slowdown.paper is not None for slowdown in found)
    for regime in results.regimes[1:]:
        table.add_column(labels[regime].replace(", ", ",\n"), justify="right", no_wrap=True)
        if has_paper:
            table.add_column("paper", justify="right", no_wrap=True, style="dim")
    for loader in results.readers:
        row: list[str | Text] = []
        for slowdown in (one for one in found if one.loader == loader):
            row.append(_ratio_text(slowdown.ours))
            if has_paper:
                row.append(factor(slowdown.paper))
        table.add_row(spell(loader), *row)
    return table


def _figure_table(told: FigureTable) -> Table:
    table = make_plain_table()
    for position, name in enumerate(told.columns):
        # A number is never cut; its heading is broken to the width of the numbers.
        width = max(map(len, [*name.split(), *(row[position] for row in told.rows)]))
        heading, side = (name, "left") if position == 0 else (fill(name, width), "right")
        table.add_column(heading, justify=side, no_wrap=position > 0)  # type: ignore[arg-type]
    for position, row in enumerate(told.rows):
        table.add_row(*row, style="dim" if position in told.dim else "")
    return table


def _print_claims(console: Console, claims: Sequence[Claim]) -> None:
    judged = [claim for claim in claims if claim.verdict != NOT_CHECKED]
    skipped = [claim for claim in claims if claim.verdict == NOT_CHECKED]
    if judged:
        table = make_plain_table()
        table.add_column("")
        table.add_column("claims of the paper")
        table.add_column("here", justify="right", no_wrap=True)
        table.add_column("paper", justify="right", no_wrap=True, style="dim")
        shown: set[str] = set()
        for claim in judged:
            mark, style = _MARKS[claim.verdict]
            here = Text.assemble((claim.actual, style), (f"\n{claim.span or 'one repeat'}", "dim"))
            sentence = Text(claim.claim)
            if claim.conflict and claim.conflict not in shown:
                shown.add(claim.conflict)
                sentence.append(f"\nThe paper contradicts itself: {claim.conflict}", "dim")
            table.add_row(Text(mark, style), sentence, here, claim.expected)
        print_whole(console, table)
        console.print(Text(_CLAIM_LEGEND, "dim"))
    if skipped:
        reasons = "; ".join(dict.fromkeys(reason for claim in skipped for reason in claim.reason.split("; ")))
        which = "One claim of the paper is" if len(skipped) == 1 else f"{len(skipped)} claims of the paper are"
        console.print(Text(f"{which} not checked: {reasons}.", "dim"))


def _problems(results: Results) -> RenderableType | None:
    found = list_problems(results)
    if not found:
        return None
    grid = make_list([])
    for problem in found[:SHOWN_PROBLEMS]:
        where = problem.where if problem.count == 1 else f"{problem.where} ({problem.count} times)"
        text = f"{where}: {problem.text}" if problem.text else where
        grid.add_row(Text(problem.kind, _PROBLEM_STYLES.get(problem.kind, "red")), Text(text))
    if len(found) > SHOWN_PROBLEMS:
        grid.add_row("", Text(f"and {len(found) - SHOWN_PROBLEMS} more; report.html lists all", "dim"))
    return Stack(Text("Not as planned", "bold"), grid)


def _caveats(results: Results, groups: Sequence[Group]) -> RenderableType | None:
    found = list_caveats(results, groups)
    if not found:
        return None
    grid = make_list((Text(one.topic, "yellow" if one.weakens else "dim"), Text(one.text)) for one in found)
    return Padding(Stack(Text("To know", "bold"), grid), (0, 0, 1, 0))
