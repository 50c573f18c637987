"""MinatoLoader's Table 2: how preprocessing times are distributed over a workload's samples."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from harness.report.figures.palette import FAINT, INK, MUTED, SURFACE
from harness.report.figures.tables import FigureTable
from harness.report.folder import Results
from harness.report.labels import significant, spell
from harness.report.measurements import work
from harness.report.published_loaders import MINATO, WORK, WorkTimes

__all__ = ["caption", "draw", "table"]

_OURS = "#3b78b8"
_COLUMNS = ("Preprocessing time (ms)", "samples", "avg", "med.", "P75", "P90", "min", "max", "std")


def draw(results: Results) -> Figure | None:
    """Draw every workload's times over their mean, the paper's beside ours; None where no loader told any."""
    measured = _measured(results)
    if not measured:
        return None
    layout = ConstrainedLayoutEngine(w_pad=0.1, h_pad=0.08)
    figure = Figure(figsize=(10.0, 1.5 + 0.95 * len(measured)), layout=layout)
    axes = figure.subplots()
    for place, (workload, times_ms) in enumerate(measured.items()):
        _draw_times(axes, 2.6 * place, times_ms)
        if workload in WORK:
            _draw_summary(axes, 2.6 * place + 0.95, WORK[workload], MUTED)
    axes.set_xscale("log")
    axes.axvline(1.0, color=FAINT, linewidth=1.0, zorder=0)
    ticks = [tick for tick in (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10) if axes.get_xlim()[0] <= tick]
    axes.set_xticks(ticks, [f"{tick:g}×" for tick in ticks])
    axes.set_xlim(right=max(8.0, axes.get_xlim()[1]))
    axes.minorticks_off()
    axes.grid(visible=False, axis="y")
    axes.grid(visible=True, axis="x")
    axes.set_xlabel("preprocessing time of a sample, over the mean of its workload")
    axes.set_yticks([2.6 * n + 0.45 for n in range(len(measured))], [spell(key) for key in measured], color=INK)
    axes.tick_params(axis="y", labelsize=9.5)
    axes.set_ylim(2.6 * len(measured) - 1.1, -0.8)
    axes.set_title(f"{results.name}: how far samples differ in preprocessing time", pad=30)
    axes.legend(handles=_legend(), loc="lower left", bbox_to_anchor=(0, 1.0), ncols=5, borderaxespad=0.2)
    return figure


def caption(results: Results) -> str:
    """Return how to read the figure."""
    scaled = _scaled(results)
    return (
        "Each sample's time from reading it to its last transform, in the loader's workers. Thin line: least to most; "
        "bar: median to 90th percentile; tick: 75th; dot: mean. All over the mean of the workload, so that the shapes "
        f"compare although machines and sizes differ.{scaled} Grey: {MINATO}, Table 2 (PyTorch DataLoader). Where "
        "more workers run than there are cores, times contain their waiting for a core."
    )


def table(results: Results) -> FigureTable | None:
    """Return the paper's table with ours above every line of it."""
    rows: list[tuple[str, ...]] = []
    dim: set[int] = set()
    for workload, times_ms in _measured(results).items():
        rows.append((spell(workload), str(len(times_ms)), *_numbers(_summary(times_ms))))
        if workload in WORK:
            dim.add(len(rows))
            theirs = WORK[workload]
            given = (theirs.mean, theirs.median, theirs.p75, theirs.p90, theirs.low, theirs.high, theirs.std)
            rows.append(("    paper", "", *(f"{value:g}" for value in given)))
    return FigureTable(_COLUMNS, tuple(rows), frozenset(dim)) if rows else None


def _measured(results: Results) -> dict[str, pd.Series[float]]:
    frame = work(results)
    return {
        workload: 1e3 * frame.loc[frame["workload"] == workload, "work_s"]
        for workload in results.workloads
        if (frame["workload"] == workload).any()
    }


def _summary(times_ms: pd.Series[float]) -> WorkTimes:
    median, p75, p90 = np.percentile(times_ms, (50, 75, 90))
    low, high = float(times_ms.min()), float(times_ms.max())
    return WorkTimes(float(times_ms.mean()), median, p75, p90, low, high, float(times_ms.std(ddof=0)))


def _numbers(times: WorkTimes) -> tuple[str, ...]:
    ordered = (times.mean, times.median, times.p75, times.p90, times.low, times.high, times.std)
    return tuple(f"{value:.0f}" if value >= 99.5 else significant(value, 2 + (value >= 10)) for value in ordered)


def _draw_times(axes: Axes, y: float, times_ms: pd.Series[float]) -> None:
    relative = times_ms / times_ms.mean()
    jitter = np.random.default_rng(0).uniform(-0.34, 0.34, len(relative))
    axes.scatter(relative, y + jitter, s=9, color=_OURS, alpha=0.28, linewidths=0, zorder=1)
    _draw_summary(axes, y, _summary(times_ms), _OURS)


def _draw_summary(axes: Axes, y: float, times: WorkTimes, colour: str) -> None:
    mean = times.mean
    axes.plot([times.low / mean, times.high / mean], [y, y], color=colour, linewidth=1.2, zorder=2)
    for edge in (times.low, times.high):
        axes.plot([edge / mean] * 2, [y - 0.16, y + 0.16], color=colour, linewidth=1.2, zorder=2)
    axes.barh(y, (times.p90 - times.median) / mean, 0.42, left=times.median / mean, color=colour, alpha=0.75, zorder=3)
    axes.plot([times.p75 / mean] * 2, [y - 0.21, y + 0.21], color=SURFACE, linewidth=1.6, zorder=4)
    axes.plot(1.0, y, "o", markersize=5, markerfacecolor=SURFACE, markeredgecolor=colour, zorder=5)
    axes.annotate(
        f"mean {_time(mean)}",
        (times.high / mean, y),
        xytext=(7, 0),
        textcoords="offset points",
        va="center",
        fontsize=8,
        color=colour,
    )


def _time(ms: float) -> str:
    return f"{significant(ms)} ms" if ms < 999.5 else f"{significant(ms / 1e3)} s"


def _legend() -> list[Line2D | Patch]:
    return [
        Patch(facecolor=_OURS, alpha=0.75, label="this run: median to P90"),
        Line2D([], [], color=_OURS, marker="o", markersize=3, alpha=0.5, linestyle="none", label="a sample"),
        Line2D([], [], color=_OURS, linewidth=1.2, label="least to most"),
        Line2D([], [], color=_OURS, marker="o", markerfacecolor=SURFACE, linestyle="none", label="mean"),
        Patch(facecolor=MUTED, alpha=0.75, label="MinatoLoader paper"),
    ]


def _scaled(results: Results) -> str:
    """Say by how much the workloads' own waits are scaled, where they are."""
    workloads: Mapping[str, Mapping[str, object]] = results.config.get("workloads") or {}
    scales = {
        spell(key): value["time_scale"]
        for key, value in workloads.items()
        if value.get("time_scale") not in (None, 1, 1.0)
    }
    told = ", ".join(f"{name} by {scale}" for name, scale in scales.items())
    return f" LightStep and HeavyStep are scaled: {told}." if told else ""
