"""A results folder judged, and everything drawn that it can show."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from harness.report import figures
from harness.report.claims import Claim, judge, read_claims
from harness.report.figures import BrokenFigure, DrawnFigure, draw_figures, find_claim_files, list_claimed
from harness.results.files import write_whole
from harness.results.folder import RunFolder
from harness.results.reader import Results, read_results


@dataclass(frozen=True, slots=True)
class Report:
    """A results folder and the verdicts on the claims, which the page and the terminal's tables show."""

    results: Results
    claims: tuple[Claim, ...]


@dataclass(frozen=True, slots=True)
class Rendered:
    """The files that were drawn of a results folder."""

    files: tuple[Path, ...]
    broken: tuple[BrokenFigure, ...]
    """Figures that could not be drawn. The page shows their errors in their places."""


def read_report(folder: Path) -> Report:
    """Read a results folder, finished or not, and judge the claims.

    Raises ResultsError when the folder cannot be read.
    """
    results = read_results(folder)
    return Report(results, judge_claims(results))


def judge_claims(results: Results) -> tuple[Claim, ...]:
    """Judge the claims of the run's figures, and those that figures of the user's own bring."""
    return judge(results, list_claimed(results), find_claim_files(results.experiment.figures))


def check_figures(names: Sequence[str]) -> None:
    """Raise ResultsError naming a figure that is not there, or one of the user's own whose code or claims are wrong."""
    figures.check_figures(names)
    for path in find_claim_files(names):
        read_claims(path)


def render(report: Report) -> Rendered:
    """Write claims.json, figures/ and report.html into the results folder.

    Raises ResultsError for a damaged file, and OSError when the folder cannot be written.
    """
    from harness.report.page import write_page

    stored = write_claims(report)
    found = draw_figures(report.results)
    page = write_page(report.results, report.claims, found)
    drawn = [figure for figure in found if isinstance(figure, DrawnFigure)]
    files = (stored, *(path for figure in drawn for path in (figure.png, figure.svg)), page)
    return Rendered(files, tuple(figure for figure in found if isinstance(figure, BrokenFigure)))


def write_claims(report: Report) -> Path:
    """Write claims.json into the results folder; returns its path. Raises OSError when the folder cannot be written."""
    stored = RunFolder(report.results.folder).claims
    text = json.dumps([asdict(claim) for claim in report.claims], indent=1, ensure_ascii=False) + "\n"
    write_whole(stored, text.encode())
    return stored
