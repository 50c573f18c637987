"""MinatoLoader's figure 10: 3D-UNet with memory for a third of its data; use, throughput and disk reads over time."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine

from harness.report.figures.overtime import Course, courses
from harness.report.figures.palette import FAINT, INK, MUTED, loader_colour
from harness.report.figures.tables import FigureTable
from harness.report.figures.use import draw_use, use_handles, windows_note
from harness.report.folder import Results
from harness.report.labels import UNKNOWN, accelerators, megabytes, percent, seconds, significant, spell
from harness.report.published_loaders import MINATO, MINATO_FIG10

__all__ = ["caption", "draw", "table"]


def draw(results: Results) -> Figure | None:
    """Draw a row a loader; None when no epoch was measured."""
    found = _found(results)
    if not found:
        return None
    layout = ConstrainedLayoutEngine(w_pad=0.08, h_pad=0.08, wspace=0.03, hspace=0.05)
    figure = Figure(figsize=(11.0, 0.9 + 1.95 * len(found)), layout=layout)
    figure.suptitle(
        f"{results.name}; {_limit(results)}; {accelerators(results)}", x=0.01, ha="left", fontsize=8.5, color=MUTED
    )
    panels = figure.subplots(len(found), 3, squeeze=False, width_ratios=[1.3, 1.0, 1.0])
    longest = max(course.duration_s for course in found.values())
    tops = _top(found, "mb_per_s"), _top(found, "disk_mb_per_s")
    for row, (line, (loader, course)) in enumerate(zip(panels, found.items(), strict=True)):
        use, throughput, disk = line
        paper = MINATO_FIG10.get(loader)
        draw_use(use, course, paper=None if paper is None else paper[1])
        use.set_title(spell(loader), pad=7)
        use.set_title(_means(course), loc="right", pad=7, color=MUTED, fontweight="normal", fontsize=8)
        _draw_rate(throughput, loader, course, course.mb_per_s, tops[0])
        _draw_rate(disk, loader, course, course.disk_mb_per_s, tops[1])
        if row == 0:
            throughput.set_title("MB/s trained on", pad=7)
            disk.set_title("MB/s read from disk", pad=7)
        for axes in line:
            axes.set_xlim(0, 1.02 * longest)
    for axes in panels[-1]:
        axes.set_xlabel("seconds of training")
    figure.legend(handles=use_handles(found.values(), paper=True), loc="outside lower left", ncols=4)
    return figure


def caption(results: Results) -> str:
    """Return how to read the figure."""
    found = _found(results)
    theirs = ", ".join(f"{time:g} s with {spell(loader)}" for loader, (time, _) in MINATO_FIG10.items())
    emulated = (
        " The accelerator is emulated: its use is the share of time in which a step lasted." if results.emulated else ""
    )
    return (
        f"{_limit(results).capitalize()}: processes, batches and what the kernel caches of the files share it. Files "
        f"are mapped, so that of a volume only what a crop touches is read. {windows_note(found.values())} Dotted at "
        "the level of the means; the host's disk reads are those of other programs too. The paper trains for "
        f"{theirs} on eight V100, 80 GB for 230 GB of data ({MINATO}, section 5.5 and figure 10).{emulated}"
    )


def table(results: Results) -> FigureTable | None:
    """Return training time, uses and disk reads by loader beside the paper's time and GPU use."""
    rows = []
    for loader, course in _found(results).items():
        paper = MINATO_FIG10.get(loader)
        read = course.mean(course.disk_mb_per_s)
        rows.append(
            (
                spell(loader),
                seconds(course.duration_s),
                percent(course.mean(course.accelerator_util)),
                percent(course.mean(course.cpu_util)),
                UNKNOWN if read is None else megabytes(1e6 * read * course.duration_s),
                UNKNOWN if paper is None else f"≈ {paper[0]:g} s",
                UNKNOWN if paper is None else f"{100 * paper[1]:g} %",
            )
        )
    columns = ("Training", "time", "accelerator", "CPU of host", "read from disk", "time in the paper", "GPUs there")
    return FigureTable(columns, tuple(rows)) if rows else None


def _found(results: Results) -> dict[str, Course]:
    return courses(results, results.workloads[0]) if results.workloads else {}


def _limit(results: Results) -> str:
    testbed = results.config.get("testbed")
    limit = testbed.get("memory_mb") if isinstance(testbed, Mapping) else None
    if limit is None:
        return "memory not limited"
    if not isinstance(limit, int | float):  # an interpolation that was stored as it was written
        return "memory limited"
    return f"{megabytes(1e6 * limit)} of memory a loader"


def _top(found: Mapping[str, Course], name: str) -> float:
    values = np.concatenate([getattr(course, name) for course in found.values()])
    known = values[np.isfinite(values)]
    return 1.1 * float(known.max()) if len(known) and known.max() > 0 else 1.0


def _draw_rate(axes: Axes, loader: str, course: Course, values: npt.NDArray[np.float64], top: float) -> None:
    colour = loader_colour(loader)
    axes.plot(course.at_s, values, color=colour, linewidth=1.5)
    axes.fill_between(course.at_s, values, color=colour, alpha=0.14, linewidth=0)
    for end in course.epoch_ends_s[:-1]:
        axes.axvline(end, color=FAINT, linewidth=0.8, linestyle=":", zorder=1)
    mean = course.mean(values)
    if mean is not None:
        axes.hlines(mean, 0, course.duration_s, color=INK, linewidth=0.9, linestyle=(0, (1, 2)))
        axes.set_title(f"mean {significant(mean)}", loc="right", pad=7, color=MUTED, fontweight="normal", fontsize=8)
    axes.set_ylim(0, top)


def _means(course: Course) -> str:
    return f"{seconds(course.duration_s)}; accelerator {percent(course.mean(course.accelerator_util))}"
