"""How figures look: type, lines, hatches, and how they are saved."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import matplotlib as mpl
import seaborn as sns
from matplotlib.figure import Figure

from harness.report.figures.palette import FAINT, GRID, INK, MUTED, SURFACE

__all__ = ["house_style", "save"]

_RC = {
    "figure.facecolor": SURFACE,
    "axes.facecolor": SURFACE,
    "savefig.facecolor": SURFACE,
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans", "Verdana", "Arial", "sans-serif"],
    "font.size": 9.0,
    "text.color": INK,
    "axes.titlesize": 10.0,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.labelsize": 9.0,
    "axes.labelcolor": MUTED,
    "axes.edgecolor": FAINT,
    "axes.linewidth": 0.8,
    "axes.axisbelow": True,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.spines.left": False,
    "grid.color": GRID,
    "grid.linewidth": 0.8,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.bottom": False,
    "ytick.left": False,
    "xtick.labelsize": 8.5,
    "ytick.labelsize": 8.5,
    "legend.frameon": False,
    "legend.fontsize": 8.5,
    "hatch.linewidth": 1.1,
    "hatch.color": SURFACE,
    # Text stays text, so that it can be searched, and restyled where the page inlines it.
    "svg.fonttype": "none",
}


@contextmanager
def house_style(name: str) -> Iterator[None]:
    """Draw in the project's style; the name keeps the ids of figures on one page apart."""
    settings: dict[Any, Any] = {**sns.axes_style("whitegrid"), **_RC, "svg.hashsalt": name}
    with mpl.rc_context(settings):
        yield


def save(figure: Figure, stem: Path) -> tuple[Path, Path]:
    """Save a figure as PNG (200 dots per inch) and SVG; returns both paths."""
    stem.parent.mkdir(parents=True, exist_ok=True)
    png, svg = stem.with_suffix(".png"), stem.with_suffix(".svg")
    figure.savefig(png, dpi=200)
    figure.savefig(svg, metadata={"Date": None})
    return png, svg
