"""The textbook's output 8.5.1: utilisation by number of workers, as it prints it and with real workers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from statistics import median

import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine

from harness.overlap import workers_to_hide
from harness.report.claims.evidence import CannotJudge, Evidence, Finding, Question
from harness.report.figures.palette import BAD, GRID, INK, MUTED, SURFACE
from harness.report.figures.tables import FigureTable
from harness.report.folder import Results
from harness.report.labels import UNKNOWN, significant
from harness.report.textbook import CITATION, OUTPUT_8_5_1, Curve, Measured, Printed, curves

__all__ = ["caption", "draw", "questions", "table"]

_TOLERANCE_PCT = 2.0
"""Percentage points: the model knows no process that is woken late, and no batch that is handed over."""

_STEEP = 0.05
"""A way to the next mark, as a share of the axis, that would run through a label centred on its start."""


def draw(results: Results) -> Figure | None:
    """Draw utilisation and wall time by number of workers; None when nothing was measured."""
    curve = _curve(results)
    if curve is None:
        return None
    figure = Figure(figsize=(10.0, 4.4), layout=ConstrainedLayoutEngine(w_pad=0.1, h_pad=0.08, wspace=0.06))
    left, right = figure.subplots(1, 2)
    places = {point.workers: place for place, point in enumerate(curve.points)}
    _panel(
        left,
        places,
        book={workers: line.utilisation_pct for workers, line in OUTPUT_8_5_1.items()},
        ours=[(point, 100 * value) for point in curve.points for value in point.utilisation],
        label="{:.1f} %",
        book_above=True,
    )
    left.set_ylim(0, 114)
    left.set_yticks(range(0, 101, 20))
    left.yaxis.set_major_formatter(lambda value, _: f"{value:.0f} %")
    left.set_title(
        f"Utilisation: loads of {1e3 * curve.load_s:g} ms, steps of {1e3 * curve.compute_s:g} ms (emulated)", pad=10
    )
    _panel(
        right,
        places,
        book={workers: line.wall_ms / 1e3 for workers, line in OUTPUT_8_5_1.items()},
        ours=[(point, value) for point in curve.points for value in point.wall_s],
        label="{:.2f} s",
        book_above=False,
    )
    right.set_ylim(0, 1.18 * max(right.get_ylim()[1], 5.61))
    right.yaxis.set_major_formatter(lambda value, _: f"{value:g} s")
    right.set_title("Wall time of 200 steps" if curve.points[0].steps == 200 else "Wall time of an epoch", pad=10)
    _mark_knee(left, places, curve)
    for axes in (left, right):
        axes.set_xlabel("workers")
    handles, labels = left.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=2)
    return figure


def caption(results: Results) -> str:
    """Return how to read the figure."""
    curve = _curve(results)
    times = "" if curve is None else f"Loads last {1e3 * curve.load_s:g} ms and steps {1e3 * curve.compute_s:g} ms. "
    return (
        f"{times}Diamonds are what {CITATION}, prints (Output 8.5.1, a simulation); points are epochs through "
        "PyTorch's DataLoader, whose samples sleep, before an emulated step. Utilisation is the step's share of the "
        "epoch, the wait for the first batch included; the epoch that starts the workers is left out."
    )


def table(results: Results) -> FigureTable | None:
    """Return the textbook's table with ours beside it."""
    curve = _curve(results)
    if curve is None:
        return None
    rows = []
    for point in curve.points:
        book = OUTPUT_8_5_1.get(point.workers)
        rows.append(
            (
                f"{point.workers} worker{'' if point.workers == 1 else 's'}{'' if point.trusted else ' †'}",
                UNKNOWN if book is None else f"{book.utilisation_pct:.1f} %",
                f"{100 * curve.predicted(point.workers).utilisation:.1f} %",
                f"{100 * point.median:.1f} %",
                UNKNOWN if book is None else f"{book.wall_ms} ms",
                f"{1e3 * median(point.wall_s):.0f} ms",
            )
        )
    return FigureTable(("workers", "textbook", "model", "measured", "textbook's wall", "measured wall"), tuple(rows))


def questions(results: Results) -> Iterable[Question]:
    """Ask whether every line of the textbook's table is met, and whether its rule finds the knee."""
    for workers, line in OUTPUT_8_5_1.items():
        who = "1 worker keeps" if workers == 1 else f"{workers} workers keep"
        yield Question(
            f"{who} the accelerator busy {line.utilisation_pct} % of the time.",
            f"{line.utilisation_pct} %",
            f"within {_TOLERANCE_PCT:g} percentage points",
            partial(_utilisation, workers=workers, line=line),
            CITATION,
        )
    yield Question(
        "⌈t_load / t_compute⌉ = 3 workers hide loading, and more gain nothing.",
        "knee at 3",
        f"the most workers gain less than {_TOLERANCE_PCT:g} percentage points on 3, and 3 gain more on 2",
        _knee,
        CITATION,
    )


def _utilisation(evidence: Evidence, *, workers: int, line: Printed) -> Finding:
    point = _point(evidence, workers)
    found = 100 * point.median
    waited = 1e3 * median(
        wall_s * (1 - share) / point.steps for wall_s, share in zip(point.wall_s, point.utilisation, strict=True)
    )
    expected = line.wall_ms * (1 - line.utilisation_pct / 100) / point.steps
    why = (
        f"a step waits {waited:.1f} ms for its batch, {expected:.1f} ms in the textbook, where to take one over is free"
    )
    return Finding(f"{found:.1f} %", abs(found - line.utilisation_pct) <= _TOLERANCE_PCT, why)


def _knee(evidence: Evidence) -> Finding:
    two, three = (100 * _point(evidence, workers).median for workers in (2, 3))
    most = max(OUTPUT_8_5_1)
    last = 100 * _point(evidence, most).median
    text = f"{two:.1f}, {three:.1f} and {last:.1f} % with 2, 3 and {most}"
    return Finding(text, last - three < _TOLERANCE_PCT < three - two)


def _point(evidence: Evidence, workers: int) -> Measured:
    curve = _curve(evidence.results)
    points = [] if curve is None else [point for point in curve.points if point.workers == workers and point.trusted]
    if curve is None or not points:
        raise CannotJudge(f"no valid row with {workers} workers")
    # The textbook's table is of one ratio and one number of steps.
    if (round(1e3 * curve.load_s, 3), round(1e3 * curve.compute_s, 3), points[0].steps) != (28.0, 10.0, 200):
        raise CannotJudge("loads, steps or their number are not the textbook's")
    return points[0]


def _curve(results: Results) -> Curve | None:
    return next(iter(curves(results)), None)


def _panel(
    axes: Axes,
    places: dict[int, int],
    *,
    book: dict[int, float],
    ours: list[tuple[Measured, float]],
    label: str,
    book_above: bool,
) -> None:
    known = {places[workers]: value for workers, value in book.items() if workers in places}
    frame = pd.DataFrame([(places[point.workers], value) for point, value in ours], columns=["place", "value"])
    axes.plot(
        list(known),
        list(known.values()),
        color=MUTED,
        linewidth=1.4,
        linestyle=(0, (4, 2)),
        marker="D",
        markersize=7,
        markerfacecolor=SURFACE,
        label="textbook, output 8.5.1",
        zorder=2,
    )
    for place, value in known.items():
        _write(axes, known, place, label.format(value), MUTED, above=book_above)
    sns.lineplot(
        frame,
        x="place",
        y="value",
        estimator="median",
        errorbar=None,
        color=INK,
        linewidth=1.4,
        ax=axes,
        label="measured, real workers",
        marker="o",
        markersize=5,
        legend=False,
        zorder=3,
    )
    axes.plot(frame["place"], frame["value"], "o", color=INK, markersize=3.2, alpha=0.35, zorder=3)
    medians = {int(str(place)): value for place, value in frame.groupby("place")["value"].median().items()}
    trusted = {places[point.workers]: point.trusted for point, _ in ours}
    for place, value in medians.items():
        mark = "" if trusted[place] else " †"
        colour = INK if trusted[place] else BAD
        _write(axes, medians, place, label.format(value) + mark, colour, above=not book_above)
    axes.set_xticks(list(places.values()), [str(workers) for workers in places])
    axes.set_xlim(-0.7, len(places) - 0.5)
    axes.set_ylabel("")


def _write(axes: Axes, values: Mapping[int, float], place: int, text: str, colour: str, *, above: bool) -> None:
    """Write a value above or below its mark, on the side from which the line to the next mark leads away."""
    rise = values.get(place + 1, values[place]) - values[place]
    slope = 0 if abs(rise) < _STEEP * max(values.values()) else 1 if rise > 0 else -1
    side = slope * (-1 if above else 1)
    axes.annotate(
        text,
        (place, values[place]),
        xytext=(5 * side, 8 if above else -16),
        textcoords="offset points",
        ha={-1: "right", 0: "center", 1: "left"}[side],
        fontsize=8,
        color=colour,
    )


def _mark_knee(axes: Axes, places: dict[int, int], curve: Curve) -> None:
    expected = workers_to_hide(curve.load_s, curve.compute_s)
    if expected not in places:
        return
    axes.axvline(places[expected], color=GRID, linewidth=6, zorder=0)
    ratio = significant(curve.load_s / curve.compute_s, 2)
    axes.annotate(
        f"⌈t_load / t_compute⌉ = ⌈{ratio}⌉ = {expected}",
        (places[expected], 3),
        xytext=(6, 0),
        textcoords="offset points",
        fontsize=8,
        color=MUTED,
    )
