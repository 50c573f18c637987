"""MinatoLoader's figure 8: CPU and accelerator use over time by workload and loader."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine

from harness.report.figures.overtime import Course, courses
from harness.report.figures.palette import INK, MUTED
from harness.report.figures.tables import FigureTable
from harness.report.figures.use import draw_use, emulation_note, steps_note, use_handles, windows_note
from harness.report.folder import Results
from harness.report.labels import UNKNOWN, percent, spell
from harness.report.published_loaders import MINATO, MINATO_FIG8_GPU

__all__ = ["caption", "draw", "table"]


def draw(results: Results) -> Figure | None:
    """Draw a panel a workload and loader; None when no epoch was measured."""
    found = _found(results)
    if not found:
        return None
    loaders = list(dict.fromkeys(loader for here in found.values() for loader in here))
    layout = ConstrainedLayoutEngine(w_pad=0.08, h_pad=0.08, wspace=0.03, hspace=0.04)
    figure = Figure(figsize=(max(8.0, 3.4 * len(loaders)), 0.8 + 1.9 * len(found)), layout=layout)
    figure.suptitle(f"{results.name}; {steps_note(results)}", x=0.01, ha="left", fontsize=8.5, color=MUTED)
    panels = figure.subplots(len(found), len(loaders), squeeze=False, sharey=True)
    for place, (workload, here) in enumerate(found.items()):
        longest = max(course.duration_s for course in here.values())
        for axes, loader in zip(panels[place], loaders, strict=True):
            if loader == loaders[0]:
                axes.set_ylabel(spell(workload), color=INK, fontweight="bold")
            if loader not in here:
                axes.set_axis_off()
                continue
            draw_use(axes, here[loader])
            axes.set_xlim(0, longest)
            axes.set_title(spell(loader) if place == 0 else "", pad=7)
            axes.set_title(_means(here[loader]), loc="right", pad=7, color=MUTED, fontweight="normal", fontsize=7.5)
    for axes in panels[-1]:
        axes.set_xlabel("seconds of training")
    every = [course for here in found.values() for course in here.values()]
    figure.legend(handles=use_handles(every), loc="outside lower left", ncols=3)
    return figure


def caption(results: Results) -> str:
    """Return how to read the figure."""
    every = [course for here in _found(results).values() for course in here.values()]
    theirs = ", ".join(f"{100 * value:g} % with {spell(loader)}" for loader, value in MINATO_FIG8_GPU.items())
    return (
        f"{windows_note(every)} Lines end where training does. Beside each title the means over training. The paper's "
        f"text gives the mean use of four A100 over all workloads: {theirs} ({MINATO}, section 5.3 and figure 8); it "
        f"leaves out Pecan, whose use is PyTorch's.{emulation_note(results)}"
    )


def table(results: Results) -> FigureTable | None:
    """Return the mean uses by workload and loader, and over the workloads beside the paper's."""
    found = _found(results)
    rows = [
        (f"{spell(workload)}, {spell(loader)}", *_uses([course]), UNKNOWN)
        for workload, here in found.items()
        for loader, course in here.items()
    ]
    if len(found) > 1:
        for loader in dict.fromkeys(loader for here in found.values() for loader in here):
            everywhere = [here[loader] for here in found.values() if loader in here]
            paper = MINATO_FIG8_GPU.get(loader)
            told = UNKNOWN if paper is None else f"{100 * paper:g} %"
            rows.append((f"over {len(everywhere)} workloads, {spell(loader)}", *_uses(everywhere), told))
    columns = ("Mean use", "accelerator", "CPU of host", "GPUs in the paper")
    return FigureTable(columns, tuple(rows)) if rows else None


def _found(results: Results) -> dict[str, dict[str, Course]]:
    every = {workload: courses(results, workload) for workload in results.workloads}
    return {workload: here for workload, here in every.items() if here}


def _means(course: Course) -> str:
    accelerator, cpu = course.mean(course.accelerator_util), course.mean(course.cpu_util)
    return f"accelerator {percent(accelerator)}, CPU {percent(cpu)}"


def _uses(found: Sequence[Course]) -> tuple[str, str]:
    """Return the means over workloads of the means over time; unknown where one is."""
    return _mean([one.mean(one.accelerator_util) for one in found]), _mean([one.mean(one.cpu_util) for one in found])


def _mean(uses: Sequence[float | None]) -> str:
    known = [use for use in uses if use is not None]
    return percent(sum(known) / len(known)) if len(known) == len(uses) else UNKNOWN
