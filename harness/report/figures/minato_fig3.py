"""Plotter of MinatoLoader's figure 3: object detection by the heuristics of image size and of reordering."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Picture
from matplotlib.figure import SubFigure
from matplotlib.lines import Line2D

from harness.report.figures.definition import Figure, FigureTable
from harness.report.figures.marks import make_sheet, say, write_note, write_right_title
from harness.report.figures.style import BAD, FAINT, INK, MUTED, SURFACE, choose_colour
from harness.report.figures.timeline import Timeline, list_readers, make_timelines
from harness.report.labels import UNKNOWN, factor, percent, ratio, seconds, spell
from harness.report.measurements import compare_frames, epochs, mark_settled, read_stored, trusted, work
from harness.report.papers import find_table as published_table
from harness.report.papers import low
from harness.results.reader import Results

_BASELINE = "pytorch"
_HEURISTICS: Mapping[str, str] = {"size_balanced": "by image size", "pecan": "transforms reordered"}
_SLOWEST = 0.75
"""Quantile of times, and of file sizes, above which a sample is slow, or taken for it."""


def draw(spec: Figure, results: Results, heading: str) -> Picture | None:
    """Draw accelerator and CPU over time a loader, epoch times, and files by size and time; None without epochs."""
    workload = next(iter(results.workloads), "")
    over_time, frame = list_readers(make_timelines(results, workload)), _settled(results, workload)
    if not over_time or frame.empty:
        return None
    size = (11.0, 1.2 + 1.35 * len(over_time))
    figure = make_sheet(size, {"w_pad": 0.1, "h_pad": 0.06, "wspace": 0.06, "hspace": 0.05}, heading)
    halves = figure.subfigures(1, 2, squeeze=False, width_ratios=[1.45, 1.0])[0]
    _draw_timelines(halves[0], over_time)
    above, below = halves[1].subplots(2, 1, height_ratios=[1.0, 1.25])
    _draw_epochs(above, frame)
    _draw_sizes(below, _sizes_and_times(results, workload))
    return figure


def table(spec: Figure, results: Results) -> FigureTable | None:
    """Return epoch time, use of the accelerator and its fluctuation, and CPU use, by loader."""
    workload = next(iter(results.workloads), "")
    over_time, frame = list_readers(make_timelines(results, workload)), _settled(results, workload)
    if not over_time or frame.empty:
        return None
    times = frame.groupby("base", sort=False)["duration_s"].median()
    theirs = over_time.get(_BASELINE)
    theirs_busy = None if theirs is None else theirs.mean(theirs.accelerator_util)
    rows, published = [], published_table(spec.values)
    for base, one in over_time.items():
        busy = one.mean(one.accelerator_util)
        busier = None if not busy or not theirs_busy else busy / theirs_busy
        rows.append(
            (
                _name(base),
                seconds(float(times[base])) if base in times else UNKNOWN,
                ratio(compare_frames(frame[frame["base"] == _BASELINE], frame[frame["base"] == base])),
                percent(busy),
                factor(busier),
                factor(low(published[base]) if base in published else None),
                percent(_fluctuation(one)),
                percent(one.mean(one.cpu_util)),
                percent(_transforming(results, frame[frame["base"] == base])),
            )
        )
    heads = ("per epoch", "PyTorch over it", "accelerator", "over PyTorch's", "paper", "fluctuation")
    return FigureTable(("Loader", *heads, "CPU", "workers in transforms"), tuple(rows))


def _settled(results: Results, workload: str) -> pd.DataFrame:
    frame = trusted(epochs(results))
    return frame[(frame["workload"] == workload) & mark_settled(frame) & ~frame["loader"].isin(results.bounds)]


def _name(base: str) -> str:
    return f"{spell(base)} ({_HEURISTICS[base]})" if base in _HEURISTICS else spell(base)


def _fluctuation(one: Timeline) -> float | None:
    """Return the deviation of the accelerator's use from window to window."""
    values = one.accelerator_util
    return None if np.isnan(values).any() else float(values.std())


def _transforming(results: Results, frame: pd.DataFrame) -> float | None:
    """Return the share of the workers' time that transforms took; None where the loader does not measure it."""
    times = work(results).merge(frame[["cell_id", "epoch", "loader", "duration_s"]], on=["cell_id", "epoch"])
    if times.empty:
        return None
    workers = results.experiment.loaders[str(times["loader"].iloc[0])].params.get("num_workers")
    by_epoch = times.groupby(["cell_id", "epoch"]).agg(work_s=("work_s", "sum"), duration_s=("duration_s", "first"))
    return float((by_epoch["work_s"] / by_epoch["duration_s"]).median()) / int(workers) if workers else None


def _draw_timelines(figure: SubFigure, over_time: Mapping[str, Timeline]) -> None:
    rows = figure.subplots(len(over_time), 1, sharex=True, sharey=True, squeeze=False)[:, 0]
    longest = max(one.duration_s for one in over_time.values())
    for axes, (base, one) in zip(rows, over_time.items(), strict=True):
        colour, busy = choose_colour(base), one.accelerator_util
        axes.fill_between(one.at_s, 100 * busy, color=colour, alpha=0.25, linewidth=0)
        axes.plot(one.at_s, 100 * busy, color=colour, linewidth=1.6)
        axes.plot(one.at_s, 100 * one.cpu_util, color=MUTED, linewidth=1.0, linestyle=(0, (2, 1.5)))
        axes.axvline(one.duration_s, color=FAINT, linewidth=1.0)
        axes.set_title(_name(base), pad=5, color=colour)
        text = f"accelerator {percent(one.mean(busy))}, ± {percent(_fluctuation(one))}"
        write_right_title(axes, f"{text}; CPU {percent(one.mean(one.cpu_util))}{'' if one.trusted else ' †'}", pad=5)
        axes.set_ylim(0, 105)
        axes.set_yticks([0, 50, 100])
        axes.set_xlim(0, longest)
        axes.set_ylabel("busy (%)")
    rows[-1].set_xlabel("seconds of all epochs")
    handles = [
        Line2D([], [], color=INK, linewidth=1.6, label="accelerator"),
        Line2D([], [], color=MUTED, linewidth=1.0, linestyle=(0, (2, 1.5)), label="CPU of the host"),
    ]
    figure.legend(handles=handles, loc="outside lower right", ncols=2)


def _draw_epochs(axes: Axes, frame: pd.DataFrame) -> None:
    bases = list(dict.fromkeys(frame["base"]))
    medians = frame.groupby("base", sort=False)["duration_s"].median()
    for place, base in enumerate(bases):
        part = frame[frame["base"] == base]
        axes.barh(place, medians[base], 0.62, color=choose_colour(base), alpha=0.85)
        face = [INK if valid else SURFACE for valid in part["valid"]]
        axes.scatter(part["duration_s"], [place] * len(part), s=12, c=face, edgecolors=INK, linewidths=0.7, zorder=3)
        text = seconds(float(medians[base]))
        if base != _BASELINE and _BASELINE in bases:
            text += f", {ratio(compare_frames(frame[frame['base'] == _BASELINE], part))}"
        valid = bool(part["valid"].any())
        style = {"va": "center", "fontsize": 8.5, "color": INK if valid else BAD}
        end = (float(part["duration_s"].max()), place)
        write_note(axes, text if valid else f"{text} †", end, (7, 0), coordinates="data", **style)
    axes.set_yticks(range(len(bases)), [spell(base) for base in bases], color=INK)
    axes.set_ylim(len(bases) - 0.5, -0.5)
    axes.set_xlim(0, 1.42 * float(frame["duration_s"].max()))
    axes.grid(visible=False, axis="y")
    axes.grid(visible=True, axis="x")
    axes.set_title("Seconds per epoch", pad=7)


def _sizes_and_times(results: Results, workload: str) -> pd.DataFrame:
    """Return a row a sample: `kb` of its file, `ms` of its preprocessing; none where either is not stored."""
    files = list(results.folder.glob("samples*.parquet"))
    times = work(results)
    times = times[(times["base"] == _BASELINE) & (times["workload"] == workload)]
    sizes = read_stored(files[0]) if len(files) == 1 else None
    if sizes is None or times.empty:
        return pd.DataFrame(columns=["kb", "ms"])
    ms = 1e3 * times.groupby("sample")["work_s"].median()
    return pd.DataFrame({"kb": sizes["size"].reindex(ms.index) / 1e3, "ms": ms})


def _draw_sizes(axes: Axes, samples: pd.DataFrame) -> None:
    axes.set_title("What the size of a file says", pad=7)
    if samples.empty:
        say(axes, "not measured")
        return
    large, late = (float(samples[name].quantile(_SLOWEST)) for name in ("kb", "ms"))
    axes.scatter(samples["kb"], samples["ms"], s=9, color=choose_colour(_BASELINE), alpha=0.6, linewidths=0)
    axes.axvline(large, color=INK, linewidth=1.0, linestyle=(0, (5, 3)))
    axes.axhline(late, color=INK, linewidth=1.0, linestyle=(0, (5, 3)))
    slow, taken = samples["ms"] > late, samples["kb"] > large
    found, by_chance = float(taken[slow].mean()) if slow.any() else 0.0, float(taken.mean())
    correlation = float(samples["kb"].corr(samples["ms"]))
    axes.set_xlabel(
        f"file (kB)\ncorrelation {correlation:.2f}\n{percent(found)} of the slowest quarter of samples\n"
        f"have a file of the largest, {percent(by_chance)} by chance"
    )
    axes.set_ylabel("preprocessing (ms)")
    axes.set_ylim(0, 1.05 * float(samples["ms"].max()))
