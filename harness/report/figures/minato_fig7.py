"""MinatoLoader's figure 7: throughput over time by workload and loader."""

from __future__ import annotations

from collections.abc import Mapping

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.lines import Line2D

from harness.report.figures.overtime import Course, courses
from harness.report.figures.palette import BAD, MUTED, loader_colour
from harness.report.figures.tables import FigureTable
from harness.report.figures.use import emulation_note, steps_note, windows_note
from harness.report.folder import Results
from harness.report.labels import UNKNOWN, factor, seconds, significant, spell
from harness.report.published_loaders import MINATO, MINATO_FIG7

__all__ = ["caption", "draw", "table"]

_OURS = "sample_aware"
"""The section of the loader whose throughput the paper compares with the others'."""
_INVALID = (0, (1, 1.5))


def draw(results: Results) -> Figure | None:
    """Draw a panel a workload; None when no epoch was measured."""
    found = _found(results)
    if not found:
        return None
    columns = min(2, len(found))
    lines = -(-len(found) // columns)
    layout = ConstrainedLayoutEngine(w_pad=0.1, h_pad=0.1, wspace=0.04, hspace=0.05)
    figure = Figure(figsize=(max(6.0, 5.6 * columns), 0.6 + 2.9 * lines), layout=layout)
    figure.suptitle(f"{results.name}; {steps_note(results)}", x=0.01, ha="left", fontsize=8.5, color=MUTED)
    panels = figure.subplots(lines, columns, squeeze=False).ravel()
    for axes, (workload, here) in zip(panels, found.items(), strict=False):
        _draw_panel(axes, workload, here)
    for axes in panels[len(found) :]:
        axes.set_axis_off()
    figure.legend(handles=_handles(found), loc="outside lower left", ncols=6)
    return figure


def caption(results: Results) -> str:
    """Return how to read the figure."""
    every = [course for here in _found(results).values() for course in here.values()]
    return (
        f"Megabytes of files trained on per second. {windows_note(every)} Vertical lines: a loader's training ends. "
        "All have as many workers, and DALI prepares on the CPU where there is no GPU. Under the titles, how "
        f"many times the sample-aware loader's throughput is that of the others, here and in the paper ({MINATO}, "
        "section 5.2 and figure 7, four A100, where it may also add workers)."
        f"{emulation_note(results)}"
    )


def table(results: Results) -> FigureTable | None:
    """Return training times and throughputs, and the sample-aware loader's over each, beside the paper's."""
    rows = [
        (
            f"{spell(workload)}, {spell(loader)}",
            seconds(course.duration_s),
            significant(_mean(course)),
            factor(_times(here, loader)) if loader != _OURS else UNKNOWN,
            _paper(workload, loader) or UNKNOWN,
        )
        for workload, here in _found(results).items()
        for loader, course in here.items()
    ]
    columns = ("Training", "time", "MB/s", "sample-aware over it", "in the paper")
    return FigureTable(columns, tuple(rows)) if rows else None


def _found(results: Results) -> dict[str, dict[str, Course]]:
    every = {workload: courses(results, workload) for workload in results.workloads}
    return {workload: here for workload, here in every.items() if here}


def _draw_panel(axes: Axes, workload: str, here: Mapping[str, Course]) -> None:
    for loader, course in here.items():
        ours = loader == _OURS
        style = "-" if course.trusted else _INVALID
        colour = loader_colour(loader)
        axes.plot(*course.line(course.mb_per_s), color=colour, linestyle=style, linewidth=1.5 + 0.5 * ours)
        axes.axvline(course.duration_s, color=colour, linewidth=1.2 + 0.4 * ours, zorder=1)
    axes.set_xlim(0, 1.02 * max(course.duration_s for course in here.values()))
    axes.set_ylim(0, 1.08 * max(float(course.mb_per_s.max()) for course in here.values()))
    axes.set_xlabel("seconds of training")
    axes.set_ylabel("MB/s")
    axes.set_title(spell(workload), pad=32)
    if compared := _compared(workload, here):
        under = axes.annotate(
            compared, (0, 1), xycoords="axes fraction", xytext=(0, 6), textcoords="offset points", color=MUTED
        )
        under.set_in_layout(False)
    if not all(course.trusted for course in here.values()):
        axes.text(1, 0.03, "dotted: no valid row", transform=axes.transAxes, ha="right", fontsize=8, color=BAD)


def _compared(workload: str, here: Mapping[str, Course]) -> str:
    """Return the sample-aware loader's throughput over that of the others, below it the paper's."""
    others = [loader for loader in here if loader != _OURS]
    if _OURS not in here or not others:
        return ""
    ours = ", ".join(f"{factor(_times(here, loader))} {spell(loader)}" for loader in others)
    theirs = ", ".join(f"{paper} {spell(loader)}" for loader in others if (paper := _paper(workload, loader)))
    return f"sample-aware: {ours}" + (f"\nin the paper: {theirs}" if theirs else "")


def _times(here: Mapping[str, Course], loader: str) -> float | None:
    return _mean(here[_OURS]) / _mean(here[loader]) if _OURS in here else None


def _mean(course: Course) -> float:
    return course.mean(course.mb_per_s) or 0.0


def _paper(workload: str, loader: str) -> str:
    known = MINATO_FIG7.get(workload, {}).get(loader)
    if known is None:
        return ""
    least, most = known
    return f"{least:g}×" if least == most else f"{least:g} to {most:g}×"


def _handles(found: Mapping[str, Mapping[str, Course]]) -> list[Line2D]:
    loaders = dict.fromkeys(loader for here in found.values() for loader in here)
    return [Line2D([], [], color=loader_colour(loader), linewidth=1.8, label=spell(loader)) for loader in loaders]
