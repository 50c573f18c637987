"""The figure of a diagnosis: the race of loading and compute, and utilisation by workers."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Final

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from harness.diagnose.diagnosis import KINDS, Diagnosis, Stage
from harness.diagnose.verdict import FED, Verdict
from harness.report.figures.marks import make_sheet, write_note
from harness.report.figures.style import BAD, FAINT, GRID, INK, MUTED, SURFACE
from harness.report.labels import percent, significant, spell

_COLOURS: Final = dict(zip(KINDS, ("#3b78b8", "#c2703d", "#e0a32e", "#7a6bb0", "#4f9fc4", "#9aa3ad"), strict=True))
_COMPUTE: Final = "#2f9e8a"
_ROOM_FOR_NAME: Final = 0.08
"""Share of the axis that a stage must take for its name to stand inside its bar."""
_LOW: Final = 12
"""Utilisation in per cent below which its number stands above the point, for the axis is below it."""
_write = partial(write_note, coordinates="data")


def draw(diagnosis: Diagnosis, verdict: Verdict) -> Figure:
    """Draw one figure of two panels."""
    figure = make_sheet((9.0, 6.4), {"w_pad": 0.1, "h_pad": 0.08, "hspace": 0.06})
    top, bottom = figure.subplots(2, 1, height_ratios=[1.0, 1.6])
    _draw_race(top, diagnosis)
    _draw_utilisation(bottom, diagnosis, verdict)
    return figure


def draw_stages(axes: Axes, stages: Sequence[Stage], longest_ms: float = 0.0) -> float:
    """Draw the stages one after the other at 0, on an axis that is as long as they are; return their sum, ms."""
    total_ms = 1e3 * sum(stage.batch_s for stage in stages)
    longest_ms = max(total_ms, longest_ms)
    left, narrow = 0.0, []
    for stage in stages:
        width = 1e3 * stage.batch_s
        axes.barh(0, width, 0.56, left=left, color=_COLOURS[stage.kind], edgecolor=SURFACE, linewidth=0.8)
        if width > max(_ROOM_FOR_NAME, 0.0105 * len(stage.name)) * longest_ms:
            text, at = f"{stage.name}\n{significant(width)}", (left + width / 2, 0)
            _write(axes, text, at, ha="center", va="center", fontsize=8, color=SURFACE)
        else:
            narrow.append(f"{stage.name} {significant(width)}")
        left += width
    if narrow:
        text = f"without a name, from left to right: {', '.join(narrow)}"
        _write(axes, text, (0, 0.28), (0, -3), va="top", fontsize=8, color=MUTED)
    return total_ms


def _draw_race(axes: Axes, diagnosis: Diagnosis) -> None:
    """Draw the stages one after the other, t_load and t_compute, on one axis of milliseconds."""
    load_ms, compute_ms = 1e3 * diagnosis.load_s, 1e3 * diagnosis.compute_s
    stages_ms = draw_stages(axes, diagnosis.stages, max(load_ms, compute_ms))
    longest = max(stages_ms, load_ms, compute_ms)
    axes.barh(1, load_ms, 0.56, color=_COLOURS["hand-over"], edgecolor=SURFACE)
    axes.barh(2, compute_ms, 0.56, color=_COMPUTE, edgecolor=SURFACE)
    for y, value in enumerate((stages_ms, load_ms, compute_ms)):
        _write(axes, f"{significant(value)} ms", (value, y), (5, 0), va="center", fontsize=9)
    axes.set_yticks(range(3), ["stages in Python", "t_load, one worker", "t_compute"], color=INK)
    axes.set_xlim(0, longest * 1.1)
    axes.set_ylim(2.5, -0.5)
    axes.set_xlabel("ms a batch")
    axes.grid(visible=False, axis="y")
    axes.grid(visible=True, axis="x", color=GRID)
    subject = diagnosis.subject
    kind, _, name = subject.accelerator.partition(": ")
    accelerator = f"emulated {name}" if kind == "emulated" else name or kind
    parts = f"batches of {subject.batch_size}, {accelerator}, {diagnosis.machine.cores} cores"
    axes.set_title(f"{spell(subject.workload)} from {spell(subject.loader)}, {parts}", pad=10)


def _draw_utilisation(axes: Axes, diagnosis: Diagnosis, verdict: Verdict) -> None:
    """Draw utilisation as measured and as the textbook's model predicts it, with the knee and t_load / t_compute."""
    points = diagnosis.points
    workers = [point.workers for point in points]
    axes.axhline(100 * FED, color=FAINT, linewidth=0.9, linestyle=(0, (1, 2)), zorder=1)
    predicted = [100 * point.predicted for point in points]
    axes.plot(predicted, color=FAINT, linestyle="--", marker="D", markersize=5, label="textbook's model")
    measured = [100 * point.utilisation for point in points]
    axes.plot(measured, color=INK, marker="o", markersize=5.5, label="measured")
    for place, value in enumerate(measured):
        offset = (0, -14 if value > _LOW else 6)
        _write(axes, percent(value / 100), (place, value), offset, ha="center", fontsize=8.5, color=INK)
    marks = {verdict.expected: "⌈t_load / t_compute⌉"} | {verdict.knee: "knee"}
    if verdict.expected == verdict.knee:
        marks = {verdict.knee: "knee = ⌈t_load / t_compute⌉"}
    for count, text in marks.items():
        if count in workers:
            place = workers.index(count)
            axes.axvline(place, color=GRID, linewidth=6, zorder=0)
            _write(axes, text, (place, 1), (0, 2), ha="center", va="bottom", fontsize=8, color=MUTED)
    axes.set_xticks(range(len(workers)), [str(count) for count in workers])
    axes.set_xlim(-0.4, len(points) - 0.6)
    axes.set_ylim(0, 112)
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:.0f} %")
    axes.set_xlabel(diagnosis.subject.workers_key)
    axes.set_ylabel("accelerator utilisation")
    axes.set_title(verdict.headline, color=INK if verdict.limit == "accelerator" else BAD, pad=10, wrap=True)
    axes.legend(title=None, loc="lower right", ncols=2, bbox_to_anchor=(1.0, -0.26), borderaxespad=0)
