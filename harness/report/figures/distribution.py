"""Plotter of preprocessing times: of samples chosen at random, or how they are distributed over a workload."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from harness.report.figures.definition import Distribution
from harness.report.figures.marks import make_sheet, write_note, write_right_title
from harness.report.figures.style import BAD, DOMAIN_COLOURS, FAINT, INK, MUTED, SURFACE
from harness.report.labels import significant, spell
from harness.report.measurements import work
from harness.report.papers import find_table as published_table
from harness.report.papers import low
from harness.results.reader import Results
from joulefeed.table import Table

_SAMPLES: Final = 25
_OURS: Final = DOMAIN_COLOURS["cpu"]
_COLUMNS: Final = ("Preprocessing time (ms)", "samples", "avg", "med.", "P75", "P90", "min", "max", "std")
_ROW: Final = 2.6
"""Between two workloads of a summary."""
_Times = Mapping[str, float]
"""mean, median, p75, p90, low, high and std in ms, as far as they are known."""


def draw(spec: Distribution, results: Results, heading: str) -> Figure | None:
    """Draw the figure; None where no loader measured any time."""
    measured = _measured(results)
    if not measured:
        return None
    return (
        _draw_samples(spec, results, measured) if spec.panels == "samples" else _draw_summaries(spec, measured, heading)
    )


def table(spec: Distribution, results: Results) -> Table | None:
    """Return a line a workload with the paper's below it; None for samples, and where no loader measured any time."""
    rows: list[tuple[str, ...]] = []
    dim: set[int] = set()
    published = _published(spec)
    for workload, times in _measured(results).items() if spec.panels == "summary" else ():
        numbers = (
            f"{one:.0f}" if one >= 99.5 else significant(one, 2 + (one >= 10)) for one in _summary(times).values()
        )
        rows.append((spell(workload), str(len(times)), *numbers))
        if workload in published:
            dim.add(len(rows))
            rows.append(("    paper", "", *(f"{value:g}" for value in published[workload].values())))
    return Table(_COLUMNS, tuple(rows), dim=frozenset(dim)) if rows else None


def words(spec: Distribution, results: Results) -> Mapping[str, str]:
    """Return `samples`, how many are drawn of an epoch."""
    return {"samples": str(_SAMPLES)}


def _published(spec: Distribution) -> dict[str, _Times]:
    found = published_table(spec.values) if spec.values else {}
    return {
        workload: {name: low(value) for name, value in times.items()}
        for workload, times in found.items()
        if isinstance(times, Mapping)
    }


def _measured(results: Results) -> dict[str, pd.DataFrame]:
    """Return the samples of every workload with their times, `ms`."""
    frame = work(results)
    frame = frame.assign(ms=1e3 * frame["work_s"])
    every = ((workload, frame[frame["workload"] == workload]) for workload in results.workloads)
    return {workload: times for workload, times in every if len(times)}


def _summary(times: pd.DataFrame) -> _Times:
    ms = times["ms"]
    median, p75, p90 = np.percentile(ms, (50, 75, 90))
    summary = {"mean": ms.mean(), "median": median, "p75": p75, "p90": p90, "low": ms.min(), "high": ms.max()}
    return {**{name: float(value) for name, value in summary.items()}, "std": float(ms.std(ddof=0))}


def _draw_samples(spec: Distribution, results: Results, measured: Mapping[str, pd.DataFrame]) -> Figure:
    published = _published(spec)
    size = (max(6.0, 5.4 * len(measured)), 3.7)
    figure = make_sheet(size, {"w_pad": 0.1, "h_pad": 0.08, "wspace": 0.05})
    panels = figure.subplots(1, len(measured), squeeze=False)[0]
    for axes, (workload, every) in zip(panels, measured.items(), strict=True):
        _draw_bars(axes, every.reset_index(drop=True), results.experiment.seed)
        axes.set_title(spell(workload), pad=9)
        if workload in published:
            mean, least, most = (_time(published[workload][name]) for name in ("mean", "low", "high"))
            write_right_title(axes, f"paper: mean {mean}, from {least} to {most}", pad=9)
    panels[0].set_ylabel("preprocessing time (ms)")
    return figure


def _draw_bars(axes: Axes, every: pd.DataFrame, seed: int) -> None:
    """Draw samples of the first epoch, in the order in which they were trained on, and the mean over all."""
    first = every[(every["cell_id"] == every["cell_id"].iloc[0]) & (every["epoch"] == every["epoch"].iloc[0])]
    chosen = first.sample(min(_SAMPLES, len(first)), random_state=seed).sort_index()
    names = [str(sample) for sample in chosen["sample"]]
    sns.barplot(x=names, y=chosen["ms"].to_numpy(), color=_OURS, width=0.72, ax=axes)
    mean = float(every["ms"].mean())
    axes.axhline(mean, color=BAD, linestyle=(0, (5, 3)), linewidth=1.3)
    style = {"ha": "right", "va": "bottom", "fontsize": 8.5, "color": BAD}
    text = f"mean {significant(mean)} ms"
    write_note(axes, text, (1.0, mean), (-2, 4), coordinates=("axes fraction", "data"), **style)
    axes.set_xlabel("sample")
    axes.tick_params(axis="x", labelrotation=90, labelsize=7.5)
    axes.set_ylim(0, 1.12 * float(chosen["ms"].max()))


def _time(ms: float) -> str:
    return f"{ms:g} ms" if ms < 1000 else f"{ms / 1e3:g} s"


def _draw_summaries(spec: Distribution, measured: Mapping[str, pd.DataFrame], heading: str) -> Figure:
    """Draw every workload's times over their mean, the paper's beside ours."""
    published = _published(spec)
    figure = make_sheet((10.0, 1.5 + 0.95 * len(measured)), {"w_pad": 0.1, "h_pad": 0.08})
    axes = figure.subplots()
    for place, (workload, times) in enumerate(measured.items()):
        relative = times["ms"] / times["ms"].mean()
        jitter = np.random.default_rng(0).uniform(-0.34, 0.34, len(relative))
        axes.scatter(relative, _ROW * place + jitter, s=9, color=_OURS, alpha=0.28, linewidths=0, zorder=1)
        _draw_summary(axes, _ROW * place, _summary(times), _OURS)
        if workload in published:
            _draw_summary(axes, _ROW * place + 0.95, published[workload], MUTED)
    axes.set_xscale("log")
    axes.axvline(1.0, color=FAINT, linewidth=1.0, zorder=0)
    ticks = [tick for tick in (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10) if axes.get_xlim()[0] <= tick]
    axes.set_xticks(ticks, [f"{tick:g}×" for tick in ticks])
    axes.set_xlim(right=max(8.0, axes.get_xlim()[1]))
    axes.minorticks_off()
    axes.grid(visible=False, axis="y")
    axes.grid(visible=True, axis="x")
    axes.set_xlabel("preprocessing time of a sample, over the mean of its workload")
    axes.set_yticks([_ROW * n + 0.45 for n in range(len(measured))], [spell(key) for key in measured], color=INK)
    axes.tick_params(axis="y", labelsize=9.5)
    axes.set_ylim(_ROW * len(measured) - 1.1, -0.8)
    axes.set_title(heading, pad=30)
    axes.legend(handles=_legend(), loc="lower left", bbox_to_anchor=(0, 1.0), ncols=5, borderaxespad=0.2)
    return figure


def _draw_summary(axes: Axes, y: float, times: _Times, colour: str) -> None:
    mean = times["mean"]
    at = {name: value / mean for name, value in times.items()}
    axes.plot([at["low"], at["high"]], [y, y], color=colour, linewidth=1.2, zorder=2)
    for edge in (at["low"], at["high"]):
        axes.plot([edge] * 2, [y - 0.16, y + 0.16], color=colour, linewidth=1.2, zorder=2)
    axes.barh(y, (times["p90"] - times["median"]) / mean, 0.42, left=at["median"], color=colour, alpha=0.75, zorder=3)
    axes.plot([at["p75"]] * 2, [y - 0.21, y + 0.21], color=SURFACE, linewidth=1.6, zorder=4)
    axes.plot(1.0, y, "o", markersize=5, markerfacecolor=SURFACE, markeredgecolor=colour, zorder=5)
    text = f"mean {significant(mean)} ms" if mean < 999.5 else f"mean {significant(mean / 1e3)} s"
    write_note(axes, text, (at["high"], y), (7, 0), coordinates="data", va="center", fontsize=8, color=colour)


def _legend() -> list[Line2D | Patch]:
    return [
        Patch(facecolor=_OURS, alpha=0.75, label="this run: median to P90"),
        Line2D([], [], color=_OURS, marker="o", markersize=3, alpha=0.5, linestyle="none", label="a sample"),
        Line2D([], [], color=_OURS, linewidth=1.2, label="least to most"),
        Line2D([], [], color=_OURS, marker="o", markerfacecolor=SURFACE, linestyle="none", label="mean"),
        Patch(facecolor=MUTED, alpha=0.75, label="MinatoLoader paper"),
    ]
