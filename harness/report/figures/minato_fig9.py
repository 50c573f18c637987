"""MinatoLoader's figure 9: training time by workload, loader and number of workers."""

from __future__ import annotations

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine

from harness.report.figures.lines import draw_sweep, invalid_note, loader_handles
from harness.report.figures.palette import MUTED
from harness.report.figures.tables import FigureTable
from harness.report.figures.use import emulation_note, steps_note
from harness.report.folder import Results
from harness.report.labels import factor, seconds, spell
from harness.report.measurements import epochs, trusted
from harness.report.published_loaders import MINATO, MINATO_FIG9_MOST

__all__ = ["caption", "draw", "table"]

_OURS = "sample_aware"
"""The section of the loader whose training time the paper compares with the others'."""


def draw(results: Results) -> Figure | None:
    """Draw a panel a workload; None when no sweep was measured."""
    frame = _trainings(results)
    if frame.empty:
        return None
    workloads = list(dict.fromkeys(frame["workload"]))
    columns = min(2, len(workloads))
    lines = -(-len(workloads) // columns)
    layout = ConstrainedLayoutEngine(w_pad=0.1, h_pad=0.1, wspace=0.05, hspace=0.05)
    figure = Figure(figsize=(max(6.0, 5.0 * columns), 0.6 + 2.8 * lines), layout=layout)
    figure.suptitle(f"{results.name}; {steps_note(results)}", x=0.01, ha="left", fontsize=8.5, color=MUTED)
    panels = figure.subplots(lines, columns, squeeze=False).ravel()
    for axes, workload in zip(panels, workloads, strict=False):
        _draw_panel(axes, workload, frame[frame["workload"] == workload])
    for axes in panels[len(workloads) :]:
        axes.set_axis_off()
    figure.legend(handles=loader_handles(list(dict.fromkeys(frame["base"]))), loc="outside lower left", ncols=6)
    return figure


def caption(results: Results) -> str:
    """Return how to read the figure."""
    most = "; ".join(
        f"on {machine} " + ", ".join(f"{factor:g} × {spell(loader)}" for loader, factor in times.items())
        for machine, times in MINATO_FIG9_MOST.items()
    )
    return (
        "Seconds that all epochs take together, by worker processes, or threads with DALI. Points are repeats, lines "
        "join medians; every panel has a scale of its own, from 0. Under the titles, how many times as fast the "
        "sample-aware loader is with the most workers. The paper varies the number of GPUs, with 12 workers for "
        "PyTorch and 12 for each GPU with MinatoLoader, and its text gives the greatest factors of all workloads: "
        f"{most} ({MINATO}, sections 5.1, 5.2 and figure 9). This run has one accelerator and varies the workers, the "
        "same number for every loader."
        f"{emulation_note(results)}"
    )


def table(results: Results) -> FigureTable | None:
    """Return training times by workload, number of workers and loader."""
    frame = _trainings(results)
    if frame.empty:
        return None
    bases = list(dict.fromkeys(frame["base"]))
    medians = frame.groupby(["workload", "setting", "base"], sort=False)["duration_s"].median()
    rows = []
    for workload, setting in sorted(
        dict.fromkeys(zip(frame["workload"], frame["setting"], strict=True)),
        key=lambda place: (results.workloads.index(place[0]), place[1]),
    ):
        times = [medians.get((workload, setting, base)) for base in bases]
        rows.append((f"{spell(workload)}, {setting:g}", *(seconds(time) for time in times)))
    return FigureTable(("Training time by workers", *(spell(base) for base in bases)), tuple(rows))


def _trainings(results: Results) -> pd.DataFrame:
    """Return a row for every cell of a swept loader: how long its epochs took together."""
    frame = epochs(results)
    swept = trusted(frame[frame["setting"].notna()])
    keys = ["workload", "base", "setting", "loader", "cell_id"]
    told = {"duration_s": ("duration_s", "sum"), "valid": ("valid", "all"), "counted": ("epoch", "count")}
    summed = swept.groupby(keys, sort=False).agg(**told).reset_index()
    # A cell of which some epochs do not count took longer than what is left of it.
    return summed[summed["counted"] == summed.groupby("workload")["counted"].transform("max")]


def _draw_panel(axes: Axes, workload: str, frame: pd.DataFrame) -> None:
    draw_sweep(axes, frame, "duration_s", names=False)
    axes.set_xlabel("workers")
    axes.set_ylabel("seconds of training")
    axes.set_title(spell(workload), pad=20)
    under = axes.annotate(
        _compared(frame), (0, 1), xycoords="axes fraction", xytext=(0, 6), textcoords="offset points", color=MUTED
    )
    under.set_in_layout(False)
    invalid_note(axes, frame)


def _compared(frame: pd.DataFrame) -> str:
    """Return how many times as fast the sample-aware loader is as the others, with the most workers of each."""
    most = frame[frame["setting"] == frame.groupby("base")["setting"].transform("max")]
    medians = most.groupby("base", sort=False)["duration_s"].median()
    if _OURS not in medians:
        return ""
    others = medians.drop(_OURS)
    workers = float(most[most["base"] == _OURS]["setting"].iloc[0])
    return f"{spell(_OURS)} with {workers:g}: " + ", ".join(
        f"{factor(float(time / medians[_OURS]))} {spell(str(base))}" for base, time in others.items()
    )
