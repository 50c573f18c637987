"""The table that a --multirun ends with: what each of its runs changed, and what came out."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.text import Text

from harness.config.sweep import SweepJob, changed
from harness.errors import ResultsError
from harness.report.labels import UNKNOWN, joules, regime_labels, seconds, spell
from harness.report.summary import summarise
from harness.report.tables import choose_style
from harness.report.terminal import make_plain_table, print_whole
from harness.results.reader import read_results


def print_jobs(jobs: Sequence[SweepJob], console: Console) -> None:
    """Print the medians of every job, one line each workload, regime and loader, and where its results are."""
    names = ("workload", "regime", "loader")
    heads = ("job", *names, "epoch", "energy", "valid")
    table = make_plain_table(*heads, left=("job", *names), gap=2 if console.width >= 100 else 1)
    table.columns[0].no_wrap, table.columns[0].overflow = False, "fold"
    for number, (job, overrides) in enumerate(zip(jobs, changed(jobs), strict=True), 1):
        # The last part of a key is enough here; the list below has all of it.
        title = " ".join((f"{number}:", *(_short(override) for override in overrides)))
        rows = _rows(job)
        for position, row in enumerate(rows):
            table.add_row(Text(title if position == 0 else "", "bold"), *row, end_section=position == len(rows) - 1)
        if not rows:
            table.add_row(Text(title, "bold"), "", "", "", UNKNOWN, UNKNOWN, Text("no rows", "red"), end_section=True)
    console.print()
    print_whole(console, table)
    console.print()
    for number, (job, overrides) in enumerate(zip(jobs, changed(jobs), strict=True), 1):
        console.print(Text(" ".join((f"{number}:", *overrides)), "bold"), soft_wrap=True)
        if job.error:
            console.print(Text(f"   {job.error}", "red"), soft_wrap=True)
        if job.folder is not None:
            console.print(Text(f"   {job.folder}"), soft_wrap=True)


def _short(override: str) -> str:
    key, equals, value = override.partition("=")
    return key.rpartition(".")[2] + equals + value


def _rows(job: SweepJob) -> list[list[str | Text]]:
    if job.folder is None:
        return []
    try:
        results = read_results(job.folder)
    except ResultsError:  # interrupted before there was anything to read
        return []
    labels = regime_labels(results)
    rows: list[list[str | Text]] = []
    for group in summarise(results):
        energy = joules(group.total_j.median) if group.total_j else UNKNOWN
        rows.append(
            [
                spell(group.workload),
                labels[group.regime],
                spell(group.loader),
                seconds(group.time_s.median) if group.time_s else UNKNOWN,
                f"{energy} est." if group.estimated and group.total_j else energy,
                Text(f"{group.valid} of {group.planned}", choose_style(group.valid, group.planned)),
            ]
        )
    return rows
