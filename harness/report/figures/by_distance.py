"""Plotter of seconds and joules per epoch by loader and distance, a figure of the paper beside ours.

Time and joules have a panel each over one shared axis of loaders and regimes: on two scales over the same bars
the eye compares heights that have nothing to do with each other.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from textwrap import fill as wrap
from typing import Any, Final

from matplotlib.axes import Axes
from matplotlib.figure import Figure, SubFigure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from harness.report.distance import PaperFigure, Slowdown, compare_distances, read_paper_figure, sum_kj
from harness.report.figures.definition import ByDistance
from harness.report.figures.marks import make_sheet, write_note
from harness.report.figures.style import BAD, DOMAIN_COLOURS, ESTIMATE_HATCH, FAINT, GRID, INK, MUTED, SURFACE
from harness.report.labels import factor, megabytes, ratio, regime_labels, rtt, significant, spell
from harness.report.papers import Tree, low
from harness.report.summary import Group, compute_median, find, summarise
from harness.results.epoch_row import DOMAINS
from harness.results.reader import Results

_TOP_INCHES = 5.7
_TITLE_CHARACTERS = 10.0
"""That fit into an inch of a panel."""
_LONG_TITLE = 62
"""Characters above which a title would run into that of the paper's panel."""
_DENSE_SLOTS = 9
"""From this many places on the axis the figure is wider, and numbers leave their unit to the axis."""
_LOADER_STEP = 1.9
"""From the last regime of a loader to the first of the next, in steps between regimes."""
_BAR = 0.74
_STEEP = 0.12
"""A rise to the next point, as a share of the axis, that would run through a label centred above its start."""
_DASHED = (0, (4, 2))
_FIRST: Final[Mapping[str, Any]] = {"linestyle": "none", "marker": "x", "markersize": 5, "color": MUTED, "zorder": 2}
"""Marks of cells' first epochs."""
_BOUND: Final[Mapping[str, Any]] = {"linestyle": _DASHED, "linewidth": 1.0, "color": MUTED, "zorder": 1}
"""The line of an epoch that reads nothing."""


@dataclass(frozen=True, slots=True, eq=False)
class _Slot:
    """A place on an axis: one loader in one regime."""

    loader: str
    label: str
    x: float = 0.0
    rtt_ms: float | None = None
    """The paper's regime, in a panel of the paper."""
    group: Group | None = None
    """The epochs of this run, in a panel of ours."""


def draw(spec: ByDistance, results: Results, heading: str) -> Figure | None:
    """Draw the paper figure's workload, or the run's first one; None when no epoch was measured."""
    published, groups = read_paper_figure(spec.values), summarise(results)
    workload = published.workload if published.workload in results.workloads else next(iter(results.workloads), "")
    here = [group for group in groups if group.workload == workload and group.measured]
    if not here:
        return None
    ours = _our_slots(results, groups, workload)
    paper = _paper_slots(results, published) if workload == published.workload else ()
    far = [one for one in compare_distances(results, groups, workload) if one.ours is not None]
    dense = len(ours) >= _DENSE_SLOTS
    bottom_inches = 1.15 + 0.26 * len(far) if far else 0.0
    size = (12.0 if dense else 10.0, _TOP_INCHES + bottom_inches)
    figure = make_sheet(size, {"w_pad": 0.1, "h_pad": 0.06, "hspace": 0.04, "wspace": 0.04})
    heights = [_TOP_INCHES, bottom_inches] if far else [1.0]
    top, *bottom = figure.subfigures(len(heights), 1, squeeze=False, height_ratios=heights)[:, 0]
    if far:
        _draw_slowdowns(bottom[0].subplots(), results, far)
    _draw_panels(top, results, here, ours, paper, published, dense=dense)
    return figure


def words(spec: ByDistance, results: Results) -> Mapping[str, str]:
    """Return `reading`, what stands where, and `marks`, what its marks mean."""
    published, groups = read_paper_figure(spec.values), summarise(results)
    above = "the time of an epoch (points are repeats, the line joins medians); below, its joules, stacked by domain."
    reading = f"Above, {above} {published.citation}, has no numbers in its text, so none stand beside ours."
    marks = []
    if published.epoch_s:
        reading = f"Left, this run: above, {above} Right, what the text of the paper gives: {published.citation}."
    if any(group.first_s for group in groups):
        marks.append("Crosses are first epochs, which are in no median and no ratio.")
    if any(group.estimated for group in groups):
        marks.append("Hatched joules are estimates, not measurements.")
    if any(group.measured and not group.trusted for group in groups):
        marks.append("A value marked † has no valid row behind it.")
    if published.epoch_s and len(results.regimes) > 1:
        marks.append("Datasets and machines differ, so compare the slowdowns, not seconds or joules.")
    return {"reading": reading, "marks": " ".join(marks)}


def _our_slots(results: Results, groups: Sequence[Group], workload: str) -> Sequence[_Slot]:
    labels = regime_labels(results)
    return _placed(
        _Slot(loader, labels[regime].replace(", ", "\n"), group=find(groups, workload, regime, loader))
        for loader in results.readers or results.loaders
        for regime in results.regimes_of(loader)
    )


def _paper_slots(results: Results, paper: PaperFigure) -> Sequence[_Slot]:
    """Return the paper's loaders that the run has, in the regimes that both have, or in all of the paper's."""
    matching = (paper.matching_rtt_ms(results, regime) for regime in results.regimes)
    regimes = [rtt_ms for rtt_ms in dict.fromkeys(matching) if rtt_ms is not None] or paper.rtt_ms
    return _placed(
        _Slot(loader, rtt(rtt_ms) if rtt_ms else "local", rtt_ms=rtt_ms)
        for loader in results.loaders
        for rtt_ms in regimes
        if rtt_ms in paper.epoch_s.get(loader, {})
    )


def _placed(slots: Iterable[_Slot]) -> Sequence[_Slot]:
    """Place regimes side by side, with a gap between loaders."""
    placed: list[_Slot] = []
    for slot in slots:
        last = placed[-1] if placed else None
        step = 0.0 if last is None else 1.0 if last.loader == slot.loader else _LOADER_STEP
        placed.append(replace(slot, x=step + (last.x if last else 0.0)))
    return placed


def _draw_panels(
    top: SubFigure,
    results: Results,
    here: Sequence[Group],
    ours: Sequence[_Slot],
    paper: Sequence[_Slot],
    published: PaperFigure,
    *,
    dense: bool,
) -> None:
    columns = [ours, paper] if paper else [ours]
    limits = [_limits(slots) for slots in columns]
    axes = top.subplots(
        2,
        len(columns),
        sharex="col",
        squeeze=False,
        width_ratios=[right - left for left, right in limits],
        height_ratios=[1.0, 1.25],
    )
    _our_times(axes[0][0], ours, dense=dense)
    bounds = [group.time_s.median for group in here if group.loader in results.bounds and group.time_s]
    if bounds and results.readers:
        axes[0][0].axhline(min(bounds), **_BOUND)
    _our_joules(axes[1][0], ours, dense=dense)
    title = f"{results.name}: {_conditions(results, here, published)}"
    if paper and len(title) > _LONG_TITLE:
        title = ",\n".join(title.rsplit(", ", 1))
    axes[0][0].set_title(title, pad=24)
    if paper:
        _paper_times(axes[0][1], paper, published, dense=dense)
        _paper_joules(axes[1][1], paper, published, dense=dense)
        widths = [right - left for left, right in limits]
        characters = int(_TITLE_CHARACTERS * top.figure.get_figwidth() * widths[1] / sum(widths))
        axes[0][1].set_title(wrap(f"EMLIO paper: {published.conditions}", characters), pad=24, color=MUTED)
    elif not published.epoch_s:
        text = f"EMLIO paper, {published.name}: its text gives no numbers"
        axes[0][0].set_title(text, loc="right", pad=24, color=MUTED, fontweight="normal", fontsize=8.5)
    for column, slots in enumerate(columns):
        for loader in _loaders(slots):
            places = [slot.x for slot in slots if slot.loader == loader]
            name = "EMLIO" if slots is paper and loader == "streaming" else spell(loader)
            place = (sum(places) / len(places), 1.0)
            style = {"ha": "center", "va": "bottom", "fontweight": "bold"}
            write_note(axes[0][column], name, place, (0, 4), coordinates=("data", "axes fraction"), **style)
        axes[0][column].locator_params(axis="y", nbins=5)
        axes[1][column].locator_params(axis="y", nbins=6)
        ticks = [slot.label.replace(" ", "\n") if dense else slot.label for slot in slots]
        axes[1][column].set_xticks([slot.x for slot in slots], ticks)
        axes[1][column].set_xlim(*limits[column])
    handles = _legend_handles(here, bounds, {domain for slot in paper for domain in _bars(_energy(published, slot))})
    top.legend(handles=handles, loc="outside lower center", ncols=6, handlelength=1.7, columnspacing=1.8)


def _loaders(slots: Sequence[_Slot]) -> Iterable[str]:
    return dict.fromkeys(slot.loader for slot in slots)


def _limits(slots: Sequence[_Slot]) -> tuple[float, float]:
    """Return the axis' limits; few slots get room at the sides instead of fat bars."""
    side = max(0.85, (6.0 - slots[-1].x) / 2)
    return slots[0].x - side, slots[-1].x + side


def _conditions(results: Results, here: Sequence[Group], published: PaperFigure) -> str:
    rows = [row for group in here for row in group.rows]
    samples, size = compute_median(rows, lambda row: row.samples), compute_median(rows, lambda row: row.bytes)
    parts = [f"{samples:.0f} images" if samples else "", megabytes(size) if size else ""]
    halves = {"half": "half of them local", "sharded": "half of them on each of two nodes"}
    parts += [halves[results.experiment.placement]] if results.experiment.placement in halves else []
    if not published.epoch_s:
        count = results.streams
        parts.append("" if count is None else f"{count} stream{'' if count == 1 else 's'}")
    accelerators = dict.fromkeys(_short(cell.accelerator) for cell in results.cells if cell.accelerator)
    return ", ".join([part for part in parts if part] + list(accelerators))


def _short(accelerator: str) -> str:
    """Write "emulated: A100" as "emulated A100", and of "cuda: NVIDIA H200" the name alone."""
    kind, _, name = accelerator.partition(": ")
    return f"{kind} {name}" if kind == "emulated" else name or kind


def _our_times(axes: Axes, slots: Sequence[_Slot], *, dense: bool) -> None:
    known = [(slot, slot.group, slot.group.time_s) for slot in slots if slot.group and slot.group.time_s]
    firsts = [(slot.x, group.first_s.values) for slot, group, _ in known if group.first_s]
    top = 1.22 * max([stat.values[-1] for _, _, stat in known] + [values[-1] for _, values in firsts])
    axes.set_ylim(0, top)
    axes.set_ylabel("seconds per epoch")
    for x, values in firsts:
        axes.plot([x] * len(values), values, **_FIRST)
    medians = {slot: stat.median for slot, _, stat in known}
    _draw_lines(axes, medians, color=INK)
    # A label above its points would cover a cross there; those of a loader stand on one side.
    crowded = {
        slot.loader
        for slot, group, stat in known
        if group.first_s and any(0 <= value - stat.values[-1] < _STEEP * top for value in group.first_s.values)
    }
    for slot, group, stat in known:
        axes.plot(
            [slot.x] * len(stat.values),
            stat.values,
            linestyle="none",
            marker="o",
            markersize=4.4,
            markerfacecolor=INK if group.trusted else SURFACE,
            markeredgecolor=INK,
            markeredgewidth=0.9,
            alpha=0.55 if group.trusted else 1.0,
            zorder=4,
        )
        text = significant(stat.median) + ("" if dense else " s")
        aside = slot.loader in crowded or _rises(slot, medians, top)
        write_above(axes, slot.x, stat.values[-1], text, valid=group.trusted, aside=aside)
    _say_absent(axes, slots)


def _draw_lines(axes: Axes, values: Mapping[_Slot, float], **style: object) -> None:
    for loader in _loaders(list(values)):
        points = [(slot.x, value) for slot, value in values.items() if slot.loader == loader]
        axes.plot(*zip(*points, strict=True), linewidth=1.4, zorder=3, **style)  # type: ignore[arg-type]


def _our_joules(axes: Axes, slots: Sequence[_Slot], *, dense: bool) -> None:
    known = [(slot, slot.group, slot.group.total_j) for slot in slots if slot.group and slot.group.total_j]
    axes.set_ylabel("joules per epoch")
    if not known:
        _say_empty(axes, "neither sensor nor estimate: joules are unknown")
        return
    top = 1.18 * max(stat.median for _, _, stat in known)
    scale, unit = (1e3, "kJ") if top >= 1e4 else (1.0, "J")
    axes.set_ylim(0, top)
    axes.yaxis.set_major_formatter(_unit(unit, scale))
    for slot, group, stat in known:
        draw_stack(axes, slot.x, group.domain_j, group.estimated, faded=not group.trusted)
        if group.error_j is not None:
            axes.errorbar(slot.x, stat.median, yerr=group.error_j, color=INK, capsize=2.5, linewidth=1)
        text = significant(stat.median / scale) + ("" if dense else f" {unit}")
        write_above(axes, slot.x, stat.median + (group.error_j or 0.0), text, valid=group.trusted)
    _say_absent(axes, slots)


def _unit(unit: str, scale: float = 1.0) -> Callable[[float, object], str]:
    return lambda value, _: f"{value / scale:g} {unit}" if value else "0"


def _say_absent(axes: Axes, slots: Sequence[_Slot]) -> None:
    """Write where a cell gave no epoch; an empty place would pass for 0."""
    for slot in slots:
        if slot.group is None or slot.group.time_s is None:
            write_above(axes, slot.x, 0, "failed" if slot.group and slot.group.failed else "not run", colour=BAD)


def _say_empty(axes: Axes, text: str) -> None:
    axes.text(0.5, 0.5, text, transform=axes.transAxes, ha="center", va="center", color=MUTED)
    axes.set_yticks([])


def _paper_times(axes: Axes, slots: Sequence[_Slot], published: PaperFigure, *, dense: bool) -> None:
    times = {slot: published.epoch_s[slot.loader][slot.rtt_ms] for slot in slots if slot.rtt_ms is not None}
    top = 1.22 * max(times.values())
    axes.set_ylim(0, top)
    _draw_lines(axes, times, color=MUTED, linestyle=_DASHED, marker="D", markersize=4.4, markerfacecolor=SURFACE)
    for slot, time in times.items():
        text = significant(time) + ("" if dense else " s")
        write_above(axes, slot.x, time, text, colour=MUTED, aside=_rises(slot, times, top))


def _paper_joules(axes: Axes, slots: Sequence[_Slot], published: PaperFigure, *, dense: bool) -> None:
    known = {slot: energy for slot in slots if (energy := _energy(published, slot))}
    if not known:
        _say_empty(axes, "the paper's text gives no joules here")
        return
    axes.set_ylim(0, 1.25 * max(sum_kj(energy)[1] for energy in known.values()))
    axes.yaxis.set_major_formatter(_unit("kJ"))
    for slot, energy in known.items():
        least, greatest = sum_kj(energy)
        draw_stack(axes, slot.x, _bars(energy), frozenset())
        text = significant(least)
        if greatest > least:
            text = f"{least:.0f}–{greatest:.0f}"
            axes.errorbar(slot.x, least, yerr=[[0.0], [greatest - least]], color=INK, capsize=2.5, linewidth=1)
        write_above(axes, slot.x, greatest, text + ("" if dense else " kJ"), colour=MUTED)
    for loader in _loaders(slots):
        silent = [slot.x for slot in slots if slot.loader == loader and slot not in known]
        if silent:
            text = "not in the text" if len(silent) > 1 else "not in\nthe text"
            write_above(axes, sum(silent) / len(silent), 0, text, colour=MUTED)


def _energy(published: PaperFigure, slot: _Slot) -> Mapping[str, Tree]:
    """Return the paper's kilojoules by domain; empty where its text has none."""
    return published.energy_kj.get(slot.loader, {}).get(-1.0 if slot.rtt_ms is None else slot.rtt_ms, {})


def _bars(energy: Mapping[str, Tree]) -> dict[str, float]:
    """Return the kilojoules of a bar by domain; DRAM that the text only bounds is in the whisker alone."""
    least, greatest = sum_kj(energy)
    return {domain: low(one) for domain, one in energy.items() if domain != "dram" or least == greatest}


def write_above(
    axes: Axes, x: float, y: float, text: str, *, valid: bool = True, colour: str = INK, aside: bool = False
) -> None:
    """Write a value above a mark, or to the left of it when `aside`; marked † when not valid."""
    style = {"ha": "right" if aside else "center", "va": "bottom", "fontsize": 8, "color": colour if valid else BAD}
    write_note(axes, text if valid else f"{text} †", (x, y), (-2 if aside else 0, 5), coordinates="data", **style)


def _rises(slot: _Slot, values: Mapping[_Slot, float], top: float) -> bool:
    """Return whether the line from a slot to its loader's next one is steep on an axis from 0 to `top`."""
    following = [other for other in values if other.loader == slot.loader and other.x > slot.x]
    return bool(following) and values[min(following, key=lambda other: other.x)] - values[slot] > _STEEP * top


def draw_stack(
    axes: Axes,
    x: float,
    parts: Mapping[str, float],
    estimated: frozenset[str],
    *,
    faded: bool = False,
    width: float = _BAR,
) -> None:
    """Draw one bar of joules stacked by domain; estimated domains are hatched."""
    base = 0.0
    for domain in DOMAINS:
        if domain not in parts:
            continue
        axes.bar(
            x,
            parts[domain],
            width,
            bottom=base,
            color=DOMAIN_COLOURS[domain],
            hatch=ESTIMATE_HATCH if domain in estimated else None,
            edgecolor=SURFACE,
            linewidth=0.6,
            alpha=0.45 if faded else 1.0,
        )
        base += parts[domain]


def _legend_handles(groups: Sequence[Group], bounds: Sequence[float], paper: Collection[str]) -> list[Patch | Line2D]:
    """Return the legend's entries for what the groups hold, their bounds and the domains of a paper's bars."""
    handles: list[Patch | Line2D] = [
        Patch(facecolor=DOMAIN_COLOURS[domain], label=f"{domain.upper()} joules")
        for domain in DOMAINS
        if domain in paper or any(domain in group.domain_j for group in groups)
    ]
    if any(group.estimated for group in groups):
        label = "hatched: estimate, not measured"
        handles.append(Patch(facecolor=FAINT, edgecolor=SURFACE, hatch=ESTIMATE_HATCH, label=label))
    handles.append(Line2D([], [], color=INK, marker="o", markersize=4.5, linewidth=1.4, label="epoch time"))
    if any(group.first_s for group in groups):
        handles.append(Line2D([], [], label="first epoch", **_FIRST))
    if bounds:
        handles.append(Line2D([], [], label=f"fixed batch, the bound: {significant(min(bounds))} s", **_BOUND))
    if any(not group.trusted for group in groups):
        handles.append(_dot(INK, "o", label="† no valid row", markerfacecolor=SURFACE))
    return handles


def _dot(colour: str, marker: str, **style: object) -> Line2D:
    return Line2D([], [], color=colour, marker=marker, linestyle="none", **style)  # type: ignore[arg-type]


def _draw_slowdowns(axes: Axes, results: Results, far: Sequence[Slowdown]) -> None:
    """Draw each slowdown as a point on a log axis, the paper's beside ours."""
    labels = regime_labels(results)
    near = labels[far[0].near]
    nearest = "on local files" if near == "local" else f"at {near}"
    axes.set_title(f"Slowdown: epoch time against the same loader {nearest}", pad=9)
    ours = [one.ours.value for one in far if one.ours is not None]
    _factor_axis(axes, [*ours, *(one.paper for one in far if one.paper is not None)])
    places: list[float] = []
    for one in far:
        last = far[len(places) - 1].loader if places else one.loader
        places.append((places[-1] + (1.0 if last == one.loader else 1.4)) if places else 0.0)
    for y, one in zip(places, far, strict=True):
        _draw_slowdown(axes, y, one)
    axes.set_yticks(places, [f"{spell(one.loader)}, {labels[one.regime]}" for one in far], color=INK)
    axes.set_ylim(places[-1] + 0.6, -0.6)
    axes.spines["bottom"].set_visible(False)
    handles = [_dot(INK, "o", label="this run", markersize=6)]
    if any(one.paper is not None for one in far):
        handles.append(_dot(MUTED, "D", label="EMLIO paper", markerfacecolor=SURFACE))
    axes.legend(handles=handles, loc="lower right", bbox_to_anchor=(1.0, 1.0), ncols=2, borderaxespad=0.3)


def _factor_axis(axes: Axes, values: Sequence[float]) -> None:
    left, right = min([*values, 1.0]) * 0.92, max([*values, 2.0]) * 1.55
    axes.set_xscale("log")
    axes.set_xlim(left, right)
    ticks = [tick for tick in (0.1, 0.2, 0.5, 1, 2, 3, 5, 10, 20, 50, 100, 200, 500) if left <= tick <= right]
    axes.set_xticks(ticks, [f"{tick:g}×" for tick in ticks])
    axes.minorticks_off()
    axes.grid(visible=False, axis="y")
    axes.grid(visible=True, axis="x", color=GRID)
    axes.axvline(1.0, color=FAINT, linewidth=1.0, zorder=1)


def _draw_slowdown(axes: Axes, y: float, one: Slowdown) -> None:
    if one.ours is None:
        return
    ours, text = one.ours.value, ratio(one.ours)
    if one.paper is not None:
        axes.plot([ours, one.paper], [y, y], color=FAINT, linewidth=1.6, zorder=2)
        axes.plot(one.paper, y, "D", markersize=6, markerfacecolor=SURFACE, markeredgecolor=MUTED, zorder=3)
        text += f"  (paper {factor(one.paper)})"
    face = INK if one.ours.trusted else SURFACE
    axes.plot(ours, y, "o", markersize=7, markerfacecolor=face, markeredgecolor=INK, zorder=4)
    style = {"va": "center", "fontsize": 8.5, "color": INK if one.ours.trusted else BAD}
    end = (max(ours, one.paper or 0.0), y)
    write_note(axes, text if one.ours.trusted else f"{text} †", end, (9, 0), coordinates="data", **style)
