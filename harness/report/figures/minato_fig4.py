"""MinatoLoader's figure 4: training time by how many batches are loaded ahead."""

from __future__ import annotations

import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine

from harness.report.figures.lines import invalid_note, tick_settings
from harness.report.figures.palette import MUTED, loader_colour
from harness.report.figures.tables import FigureTable
from harness.report.folder import Results
from harness.report.labels import UNKNOWN, accelerators, percent, seconds, spell
from harness.report.measurements import epochs, trusted
from harness.report.published_loaders import MINATO

__all__ = ["caption", "draw", "table"]


def draw(results: Results) -> Figure | None:
    """Draw a panel a loader and workload; None when no sweep was measured."""
    frame = _prefetched(results)
    if frame.empty:
        return None
    workloads, bases = list(dict.fromkeys(frame["workload"])), list(dict.fromkeys(frame["base"]))
    layout = ConstrainedLayoutEngine(w_pad=0.1, h_pad=0.1, wspace=0.04, hspace=0.06)
    figure = Figure(figsize=(max(6.0, 3.7 * len(workloads)), 0.5 + 2.6 * len(bases)), layout=layout)
    figure.suptitle(f"{results.name}; {accelerators(results)}", x=0.01, ha="left", fontsize=8.5, color=MUTED)
    panels = figure.subplots(len(bases), len(workloads), squeeze=False)
    for row, base in enumerate(bases):
        for column, workload in enumerate(workloads):
            here = frame[(frame["base"] == base) & (frame["workload"] == workload)]
            _draw_panel(panels[row][column], here, base, workload)
            if column == 0:
                panels[row][column].set_ylabel("seconds per epoch")
            if row == len(bases) - 1:
                panels[row][column].set_xlabel("batches loaded ahead")
    return figure


def caption(results: Results) -> str:
    """Return how to read the figure."""
    return (
        "Time of an epoch with 1 to 8 batches loaded ahead: by each worker in PyTorch (prefetch_factor), by the "
        "pipeline in DALI (prefetch_queue_depth). Points are epochs, lines join medians; every panel has a scale of "
        f"its own, from 0. The text of the paper gives no times ({MINATO}, section 3.4 and figure 4): it finds almost "
        "no gain from more, in either loader."
    )


def table(results: Results) -> FigureTable | None:
    """Return epoch times by loader, workload and prefetch, and what the best of them gains over the first."""
    frame = _prefetched(results)
    if frame.empty:
        return None
    settings = sorted(frame["setting"].unique())
    medians = frame.groupby(["base", "workload", "setting"], sort=False)["duration_s"].median()
    rows = []
    for base, workload in dict.fromkeys(zip(frame["base"], frame["workload"], strict=True)):
        times = [medians.get((base, workload, setting)) for setting in settings]
        known = [float(time) for time in times if time is not None]
        gain = percent(1 - min(known) / known[0]) if len(known) > 1 else UNKNOWN
        told = [seconds(None if time is None else float(time)) for time in times]
        rows.append((f"{spell(base)}, {spell(workload)}", *told, gain))
    heads = (f"{setting:g} ahead" for setting in settings)
    return FigureTable(("Seconds per epoch", *heads, "best against first"), tuple(rows))


def _prefetched(results: Results) -> pd.DataFrame:
    frame = epochs(results)
    return trusted(frame[frame["setting"].notna()])


def _draw_panel(axes: Axes, frame: pd.DataFrame, base: str, workload: str) -> None:
    axes.set_title(f"{spell(base)}, {spell(workload)}", pad=8)
    if frame.empty:
        axes.text(0.5, 0.5, "not measured", transform=axes.transAxes, ha="center", color=MUTED)
        axes.set_yticks([])
        return
    colour = loader_colour(base)
    sns.lineplot(frame, x="setting", y="duration_s", estimator="median", errorbar=None, color=colour, ax=axes)
    sns.scatterplot(frame, x="setting", y="duration_s", color=colour, s=30, ax=axes)
    axes.set(xlabel="", ylabel="")
    axes.set_ylim(0, 1.25 * float(frame["duration_s"].max()))
    tick_settings(axes, sorted(frame["setting"].unique()))
    times = frame.groupby("setting")["duration_s"]
    for setting, time_s, longest_s in zip(times.groups, times.median(), times.max(), strict=True):
        axes.annotate(
            seconds(float(time_s)),
            (float(setting), float(longest_s)),  # type: ignore[arg-type]
            xytext=(0, 7),
            textcoords="offset points",
            ha="center",
            fontsize=8,
            color=MUTED,
        )
    invalid_note(axes, frame)
