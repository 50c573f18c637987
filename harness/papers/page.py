"""A page a paper: each item's figure beside the paper's values, and every claim."""

from __future__ import annotations

import os
from collections.abc import Mapping
from html import escape
from pathlib import Path
from typing import Any

from harness.papers.items import PaperRun, count_verdicts
from harness.report.claims.bound import MARKS
from harness.report.figures.style import make_page
from harness.report.papers import Paper, PaperItem
from harness.results.files import write_whole
from joulefeed.table import Table, TableCell, TableColumn, to_html


def write_pages(papers: Mapping[str, Paper], runs: Mapping[str, PaperRun], out: Path) -> list[Path]:
    """Write NAME.html into `out` for each paper; returns their paths."""
    written = []
    for name, paper in papers.items():
        parts = [part for item in paper.items for part in _write_item(item, runs.get(item.experiment), out)]
        page = make_page(paper.name, f"<p>{escape(paper.citation)}</p>{''.join(parts)}")
        written.append(out / f"{name}.html")
        write_whole(written[-1], page.encode())
    return written


def _write_item(item: PaperItem, run: PaperRun | None, out: Path) -> list[str]:
    if run is None:
        why = item.absent or f"not run here: python -m harness +experiment={item.experiment}"
        return [f"<h2>{escape(item.item)}</h2><p>{escape(why)}</p>"]
    figure = item.figure or item.experiment
    claims = run.claims_of(figure)
    folder = Path(os.path.relpath(run.run.folder, out))
    parts = [f"<h2>{escape(item.item)}: {escape(count_verdicts(claims) or 'no claim')}</h2>"]
    parts.append(f'<p><a href="{folder}/report.html">{escape(run.run.folder.name)}</a></p>')
    parts += [
        f'<figure><img style="max-width:100%" src="{folder}/figures/{path.name}" alt="{path.stem}"></figure>'
        for path in sorted((run.run.folder / "figures").glob(f"{figure}*.png"))
    ]
    heads = [TableColumn(name, left=True) for name in ("", "claim", "here", "paper", "why")]
    rows = [_write_claim(claim) for claim in claims]
    return [*parts, f'<div class="scroll">{to_html(Table(heads, rows))}</div>' if rows else ""]


def _write_claim(claim: Mapping[str, Any]) -> list[TableCell | str]:
    here = TableCell(claim["actual"], detail=claim["span"])
    return [TableCell(*MARKS[claim["verdict"]]), claim["claim"], here, claim["expected"], claim["reason"]]
