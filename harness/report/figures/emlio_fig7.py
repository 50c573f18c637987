"""EMLIO's figure 7: 2 MB samples over one stream, from 0.1 to 30 ms."""

from __future__ import annotations

from matplotlib.figure import Figure

from harness.report.figures.epochs import caption_of, draw_epochs
from harness.report.folder import Results
from harness.report.published import FIG7

__all__ = ["caption", "draw"]


def draw(results: Results) -> Figure | None:
    """Draw seconds and joules per epoch; None when no epoch was measured."""
    return draw_epochs(results, FIG7)


def caption(results: Results) -> str:
    """Return how to read the figure."""
    return caption_of(results, FIG7)
