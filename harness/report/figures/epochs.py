"""Seconds and joules per epoch by loader and distance, a figure of the paper beside ours.

Time and joules have a panel each over one shared axis of loaders and regimes: on two scales over the same bars
the eye compares heights that have nothing to do with each other.
"""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure, SubFigure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from harness.report.distance import slowdowns
from harness.report.figures.marks import above, draw_slowdowns, legend_handles, rises, stack
from harness.report.figures.palette import BAD, INK, MUTED, SURFACE
from harness.report.figures.slots import Slot, our_slots, paper_slots
from harness.report.folder import Results
from harness.report.labels import megabytes, significant, spell
from harness.report.published import EnergyRange, PaperFigure
from harness.report.summary import Group, median_of, summarise

__all__ = ["caption_of", "draw_epochs"]

TOP_INCHES = 5.7
LONG_TITLE = 62
"""Characters above which a title would run into that of the paper's panel."""
DENSE_SLOTS = 9
"""From this many places on the axis the figure is wider, and numbers leave their unit to the axis."""


def draw_epochs(results: Results, published: PaperFigure) -> Figure | None:
    """Draw the figure of the paper's workload, or of the first one; None when no epoch was measured."""
    groups = summarise(results)
    workload = published.workload if published.workload in results.workloads else next(iter(results.workloads), "")
    here = [group for group in groups if group.workload == workload and group.measured]
    if not here:
        return None
    ours = our_slots(results, groups, workload)
    paper = paper_slots(results, published) if workload == published.workload else ()
    far = [one for one in slowdowns(results, groups, workload) if one.ours is not None]
    dense = len(ours) >= DENSE_SLOTS
    bottom_inches = 1.15 + 0.26 * len(far) if far else 0.0
    size = (12.0 if dense else 10.0, TOP_INCHES + bottom_inches)
    layout = ConstrainedLayoutEngine(w_pad=0.1, h_pad=0.06, hspace=0.04, wspace=0.04)
    figure = Figure(figsize=size, layout=layout)
    if far:
        top, bottom = figure.subfigures(2, 1, squeeze=False, height_ratios=[TOP_INCHES, bottom_inches])[:, 0]
        draw_slowdowns(bottom.subplots(), results, far)
    else:
        top = figure.subfigures(1, 1, squeeze=False)[0, 0]
    _draw_panels(top, results, here, ours, paper, published, dense=dense)
    return figure


def caption_of(results: Results, published: PaperFigure, *, gaps: str = "") -> str:
    """Return how to read the figure; `gaps` is what the paper's text leaves out."""
    parts = [
        "Above, the time of an epoch (points are repeats, the line joins medians); below, its joules, stacked by "
        "domain."
    ]
    if published.epoch_s:
        parts[0] = f"Left, this run: {parts[0][0].lower()}{parts[0][1:]}"
        parts.append(f"Right, what the text of the paper gives: {published.citation}.")
    else:
        parts.append(f"{published.citation}, has no numbers in its text, so none stand beside ours.")
    if gaps:
        parts.append(gaps)
    groups = summarise(results)
    if any(group.estimated for group in groups):
        parts.append("Hatched joules are estimates, not measurements.")
    if any(group.measured and not group.trusted for group in groups):
        parts.append("What is marked † has no valid row behind it.")
    if published.epoch_s and len(results.regimes) > 1:
        parts.append("Datasets and machines differ, so compare the slowdowns, not seconds or joules.")
    return " ".join(parts)


def _draw_panels(
    top: SubFigure,
    results: Results,
    here: Sequence[Group],
    ours: Sequence[Slot],
    paper: Sequence[Slot],
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
    _our_joules(axes[1][0], ours, dense=dense)
    title = f"{results.name}: {_conditions(results, here, published)}"
    if paper and len(title) > LONG_TITLE:
        title = ",\n".join(title.rsplit(", ", 1))
    axes[0][0].set_title(title, pad=24)
    if paper:
        _paper_times(axes[0][1], paper, published, dense=dense)
        _paper_joules(axes[1][1], paper, published, dense=dense)
        axes[0][1].set_title(f"EMLIO paper: {published.conditions}", pad=24, color=MUTED)
    elif not published.epoch_s:
        axes[0][0].set_title(
            f"EMLIO paper, {published.name}: its text gives no numbers",
            loc="right",
            pad=24,
            color=MUTED,
            fontweight="normal",
            fontsize=8.5,
        )
    for column, slots in enumerate(columns):
        names = {"streaming": "EMLIO"} if slots is paper else {}
        _loader_names(axes[0][column], slots, names)
        axes[0][column].locator_params(axis="y", nbins=5)
        axes[1][column].locator_params(axis="y", nbins=6)
        axes[1][column].set_xticks([slot.x for slot in slots], [_tick(slot.label, dense=dense) for slot in slots])
        axes[1][column].set_xlim(*limits[column])
    handles: list[Patch | Line2D] = legend_handles(here, _paper_domains(paper, published))
    top.legend(handles=handles, loc="outside lower center", ncols=6, handlelength=1.7, columnspacing=1.8)


def _tick(label: str, *, dense: bool) -> str:
    return label.replace(" ", "\n") if dense else label


def _limits(slots: Sequence[Slot]) -> tuple[float, float]:
    """Return the axis' limits; few slots get room at the sides instead of fat bars."""
    side = max(0.85, (6.0 - slots[-1].x) / 2)
    return slots[0].x - side, slots[-1].x + side


def _conditions(results: Results, here: Sequence[Group], published: PaperFigure) -> str:
    rows = [row for group in here for row in group.rows]
    samples = median_of(rows, lambda row: row.samples)
    size = median_of(rows, lambda row: row.bytes)
    parts = [f"{samples:.0f} images" if samples else "", megabytes(size) if size else ""]
    parts += ["half of them local"] if results.placement == "half" else []
    if not published.epoch_s:
        parts.append(_streams(results))
    accelerators = dict.fromkeys(_short(cell.accelerator) for cell in results.cells if cell.accelerator)
    return ", ".join([part for part in parts if part] + list(accelerators))


def _streams(results: Results) -> str:
    """Return over how many streams the streaming loader is fed; empty when unknown."""
    loaders = results.config.get("loaders") or {}
    count = (loaders.get(results.streaming or "") or {}).get("streams")
    return "" if count is None else f"{count} stream{'' if count == 1 else 's'}"


def _short(accelerator: str) -> str:
    """Write "emulated: A100" as "emulated A100", and of "cuda: NVIDIA H200" the name alone."""
    kind, _, name = accelerator.partition(": ")
    return f"{kind} {name}" if kind == "emulated" else name or kind


def _our_times(axes: Axes, slots: Sequence[Slot], *, dense: bool) -> None:
    known = [(slot, slot.group, slot.group.time_s) for slot in slots if slot.group and slot.group.time_s]
    top = 1.22 * max(stat.values[-1] for _, _, stat in known)
    axes.set_ylim(0, top)
    axes.set_ylabel("seconds per epoch")
    for loader in dict.fromkeys(slot.loader for slot, _, _ in known):
        points = [(slot.x, stat.median) for slot, _, stat in known if slot.loader == loader]
        axes.plot(*zip(*points, strict=True), color=INK, linewidth=1.4, zorder=3)
    medians = {slot: stat.median for slot, _, stat in known}
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
        aside = rises(slot, medians, top)
        above(axes, slot.x, stat.values[-1], text, valid=group.trusted, aside=aside)
    _say_absent(axes, slots)


def _our_joules(axes: Axes, slots: Sequence[Slot], *, dense: bool) -> None:
    known = [(slot, slot.group, slot.group.total_j) for slot in slots if slot.group and slot.group.total_j]
    axes.set_ylabel("joules per epoch")
    if not known:
        _say_empty(axes, "neither sensor nor estimate: joules are unknown")
        return
    top = 1.18 * max(stat.median for _, _, stat in known)
    scale, unit = (1e3, "kJ") if top >= 1e4 else (1.0, "J")
    axes.set_ylim(0, top)
    axes.yaxis.set_major_formatter(lambda value, _: f"{value / scale:g} {unit}" if value else "0")
    for slot, group, stat in known:
        stack(axes, slot.x, group.domain_j, group.estimated, faded=not group.trusted)
        if group.error_j is not None:
            axes.errorbar(slot.x, stat.median, yerr=group.error_j, color=INK, capsize=2.5, linewidth=1)
        text = significant(stat.median / scale) + ("" if dense else f" {unit}")
        above(axes, slot.x, stat.median + (group.error_j or 0.0), text, valid=group.trusted)
    _say_absent(axes, slots)


def _say_absent(axes: Axes, slots: Sequence[Slot]) -> None:
    """Say where a cell gave no epoch; an empty place would pass for 0."""
    for slot in slots:
        if slot.group is None or slot.group.time_s is None:
            above(axes, slot.x, 0, "failed" if slot.group and slot.group.failed else "not run", colour=BAD)


def _say_empty(axes: Axes, text: str) -> None:
    axes.text(0.5, 0.5, text, transform=axes.transAxes, ha="center", va="center", color=MUTED)
    axes.set_yticks([])


def _paper_times(axes: Axes, slots: Sequence[Slot], published: PaperFigure, *, dense: bool) -> None:
    times = {slot: published.epoch_s[slot.loader][slot.paper_rtt_ms] for slot in slots if slot.paper_rtt_ms is not None}
    top = 1.22 * max(times.values())
    axes.set_ylim(0, top)
    for loader in dict.fromkeys(slot.loader for slot in slots):
        points = [(slot.x, time) for slot, time in times.items() if slot.loader == loader]
        axes.plot(
            *zip(*points, strict=True),
            color=MUTED,
            linewidth=1.4,
            linestyle=(0, (4, 2)),
            marker="D",
            markersize=4.4,
            markerfacecolor=SURFACE,
            zorder=3,
        )
    for slot, time in times.items():
        text = significant(time) + ("" if dense else " s")
        above(axes, slot.x, time, text, colour=MUTED, aside=rises(slot, times, top))


def _paper_joules(axes: Axes, slots: Sequence[Slot], published: PaperFigure, *, dense: bool) -> None:
    known = {
        slot: energy
        for slot in slots
        if slot.paper_rtt_ms is not None and (energy := published.energy_kj.get(slot.loader, {}).get(slot.paper_rtt_ms))
    }
    if not known:
        _say_empty(axes, "the paper's text gives no joules here")
        return
    axes.set_ylim(0, 1.25 * max(energy.high for energy in known.values()))
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g} kJ" if value else "0")
    for slot, energy in known.items():
        stack(axes, slot.x, _parts(energy), frozenset())
        text = significant(energy.low) if energy.exact else f"{energy.low:.0f}–{energy.high:.0f}"
        if not energy.exact:
            reach = [[0.0], [energy.high - energy.low]]
            axes.errorbar(slot.x, energy.low, yerr=reach, color=INK, capsize=2.5, linewidth=1)
        above(axes, slot.x, energy.high, text + ("" if dense else " kJ"), colour=MUTED)
    for loader in dict.fromkeys(slot.loader for slot in slots):
        silent = [slot.x for slot in slots if slot.loader == loader and slot not in known]
        if silent:
            text = "not in the text" if len(silent) > 1 else "not in\nthe text"
            above(axes, sum(silent) / len(silent), 0, text, colour=MUTED)


def _parts(energy: EnergyRange) -> dict[str, float]:
    """Return the kilojoules of a bar by domain; a domain that the text only bounds is in the whisker alone."""
    parts = {"cpu": energy.cpu[0], "gpu": energy.gpu[0]}
    return {**parts, "dram": energy.dram[0]} if energy.exact and energy.dram else parts


def _paper_domains(slots: Sequence[Slot], published: PaperFigure) -> set[str]:
    drawn = (published.energy_kj.get(slot.loader, {}).get(slot.paper_rtt_ms or 0.0) for slot in slots)
    return {domain for energy in drawn if energy is not None for domain in _parts(energy)}


def _loader_names(axes: Axes, slots: Sequence[Slot], names: dict[str, str]) -> None:
    for loader in dict.fromkeys(slot.loader for slot in slots):
        places = [slot.x for slot in slots if slot.loader == loader]
        axes.annotate(
            names.get(loader, spell(loader)),
            (sum(places) / len(places), 1.0),
            xycoords=("data", "axes fraction"),
            xytext=(0, 4),
            textcoords="offset points",
            ha="center",
            va="bottom",
            fontweight="bold",
        )
