"""The tables that a run, or several runs of a --multirun, end with on the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Final

from rich.console import Console
from rich.text import Text

from harness.config.sweep import SweepJob, changed
from harness.errors import ResultsError
from harness.report.claims import NOT_CHECKED, Claim, group_unchecked
from harness.report.claims.bound import MARKS
from harness.report.costs import make_cost_table, make_joule_table
from harness.report.distance import make_distance_table
from harness.report.figures import make_figure_tables
from harness.report.labels import (
    MODEL_CHECK,
    UNKNOWN,
    joules,
    label_table,
    least_difference,
    percent,
    regime_labels,
    seconds,
    significant,
    span,
    spell,
    write_ratio,
)
from harness.report.remarks import list_caveats, list_problems, write_headline
from harness.report.render import Report
from harness.report.summary import (
    LoaderGroup,
    Stat,
    choose_base,
    compute_joule_ratio,
    compute_ratio,
    describe_medians,
    explain_marks,
    find,
    summarise,
)
from harness.results.epoch_row import SPREAD_LIMIT
from harness.results.reader import Results, read_results
from joulefeed.table import Style, Table, TableCell, TableColumn, print_table

SHOWN_PROBLEMS: Final = 12
_MAX_ROWS: Final = 24
"""Rows of costs and joules; more of them, such as those of a sweep, are on the page alone."""
_RATIO, _SPREAD, _LEAST, _INTERVAL, _USE, _BOUNDS = 1, 2, 3, 4, 5, 6
"""The order in which columns beside the medians stay where there is little room."""
_CLAIM_LEGEND: Final = "✓ holds, ✗ does not, ≈ not decided; below a number: its 95 % interval over repeats"
_LIST: Final = (TableColumn("", left=True), TableColumn("", left=True, wraps=True))
"""The columns of a list: a mark or topic, and a text."""


def print_report(report: Report, console: Console) -> None:
    """Print a run: medians, slowdowns, claims, problems and what to know before reading them."""
    results, groups = report.results, summarise(report.results)
    console.print()
    console.print(_name_run(results, groups))
    console.print(write_headline(results, groups), highlight=False)
    for workload in results.workloads:
        title = spell(workload) if len(results.workloads) > 1 else ""
        _print(label_table(results, _make_median_table(results, groups, workload)), console, title)
        for table in (make_cost_table(results, groups, workload), make_joule_table(results, groups, workload)):
            if table is not None and len(table.rows) <= _MAX_ROWS:
                _print(label_table(results, table), console)
        distances = make_distance_table(results, groups, workload)
        _print(distances and label_table(results, distances), console)
    for table in make_figure_tables(results):
        _print(table, console)
    _print_claims(console, report.claims)
    _print(_list_problems(results), console, "Not as planned")
    rows = [(TableCell(one.topic, "warn" if one.weakens else "dim"), one.text) for one in list_caveats(results, groups)]
    _print(Table(_LIST, rows) if rows else None, console, "To know")
    console.print()


def print_jobs(jobs: Sequence[SweepJob], console: Console) -> None:
    """Print the medians of every job, one line each workload, regime and loader, and where its results are."""
    rows: list[Sequence[TableCell | str]] = []
    sections = set()
    for number, (job, overrides) in enumerate(zip(jobs, changed(jobs), strict=True), 1):
        sections.add(len(rows))
        # The last part of a key is enough here; the list below has all of it.
        title = TableCell(" ".join((f"{number}:", *map(_shorten, overrides))), "strong")
        groups = _list_job_rows(job) or [["", "", "", UNKNOWN, UNKNOWN, TableCell("no rows", "bad")]]
        rows += [(title if place == 0 else "", *row) for place, row in enumerate(groups)]
    names = [TableColumn(name, left=True) for name in ("workload", "regime", "loader")]
    _print(
        Table(
            (TableColumn("job", left=True, wraps=True), *names, "epoch", "energy", "valid"),
            rows,
            sections=frozenset(sections),
        ),
        console,
    )
    console.print()
    for number, (job, overrides) in enumerate(zip(jobs, changed(jobs), strict=True), 1):
        console.print(Text(" ".join((f"{number}:", *overrides)), "bold"), soft_wrap=True)
        for line, style in ((job.error, "red"), (job.folder, "")):
            if line:
                console.print(Text(f"   {line}", style), soft_wrap=True)


def _print(table: Table | None, console: Console, title: str = "") -> None:
    """Print an empty line, a title and a table; nothing without a table."""
    if table is not None:
        console.print()
        if title:
            console.print(Text(title, "bold"))
        print_table(table, console)


def _name_run(results: Results, groups: Sequence[LoaderGroup]) -> Text:
    planned, valid = sum(group.planned for group in groups), sum(group.valid for group in groups)
    colour = {"good": "green", "warn": "yellow", "bad": "red"}[_choose_style(valid, planned)]
    text = Text.assemble((results.name, "bold"), "  ", (f"{valid} of {planned}", colour), " epochs valid")
    if results.unfinished:
        text.append(f", {len(results.unfinished)} of {len(results.cells)} cells without a result", "red")
    return text


def _choose_style(valid: int, planned: int) -> Style:
    return "good" if valid == planned else "warn" if valid else "bad"


def _make_median_table(results: Results, groups: Sequence[LoaderGroup], workload: str) -> Table:
    labels, base = regime_labels(results), choose_base(results)
    known = [group for group in groups if group.drawn_j is not None]
    all_estimated = bool(known) and all(group.estimated for group in known)
    ratios = [
        TableColumn(
            "ratio", optional=_RATIO, note=f"ratio: to {spell(base or '')} in the same regime, {explain_marks(groups)}"
        ),
        TableColumn("95\u00a0%", optional=_INTERVAL),
    ]
    repeated = any(group.time_s and len(group.time_s.values) > 1 for group in groups)
    spread = "spread: largest − smallest, of the median" if repeated else ""
    beside = [TableColumn("spread", optional=_SPREAD, note=spread), *(ratios if base else [])]
    told = "±: the smallest difference in time that the repeats can show, half of the ratio's 95 % interval"
    least = TableColumn("±", optional=_LEAST, note=told)
    bounded = any(group.error_j is not None or group.accuracy_j is not None for group in groups)
    untrusted = any(group.measured and not group.trusted for group in groups)
    columns: list[TableColumn | str] = [
        TableColumn("regime", left=True),
        TableColumn("loader", left=True),
        "epoch",
        *beside,
        *([least] if base and repeated else []),
        TableColumn("estimate" if all_estimated else "energy", note=_explain_energy(groups, all_estimated)),
        *beside[:1],
        *([TableColumn(head, optional=_BOUNDS) for head in ("resolution", "accuracy")] if bounded else []),
        *beside[1:],
        TableColumn("AU", optional=_USE),
        TableColumn("MB/s", optional=_USE),
        TableColumn("valid", note="†: no valid row behind it, but invalid ones" if untrusted else ""),
    ]
    rows: list[Sequence[TableCell | str]] = []
    sections = set()
    here = sorted(
        (group for group in groups if group.workload == workload), key=lambda group: results.regimes.index(group.regime)
    )
    for regime, members in groupby(here, key=lambda group: group.regime):
        sections.add(len(rows))
        first = TableCell(labels[regime].replace(", ", ",\n"), "strong")
        below = find(groups, workload, regime, base)
        for place, group in enumerate(members):
            compared = None if group.loader in results.bounds else below
            cells = _write_group(group, compared, bool(base), repeated, all_estimated, bounded)
            name = TableCell(spell(group.loader), "accent" if group.loader == results.streaming else "")
            rows.append((first if place == 0 else "", name, *cells))
    return Table(columns, rows, notes=(describe_medians(groups),), sections=frozenset(sections))


def _explain_energy(groups: Sequence[LoaderGroup], all_estimated: bool) -> str:
    is_emulated = any("gpu" in row.estimated for group in groups for row in group.rows)
    parts = ["joules that no sensor measured"] * all_estimated + ["without those of the emulated board"] * is_emulated
    return f"{'estimate' if all_estimated else 'energy'}: {', '.join(parts)}" if parts else ""


def _write_group(
    group: LoaderGroup, base: LoaderGroup | None, compared: bool, repeated: bool, all_estimated: bool, bounded: bool
) -> list[TableCell | str]:
    """Return the cells of one loader in one regime, from the epoch on."""
    total = joules(group.drawn_j.median if group.drawn_j else None)
    if group.estimated and group.drawn_j and not all_estimated:
        total += " est."
    time, energy = compute_ratio(group, base), compute_joule_ratio(group, base)
    cells = _write_stat(group, group.time_s, seconds(group.time_s.median if group.time_s else None))
    cells += [write_ratio(time), TableCell(span(time), "dim")] if compared else []
    cells += [TableCell(least_difference(time), "dim")] if compared and repeated else []
    cells += _write_stat(group, group.drawn_j, total)
    cells += [TableCell(text, "dim") for text in _write_bounds(group)] if bounded else []
    cells += [write_ratio(energy), TableCell(span(energy), "dim")] if compared else []
    cells += [percent(group.au), UNKNOWN if group.mb_per_s is None else significant(group.mb_per_s)]
    mark = "" if group.trusted or not group.measured else " †"
    return [*cells, TableCell(f"{group.valid} of {group.planned}{mark}", _choose_style(group.valid, group.planned))]


def _write_bounds(group: LoaderGroup) -> list[str]:
    """Return the resolution and the accuracy of joules; neither of joules that no sensor measured."""
    accuracy = UNKNOWN if group.error_j is None else "unknown"
    resolution, known = (None if one is None else f"±{joules(one)}" for one in (group.error_j, group.accuracy_j))
    return [resolution or UNKNOWN, known or accuracy]


def _write_stat(group: LoaderGroup, stat: Stat | None, text: str) -> list[TableCell | str]:
    """Return the cells of a median and its spread."""
    return [TableCell(text, "" if group.trusted else "dim"), _write_spread(group, stat)]


def _write_spread(group: LoaderGroup, stat: Stat | None) -> TableCell:
    spread = stat.spread if stat else None
    is_wide = spread is not None and spread >= SPREAD_LIMIT
    return TableCell(percent(spread), "warn" if is_wide and group.trusted else "dim")


def _print_claims(console: Console, claims: Sequence[Claim]) -> None:
    rows: list[Sequence[TableCell | str]] = []
    conflicts: set[str] = set()
    for claim in (claim for claim in claims if claim.verdict != NOT_CHECKED):
        mark, style = MARKS[claim.verdict]
        conflict = claim.conflict if claim.conflict not in conflicts else ""
        conflicts.add(claim.conflict)
        sentence = TableCell(claim.claim, detail=f"The paper contradicts itself: {conflict}" if conflict else "")
        here = TableCell(claim.actual, style, claim.span or "one repeat")
        rows.append((TableCell(mark, style), sentence, here, TableCell(claim.expected, "dim")))
    heads = (TableColumn("", left=True), TableColumn("claims of the paper", left=True, wraps=True), "here", "paper")
    _print(Table(heads, rows, notes=(_CLAIM_LEGEND,)) if rows else None, console)
    skipped = group_unchecked(claims)
    reasons = [(TableCell(str(len(of)), "dim"), TableCell(reason, "dim")) for reason, of in skipped.items()]
    _print(Table(_LIST, reasons) if reasons else None, console, "Claims not checked, by reason")


def _list_problems(results: Results) -> Table | None:
    found = list_problems(results)
    styles: dict[str, Style] = {"warning": "warn", "not run": "dim"}
    rows: list[tuple[TableCell | str, str]] = []
    for problem in found[:SHOWN_PROBLEMS]:
        where = problem.where if problem.count == 1 else f"{problem.where} ({problem.count} times)"
        rows.append(
            (TableCell(problem.kind, styles.get(problem.kind, "bad")), ": ".join(filter(None, (where, problem.text))))
        )
    if len(found) > SHOWN_PROBLEMS:
        rows.append(("", f"and {len(found) - SHOWN_PROBLEMS} more; report.html lists all"))
    return Table(_LIST, rows) if rows else None


def _shorten(override: str) -> str:
    key, equals, value = override.partition("=")
    return key.rpartition(".")[2] + equals + value


def _list_job_rows(job: SweepJob) -> list[list[TableCell | str]]:
    if job.folder is None:
        return []
    try:
        results = read_results(job.folder)
    except ResultsError:  # interrupted before there was anything to read
        return []
    labels = regime_labels(results)
    rows: list[list[TableCell | str]] = []
    for group in summarise(results):
        energy = joules(group.drawn_j.median if group.drawn_j else None)
        rows.append(
            [
                spell(group.workload) + (f" ({MODEL_CHECK})" if results.model_checks else ""),
                *(labels[group.regime], spell(group.loader)),
                seconds(group.time_s.median if group.time_s else None),
                f"{energy} est." if group.estimated and group.drawn_j else energy,
                TableCell(f"{group.valid} of {group.planned}", _choose_style(group.valid, group.planned)),
            ]
        )
    return rows
