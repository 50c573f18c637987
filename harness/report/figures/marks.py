"""Marks that figures share: stacked joules, value labels, legends, slowdowns."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from harness.report.distance import Slowdown
from harness.report.figures.palette import BAD, DOMAIN_COLOURS, ESTIMATE_HATCH, FAINT, GRID, INK, MUTED, SURFACE
from harness.report.figures.slots import Slot
from harness.report.folder import Results
from harness.report.labels import factor, regime_labels, spell
from harness.report.rows import DOMAINS
from harness.report.summary import Group

__all__ = ["above", "draw_slowdowns", "legend_handles", "rises", "stack"]

BAR = 0.74
STEEP = 0.12
"""A rise to the next point, as a share of the axis, that would run through a label centred above its start."""
DOMAIN_NAMES = {"cpu": "CPU", "dram": "DRAM", "gpu": "GPU"}


def above(
    axes: Axes, x: float, y: float, text: str, *, valid: bool = True, colour: str = INK, aside: bool = False
) -> None:
    """Write a value above a mark; to the left of a rising line when `aside`; marked † when not valid."""
    axes.annotate(
        text if valid else f"{text} †",
        (x, y),
        xytext=(2 if aside else 0, 5),
        textcoords="offset points",
        ha="right" if aside else "center",
        va="bottom",
        fontsize=8,
        color=colour if valid else BAD,
    )


def rises(slot: Slot, medians: Mapping[Slot, float], top: float) -> bool:
    """Return whether the line from a slot to its loader's next one is steep on an axis from 0 to `top`."""
    following = [other for other in medians if other.loader == slot.loader and other.x > slot.x]
    return bool(following) and medians[min(following, key=lambda other: other.x)] - medians[slot] > STEEP * top


def stack(axes: Axes, x: float, parts: Mapping[str, float], estimated: frozenset[str], *, faded: bool = False) -> None:
    """Draw one bar of joules stacked by domain; estimated domains are hatched."""
    base = 0.0
    for domain in DOMAINS:
        if domain not in parts:
            continue
        axes.bar(
            x,
            parts[domain],
            BAR,
            bottom=base,
            color=DOMAIN_COLOURS[domain],
            hatch=ESTIMATE_HATCH if domain in estimated else None,
            edgecolor=SURFACE,
            linewidth=0.6,
            alpha=0.45 if faded else 1.0,
        )
        base += parts[domain]


def legend_handles(groups: Sequence[Group], paper: Collection[str] = ()) -> list[Patch | Line2D]:
    """Return the legend's entries for what the groups hold, and for the domains of a paper's bars beside them."""
    shown = [domain for domain in DOMAINS if domain in paper or any(domain in group.domain_j for group in groups)]
    handles: list[Patch | Line2D] = [
        Patch(facecolor=DOMAIN_COLOURS[domain], label=f"{DOMAIN_NAMES[domain]} joules") for domain in shown
    ]
    if any(group.estimated for group in groups):
        label = "hatched: estimate, not measured"
        handles.append(Patch(facecolor=FAINT, edgecolor=SURFACE, hatch=ESTIMATE_HATCH, label=label))
    handles.append(Line2D([], [], color=INK, marker="o", markersize=4.5, linewidth=1.4, label="epoch time"))
    if any(not group.trusted for group in groups):
        handles.append(
            Line2D([], [], color=INK, marker="o", markerfacecolor=SURFACE, linestyle="none", label="† no valid row")
        )
    return handles


def draw_slowdowns(axes: Axes, results: Results, far: Sequence[Slowdown]) -> None:
    """Draw each slowdown as a point on a log axis, the paper's beside ours."""
    labels = regime_labels(results)
    near = labels[far[0].near]
    axes.set_title(f"Slowdown: epoch time against the same loader {_at(near)}", pad=9)
    _factor_axis(axes, [value for one in far for value in (one.ours, one.paper) if value is not None])
    places: list[float] = []
    for one in far:
        last = far[len(places) - 1].loader if places else one.loader
        places.append((places[-1] + (1.0 if last == one.loader else 1.4)) if places else 0.0)
    for y, one in zip(places, far, strict=True):
        _slowdown(axes, y, one)
    axes.set_yticks(places, [f"{spell(one.loader)}, {labels[one.regime]}" for one in far], color=INK)
    axes.set_ylim(places[-1] + 0.6, -0.6)
    axes.spines["bottom"].set_visible(False)
    handles = [Line2D([], [], color=INK, marker="o", markersize=6, linestyle="none", label="this run")]
    if any(one.paper is not None for one in far):
        handles.append(
            Line2D([], [], color=MUTED, marker="D", markerfacecolor=SURFACE, linestyle="none", label="EMLIO paper")
        )
    axes.legend(handles=handles, loc="lower right", bbox_to_anchor=(1.0, 1.0), ncols=2, borderaxespad=0.3)


def _at(label: str) -> str:
    return "on local files" if label == "local" else f"at {label}"


def _factor_axis(axes: Axes, values: Sequence[float]) -> None:
    low, high = min([*values, 1.0]) * 0.92, max([*values, 2.0]) * 1.55
    axes.set_xscale("log")
    axes.set_xlim(low, high)
    ticks = [tick for tick in (0.1, 0.2, 0.5, 1, 2, 3, 5, 10, 20, 50, 100, 200, 500) if low <= tick <= high]
    axes.set_xticks(ticks, [f"{tick:g}×" for tick in ticks])
    axes.minorticks_off()
    axes.grid(visible=False, axis="y")
    axes.grid(visible=True, axis="x", color=GRID)
    axes.axvline(1.0, color=FAINT, linewidth=1.0, zorder=1)


def _slowdown(axes: Axes, y: float, one: Slowdown) -> None:
    if one.ours is None:
        return
    told = factor(one.ours)
    if one.paper is not None:
        axes.plot([one.ours, one.paper], [y, y], color=FAINT, linewidth=1.6, zorder=2)
        axes.plot(one.paper, y, "D", markersize=6, markerfacecolor=SURFACE, markeredgecolor=MUTED, zorder=3)
        told += f"  (paper {factor(one.paper)})"
    face = INK if one.trusted else SURFACE
    axes.plot(one.ours, y, "o", markersize=7, markerfacecolor=face, markeredgecolor=INK, zorder=4)
    axes.annotate(
        told if one.trusted else f"{told} †",
        (max(one.ours, one.paper or 0.0), y),
        xytext=(9, 0),
        textcoords="offset points",
        va="center",
        fontsize=8.5,
        color=INK if one.trusted else BAD,
    )
