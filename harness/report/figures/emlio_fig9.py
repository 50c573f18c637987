"""EMLIO's figure 9: DALI and the streaming loader feeding VGG-19, from 0.1 to 30 ms."""

from __future__ import annotations

from matplotlib.figure import Figure

from harness.report.figures.epochs import caption_of, draw_epochs
from harness.report.folder import Results
from harness.report.published import FIG9

__all__ = ["caption", "draw"]


def draw(results: Results) -> Figure | None:
    """Draw seconds and joules per epoch; None when no epoch was measured."""
    return draw_epochs(results, FIG9)


def caption(results: Results) -> str:
    """Return how to read the figure."""
    return caption_of(results, FIG9, gaps="The paper has no PyTorch in it.")
