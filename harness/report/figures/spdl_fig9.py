"""SPDL's figure 9: training throughput by concurrency, under the bound that a fixed batch sets."""

from __future__ import annotations

from matplotlib.figure import Figure

from harness.report.figures.tables import FigureTable
from harness.report.figures.throughput import bound_per_s, draw_throughput, swept, throughput_table
from harness.report.folder import Results
from harness.report.labels import accelerators, percent, spell
from harness.report.published_loaders import SPDL

__all__ = ["caption", "draw", "table"]


def draw(results: Results) -> Figure | None:
    """Draw samples per second over concurrency; None when no sweep was measured."""
    workload = spell(next(iter(results.workloads), ""))
    return draw_throughput(
        results, f"{results.name}: training of {workload}", legend=f"{_best(results)}; {accelerators(results)}"
    )


def caption(results: Results) -> str:
    """Return how to read the figure."""
    return (
        "Points are epochs after a cell's first, lines join medians. Dashed: the same training with one batch that "
        "was made beforehand and is given every step, so that loading costs nothing. The values of the paper are in "
        f"its plot alone ({SPDL}, section 6.3 and figure 9): SPDL comes very close to the bound there, PyTorch stays "
        "below it."
    )


def table(results: Results) -> FigureTable | None:
    """Return the figures behind the picture, with each loader's share of the bound."""
    return throughput_table(results)


def _best(results: Results) -> str:
    frame = swept(results)
    bound = bound_per_s(frame)
    if bound is None:
        return ""
    medians = frame[frame["later"] & frame["setting"].notna()].groupby(["base", "setting"])["samples_per_s"].median()
    best = medians.groupby("base", sort=False).max()
    return "of the bound: " + ", ".join(f"{spell(str(base))} {percent(v / bound)}" for base, v in best.items())
