"""MinatoLoader's figure 1b: CPU and accelerator use over time of 3D-UNet behind PyTorch's DataLoader."""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine

from harness.report.figures.overtime import Course, courses
from harness.report.figures.palette import MUTED
from harness.report.figures.tables import FigureTable
from harness.report.figures.use import draw_use, emulation_note, steps_note, use_handles, windows_note
from harness.report.folder import Results
from harness.report.labels import UNKNOWN, percent, significant, spell
from harness.report.published_loaders import MINATO, MINATO_FIG1B_GPU

__all__ = ["caption", "draw", "table"]


def draw(results: Results) -> Figure | None:
    """Draw both uses of every loader and workload of the run; None when no epoch was measured."""
    found = _found(results)
    if not found:
        return None
    layout = ConstrainedLayoutEngine(w_pad=0.1, h_pad=0.08, hspace=0.06)
    figure = Figure(figsize=(10.0, 0.75 + 3.0 * len(found)), layout=layout)
    figure.suptitle(f"{results.name}; {steps_note(results)}", x=0.01, ha="left", fontsize=8.5, color=MUTED)
    panels = figure.subplots(len(found), 1, squeeze=False)[:, 0]
    for axes, ((workload, loader), course) in zip(panels, found.items(), strict=True):
        draw_use(axes, course, paper=MINATO_FIG1B_GPU if (workload, loader) == ("unet3d", "pytorch") else None)
        axes.set_title(f"{spell(workload)} fed by {spell(loader)}", pad=9)
        axes.set_ylabel("use")
    panels[-1].set_xlabel("seconds of training")
    panels[0].legend(
        handles=use_handles(found.values(), paper=("unet3d", "pytorch") in found),
        loc="lower right",
        bbox_to_anchor=(1.0, 1.0),
        ncols=4,
        borderaxespad=0.3,
    )
    return figure


def caption(results: Results) -> str:
    """Return how to read the figure."""
    return (
        f"{windows_note(_found(results).values())} The paper finds the GPU {percent(MINATO_FIG1B_GPU)} busy on average "
        f"and idle while the CPU works ({MINATO}, section 3.3 and figure 1b, 12 workers on 128 cores); its curves are "
        f"in its plot alone.{emulation_note(results)}"
    )


def table(results: Results) -> FigureTable | None:
    """Return the means of both uses, and how they go together."""
    rows: list[tuple[str, ...]] = []
    dim: set[int] = set()
    for (workload, loader), course in _found(results).items():
        accelerator, cpu = course.mean(course.accelerator_util), course.mean(course.cpu_util)
        name = f"{spell(workload)}, {spell(loader)}"
        rows.append((name, percent(accelerator), percent(cpu), _together(course)))
        if (workload, loader) == ("unet3d", "pytorch"):
            dim.add(len(rows))
            rows.append(("    paper", f"{100 * MINATO_FIG1B_GPU:g} %", UNKNOWN, "inverse"))
    columns = ("Mean use", "accelerator", "CPU of host", "correlation of both")
    return FigureTable(columns, tuple(rows), frozenset(dim)) if rows else None


def _found(results: Results) -> dict[tuple[str, str], Course]:
    return {
        (workload, loader): course
        for workload in results.workloads
        for loader, course in courses(results, workload).items()
    }


def _together(course: Course) -> str:
    """Return the correlation of both uses over the windows; unknown for constant ones."""
    pair = np.stack([course.accelerator_util, course.cpu_util])
    known = pair[:, ~np.isnan(pair).any(axis=0)]
    if known.shape[1] < 3 or not known.std(axis=1).all():
        return UNKNOWN
    return significant(float(np.atleast_2d(np.corrcoef(known))[0, 1]), 2)
