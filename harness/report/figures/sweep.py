"""Plotter of measures over the setting of swept loaders: points are epochs, lines join their medians."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from harness.report.figures.definition import FigureTable, Sweep
from harness.report.figures.marks import (
    draw_points,
    draw_sweep,
    make_loader_handles,
    make_sheet,
    note_invalid,
    say,
    tick_settings,
    write_note,
    write_under_title,
    write_value,
)
from harness.report.figures.sentences import fill, run_words
from harness.report.figures.style import FAINT, INK, MUTED, SURFACE, choose_colour
from harness.report.labels import UNKNOWN, megabytes, percent, ratio, seconds, significant, spell
from harness.report.measurements import compare_frames, epochs, mark_settled, trusted
from harness.report.papers import find_table as published_table
from harness.report.papers import low, read_paper
from harness.results.reader import Results

_OURS = "sample_aware"
"""The section of the loader that the others are compared with in a panel of a workload."""


def draw(spec: Sweep, results: Results, heading: str) -> Figure | None:
    """Draw the figure; None when no sweep was measured."""
    frame = _lines(spec, results)
    if frame.empty:
        return None
    if spec.by == "metric":
        return _by_metric(spec, results, frame)
    return _by_workload(spec, frame, heading) if spec.by == "workload" else _by_loader(spec, frame, heading)


def words(spec: Sweep, results: Results) -> Mapping[str, object]:
    """Return `peaks` and `best`, the first measure by loader; `bound` and `slowest`, None where there are none.

    A peak is of one epoch; `best` is of a setting's median, over the bound; `slowest` is of a loader's median.
    """
    frame, metric = _lines(spec, results), spec.panels[0].metric
    medians = frame.groupby(["base", "setting"])[metric].median().groupby("base", sort=False).max()
    slowest = frame.groupby("loader")[metric].median().min() if len(frame) else None
    bound = _bound(spec, results)
    best = {str(base): float(value) / bound for base, value in medians.items()} if bound else {}
    return {"peaks": frame.groupby("base")[metric].max().to_dict(), "best": best, "bound": bound, "slowest": slowest}


def table(spec: Sweep, results: Results) -> FigureTable | None:
    """Return the medians; None when no sweep was measured."""
    if spec.table == "loaders":
        return _table_of_loaders(spec, results)
    frame = _lines(spec, results)
    if frame.empty:
        return None
    return _table_of_settings(spec, frame) if spec.table == "settings" else _table_of_workloads(spec, results, frame)


def _frame(spec: Sweep, results: Results) -> pd.DataFrame:
    """Return the trusted epochs, of the first workload where panels are of metrics; `later` is the epoch's place."""
    frame = epochs(results)
    if spec.by == "metric":
        frame = frame[frame["workload"] == next(iter(results.workloads), "")]
    frame = trusted(frame)
    return frame.assign(
        cpu_ms_per_sample=1e3 * frame["cell_cpu_s"] / frame["samples"],
        first_batch_from_start_s=frame["setup_s"] + frame["first_batch_s"],
        later=mark_settled(frame),
    )


def _lines(spec: Sweep, results: Results) -> pd.DataFrame:
    """Return the rows that are drawn."""
    frame = _frame(spec, results)
    frame = frame[frame["setting"].notna() & (frame["base"] != spec.bound)]
    if spec.epochs == "later":
        return frame[frame["later"]]
    if spec.epochs == "first":
        return frame[frame["setup_s"].notna()]
    return _trainings(frame, spec.panels[0].metric) if spec.epochs == "training" else frame


def _trainings(frame: pd.DataFrame, metric: str) -> pd.DataFrame:
    """Return a row a cell with the sum of its epochs."""
    keys = ["workload", "base", "setting", "loader", "cell_id"]
    sums = {metric: (metric, "sum"), "valid": ("valid", "all"), "counted": ("epoch", "count")}
    summed = frame.groupby(keys, sort=False).agg(**sums).reset_index()
    # A cell of which some epochs do not count took longer than the sum of the others.
    return summed[summed["counted"] == summed.groupby("workload")["counted"].transform("max")]


def _bound(spec: Sweep, results: Results) -> float | None:
    frame = _frame(spec, results)
    known = frame.loc[(frame["base"] == spec.bound) & frame["later"], spec.panels[0].metric]
    return None if known.empty else float(known.median())


def _by_metric(spec: Sweep, results: Results, frame: pd.DataFrame) -> Figure:
    said = {**run_words(results), **words(spec, results)}
    count = len(spec.panels) + bool(spec.values)
    figure = make_sheet(
        (6.0 if count == 1 else 10.5 if spec.values else 11.0, 4.0 if len(spec.panels) == 1 else 4.3),
        {"w_pad": 0.12, "h_pad": 0.08, "wspace": 0.1},
    )
    every = figure.subplots(1, count, squeeze=False, width_ratios=[1.35, *[1.0] * (count - 1)])[0]
    pad = 20 if any(panel.note for panel in spec.panels) else 9
    for axes, panel in zip(every, spec.panels, strict=False):
        draw_sweep(axes, frame.assign(**{panel.metric: panel.scale * frame[panel.metric]}), panel.metric)
        bound = _bound(spec, results) if panel is spec.panels[0] else None
        if bound is not None:
            _draw_bound(axes, bound, fill(panel.bound_note, said))
        axes.set_title(fill(panel.title, said), pad=pad)
        axes.set_ylabel(panel.y)
        if panel.note:
            write_under_title(axes, fill(panel.note, said))
    if spec.values:
        _draw_paper(every[-1], spec.values)
    note_invalid(every[0], frame)
    for axes in every:
        axes.set_xlabel(spec.x)
        if len(spec.panels) > 1:
            axes.margins(x=0.04)
    return figure


def _by_workload(spec: Sweep, frame: pd.DataFrame, heading: str) -> Figure:
    workloads, (panel, *_) = list(dict.fromkeys(frame["workload"])), spec.panels
    columns = min(2, len(workloads))
    lines = -(-len(workloads) // columns)
    size = (max(6.0, 5.0 * columns), 0.6 + 2.8 * lines)
    figure = make_sheet(size, {"w_pad": 0.1, "h_pad": 0.1, "wspace": 0.05, "hspace": 0.05}, heading)
    every = figure.subplots(lines, columns, squeeze=False).ravel()
    for axes, workload in zip(every, workloads, strict=False):
        here = frame[frame["workload"] == workload]
        draw_sweep(axes, here, panel.metric, names=False)
        axes.set_xlabel(spec.x)
        axes.set_ylabel(panel.y)
        axes.set_title(spell(workload), pad=20)
        write_under_title(axes, _compared(here, panel.metric))
        note_invalid(axes, here)
    for axes in every[len(workloads) :]:
        axes.set_axis_off()
    figure.legend(handles=make_loader_handles(list(dict.fromkeys(frame["base"]))), loc="outside lower left", ncols=6)
    return figure


def _by_loader(spec: Sweep, frame: pd.DataFrame, heading: str) -> Figure:
    workloads, bases = list(dict.fromkeys(frame["workload"])), list(dict.fromkeys(frame["base"]))
    size = (max(6.0, 3.7 * len(workloads)), 0.5 + 2.6 * len(bases))
    figure = make_sheet(size, {"w_pad": 0.1, "h_pad": 0.1, "wspace": 0.04, "hspace": 0.06}, heading)
    every = figure.subplots(len(bases), len(workloads), squeeze=False)
    for row, base in zip(every, bases, strict=True):
        for axes, workload in zip(row, workloads, strict=True):
            axes.set_title(f"{spell(base)}, {spell(workload)}", pad=8)
            here = frame[(frame["base"] == base) & (frame["workload"] == workload)]
            _draw_values(axes, here, spec.panels[0].metric, choose_colour(base))
        row[0].set_ylabel(spec.panels[0].y)
    for axes in every[-1]:
        axes.set_xlabel(spec.x)
    return figure


def _draw_values(axes: Axes, frame: pd.DataFrame, metric: str, colour: str) -> None:
    """Draw one line with its medians written above."""
    if frame.empty:
        say(axes, "not measured")
        axes.set_yticks([])
        return
    sns.lineplot(frame, x="setting", y=metric, estimator="median", errorbar=None, color=colour, ax=axes)
    draw_points(axes, frame, metric, colour)
    axes.set(xlabel="", ylabel="")
    axes.set_ylim(0, 1.25 * float(frame[metric].max()))
    tick_settings(axes, sorted(frame["setting"].unique()))
    values = frame.groupby("setting")[metric]
    for setting, median, top in zip(values.groups, values.median(), values.max(), strict=True):
        write_value(axes, float(str(setting)), float(top), _written(metric, float(median)))
    note_invalid(axes, frame)


def _draw_bound(axes: Axes, bound: float, text: str) -> None:
    axes.axhline(bound, color=INK, linewidth=1.2, linestyle=(0, (6, 3)))
    axes.set_ylim(0, max(axes.get_ylim()[1], 1.12 * bound))
    box = {"facecolor": "white", "edgecolor": FAINT, "alpha": 0.0, "pad": 1}
    style = {"color": INK, "fontsize": 8.5, "bbox": box}
    value = f"fixed batch, the upper bound: {significant(bound)}{text and ' '}{text}"
    write_note(axes, value, (0, bound), (4, 4), coordinates=("axes fraction", "data"), **style)


def _draw_paper(axes: Axes, path: str) -> None:
    """Draw a paper's values by loader and setting in a panel of their own."""
    for loader, known in _theirs(path).items():
        axes.plot(list(known), list(known.values()), "D--", color=MUTED, markerfacecolor=SURFACE, linewidth=1.4)
        for setting, value in known.items():
            write_note(axes, f"{value:g}", (setting, value), (-7, 4), coordinates="data", ha="right", color=MUTED)
        axes.set_title(
            f"{read_paper(path.partition('/')[0]).name} paper: {spell(loader)}, ImageNet", pad=9, color=MUTED
        )
        tick_settings(axes, list(known))
        axes.set_ylim(0, 1.15 * max(known.values()))
        axes.margins(x=0.14)


def _theirs(path: str) -> dict[str, dict[float, float]]:
    return {
        loader: {float(setting): low(value) for setting, value in published_table(f"{path}/{loader}").items()}
        for loader in published_table(path)
    }


def _compared(frame: pd.DataFrame, metric: str) -> str:
    """Return the others' measure over the sample-aware loader's, each at its greatest setting."""
    last = frame[frame["setting"] == frame.groupby("base")["setting"].transform("max")]
    ours = last[last["base"] == _OURS]
    if ours.empty:
        return ""
    others = last[last["base"] != _OURS].groupby("base", sort=False)
    return f"{spell(_OURS)} with {float(ours['setting'].iloc[0]):g}: " + ", ".join(
        f"{ratio(compare_frames(part, ours, metric))} {spell(str(base))}" for base, part in others
    )


def _written(metric: str, value: float | None) -> str:
    if value is None or pd.isna(value):
        return UNKNOWN
    if metric == "duration_s":
        return seconds(float(value))
    if metric.endswith("_bytes"):
        return megabytes(float(value))
    return percent(float(value)) if metric.endswith("_util") else significant(float(value))


def _table_of_loaders(spec: Sweep, results: Results) -> FigureTable | None:
    frame, bound = _frame(spec, results), _bound(spec, results)
    if frame.empty:
        return None
    rows = []
    for _, part in frame.groupby("loader", sort=False):
        median = part[part["later"]].median(numeric_only=True)
        first = part[part["epoch"] == part["epoch"].min()].median(numeric_only=True)
        cells = [spell(str(part["base"].iloc[0])), UNKNOWN if pd.isna(median["setting"]) else f"{median['setting']:g}"]
        for column in spec.columns.values():
            metric = column.removeprefix("first ")
            cells.append(_written(metric, (first if metric != column else median)[metric]))
        if bound is not None:
            cells.append(percent(float(median[spec.panels[0].metric]) / bound))
        rows.append(tuple(cells))
    heads = (spec.corner, spec.x.partition(":")[0], *spec.columns, *(["of the bound"] if bound is not None else []))
    return FigureTable(heads, tuple(rows))


def _table_of_settings(spec: Sweep, frame: pd.DataFrame) -> FigureTable:
    metric, theirs = spec.panels[0].metric, _theirs(spec.values) if spec.values else {}
    keys = ["base", "workload"] if spec.by == "loader" else ["base"]
    settings = sorted({*frame["setting"].unique(), *(setting for known in theirs.values() for setting in known)})
    medians = frame.groupby([*keys, "setting"], sort=False)[metric].median()
    rows = []
    for place in dict.fromkeys(zip(*(frame[key] for key in keys), strict=True)):
        values = [medians.get((*place, setting)) for setting in settings]
        known = [float(value) for value in values if value is not None]
        gain = [percent(1 - min(known) / known[0]) if len(known) > 1 else UNKNOWN] if spec.gain else []
        rows.append((", ".join(map(spell, place)), *(_written(metric, value) for value in values), *gain))
    ours = len(rows)
    for loader, paper_values in theirs.items():
        rows.append((f"{spell(loader)}, paper", *(_written(metric, paper_values.get(one)) for one in settings)))
    heads = (spec.corner, *(spec.head.format(setting) for setting in settings), *([spec.gain] if spec.gain else []))
    return FigureTable(heads, tuple(rows), frozenset(range(ours, len(rows))))


def _table_of_workloads(spec: Sweep, results: Results, frame: pd.DataFrame) -> FigureTable:
    metric, bases = spec.panels[0].metric, list(dict.fromkeys(frame["base"]))
    medians = frame.groupby(["workload", "setting", "base"], sort=False)[metric].median()
    places = dict.fromkeys(zip(frame["workload"], frame["setting"], strict=True))
    rows = [
        (
            f"{spell(workload)}, {setting:g}",
            *(_written(metric, medians.get((workload, setting, base))) for base in bases),
        )
        for workload, setting in sorted(places, key=lambda place: (results.workloads.index(place[0]), place[1]))
    ]
    return FigureTable((spec.corner, *map(spell, bases)), tuple(rows))
