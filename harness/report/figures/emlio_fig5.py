"""EMLIO's figure 5: three loaders on local files and from 0.1 to 30 ms."""

from __future__ import annotations

from matplotlib.figure import Figure

from harness.report.figures.epochs import caption_of, draw_epochs
from harness.report.folder import Results
from harness.report.published import FIG5

__all__ = ["caption", "draw"]

GAPS = (
    "For links it puts no number to the joules of PyTorch and DALI, nor to EMLIO's DRAM; a whisker is the range that "
    "it gives for all three loaders."
)


def draw(results: Results) -> Figure | None:
    """Draw seconds and joules per epoch; None when no epoch was measured."""
    return draw_epochs(results, FIG5)


def caption(results: Results) -> str:
    """Return how to read the figure."""
    return caption_of(results, FIG5, gaps=GAPS)
