"""MinatoLoader's figure 11: loss, slow samples by batch, and the share of slow samples over the iterations."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine

from harness.report.claims.composition import Composition, compositions
from harness.report.figures.lines import loader_handles
from harness.report.figures.losses import arm_line, smooth, steps
from harness.report.figures.palette import INK, MUTED, loader_colour
from harness.report.figures.tables import FigureTable
from harness.report.folder import Results
from harness.report.labels import UNKNOWN, accelerators, seconds, significant, spell
from harness.report.measurements import base_of
from harness.report.published_loaders import MINATO, MINATO_FIG11_SHARE, MINATO_FIG11_TIME_S

__all__ = ["caption", "draw", "table"]

_WINDOWS = 12
"""Running means are over this part of a training's steps."""
_SLOW_SHARE = 0.25
_AXES = (
    ("iteration", "loss"),
    ("seconds of training", "loss"),
    ("slow samples in a batch", "share of batches"),
    ("iteration", "share of slow samples"),
)
"""Names of both axes, by row."""
_Spread = Mapping[tuple[str, str], list[Composition]]
"""The epochs of every workload and loader, in order."""


def draw(results: Results) -> Figure | None:
    """Draw a column a workload; None when no cell ended."""
    frame, spread = steps(results), _spread(results)
    workloads = [key for key in results.workloads if (frame["workload"] == key).any()]
    if not workloads:
        return None
    layout = ConstrainedLayoutEngine(w_pad=0.1, h_pad=0.07, wspace=0.05, hspace=0.04)
    figure = Figure(figsize=(max(6.0, 5.3 * len(workloads)), 10.2), layout=layout)
    figure.suptitle(f"{results.name}; {accelerators(results)}", x=0.01, ha="left", fontsize=8.5, color=MUTED)
    panels = figure.subplots(4, len(workloads), squeeze=False)
    for column, workload in enumerate(workloads):
        here = frame[frame["workload"] == workload]
        by_iteration, by_time, batches, share = (panels[row][column] for row in range(4))
        by_iteration.set_title(spell(workload), pad=9)
        _draw_losses(by_iteration, here, "iteration")
        _draw_losses(by_time, here, "at_s")
        found = {base: spread.get((workload, base), []) for base in dict.fromkeys(here["base"])}
        _draw_batches(batches, found)
        _draw_shares(share, found)
    for row, (name, what) in enumerate(_AXES):
        panels[row][0].set_ylabel(what)
        for axes in panels[row]:
            axes.set_xlabel(name)
    figure.legend(handles=loader_handles(list(dict.fromkeys(frame["base"]))), loc="outside lower left", ncols=4)
    return figure


def caption(results: Results) -> str:
    """Return how to read the figure."""
    shares = "; ".join(
        f"{spell(workload)} " + ", ".join(f"{value:g} through {spell(loader)}" for loader, value in found.items())
        for workload, found in MINATO_FIG11_SHARE.items()
    )
    return (
        f"Loss of every step (faint) and its running mean over a {_WINDOWS}th of them, by iteration and by time; then "
        "how many batches hold how many slow samples, and the running share of slow samples, dotted: a quarter. Slow "
        "is a sample whose preprocessing takes longer than that of three quarters of the samples, in the median of all "
        "epochs of the run, so the mean share is a quarter through any loader that loses none; the spread over batches "
        f"and the course tell of bias. Shares in the paper: {shares} ({MINATO}, section 5.6 and figure 11, where the "
        "first row is of accuracies)."
    )


def table(results: Results) -> FigureTable | None:
    """Return losses, times and compositions by workload and loader, the paper's beside them."""
    frame, spread = steps(results), _spread(results)
    rows = []
    for (workload, base), here in frame.groupby(["workload", "base"], sort=False):
        found = spread.get((str(workload), str(base)), [])
        figures = pd.DataFrame([one.figures for one in found]).mean()
        last = here.loc[here["epoch"] == here["epoch"].max(), "loss"]
        paper = MINATO_FIG11_SHARE.get(str(workload), {}).get(str(base))
        time_s = MINATO_FIG11_TIME_S.get(str(workload), {}).get(str(base))
        rows.append(
            (
                f"{spell(str(workload))}, {spell(str(base))}",
                UNKNOWN if last.isna().all() else significant(float(last.mean())),
                seconds(float(here.groupby("cell_id")["at_s"].max().median())),
                *(_told(figures, name) for name in ("slow_share", "slow_batch_std", "slow_first_half")),
                UNKNOWN if paper is None else f"{paper:g}",
                UNKNOWN if time_s is None else f"{time_s / 3600:.1f} h",
            )
        )
    columns = (
        *("Workload and loader", "loss, last epoch", "training", "slow share", "deviation over batches"),
        *("of the slow in the first half", "slow share in the paper", "training there"),
    )
    return FigureTable(columns, tuple(rows)) if rows else None


def _spread(results: Results) -> _Spread:
    every = compositions(results)
    found: dict[tuple[str, str], list[Composition]] = {}
    for cell in results.cells:
        epochs = sorted((epoch, one) for (cell_id, epoch), one in every.items() if cell_id == cell.cell_id)
        found.setdefault((cell.workload, base_of(results, cell.loader)), []).extend(one for _, one in epochs)
    return found


def _draw_losses(axes: Axes, frame: pd.DataFrame, over: str) -> None:
    if frame["loss"].isna().all():
        axes.text(0.5, 0.5, "no loss: nothing was trained", transform=axes.transAxes, ha="center", color=MUTED)
        axes.set_yticks([])
        return
    for place, (base, part) in enumerate(frame.groupby("base", sort=False)):
        colour = loader_colour(str(base))
        for _, cell in part.groupby("cell_id", sort=False):
            axes.plot(cell[over], cell["loss"], color=colour, linewidth=0.6, alpha=0.28)
            mean = smooth(cell["loss"], len(cell) // _WINDOWS)
            axes.plot(cell[over], mean, color=colour, zorder=3, **arm_line(place))
    axes.set_xlim(left=0)
    axes.set_ylim(0, 1.05 * float(frame["loss"].quantile(0.99)))


def _draw_batches(axes: Axes, found: Mapping[str, list[Composition]]) -> None:
    most = max((int(one.samples.max()) for epochs in found.values() for one in epochs), default=0)
    if not most:
        axes.text(0.5, 0.5, "no loader told times", transform=axes.transAxes, ha="center", color=MUTED)
        axes.set_yticks([])
        return
    known = {base: epochs for base, epochs in found.items() if epochs}
    width = 0.8 / len(known)
    for place, (base, epochs) in enumerate(known.items()):
        slow = np.concatenate([one.slow[one.samples == most] for one in epochs])
        shares = np.bincount(slow, minlength=most + 1) / len(slow)
        at = np.arange(most + 1) + (place - (len(known) - 1) / 2) * width
        bars = axes.bar(at, 100 * shares, 0.94 * width, color=loader_colour(base))
        axes.bar_label(bars, [f"{100 * share:.0f}" for share in shares], padding=2, fontsize=8, color=MUTED)
    axes.set_xticks(range(most + 1))
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:.0f} %")
    axes.margins(y=0.12)


def _draw_shares(axes: Axes, found: Mapping[str, list[Composition]]) -> None:
    for place, (base, epochs) in enumerate(found.items()):
        if epochs:
            shares = pd.Series(np.concatenate([one.slow / one.samples for one in epochs]))
            mean = smooth(shares, len(shares) // _WINDOWS)
            axes.plot(np.arange(1, len(mean) + 1), mean, color=loader_colour(base), **arm_line(place))
    axes.axhline(_SLOW_SHARE, color=INK, linewidth=0.9, linestyle=(0, (1, 2)))
    axes.set_xlim(left=0)
    axes.set_ylim(0, 0.62)


def _told(figures: pd.Series[float], name: str) -> str:
    return significant(float(figures[name])) if name in figures else UNKNOWN
