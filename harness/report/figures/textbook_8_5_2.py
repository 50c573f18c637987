"""The textbook's exercise 8.5.2: utilisation by number of workers where only so many loads may overlap."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.lines import Line2D

from harness.report.figures.palette import BAD, FAINT, INK, MUTED, SURFACE
from harness.report.figures.tables import FigureTable
from harness.report.folder import Results
from harness.report.labels import significant
from harness.report.textbook import CITATION, Curve, curves
from harness.workloads.overlap import workers_to_hide

__all__ = ["caption", "draw", "table"]

_COLOURS = ("#2f9e8a", "#e0a32e", "#3b78b8", "#7a6bb0")

_UNCAPPED: Final[Mapping[str, Any]] = {"color": FAINT, "linestyle": (0, (1, 1.5)), "linewidth": 1.2}
_MODEL: Final[Mapping[str, Any]] = {
    "color": MUTED,
    "linestyle": (0, (4, 2)),
    "linewidth": 1.4,
    "marker": "D",
    "markersize": 7,
    "markerfacecolor": SURFACE,
}


def draw(results: Results) -> Figure | None:
    """Draw a panel for every length of a load; None when nothing was measured."""
    found = _shortest_first(results)
    if not found:
        return None
    figure = Figure(
        figsize=(3.6 * max(2, len(found)), 4.2), layout=ConstrainedLayoutEngine(w_pad=0.08, h_pad=0.08, wspace=0.03)
    )
    for axes, curve, colour in zip(
        figure.subplots(1, len(found), sharey=True, squeeze=False)[0], found, _COLOURS * len(found), strict=False
    ):
        _panel(axes, curve, colour)
    figure.legend(
        handles=[
            Line2D([], [], color=INK, marker="o", markersize=5, linewidth=1.4, label="measured, real workers"),
            Line2D(
                [],
                [],
                color=MUTED,
                marker="D",
                markerfacecolor=SURFACE,
                linestyle=(0, (4, 2)),
                label="model with the cap",
            ),
            Line2D([], [], color=FAINT, linewidth=1.2, linestyle=(0, (1, 1.5)), label="model without it"),
        ],
        loc="outside lower center",
        ncols=3,
    )
    return figure


def caption(results: Results) -> str:
    """Return how to read the figure."""
    found = _shortest_first(results)
    caps = sorted({curve.cap for curve in found if curve.cap is not None})
    cap = f"at most {' or '.join(map(str, caps))} loads overlap" if caps else "any number of loads overlap"
    return (
        f"Exercise 8.5.2 of {CITATION}, which prints no output of it: {cap}, whatever the number of workers. Points "
        "are epochs of real workers that sleep while they hold one of the slots; the model is that of Code 8.5.1 with "
        "no more loads than slots. The knee follows ⌈t_load / t_compute⌉ until the cap binds first."
    )


def table(results: Results) -> FigureTable | None:
    """Return measured utilisation by workers and load, the model's in brackets."""
    found = _shortest_first(results)
    if not found:
        return None
    counts = sorted({point.workers for curve in found for point in curve.points})
    rows = []
    for curve in found:
        cells = {
            point.workers: f"{100 * point.median:.1f} % ({100 * curve.predicted(point.workers).utilisation:.1f})"
            + ("" if point.trusted else " †")
            for point in curve.points
        }
        ratio = significant(curve.load_s / curve.compute_s, 2)
        rows.append((f"load of {1e3 * curve.load_s:g} ms, ratio {ratio}", *(cells.get(count, "") for count in counts)))
    heads = (f"{count} worker{'' if count == 1 else 's'}" for count in counts)
    return FigureTable(("measured (model)", *heads), tuple(rows))


def _shortest_first(results: Results) -> Sequence[Curve]:
    return sorted(curves(results), key=lambda curve: curve.load_s)


def _panel(axes: Axes, curve: Curve, colour: str) -> None:
    places = {point.workers: place for place, point in enumerate(curve.points)}
    for capped, style in ((False, _UNCAPPED), (True, _MODEL)):
        values = [100 * curve.predicted(workers, capped=capped).utilisation for workers in places]
        axes.plot(list(places.values()), values, zorder=2, **style)
    frame = pd.DataFrame(
        [(places[point.workers], 100 * value) for point in curve.points for value in point.utilisation],
        columns=["place", "utilisation"],
    )
    sns.lineplot(
        frame,
        x="place",
        y="utilisation",
        estimator="median",
        errorbar=None,
        color=colour,
        linewidth=1.6,
        marker="o",
        markersize=5.5,
        ax=axes,
        zorder=3,
    )
    axes.plot(frame["place"], frame["utilisation"], "o", color=colour, markersize=3, alpha=0.4, zorder=3)
    for point in curve.points:
        axes.annotate(
            f"{100 * point.median:.0f} %" + ("" if point.trusted else " †"),
            (places[point.workers], 100 * point.median),
            xytext=(0, -16),
            textcoords="offset points",
            ha="center",
            fontsize=8,
            color=INK if point.trusted else BAD,
        )
    expected = workers_to_hide(curve.load_s, curve.compute_s)
    ratio = significant(curve.load_s / curve.compute_s, 2)
    axes.set_title(f"load {1e3 * curve.load_s:g} ms, step {1e3 * curve.compute_s:g} ms", pad=22)
    axes.annotate(
        f"⌈{ratio}⌉ = {expected} worker{'' if expected == 1 else 's'} would hide it"
        + (f"; {curve.cap} loads overlap" if curve.cap is not None and curve.cap < expected else ""),
        (0, 1),
        xycoords="axes fraction",
        xytext=(0, 8),
        textcoords="offset points",
        fontsize=8.5,
        color=MUTED,
    )
    axes.set_xticks(list(places.values()), [str(workers) for workers in places])
    axes.set_xlim(-0.5, len(places) - 0.5)
    axes.set_ylim(0, 108)
    axes.set_yticks(range(0, 101, 20))
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:.0f} %")
    axes.set_xlabel("workers")
    axes.set_ylabel("accelerator utilisation")
