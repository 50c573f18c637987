"""Draw everything that a results folder can show."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from harness.report.claims import judge
from harness.report.figures import BrokenFigure, Drawn, draw_figures
from harness.report.folder import read_results
from harness.results.folder import write_whole

__all__ = ["Rendered", "render"]


@dataclass(frozen=True, slots=True)
class Rendered:
    """What was drawn of a results folder."""

    files: tuple[Path, ...]
    broken: tuple[BrokenFigure, ...]
    """Figures that could not be drawn; the page has their errors in their places."""


def render(folder: Path) -> Rendered:
    """Write claims.json, figures/ and report.html into a results folder, finished or not.

    Raises ResultsError when the folder cannot be read.
    """
    from harness.report.page import write_page

    results = read_results(folder)
    claims = judge(results)
    stored = folder / "claims.json"
    text = json.dumps([asdict(claim) for claim in claims], indent=1, ensure_ascii=False) + "\n"
    write_whole(stored, text.encode())
    figures = draw_figures(results)
    page = write_page(results, claims, figures)
    drawn = [figure for figure in figures if isinstance(figure, Drawn)]
    files = (stored, *(path for figure in drawn for path in (figure.png, figure.svg)), page)
    return Rendered(files, tuple(figure for figure in figures if isinstance(figure, BrokenFigure)))
