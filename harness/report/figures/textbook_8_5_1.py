"""The textbook's output 8.5.1: utilisation by number of workers, as it prints it and with real workers."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import median

import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine

from harness.report.figures.palette import BAD, GRID, INK, MUTED, SURFACE
from harness.report.figures.tables import FigureTable
from harness.report.folder import Results
from harness.report.labels import UNKNOWN, significant
from harness.report.textbook import CITATION, OUTPUT_8_5_1, Curve, Measured, curves
from harness.workloads.overlap import workers_to_hide

__all__ = ["caption", "draw", "table"]

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
