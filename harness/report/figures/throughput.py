"""Samples per second over concurrency, one line a loader: what SPDL's figures 5 and 9 share."""

from __future__ import annotations

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine

from harness.report.figures.lines import draw_sweep, invalid_note
from harness.report.figures.palette import FAINT, INK, MUTED
from harness.report.figures.tables import FigureTable
from harness.report.folder import Results
from harness.report.labels import UNKNOWN, megabytes, percent, significant, spell
from harness.report.measurements import epochs, settled, trusted

__all__ = ["bound_per_s", "draw_throughput", "swept", "throughput_table"]

_BOUND = "fixed"
"""The section of the loader that gives one batch again and again."""


def swept(results: Results) -> pd.DataFrame:
    """Return the trusted epochs of the run's first workload with CPU time a sample, `cpu_ms_per_sample`.

    `later` tells whether workers were there already: of an epoch that is not its cell's first, or of the only one.
    """
    frame = epochs(results)
    frame = trusted(frame[frame["workload"] == next(iter(results.workloads), "")])
    return frame.assign(cpu_ms_per_sample=1e3 * frame["cell_cpu_s"] / frame["samples"], later=settled(frame))


def bound_per_s(frame: pd.DataFrame) -> float | None:
    """Return the samples per second of the fixed batch; None where the experiment has no such loader."""
    known = frame.loc[(frame["base"] == _BOUND) & frame["later"], "samples_per_s"]
    return None if known.empty else float(known.median())


def draw_throughput(results: Results, title: str, *, legend: str, bound_note: str = "") -> Figure | None:
    """Draw samples per second, and CPU time a sample beside it, of later epochs; None when no sweep was measured.

    `bound_note` stands beside the bound's value.
    """
    frame = swept(results)
    lines = frame[(frame["base"] != _BOUND) & frame["setting"].notna() & frame["later"]]
    if lines.empty:
        return None
    layout = ConstrainedLayoutEngine(w_pad=0.12, h_pad=0.08, wspace=0.1)
    figure = Figure(figsize=(11.0, 4.3), layout=layout)
    left, right = figure.subplots(1, 2, width_ratios=[1.35, 1.0])
    draw_sweep(left, lines, "samples_per_s")
    _draw_bound(left, bound_per_s(frame), bound_note)
    left.set_title(title, pad=20)
    left.set_ylabel("samples per second")
    draw_sweep(right, lines, "cpu_ms_per_sample")
    right.set_title("CPU time of cell and workers", pad=20)
    right.set_ylabel("ms of CPU per sample")
    for axes in (left, right):
        axes.set_xlabel("concurrency: worker processes or threads")
        axes.set_ylabel(axes.get_ylabel(), color=MUTED)
        axes.margins(x=0.04)
    under = left.annotate(
        legend, (0, 1), xycoords="axes fraction", xytext=(0, 6), textcoords="offset points", color=MUTED
    )
    under.set_in_layout(False)  # it may reach over the gap between the panels
    invalid_note(left, lines)
    return figure


def throughput_table(results: Results) -> FigureTable | None:
    """Return samples per second, CPU time and memory by loader and concurrency."""
    frame = swept(results)
    if frame.empty:
        return None
    bound = bound_per_s(frame)
    columns: tuple[str, ...] = (
        "Loader",
        "concurrency",
        "samples/s",
        "in the first epoch",
        "CPU ms/sample",
        "CPU of host",
        "PSS",
    )
    if bound is not None:
        columns = (*columns, "of the bound")
    rows = [_row(str(key), part, bound) for key, part in frame.groupby("loader", sort=False)]
    return FigureTable(columns, tuple(rows))


def _row(loader: str, part: pd.DataFrame, bound: float | None) -> tuple[str, ...]:
    medians = part[part["later"]].median(numeric_only=True)
    first = part.loc[part["epoch"] == part["epoch"].min(), "samples_per_s"].median()
    cells = (
        spell(str(part["base"].iloc[0])),
        UNKNOWN if pd.isna(medians["setting"]) else f"{medians['setting']:g}",
        significant(float(medians["samples_per_s"])),
        _known(first),
        _known(medians["cpu_ms_per_sample"]),
        percent(None if pd.isna(medians["cpu_util"]) else float(medians["cpu_util"])),
        megabytes(None if pd.isna(medians["pss_peak_bytes"]) else float(medians["pss_peak_bytes"])),
    )
    return cells if bound is None else (*cells, percent(float(medians["samples_per_s"]) / bound))


def _known(value: float) -> str:
    return UNKNOWN if pd.isna(value) else significant(float(value))


def _draw_bound(axes: Axes, bound: float | None, note: str) -> None:
    if bound is None:
        return
    axes.axhline(bound, color=INK, linewidth=1.2, linestyle=(0, (6, 3)))
    axes.set_ylim(0, max(axes.get_ylim()[1], 1.12 * bound))
    axes.annotate(
        f"fixed batch, the upper bound: {significant(bound)}{note}",
        (0, bound),
        xycoords=("axes fraction", "data"),
        xytext=(4, 4),
        textcoords="offset points",
        color=INK,
        fontsize=8.5,
        bbox={"facecolor": "white", "edgecolor": FAINT, "alpha": 0.0, "pad": 1},
    )
