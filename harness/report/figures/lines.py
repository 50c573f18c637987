"""Plotter of lines over the seconds of training: a grid of panels by workload, loader and measure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, Final

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from harness.report.figures.definition import Lines
from harness.report.figures.lines_beside import draw_beside
from harness.report.figures.lines_table import (
    LoaderLines,
    describe,
    find_timelines,
    name_loader,
    table,
    write_milliseconds,
)
from harness.report.figures.marks import make_sheet, say, write_under_title
from harness.report.figures.style import BAD, DOMAIN_COLOURS, FAINT, INK, choose_colour
from harness.report.figures.timeline import Timeline, choose_regime, list_readers, window_s
from harness.report.labels import regime_labels, spell
from harness.report.papers import find_values, low
from harness.results.reader import Results

__all__ = ["draw", "table", "words"]

_ACCELERATOR, _CPU = DOMAIN_COLOURS["gpu"], DOMAIN_COLOURS["cpu"]
_DASHED: Final = (0, (5, 3))
_INVALID: Final = (0, (1, 1.5))
_OURS: Final = "sample_aware"
_SHORTEST_S: Final = 1e-4
"""The least time between batches that is drawn; batches that wait come in less."""
_AXIS_NAMES: Final = {
    "use": "use, %",
    "mb_per_s": "MB/s trained on",
    "disk_mb_per_s": "MB/s read from disk",
    "memory": "memory, GB",
    "batch_s": "between one batch and the next",
    "all_connections": "MB/s of all connections",
    "connections": "MB/s of each connection",
}


@dataclass(frozen=True, slots=True)
class _Facet:
    """What one panel shows."""

    workload: str
    loader: str
    """Empty where all loaders have a line in it."""
    measure: str
    here: Mapping[str, Timeline]
    """The timelines of its lines, by loader."""


def draw(spec: Lines, results: Results, heading: str) -> Figure | None:
    """Draw the figure; None when no epoch was measured."""
    found = find_timelines(spec, results)
    # A loader that reads nothing has no panel of its own.
    readers = {workload: list_readers(here) for workload, here in found.items() if list_readers(here)}
    found = readers if "loader" in (*spec.down, *spec.across) else found
    if not found:
        return None
    rows, columns = ([*_list_keys(spec, found, dims)] for dims in (spec.down, spec.across))
    wraps = not spec.down and len(columns) > 2 and spec.across == ["workload"]
    shape = (-(-len(columns) // 2), 2) if wraps else (len(rows), len(columns))
    width = max(spec.panel_width * shape[1] + 0.4, 7.0) + (4.6 if spec.beside else 0.0)
    figure = make_sheet(
        (width, 0.9 + spec.panel_height * shape[0]), {"w_pad": 0.08, "h_pad": 0.08, "hspace": 0.05}, heading
    )
    halves: Any = [figure]
    if spec.beside:
        halves = figure.subfigures(1, 2, squeeze=False, width_ratios=[1.45, 1.0])[0]
        draw_beside(halves[1], spec, results)
    every = halves[0].subplots(*shape, squeeze=False, sharey="row" if spec.last else False)
    panels = [(row, column) for row in rows for column in columns]
    for axes, (row, column) in zip(every.ravel(), panels, strict=False):
        facet = _make_facet(spec, found, {**row, **column})
        if facet.here:
            _draw_facet(axes, spec, results, found, facet)
        else:
            axes.set_axis_off()
    for axes in every.ravel()[len(panels) :]:
        axes.set_axis_off()
    for axes in every[-1]:
        axes.set_xlabel("seconds of the epoch" if spec.last else "seconds of training")
    halves[0].legend(handles=_make_handles(spec, found), loc="outside lower left", ncols=5)
    return figure


def words(spec: Lines, results: Results) -> Mapping[str, object]:
    """Return `windows`, what a point of the lines is, `regime`, the one that is drawn, and `marks`, what marks mean."""
    every = [one for here in find_timelines(spec, results).values() for one in here.values()]
    widths = sorted({window_s(one.duration_s) for one in every}) or [0.5]
    width = " to ".join(f"{one:g}" for one in dict.fromkeys((widths[0], widths[-1])))
    untrusted = any(not one.trusted for one in every)
    return {
        "windows": f"Means over windows of {width} s; epochs follow one another without the time between them.",
        "regime": regime_labels(results)[choose_regime(results)],
        "marks": "A loader marked † has no valid row behind it." if untrusted else "",
    }


def _list_keys(spec: Lines, found: LoaderLines, dimensions: Sequence[str]) -> Sequence[Mapping[str, str]]:
    """Return the combinations of the values of some dimensions; of workload and loader those that there are."""
    values: dict[str, list[str]] = {
        "workload": list(found),
        "loader": list(dict.fromkeys(loader for here in found.values() for loader in here)),
        "measure": list(spec.measures),
    }
    chosen = product(*[values[one] for one in dimensions])
    every = [dict(zip(dimensions, each, strict=True)) for each in chosen]
    return [one for one in every if not {"workload", "loader"} <= set(one) or one["loader"] in found[one["workload"]]]


def _make_facet(spec: Lines, found: LoaderLines, place: Mapping[str, str]) -> _Facet:
    workload, loader = place.get("workload", next(iter(found))), place.get("loader", "")
    here = {key: one for key, one in found[workload].items() if loader in ("", key)}
    return _Facet(workload, loader, place.get("measure", spec.measures[0]), here)


def _draw_facet(axes: Axes, spec: Lines, results: Results, found: LoaderLines, facet: _Facet) -> None:
    named = facet.workload if "workload" in (*spec.down, *spec.across) else ""
    colour = INK if all(one.trusted for one in facet.here.values()) or not spec.last else BAD
    loader = name_loader(spec, facet.loader, facet.here.get(facet.loader))
    title = ", ".join(filter(None, (named and spell(named), loader)))
    note = describe(spec, results, facet.workload, facet.loader, facet.measure, facet.here)
    axes.set_title(title, pad=9 + 12 * (1 + note.count("\n")) if note else 9, color=colour)
    write_under_title(axes, note)
    place = axes.get_subplotspec()
    if "measure" in spec.across or (place is not None and place.is_first_col()):
        axes.set_ylabel(_AXIS_NAMES[facet.measure])
    longest = max(one.duration_s for one in found[facet.workload].values())
    axes.set_xlim(0, max(one.duration_s for one in facet.here.values()) if spec.last else 1.02 * longest)
    if facet.measure == "use":
        _draw_use(axes, facet.here[facet.loader], _find_level(spec, facet))
    elif facet.measure == "memory":
        _draw_memory(axes, facet.here)
    elif facet.measure == "batch_s":
        _draw_batches(axes, facet)
    elif facet.measure in ("connections", "all_connections"):
        _draw_connections(axes, facet)
    elif facet.loader:
        every = [one.rate(facet.measure) for one in found[facet.workload].values()]
        _draw_rate(axes, facet, _find_top(every))
    else:
        _draw_loaders(axes, facet.here)
    if not all(one.trusted for one in facet.here.values()) and not spec.last:
        text = "† no valid row" if facet.loader else "† not all rows are valid"
        axes.text(1, 0.04, text, transform=axes.transAxes, ha="right", fontsize=8, color=BAD)


def _find_level(spec: Lines, facet: _Facet) -> float | None:
    """Return the paper's use of the accelerator for a panel, 0 to 1; None where it has none."""
    if not spec.levels or (spec.only and spec.only != f"{facet.workload}/{facet.loader}"):
        return None
    found = find_values(spec.levels)
    found = found.get(facet.loader, {}) if isinstance(found, Mapping) else found
    return None if isinstance(found, Mapping) else low(found)


def _draw_use(axes: Axes, one: Timeline, paper: float | None) -> None:
    """Draw both uses in per cent over seconds; `paper` is the paper's mean use of the accelerator, 0 to 1."""
    busy = one.line(100 * one.accelerator_util)
    axes.plot(*one.line(100 * one.rate("cpu_util")), color=_CPU, linewidth=1.2, zorder=2)
    axes.plot(*busy, color=_ACCELERATOR, linewidth=1.7, zorder=3)
    axes.fill_between(*busy, color=_ACCELERATOR, alpha=0.14, linewidth=0)
    if paper is not None:
        axes.axhline(100 * paper, color=INK, linestyle=_DASHED, linewidth=1.1)
    _mark_epochs(axes, one)
    axes.set_ylim(0, 104)
    axes.set_yticks([0, 50, 100])


def _mark_epochs(axes: Axes, one: Timeline) -> None:
    for end in one.epoch_ends_s:
        axes.axvline(end, color=FAINT, linewidth=0.8, linestyle=":", zorder=1)


def _draw_rate(axes: Axes, facet: _Facet, top: float) -> None:
    """Draw the rate of one loader with its mean dotted."""
    one, colour = facet.here[facet.loader], choose_colour(facet.loader)
    values = one.rate(facet.measure)
    axes.plot(one.at_s, values, color=colour, linewidth=1.5)
    axes.fill_between(one.at_s, values, color=colour, alpha=0.14, linewidth=0)
    _mark_epochs(axes, one)
    mean = one.mean(values)
    if mean is not None:
        axes.hlines(mean, 0, one.duration_s, color=INK, linewidth=0.9, linestyle=(0, (1, 2)))
    axes.set_ylim(0, top)


def _find_top(values: Sequence[Any]) -> float:
    known = np.concatenate(values)
    known = known[np.isfinite(known)]
    return 1.1 * float(known.max()) if len(known) and known.max() > 0 else 1.0


def _draw_loaders(axes: Axes, here: Mapping[str, Timeline]) -> None:
    """Draw a line of throughput a loader, dotted without valid rows, with an upright line where its training ends."""
    for one in here.values():
        if one.is_bound:
            axes.axhline(one.mean(one.rate("mb_per_s")) or 0.0, color=INK, linestyle=_DASHED, linewidth=1.1)
    for loader, one in list_readers(here).items():
        style, colour, wider = "-" if one.trusted else _INVALID, choose_colour(loader), loader == _OURS
        axes.plot(*one.line(one.rate("mb_per_s")), color=colour, linestyle=style, linewidth=1.5 + 0.5 * wider)
        axes.axvline(one.duration_s, color=colour, linewidth=1.2 + 0.4 * wider, zorder=1)
    axes.set_ylim(0, 1.08 * max(float(one.rate("mb_per_s").max()) for one in here.values()))


def _draw_memory(axes: Axes, here: Mapping[str, Timeline]) -> None:
    """Draw the memory of cells, and that of their boards dashed; ends of epochs are dots on the lines."""
    for loader, one in here.items():
        colour = choose_colour(loader)
        for (at, values), style in ((one.memory_mb, "-"), (one.gpu_memory_mb, _DASHED)):
            if len(at):
                axes.plot(at, values / 1e3, color=colour, linestyle=style, linewidth=1.6)
                levels = np.interp(one.epoch_ends_s, at, values / 1e3)
                axes.plot(one.epoch_ends_s, levels, linestyle="none", marker="o", markersize=3.5, color=colour)
    axes.set_ylim(0, 1.12 * max(axes.get_ylim()[1] / 1.05, 0.001))


def _draw_batches(axes: Axes, facet: _Facet) -> None:
    one = facet.here[facet.loader]
    axes.plot(*one.batches, color=choose_colour(facet.loader), linewidth=0.8, marker="o", markersize=2.4)
    axes.set_yscale("log")
    axes.set_ylim(max(_SHORTEST_S, axes.get_ylim()[0]), None)
    axes.yaxis.set_major_formatter(lambda value, _: write_milliseconds(value))
    axes.axvspan(0, one.transient_s, color=FAINT, alpha=0.15, linewidth=0)


def _draw_connections(axes: Axes, facet: _Facet) -> None:
    one, colour = facet.here[facet.loader], choose_colour(facet.loader)
    axes.axvspan(0, one.transient_s, color=FAINT, alpha=0.15, linewidth=0)
    if not len(one.connections_mb_per_s):
        say(axes, "the loader does not report its connections")
        return
    if facet.measure == "all_connections":
        total = one.connections_mb_per_s.sum(axis=0)
        axes.step(one.at_s, total, where="mid", color=colour, linewidth=1.6)
        axes.fill_between(one.at_s, total, step="mid", color=colour, alpha=0.15, linewidth=0)
    for values in one.connections_mb_per_s if facet.measure == "connections" else ():
        axes.plot(one.at_s, values, color=colour, linewidth=1.0, alpha=0.75)
    axes.set_ylim(0, None)


def _make_handles(spec: Lines, found: LoaderLines) -> list[Line2D | Patch]:
    every = [one for here in found.values() for one in here.values()]
    handles: list[Line2D | Patch] = []
    if "use" in spec.measures:
        board = any(one.has_board for one in every)
        label = "GPU (NVML)" if board else "accelerator: in a step"
        handles += [Line2D([], [], color=_ACCELERATOR, linewidth=1.7, label=label)]
        handles += [Line2D([], [], color=_CPU, linewidth=1.2, label="CPU of the host")]
        handles += [Line2D([], [], color=FAINT, linewidth=0.8, linestyle=":", label="an epoch ends")]
    if spec.levels:
        handles += [Line2D([], [], color=INK, linewidth=1.1, linestyle=_DASHED, label="the paper's mean GPU use")]
    if "loader" not in (*spec.down, *spec.across):
        for loader, is_bound in {key: one.is_bound for here in found.values() for key, one in here.items()}.items():
            bound = is_bound and "mb_per_s" in spec.measures
            style: dict[str, Any] = {"color": INK, "linestyle": _DASHED} if bound else {"color": choose_colour(loader)}
            handles.append(
                Line2D([], [], linewidth=1.6, label=spell(loader) + (": the bound" if bound else ""), **style)
            )
    if "memory" in spec.measures and any(len(one.gpu_memory_mb[0]) for one in every):
        handles.append(Line2D([], [], color=INK, linewidth=1.2, linestyle=_DASHED, label="of the GPU"))
    if spec.last:
        handles.append(Patch(facecolor=FAINT, alpha=0.3, label="the prefetch fills"))
    return handles
