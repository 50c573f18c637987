"""The figure of a diagnosis: the race of loading and compute, and utilisation by workers."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from harness.diagnose.diagnosis import KINDS, Diagnosis
from harness.diagnose.verdict import FED, Verdict, compute_stage_s, judge
from harness.report.figures.marks import make_sheet, write_note
from harness.report.figures.style import BAD, FAINT, GRID, INK, MUTED, SURFACE
from harness.report.labels import percent, significant, spell

_COLOURS = dict(zip(KINDS, ("#3b78b8", "#c2703d", "#e0a32e", "#7a6bb0", "#4f9fc4", "#9aa3ad"), strict=True))
_COMPUTE = "#2f9e8a"
_ROOM_FOR_LETTER, _ROOM_FOR_NUMBER = 0.0105, 0.05
"""Shares of the axis that a stage must take for its name, by letters, and its time to stand inside its bar."""
_LOW = 0.12
"""Utilisation below which its figure stands above the point, for below it is the axis."""


def draw(diagnosis: Diagnosis) -> Figure:
    """Draw one figure of two panels from the stored diagnosis."""
    verdict = judge(diagnosis)
    figure = make_sheet((9.0, 6.4), {"w_pad": 0.1, "h_pad": 0.08, "hspace": 0.06})
    top, bottom = figure.subplots(2, 1, height_ratios=[1.0 if diagnosis.subject.runs_pipeline else 1.4, 2.1])
    _race(top, diagnosis)
    _utilisation(bottom, diagnosis, verdict)
    return figure


def _race(axes: Axes, diagnosis: Diagnosis) -> None:
    """Draw t_load by stages above t_compute, on one axis of milliseconds."""
    inside = sum(compute_stage_s(diagnosis, stage) for stage in diagnosis.stages)
    longest = max(inside, diagnosis.load_s, diagnosis.compute_s)
    own = diagnosis.subject.runs_pipeline
    rows = [("t_load, one worker", diagnosis.load_s), ("t_compute", diagnosis.compute_s)]
    if not own:
        rows.insert(1, ("pipeline in Python", inside))
    ends = []
    for y, (name, seconds) in enumerate(rows):
        stacked = name == ("t_load, one worker" if own else "pipeline in Python")
        if stacked:
            _stack(axes, y, diagnosis, longest)
        else:
            colour = _COMPUTE if name == "t_compute" else _COLOURS["hand-over"]
            axes.barh(y, 1e3 * seconds, 0.56, color=colour, edgecolor=SURFACE)
        ends.append(max(seconds, inside) if stacked else seconds)
    for y, ((_, seconds), end) in enumerate(zip(rows, ends, strict=True)):
        _write(axes, f"{significant(1e3 * seconds)} ms", (1e3 * end, y), (5, 0), va="center", fontsize=9)
    axes.set_yticks(range(len(rows)), [name for name, _ in rows], color=INK)
    axes.set_xlim(0, 1e3 * longest * 1.1)
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set_xlabel("ms a batch")
    axes.grid(visible=False, axis="y")
    axes.grid(visible=True, axis="x", color=GRID)
    axes.set_title(_title(diagnosis), pad=10)


def _stack(axes: Axes, y: int, diagnosis: Diagnosis, longest: float) -> None:
    """Draw the stages one after the other."""
    left = 0.0
    narrow: list[str] = []
    for stage in diagnosis.stages:
        width = compute_stage_s(diagnosis, stage)
        colour = _COLOURS[stage.kind]
        axes.barh(y, 1e3 * width, 0.56, left=1e3 * left, color=colour, edgecolor=SURFACE, linewidth=0.8)
        if width > max(_ROOM_FOR_NUMBER, _ROOM_FOR_LETTER * len(stage.name)) * longest:
            text, middle = f"{stage.name}\n{significant(1e3 * width)}", 1e3 * (left + width / 2)
            _write(axes, text, (middle, y), ha="center", va="center", fontsize=8, color=SURFACE)
        else:
            narrow.append(f"{stage.name} {significant(1e3 * width)}")
        left += width
    if narrow:
        text = f"without a name, from left to right: {', '.join(narrow)}"
        _write(axes, text, (0, y + 0.28), (0, -3), va="top", fontsize=8, color=MUTED)


_write = partial(write_note, coordinates="data")


def _utilisation(axes: Axes, diagnosis: Diagnosis, verdict: Verdict) -> None:
    """Draw utilisation as measured and as the two models predict it, with the knee and the rule of thumb."""
    points = diagnosis.points
    x = range(len(points))
    cores = diagnosis.machine.cores
    predicted, shared, measured = "textbook's model", f"the same on {cores} cores", "measured"
    frame = pd.DataFrame(
        [
            {"place": place, "utilisation": 100 * value, "what": what}
            for place, point in zip(x, points, strict=True)
            for what, value in (
                (predicted, point.predicted),
                (shared, point.predicted_on_cores),
                (measured, point.utilisation),
            )
        ]
    )
    axes.axhline(100 * FED, color=FAINT, linewidth=0.9, linestyle=(0, (1, 2)), zorder=1)
    sns.lineplot(
        frame,
        x="place",
        y="utilisation",
        hue="what",
        style="what",
        palette={predicted: FAINT, shared: MUTED, measured: INK},
        dashes={predicted: (4, 2), shared: (1, 1.5), measured: ""},
        markers={predicted: "D", shared: "s", measured: "o"},
        markersize=5.5,
        linewidth=1.5,
        ax=axes,
    )
    for place, point in zip(x, points, strict=True):
        at, offset = (place, 100 * point.utilisation), (0, -13 if point.utilisation > _LOW else 6)
        _write(axes, percent(point.utilisation), at, offset, ha="center", fontsize=8.5, color=INK)
    _mark(axes, [point.workers for point in points], verdict)
    axes.set_xticks(list(x), [str(point.workers) for point in points])
    axes.set_xlim(-0.4, len(points) - 0.6)
    axes.set_ylim(0, 112)
    axes.set_yticks([0, 20, 40, 60, 80, 100 * FED, 100])
    axes.yaxis.set_major_formatter(lambda value, _: f"{'fed ' if value == 100 * FED else ''}{value:.0f} %")
    axes.yaxis.get_gridlines()[5].set_visible(False)
    axes.set_xlabel(diagnosis.subject.workers_key)
    axes.set_ylabel("accelerator utilisation")
    axes.set_title(verdict.headline, color=INK if verdict.limit == "accelerator" else BAD, pad=10, wrap=True)
    axes.legend(title=None, loc="lower right", ncols=3, bbox_to_anchor=(1.0, -0.26), borderaxespad=0)


def _mark(axes: Axes, workers: Sequence[int], verdict: Verdict) -> None:
    """Mark the knee, and where t_load / t_compute would put it if that number was tried."""
    marks: dict[int, str] = {verdict.knee: "knee"}
    if verdict.expected in workers:
        marks[verdict.expected] = (
            "knee = ⌈t_load / t_compute⌉" if verdict.expected == verdict.knee else "⌈t_load / t_compute⌉"
        )
    for count, text in marks.items():
        place = workers.index(count)
        axes.axvline(place, color=GRID, linewidth=6, zorder=0)
        style = {"ha": "center", "va": "top", "fontsize": 8, "color": MUTED}
        box = {"facecolor": SURFACE, "edgecolor": "none", "pad": 1.5}
        write_note(axes, text, (place, 1.0), (0, -3), coordinates=("data", "axes fraction"), bbox=box, **style)


def _title(diagnosis: Diagnosis) -> str:
    subject = diagnosis.subject
    kind, _, name = subject.accelerator.partition(": ")
    accelerator = f"emulated {name}" if kind == "emulated" else name or kind
    return (
        f"{spell(subject.workload)} from {spell(subject.loader)}, batches of {subject.batch_size}, {accelerator}, "
        f"{diagnosis.machine.cores} cores"
    )
