"""Draw everything that a results folder can show."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

from harness.report.claims import judge
from harness.report.folder import read_results

__all__ = ["render"]


def render(folder: Path) -> list[Path]:
    """Write claims.json, figures/ and report.html into a results folder, finished or not; returns the files.

    Raises ResultsError when the folder cannot be read or names a figure that is not there.
    """
    from harness.report.figures import draw_figures
    from harness.report.page import write_page

    results = read_results(folder)
    claims = judge(results)
    stored = folder / "claims.json"
    stored.write_text(json.dumps([asdict(claim) for claim in claims], indent=1, ensure_ascii=False) + "\n", "utf-8")
    figures = draw_figures(results)
    page = write_page(results, claims, figures)
    return [stored, *(path for figure in figures for path in (figure.png, figure.svg)), page]
