"""SPDL's figure 5: what loaders give by concurrency when nothing is done with their batches."""

from __future__ import annotations

from matplotlib.figure import Figure

from harness.report.figures.tables import FigureTable
from harness.report.figures.throughput import draw_throughput, swept, throughput_table
from harness.report.folder import Results
from harness.report.labels import factor, significant
from harness.report.published_loaders import SPDL, SPDL_PEAK

__all__ = ["caption", "draw", "table"]


def draw(results: Results) -> Figure | None:
    """Draw samples per second over concurrency; None when no sweep was measured."""
    return draw_throughput(results, f"{results.name}: throughput without downstream load", legend=_peaks(results))


def caption(results: Results) -> str:
    """Return how to read the figure."""
    paper = SPDL_PEAK["spdl"] / SPDL_PEAK["pytorch"]
    return (
        "Points are epochs, lines join medians. A cell's first epoch, in which workers start, is in the table alone. "
        f"The text of the paper gives only the peaks: {SPDL_PEAK['spdl']:.0f} images/s with SPDL and "
        f"{SPDL_PEAK['pytorch']:.0f} with PyTorch, {factor(paper)} as many, on 96 cores and an A100 "
        f"({SPDL}, section 6.1 and Table 3)."
    )


def table(results: Results) -> FigureTable | None:
    """Return the figures behind the picture, with CPU time and memory."""
    return throughput_table(results)


def _peaks(results: Results) -> str:
    frame = swept(results)
    peaks = frame[frame["later"]].groupby("base")["samples_per_s"].max()
    if not {"spdl", "pytorch"} <= set(peaks.index):
        return ""
    paper = SPDL_PEAK["spdl"] / SPDL_PEAK["pytorch"]
    ratio = float(peaks["spdl"] / peaks["pytorch"])
    return (
        f"peaks: SPDL {significant(float(peaks['spdl']))}, PyTorch {significant(float(peaks['pytorch']))} samples/s, "
        f"{factor(ratio)} (paper {factor(paper)})"
    )
