"""A results folder judged, and everything drawn that it can show."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from harness.report.claims import Claim, judge
from harness.report.figures import BrokenFigure, Drawn, draw_figures
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
    return Report(results, judge(results))


def render(report: Report) -> Rendered:
    """Write claims.json, figures/ and report.html into the results folder.

    Raises ResultsError for a damaged file, and OSError when the folder cannot be written.
    """
    from harness.report.page import write_page

    stored = RunFolder(report.results.folder).claims
    text = json.dumps([asdict(claim) for claim in report.claims], indent=1, ensure_ascii=False) + "\n"
    write_whole(stored, text.encode())
    figures = draw_figures(report.results)
    page = write_page(report.results, report.claims, figures)
    drawn = [figure for figure in figures if isinstance(figure, Drawn)]
    files = (stored, *(path for figure in drawn for path in (figure.png, figure.svg)), page)
    return Rendered(files, tuple(figure for figure in figures if isinstance(figure, BrokenFigure)))
