"""EMLIO's figure 8: 2 MB samples over two streams, at 0.1 and 1 ms."""

from __future__ import annotations

from matplotlib.figure import Figure

from harness.report.figures.epochs import caption_of, draw_epochs
from harness.report.folder import Results
from harness.report.published import FIG8

__all__ = ["caption", "draw"]


def draw(results: Results) -> Figure | None:
    """Draw seconds and joules per epoch; None when no epoch was measured."""
    return draw_epochs(results, FIG8)


def caption(results: Results) -> str:
    """Return how to read the figure."""
    return caption_of(results, FIG8)
