"""`python -m harness.papers [list | run | score | submit]`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from rich.console import Console

from harness.errors import BROKEN_FIGURE, INVALID_ROWS, CellError, ConfigError, HarnessError, TestbedError
from harness.papers.items import count_verdicts, find_runs, list_papers
from harness.results.files import write_whole
from harness.system.disk import disk_errors
from harness.system.program import run_program
from joulefeed.table import Table, TableColumn, print_table

_OUT: Final = Path("results/papers")
_KEPT: Final = Path("benchmarks/results/papers")
_PAGE: Final = Path("docs/scorecard.md")
_MACHINES: Final = Path("benchmarks/results/machines")
_MACHINES_PAGE: Final = Path("docs/machines.md")
_DESCRIPTION: Final = """\
The figures and tables of five papers: the command of each, a run of all of them, and what of them reproduces.

  python -m harness.papers                    every item, its command, and its last verdicts here
  python -m harness.papers run                run what has no whole run yet, in some four hours
  python -m harness.papers run --paper emlio  those of one paper; the same command goes on after an interruption
  python -m harness.papers score              keep the runs, and write docs/scorecard.md
  python -m harness.papers submit results/latest --machine NAME
                                              keep any run as this machine's, and write docs/machines.md: a pull
                                              request with both puts it beside other machines

exit status
  0 every experiment is done                    2 a wrong argument or folder
  3 an experiment failed; the others are done   4 this machine lacks what an experiment needs; the others are done
"""


def main(argv: Sequence[str] | None = None) -> int:
    """List, run or score; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m harness.papers", description=_DESCRIPTION, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument(
        "do", nargs="?", default="list", choices=["list", "run", "score", "submit"], help="(default: list)"
    )
    parser.add_argument(
        "folders", nargs="*", metavar="FOLDER", help="of submit: runs' folders (default: results/latest)"
    )
    parser.add_argument("--machine", default="", metavar="NAME", help="of submit: such as xeon-2-cores")
    parser.add_argument("--paper", metavar="NAME", help="emlio, minato, cassandra_dali, spdl or textbook")
    parser.add_argument("--scale", default="small", choices=["small", "full"], help="(default: small)")
    parser.add_argument("--experiments", nargs="+", default=[], metavar="NAME", help="of run: these alone")
    parser.add_argument("--out", type=Path, default=_OUT, metavar="FOLDER", help=f"the runs' folder ({_OUT})")
    parser.add_argument("--kept", type=Path, default=_KEPT, metavar="FOLDER", help=f"of score: the kept runs ({_KEPT})")
    parser.add_argument("--page", type=Path, default=_PAGE, metavar="FILE", help=f"of score ({_PAGE})")
    options = parser.parse_args(argv)
    if options.folders and options.do != "submit":
        parser.error(f"{options.do} takes no FOLDER")
    try:
        with disk_errors({"--out": options.out, "--kept": options.kept}):
            return {"list": _list, "run": _run, "score": _score, "submit": _submit}[options.do](options)
    except HarnessError as error:
        Console(stderr=True, style="red").print(f"error: {error}", highlight=False, markup=False, soft_wrap=True)
        return error.exit_status


def _list(options: argparse.Namespace) -> int:
    runs = find_runs([options.out.parent, options.out], options.scale)
    rows: list[list[str]] = []
    sections: set[int] = set()
    for paper in list_papers(options.paper).values():
        sections.add(len(rows))
        for item in paper.items:
            run = runs.get(item.experiment)
            claims = run.claims_of(item.figure or item.experiment) if run else []
            found = f"{count_verdicts(claims) or 'no claim'}, {run.described['started_utc'][:10]}" if run else ""
            command = f"+experiment={item.experiment}" if item.experiment else f"absent: {item.absent}"
            rows.append(
                [f"{paper.name} {item.item}", command, f"{item.minutes:g}" if item.minutes else "", found, item.needs]
            )
    heads: list[TableColumn | str] = [
        "",
        TableColumn("python -m harness", left=True, wraps=True),
        "minutes",
        TableColumn("last", left=True),
        TableColumn("needs besides", left=True, wraps=True, optional=1),
    ]
    notes = [
        "minutes: of the small size on two cores",
        "last: claims by verdict of the newest run here",
        "✓ PASS, ✗ FAIL, ≈ INCONCLUSIVE, – NOT CHECKED",
    ]
    print_table(Table(heads, rows, notes, sections=frozenset(sections - {0})), Console())
    return 0


def _run(options: argparse.Namespace) -> int:
    from harness.papers.page import write_pages
    from harness.papers.run import run_papers

    papers = list_papers(options.paper)
    ended = run_papers(papers, options.out, options.scale, options.experiments)
    for one in ended:
        how = "this machine lacks what it needs" if one.status == TestbedError.exit_status else f"status {one.status}"
        print(f"{one.experiment}: {how}, {one.seconds / 60:.1f} min", file=sys.stderr)
    for page in write_pages(papers, find_runs([options.out], options.scale), options.out):
        print(page)
    failed = {one.status for one in ended} - {0, INVALID_ROWS, BROKEN_FIGURE}
    return CellError.exit_status if failed - {TestbedError.exit_status} else max(failed, default=0)


def _score(options: argparse.Namespace) -> int:
    from harness.papers.score import keep, make_scorecard

    keep(find_runs([options.out], options.scale), options.kept)
    write_whole(options.page, make_scorecard(list_papers(), options.kept).encode())
    print(options.page)
    return 0


def _submit(options: argparse.Namespace) -> int:
    from harness.papers.machines import make_machines_page, submit

    if not _MACHINES_PAGE.parent.is_dir():
        raise ConfigError(f"{_MACHINES_PAGE.parent}: there is no such folder; start in a clone of joulefeed")
    submit(options.folders or ["results/latest"], options.machine, _MACHINES)
    write_whole(_MACHINES_PAGE, make_machines_page(_MACHINES).encode())
    print(_MACHINES_PAGE)
    return 0


if __name__ == "__main__":
    run_program(main)
