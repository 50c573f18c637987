"""Machines side by side: what an experiment took on each, from runs that people hand in."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import Final

from harness.errors import ConfigError, ResultsError
from harness.papers.items import PaperRun, count_verdicts
from harness.papers.score import find_kept, keep
from harness.report.summary import Stat
from harness.results.epoch_row import EpochRow, read_rows, select_settled
from harness.results.folder import RunFolder
from joulefeed.table import Table, TableColumn, to_markdown

_NAME: Final = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
_HEAD: Final = """\
# Machines side by side

The same experiments on different machines: the median seconds of an epoch, and its joules where sensors measured all of
them. A run is handed in by

    python -m harness.papers submit results/latest --machine a-name

which judges the run again from its raw files, copies its rows, checks, claims and provenance to
[benchmarks/results/machines](../benchmarks/results/machines), and writes this page; a pull request brings both. The
copy has no name of the host and no path of the user's home. A run of changed code, or without a valid row of one of its
loaders, is refused.
"""


def submit(folders: Sequence[str], machine: str, machines: Path) -> None:
    """Keep runs as those of a machine.

    Raises ConfigError for a name that is none, and ResultsError for a run that is incomplete, of changed code, without
    a valid row of some loader, or not what its raw files contain.
    """
    if not _NAME.fullmatch(machine):
        raise ConfigError(f"--machine {machine!r}: expected lower-case words and numbers, such as xeon-2-cores")
    runs = {}
    for folder in folders:
        run = PaperRun(RunFolder.find(folder, Path("results")))
        if problem := _find_problem(run):
            raise ResultsError(f"{run.run.folder}: {problem}")
        runs[run.run.read_plan().experiment] = run
    keep(runs, machines / machine)


def _find_problem(run: PaperRun) -> str:
    """Return why nobody could compare a run with others, or nothing."""
    if not run.run.is_whole:
        return "is not whole: python -m harness resume=FOLDER goes on with it"
    if not re.fullmatch("[0-9a-f]{7}", run.described["commit"]):
        return f"its code is that of commit {run.described['commit']}: run a commit as it is"
    groups = _group(read_rows(run.run.epochs_parquet, EpochRow))
    without = [" · ".join(group) for group, rows in groups.items() if not any(row.is_valid for row in rows)]
    return f"{without[0]}: no row is valid; resume_invalid=true measures them again" if without else ""


def make_machines_page(machines: Path) -> str:
    """Return the page: each experiment with a column a machine."""
    kept = {folder.name: find_kept(folder) for folder in sorted(machines.glob("*")) if folder.is_dir()}
    described = [
        [name, run.described["machine"], run.described["started_utc"][:10], run.described["commit"], experiment]
        for name, runs in kept.items()
        for experiment, run in runs.items()
    ]
    heads = [TableColumn(head, left=True) for head in ("machine", "processors", "date", "commit", "experiment")]
    lines = [_HEAD, to_markdown(Table(heads, described)), ""]
    for experiment in sorted({experiment for runs in kept.values() for experiment in runs}):
        here = {name: runs[experiment] for name, runs in kept.items() if experiment in runs}
        lines += [f"## {experiment}", "", to_markdown(_compare(here)), ""]
    return "\n".join(lines).rstrip() + "\n"


def _compare(runs: Mapping[str, PaperRun]) -> Table:
    tables = [_group(read_rows(run.run.epochs_parquet, EpochRow)) for run in runs.values()]
    groups = dict.fromkeys(group for table in tables for group in table)
    rows = [[*group, *(_write_epoch(table.get(group, ())) for table in tables)] for group in groups]
    rows.append(["claims", "", "", *(count_verdicts(run.claims) or "none" for run in runs.values())])
    heads = [TableColumn(head, left=True) for head in ("workload", "regime", "loader")]
    return Table([*heads, *runs], rows)


def _group(rows: Sequence[EpochRow]) -> dict[tuple[str, str, str], Sequence[EpochRow]]:
    ordered = sorted(rows, key=lambda row: (row.workload, row.rtt_ms or 0.0, row.regime, row.loader))
    return {group: tuple(found) for group, found in groupby(ordered, attrgetter("workload", "regime", "loader"))}


def _write_epoch(rows: Sequence[EpochRow]) -> str:
    valid = [row for row in select_settled(rows) or rows if row.is_valid]
    seconds = Stat.of(row.duration_s for row in valid)
    measured = Stat.of(None if row.estimated else row.total_j for row in valid)
    joules = f", {measured.median:.3g} J" if measured else ""
    return f"{seconds.median:.3g} s{joules}" if seconds else "–"
