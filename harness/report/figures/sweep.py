"""Plotter of measures over the setting of swept loaders: points are epochs, lines join their medians."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator

from harness.report.figures.definition import Panel, Sweep
from harness.report.figures.marks import (
    compute_medians,
    draw_sweep,
    make_loader_handles,
    make_sheet,
    note_invalid,
    tick_settings,
    write_label,
    write_note,
    write_under_title,
)
from harness.report.figures.sentences import fill, run_words
from harness.report.figures.style import FAINT, INK, MUTED, SURFACE, choose_colour
from harness.report.figures.sweep_values import (
    BySetting,
    count_round_trips,
    divide_by,
    find_bound,
    find_paper,
    make_model,
    read_lines,
    read_paper_lines,
    table,
    write_value,
)
from harness.report.labels import ratio, significant, spell
from harness.report.measurements import compare_frames
from harness.report.papers import low, read_paper
from harness.results.reader import Results

__all__ = ["draw", "table", "words"]

_FAR_MS: Final = 1.0
"""Round trip from which on round trips a file say something."""
_OURS: Final = "sample_aware"
"""The section of the loader that the others are compared with in a panel of a workload."""
_PAPER: Final[Mapping[str, Any]] = {"color": MUTED, "marker": "D", "markerfacecolor": SURFACE, "linestyle": "--"}
_BOUND: Final[Mapping[str, Any]] = {"color": INK, "linewidth": 1.2, "linestyle": (0, (6, 3))}
_LAW: Final[Mapping[str, Any]] = {"color": INK, "linewidth": 1.4, "linestyle": (0, (2, 2)), "zorder": 2}
_MODEL: Final[Mapping[str, Any]] = {"color": FAINT, "linewidth": 1.6, "linestyle": (0, (1, 1.5)), "zorder": 1}


def draw(spec: Sweep, results: Results, heading: str) -> Figure | None:
    """Draw the figure; None when no sweep was measured."""
    frame = read_lines(spec, results)
    if frame.empty:
        return None
    if spec.by == "regime":
        return _draw_regimes(spec, frame, heading)
    workloads, bases = list(dict.fromkeys(frame["workload"])), list(dict.fromkeys(frame["base"]))
    count = len(workloads) if spec.by == "workload" else len(spec.panels) + bool(spec.values)
    columns = len(workloads) if spec.by == "loader" else min(spec.across, count)
    lines = len(bases) if spec.by == "loader" else -(-count // columns)
    size = (
        max(6.0, 5.2 * columns if spec.by != "loader" else 3.7 * columns),
        0.8 + (3.4 if lines == 1 else 2.8) * lines,
    )
    figure = make_sheet(size, {"w_pad": 0.12, "h_pad": 0.1, "wspace": 0.06, "hspace": 0.05}, heading)
    widths = [1.35, *[1.0] * (columns - 1)] if spec.by == "metric" else [1.0] * columns
    every = figure.subplots(lines, columns, squeeze=False, width_ratios=widths)
    if spec.by == "loader":
        for row, base in zip(every, bases, strict=True):
            for axes, workload in zip(row, workloads, strict=True):
                here = frame[(frame["base"] == base) & (frame["workload"] == workload)]
                _draw_panel(axes, spec, results, spec.panels[0], here, f"{spell(base)}, {spell(workload)}")
    elif spec.by == "workload":
        for axes, workload in zip(every.ravel(), workloads, strict=False):
            _draw_panel(axes, spec, results, spec.panels[0], frame[frame["workload"] == workload], spell(workload))
    else:
        for axes, panel in zip(every.ravel(), spec.panels, strict=False):
            _draw_panel(axes, spec, results, panel, frame)
        if spec.values:
            _draw_paper(every.ravel()[len(spec.panels)], spec)
    for axes in every.ravel()[count if spec.by != "loader" else columns * lines :]:
        axes.set_axis_off()
    handles = make_loader_handles(bases) if spec.by == "workload" and len(bases) > 1 else []
    handles += _make_handles(spec, results, workloads)
    if handles:
        figure.legend(handles=handles, loc="outside lower left", ncols=6)
    return figure


def words(spec: Sweep, results: Results) -> Mapping[str, object]:
    """Return `peaks` and `best`, the first measure by loader; `bound` and `slowest`, None where there are none.

    A peak is of one epoch; `best` is of a setting's median, over the bound; `slowest` is of a loader's median. With a
    model, those of the first workload's, such as `load_ms`, and `caps`, how many loads overlap in each workload.
    """
    frame, metric = read_lines(spec, results), spec.panels[0].metric
    medians = frame.groupby(["base", "setting"])[metric].median().groupby("base", sort=False).max()
    slowest = frame.groupby("loader")[metric].median().min() if len(frame) else None
    bound = next(iter(find_bound(spec, results).values()), None)
    best = {str(base): float(value) / bound for base, value in medians.items()} if bound else {}
    models = [make_model(results, workload) for workload in results.workloads] if spec.model else []
    known = [model for model in models if model is not None]
    return {
        "peaks": frame.groupby("base")[metric].max().to_dict(),
        "best": best,
        "bound": bound,
        "slowest": slowest,
        "caps": sorted({model.cap for model in known if model.cap is not None}),
        "round_trips": count_round_trips(frame) if spec.by == "regime" else None,
        **(known[0].words if known else {"load_ms": "", "step_ms": ""}),
    }


def _draw_panel(axes: Axes, spec: Sweep, results: Results, panel: Panel, frame: pd.DataFrame, title: str = "") -> None:
    """Draw one measure of a line a loader, with its bound, the model's values and the paper's."""
    shown = divide_by(frame, panel)
    draw_sweep(axes, shown, "value", names=spec.by == "metric" and not panel.labelled)
    axes.set(xlabel=spec.x, ylabel=panel.y)
    axes.margins(x=0.06)
    if shown.empty:
        axes.set_title(title)
        return
    workload = str(shown["workload"].iloc[0])
    said = {**run_words(results), **words(spec, results)}
    model = make_model(results, workload) if spec.model else None
    said |= model.words if model else {}
    note = fill(panel.note, said) if panel.note else _compare(shown) if spec.by == "workload" else ""
    axes.set_title(fill(panel.title, said) or title, pad=20 if note else 9)
    write_under_title(axes, note)
    if model is not None and panel.metric == "utilisation":
        _draw_model(axes, panel, model.predict, model.cap, shown)
        axes.axvline(float(str(said["knee"])), color=FAINT, alpha=0.25, linewidth=6, zorder=0)
    if panel is spec.panels[0] or panel.over:
        name = "fixed batch, the upper bound" if spec.bound == "fixed" else spell(spec.bound)
        _draw_bound(axes, find_bound(spec, results, workload), panel, frame, (name, fill(panel.bound_note, said)))
    theirs = find_paper(panel)
    _draw_paper_values(axes, panel, theirs, fill(panel.paper_note, said))
    if panel.labelled:
        settings = sorted(shown["setting"].unique())
        room = 0.08 * (settings[-1] - settings[0]) or 0.5
        axes.set_xscale("linear")
        axes.set_xticks(settings)
        axes.set_xlim(settings[0] - room, settings[-1] + room)
        _write_labels(axes, panel, frame, shown, theirs)
    if panel.top:
        axes.set_ylim(0, panel.top)
    note_invalid(axes, frame)


def _draw_regimes(spec: Sweep, frame: pd.DataFrame, heading: str) -> Figure:
    """Draw a panel a regime, from near to far, on one scale."""
    places = list(dict.fromkeys(frame.sort_values("rtt_ms")["place"]))
    figure = make_sheet((3.7 * len(places) + 0.6, 4.4), {"w_pad": 0.08, "h_pad": 0.1, "wspace": 0.04}, heading)
    row, values = figure.subplots(1, len(places), squeeze=False).ravel(), frame[spec.panels[0].metric]
    for axes, place in zip(row, places, strict=True):
        _draw_regime(axes, spec, frame, place)
        axes.set_ylim(0.6 * values.min(), 1.6 * values.max())
        axes.tick_params(labelleft=axes is row[0])
    row[0].set_ylabel(spec.panels[0].y)
    names = ("the law: round trips × RTT / readers", "near part: its best when nearest", "the paper's, at its readers")
    near, theirs = {"color": MUTED, "linewidth": 1}, {**_PAPER, "linestyle": "", "markersize": 8}
    handles = make_loader_handles(list(dict.fromkeys(frame["base"])))
    handles += [Line2D([], [], label=name, **style) for name, style in zip(names, (_LAW, near, theirs), strict=True)]
    figure.legend(handles=handles, loc="outside lower left", ncols=len(handles))
    return figure


def _draw_regime(axes: Axes, spec: Sweep, frame: pd.DataFrame, place: str) -> None:
    """Draw time a file over readers in one regime, with the law, the near part and the paper's implied points."""
    panel, here = spec.panels[0], frame[frame["place"] == place]
    rtt_ms, settings = float(here["rtt_ms"].iloc[0]), sorted(frame["setting"].unique())
    draw_sweep(axes, here, panel.metric, names=False)
    axes.set(title=f"{place} away", xlabel=spec.x, ylabel="", yscale="log")
    tick_settings(axes, settings)
    _write_decades(axes.yaxis)
    trips, nearest = count_round_trips(frame), frame[frame["rtt_ms"] == frame["rtt_ms"].min()]
    if trips is not None:
        axes.plot(settings, [trips * rtt_ms / setting for setting in settings], **_LAW)
    for base in dict.fromkeys(here["base"]) if rtt_ms > frame["rtt_ms"].min() else ():
        near = compute_medians(nearest[nearest["base"] == base], panel.metric)
        if near:
            axes.axhline(min(near.values()), color=choose_colour(str(base)), linewidth=1, alpha=0.6, zorder=0)
    for base, known in read_paper_lines(spec.values).items():
        if rtt_ms in known:
            style = {**_PAPER, "color": choose_colour(base), "markersize": 8}
            axes.plot([low(f"{spec.readers}/{base}")], [known[rtt_ms] * rtt_ms], **style)
    if rtt_ms >= _FAR_MS:
        beside = axes.secondary_yaxis(
            "right", functions=(lambda y: np.divide(y, rtt_ms), lambda y: np.multiply(y, rtt_ms))
        )
        _write_decades(beside.yaxis)
        beside.set_ylabel("round trips a file")
    note_invalid(axes, here)


def _write_decades(axis: Axis) -> None:
    """Write 1, 2, 5, 10, … at a logarithmic axis."""
    axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axis.set_major_formatter("{x:g}")
    axis.set_minor_formatter("")


def _write_labels(axes: Axes, panel: Panel, frame: pd.DataFrame, shown: pd.DataFrame, theirs: BySetting) -> None:
    """Write the medians above the points, or below them where the paper's are higher; of a ratio only of our loader."""
    part = shown[shown["base"] == _OURS] if panel.over else shown
    tops = part.groupby("setting")["value"].max()
    for setting, median in compute_medians(part, "value").items():
        text = write_value(panel, median)
        if panel.over:
            pair = [frame[(frame["base"] == base) & (frame["setting"] == setting)] for base in (panel.over, _OURS)]
            text = ratio(compare_frames(pair[0], pair[1]))
        is_below = theirs.get(setting, median) > median
        write_label(axes, setting, median if is_below else float(tops[setting]), text, below=is_below, colour=INK)


def _draw_model(axes: Axes, panel: Panel, predict: Any, cap: int | None, shown: pd.DataFrame) -> None:
    settings = sorted(shown["setting"].unique())
    axes.plot(settings, [panel.scale * predict(one) for one in settings], **{**_PAPER, "markersize": 7, "zorder": 2})
    if cap is not None:
        axes.plot(settings, [panel.scale * predict(one, capped=False) for one in settings], **_MODEL)


def _draw_bound(axes: Axes, bound: BySetting, panel: Panel, frame: pd.DataFrame, told: tuple[str, str]) -> None:
    if panel.over:
        axes.axhline(1.0, color=FAINT, linewidth=1.2, zorder=1)
        theirs = compute_medians(frame[frame["base"] == panel.over], panel.metric)
        bound = {setting: theirs[setting] / value for setting, value in bound.items() if setting in theirs}
    for value in (value for setting, value in bound.items() if setting is None):
        axes.axhline(value, **_BOUND)
        axes.set_ylim(0, max(axes.get_ylim()[1], 1.12 * value))
        text = f"{told[0]}: {significant(value)} {told[1]}".strip()
        write_note(axes, text, (0, value), (4, 4), coordinates=("axes fraction", "data"), color=INK, fontsize=8.5)
    known = {setting: value for setting, value in bound.items() if setting is not None}
    axes.plot(list(known), list(known.values()), marker="o" if len(known) == 1 else "", markersize=3, **_BOUND)
    if known:
        axes.set_ylim(0, max(axes.get_ylim()[1], 1.12 * max(known.values())))


def _draw_paper_values(axes: Axes, panel: Panel, theirs: BySetting, text: str) -> None:
    """Draw a paper's values by setting as diamonds, or one for all settings as a line with a text."""
    by_setting = {setting: value for setting, value in theirs.items() if setting is not None}
    style: dict[str, Any] = {"coordinates": ("axes fraction", "data"), "ha": "center", "va": "top", "color": MUTED}
    for value in (value for setting, value in theirs.items() if setting is None):
        axes.axhline(value, color=FAINT, linewidth=2.2, zorder=1)
        write_note(axes, text, (0.5, value), (0, -5), **style)
    axes.plot(list(by_setting), list(by_setting.values()), **{**_PAPER, "markersize": 7, "linewidth": 1.4})
    for setting, value in by_setting.items():
        write_label(axes, setting, value, write_value(panel, value), below=False)
    if theirs:
        axes.set_ylim(0, max(axes.get_ylim()[1], 1.15 * max(theirs.values())))


def _draw_paper(axes: Axes, spec: Sweep) -> None:
    """Draw a paper's values by loader and setting in a panel of their own."""
    paper = read_paper(spec.values.partition("/")[0]).name
    for loader, known in read_paper_lines(spec.values).items():
        axes.plot(list(known), list(known.values()), linewidth=1.4, **_PAPER)
        for setting, value in known.items():
            write_note(axes, f"{value:g}", (setting, value), (-7, 4), coordinates="data", ha="right", color=MUTED)
        axes.set_title(f"{paper} paper: {spell(loader)}, ImageNet", pad=9, color=MUTED)
        tick_settings(axes, list(known))
        axes.set_ylim(0, 1.15 * max(known.values()))
    axes.set_xlabel(spec.x)
    axes.margins(x=0.14)


def _make_handles(spec: Sweep, results: Results, workloads: Sequence[str]) -> list[Line2D]:
    """Return legend entries of the measured values, the model and the bound."""
    handles = []
    models = [make_model(results, workload) for workload in workloads] if spec.model else []
    if any(models):
        handles += [Line2D([], [], color=INK, marker="o", markersize=5, linewidth=1.4, label="measured, real workers")]
        capped = any(model is not None and model.cap is not None for model in models)
        name = "model with the cap" if capped else f"{spec.model_name}, and the model"
        handles += [Line2D([], [], markersize=7, label=name, **_PAPER)]
        handles += [Line2D([], [], label="model without it", **_MODEL)] if capped else []
    if spec.bound_name:
        handles += [Line2D([], [], label=spec.bound_name, **_BOUND)] * bool(find_bound(spec, results))
    return handles


def _compare(frame: pd.DataFrame) -> str:
    """Return the others' measure over the sample-aware loader's, each at its greatest setting."""
    last = frame[frame["setting"] == frame.groupby("base")["setting"].transform("max")]
    ours = last[last["base"] == _OURS]
    if ours.empty:
        return ""
    others = last[last["base"] != _OURS].groupby("base", sort=False)
    return f"{spell(_OURS)} with {float(ours['setting'].iloc[0]):g}: " + ", ".join(
        f"{ratio(compare_frames(part, ours, 'value'))} {spell(str(base))}" for base, part in others
    )
