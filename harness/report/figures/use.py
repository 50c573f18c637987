"""CPU and accelerator use over time in one panel: what MinatoLoader's figures 1b and 8 share."""

from __future__ import annotations

import re
from collections.abc import Iterable

from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from harness.report.figures.overtime import Course, window_s
from harness.report.figures.palette import BAD, DOMAIN_COLOURS, FAINT, INK
from harness.report.folder import Results
from harness.report.labels import accelerators, spell

__all__ = ["draw_use", "emulation_note", "steps_note", "use_handles", "windows_note"]

_ACCELERATOR, _CPU = DOMAIN_COLOURS["gpu"], DOMAIN_COLOURS["cpu"]
_PAPER = (0, (5, 3))
_ASSUMED = re.compile(r"emulated: assumed (\S+) s a sample")


def draw_use(axes: Axes, course: Course, *, paper: float | None = None) -> None:
    """Draw both uses in per cent over seconds; `paper` is the paper's mean use of the accelerator, 0 to 1."""
    busy = course.line(100 * course.accelerator_util)
    axes.plot(*course.line(100 * course.cpu_util), color=_CPU, linewidth=1.2, zorder=2)
    axes.plot(*busy, color=_ACCELERATOR, linewidth=1.7, zorder=3)
    axes.fill_between(*busy, color=_ACCELERATOR, alpha=0.14, linewidth=0)
    if paper is not None:
        axes.axhline(100 * paper, color=INK, linestyle=_PAPER, linewidth=1.1)
    for end in course.epoch_ends_s[:-1]:
        axes.axvline(end, color=FAINT, linewidth=0.8, linestyle=":", zorder=1)
    axes.set_ylim(0, 104)
    axes.set_yticks([0, 50, 100], ["0 %", "50 %", "100 %"])
    axes.set_xlim(0, course.duration_s)
    if not course.trusted:
        axes.text(1, 0.04, "† no valid row", transform=axes.transAxes, ha="right", fontsize=8, color=BAD)


def use_handles(found: Iterable[Course], *, paper: bool = False) -> list[Line2D]:
    """Return the legend's entries."""
    board = any(course.has_board for course in found)
    handles = [
        Line2D([], [], color=_ACCELERATOR, linewidth=1.7, label="GPU (NVML)" if board else "accelerator: in a step"),
        Line2D([], [], color=_CPU, linewidth=1.2, label="CPU of the host"),
        Line2D([], [], color=FAINT, linewidth=0.8, linestyle=":", label="an epoch ends"),
    ]
    if paper:
        handles.append(Line2D([], [], color=INK, linewidth=1.1, linestyle=_PAPER, label="the paper's mean GPU use"))
    return handles


def windows_note(found: Iterable[Course]) -> str:
    """Return what a point of the lines is, and over what."""
    widths = sorted({window_s(course.duration_s) for course in found})
    told = f"{widths[0]:g}" if len(widths) == 1 else f"{widths[0]:g} to {widths[-1]:g}" if widths else "0.5"
    return f"Means over windows of {told} s; epochs follow one another without the time between them."


def steps_note(results: Results) -> str:
    """Return what ran the steps; of steps that are assumed how long each workload's last."""
    found = {cell.workload: _ASSUMED.fullmatch(cell.accelerator) for cell in results.cells if cell.accelerator}
    assumed = {workload: one.group(1) for workload, one in found.items() if one is not None}
    if len(found) < 2 or len(assumed) < len(found):
        return accelerators(results)
    told = ", ".join(f"{spell(workload)} {duration}" for workload, duration in assumed.items())
    return f"emulated, s a sample assumed: {told}"


def emulation_note(results: Results) -> str:
    """Return what is to be known of an emulated step: whose use it is, and why an assumed one lasts as long."""
    if not results.emulated:
        return ""
    said = " The accelerator is emulated: what is shown of it is the share of time in which a step lasted."
    if not any("assumed" in cell.accelerator for cell in results.cells):
        return said
    return said + (
        " Its steps are assumed, and as much shorter than the loading of as many samples as in the paper: 55 % for "
        "UNet3D (0.5 s a sample by 12 workers, Table 2, against MLPerf Storage's 0.636 s for 7 samples on each of four "
        "A100), else 46 % (the mean GPU use with PyTorch, section 5.3). How high PyTorch's line lies is thus no "
        "finding."
    )
