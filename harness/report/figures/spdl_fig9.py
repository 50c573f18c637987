"""SPDL's figure 9: training throughput by concurrency, under the bound that a fixed batch sets."""

from __future__ import annotations

from matplotlib.figure import Figure

from harness.report.figures.tables import FigureTable
from harness.report.figures.throughput import bound_per_s, draw_throughput, swept, throughput_table
from harness.report.folder import Results
from harness.report.labels import accelerators, percent, significant, spell
from harness.report.published_loaders import SPDL

__all__ = ["caption", "draw", "table"]

_NEAR = 0.95
"""Share of the bound from which on a loader has reached it."""


def draw(results: Results) -> Figure | None:
    """Draw samples per second over concurrency; None when no sweep was measured."""
    workload = spell(next(iter(results.workloads), ""))
    return draw_throughput(
        results,
        f"{results.name}: training of {workload}",
        legend=f"{_best(results)}; {accelerators(results)}",
        bound_note=" (its step is assumed)" if _assumed(results) else "",
    )


def caption(results: Results) -> str:
    """Return how to read the figure."""
    return (
        "Points are epochs after a cell's first, lines join medians. Dashed: the same training with one batch that "
        "was made beforehand and is given every step, so that loading costs nothing. The values of the paper are in "
        f"its plot alone ({SPDL}, section 6.3 and figure 9): SPDL comes very close to the bound there, PyTorch stays "
        f"below it.{_assumption(results)}"
    )


def table(results: Results) -> FigureTable | None:
    """Return the figures behind the picture, with each loader's share of the bound."""
    return throughput_table(results)


def _assumed(results: Results) -> bool:
    return any("assumed" in cell.accelerator for cell in results.cells)


def _assumption(results: Results) -> str:
    """Return what is to be known of an assumed step: that it is no accelerator's, and why it is as short as it is."""
    if not _assumed(results):
        return ""
    said = (
        " The step here is neither measured nor published but assumed, and so is the height of the bound. It was "
        "chosen to be shorter than what a loader takes for a sample with little concurrency: beside a longer step "
        "every loader reaches the bound, and nothing can be seen."
    )
    frame = swept(results)
    bound, lines = bound_per_s(frame), frame[frame["later"] & frame["setting"].notna()]
    if bound is None or lines.empty:
        return said
    slowest = float(lines.groupby("loader")["samples_per_s"].median().min())
    said += f" In this run a step takes {significant(1e3 / bound)} ms a sample, and the slowest setting "
    starved = slowest < _NEAR * bound
    return said + (
        f"brought one every {significant(1e3 / slowest)} ms."
        if starved
        else "kept up with it, so that this run shows no difference: assume a shorter one "
        "(accelerator.seconds_per_sample)."
    )


def _best(results: Results) -> str:
    frame = swept(results)
    bound = bound_per_s(frame)
    if bound is None:
        return ""
    medians = frame[frame["later"] & frame["setting"].notna()].groupby(["base", "setting"])["samples_per_s"].median()
    best = medians.groupby("base", sort=False).max()
    return "of the bound: " + ", ".join(f"{spell(str(base))} {percent(v / bound)}" for base, v in best.items())
