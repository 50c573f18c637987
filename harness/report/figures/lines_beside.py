"""Panels beside lines over time: seconds per epoch by loader, and preprocessing times by the size of a file."""

from __future__ import annotations

from typing import Final

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import SubFigure

from harness.report.figures.definition import Lines
from harness.report.figures.lines_table import read_settled
from harness.report.figures.marks import say, write_note
from harness.report.figures.style import BAD, INK, SURFACE, choose_colour
from harness.report.labels import percent, ratio, seconds, spell
from harness.report.measurements import compare_frames, read_stored, work
from harness.results.reader import Results

_BASELINE: Final = "pytorch"
_SLOWEST: Final = 0.75
"""Quantile of times, and of file sizes, above which a sample is slow, or taken for it."""
_DASHED: Final = (0, (5, 3))


def draw_beside(figure: SubFigure, spec: Lines, results: Results) -> None:
    """Draw both panels for the run's first workload."""
    workload = next(iter(results.workloads), "")
    above, below = figure.subplots(2, 1, height_ratios=[1.0, 1.25])
    _draw_epochs(above, read_settled(results, workload))
    _draw_sizes(below, _read_sizes(results, workload))


def _draw_epochs(axes: Axes, frame: pd.DataFrame) -> None:
    """Draw a bar a loader with its repeats, and how many times as fast as PyTorch it is."""
    axes.set_title("Seconds per epoch", pad=7)
    bases = list(dict.fromkeys(frame["base"]))
    for place, base in enumerate(bases):
        part = frame[frame["base"] == base]
        median, valid = float(part["duration_s"].median()), bool(part["valid"].any())
        axes.barh(place, median, 0.62, color=choose_colour(base), alpha=0.85)
        face = [INK if one else SURFACE for one in part["valid"]]
        axes.scatter(part["duration_s"], [place] * len(part), s=12, c=face, edgecolors=INK, linewidths=0.7, zorder=3)
        text = seconds(median)
        if base != _BASELINE and _BASELINE in bases:
            text += f", {ratio(compare_frames(frame[frame['base'] == _BASELINE], part))}"
        style = {"va": "center", "fontsize": 8.5, "color": INK if valid else BAD}
        end = (float(part["duration_s"].max()), place)
        write_note(axes, text if valid else f"{text} †", end, (7, 0), coordinates="data", **style)
    axes.set_yticks(range(len(bases)), [spell(base) for base in bases], color=INK)
    axes.set_ylim(len(bases) - 0.5, -0.5)
    axes.set_xlim(0, 1.42 * float(frame["duration_s"].max()) if len(frame) else 1.0)
    axes.grid(visible=False, axis="y")
    axes.grid(visible=True, axis="x")


def _read_sizes(results: Results, workload: str) -> pd.DataFrame:
    """Return a row a sample: `kb` of its file, `ms` of its preprocessing; none where either is not stored."""
    files, times = list(results.folder.glob("samples*.parquet")), work(results)
    times = times[(times["base"] == _BASELINE) & (times["workload"] == workload)]
    sizes = read_stored(files[0]) if len(files) == 1 else None
    if sizes is None or times.empty:
        return pd.DataFrame(columns=["kb", "ms"])
    ms = 1e3 * times.groupby("sample")["work_s"].median()
    return pd.DataFrame({"kb": sizes["size"].reindex(ms.index) / 1e3, "ms": ms})


def _draw_sizes(axes: Axes, samples: pd.DataFrame) -> None:
    """Draw every sample, and which ones are slow by their time and taken for slow by the size of their file."""
    axes.set_title("What the size of a file says", pad=7)
    if samples.empty:
        say(axes, "not measured")
        return
    large, late = (float(samples[name].quantile(_SLOWEST)) for name in ("kb", "ms"))
    axes.scatter(samples["kb"], samples["ms"], s=9, color=choose_colour(_BASELINE), alpha=0.6, linewidths=0)
    axes.axvline(large, color=INK, linewidth=1.0, linestyle=_DASHED)
    axes.axhline(late, color=INK, linewidth=1.0, linestyle=_DASHED)
    slow, taken = samples["ms"] > late, samples["kb"] > large
    found, by_chance = float(taken[slow].mean()) if slow.any() else 0.0, float(taken.mean())
    correlation = float(samples["kb"].corr(samples["ms"]))
    axes.set_xlabel(
        f"file (kB)\ncorrelation {correlation:.2f}\n{percent(found)} of the slowest quarter of samples\n"
        f"have a file of the largest, {percent(by_chance)} by chance"
    )
    axes.set_ylabel("preprocessing (ms)")
    axes.set_ylim(0, 1.05 * float(samples["ms"].max()))
