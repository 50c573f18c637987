"""Plotter of the textbook's output 8.5.1 and exercise 8.5.2: utilisation by number of workers, with real workers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final

import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from harness.report.figures.definition import FigureTable, Textbook
from harness.report.figures.marks import compute_medians, make_sheet, write_note
from harness.report.figures.style import BAD, FAINT, GRID, INK, MUTED, SURFACE
from harness.report.labels import UNKNOWN, significant
from harness.report.papers import find_table as published_table
from harness.report.papers import low
from harness.results.epoch_row import EpochRow
from harness.results.reader import Results
from harness.workloads.overlap import Overlap, simulate, workers_to_hide
from harness.workloads.published import STEPS

_WORKERS_KEY: Final = "num_workers"
_STEEP: Final = 0.05
"""A way to the next mark, as a share of the axis, that would run through a label centred on its start."""
_COLOURS: Final = ("#2f9e8a", "#e0a32e", "#3b78b8", "#7a6bb0")
_DASHED: Final = (0, (4, 2))
_DOTTED: Final = (0, (1, 1.5))


@dataclass(frozen=True, slots=True)
class _Point:
    """Epochs with one number of workers."""

    workers: int
    steps: int
    utilisation: tuple[float, ...]
    """Share of each epoch in which the step was at work, 0 to 1, the wait for the first batch included."""
    wall_s: tuple[float, ...]
    trusted: bool
    """Whether the epochs passed every validity rule."""

    @property
    def label(self) -> str:
        """How the number of workers is written."""
        return f"{self.workers} worker{'' if self.workers == 1 else 's'}"


@dataclass(frozen=True, slots=True)
class Curve:
    """One workload over numbers of workers."""

    load_s: float
    compute_s: float
    """As the workload and the emulated step are set."""
    cap: int | None
    """Loads that may overlap; None for all of them."""
    points: tuple[_Point, ...]

    @property
    def ratio(self) -> str:
        """How many steps a load is long."""
        return significant(self.load_s / self.compute_s, 2)

    @property
    def knee(self) -> int:
        """The number of workers that would hide loading."""
        return workers_to_hide(self.load_s, self.compute_s)

    @property
    def places(self) -> dict[int, int]:
        """Places on the axis by number of workers."""
        return {point.workers: place for place, point in enumerate(self.points)}

    def predicted(self, workers: int, *, capped: bool = True) -> Overlap:
        """Return the model's epoch for a number of workers; `capped` is whether loads are kept from overlapping."""
        cap = self.cap if capped else None
        return simulate(self.load_s, self.compute_s, workers=workers, steps=self.points[0].steps, cap=cap)


def make_curves(results: Results) -> tuple[Curve, ...]:
    """Return a curve for every workload of the textbook's kind that has epochs, its points by number of workers.

    The first epoch of a cell is left out where there are others: it starts the workers.
    """
    found = (_curve(results, key, workload.params) for key, workload in results.experiment.workloads.items())
    return tuple(curve for curve in found if curve is not None)


def draw(spec: Textbook, results: Results, heading: str) -> Figure | None:
    """Draw the figure; None when nothing was measured."""
    found = _shortest_first(results) if spec.panels == "exercise" else make_curves(results)
    if not found:
        return None
    return _draw_exercise(found) if spec.panels == "exercise" else _draw_output(spec, found[0])


def table(spec: Textbook, results: Results) -> FigureTable | None:
    """Return the measured values beside those of the textbook or its model; None when nothing was measured."""
    if spec.panels == "exercise":
        return _table_of_exercise(_shortest_first(results))
    found = make_curves(results)
    return _table_of_output(spec, found[0]) if found else None


def words(spec: Textbook, results: Results) -> Mapping[str, str]:
    """Return `times`, how long loads and steps last, and `cap`, how many loads overlap."""
    found = make_curves(results)
    last = f"Loads last {1e3 * found[0].load_s:g} ms and steps {1e3 * found[0].compute_s:g} ms." if found else ""
    caps = sorted({curve.cap for curve in found if curve.cap is not None})
    cap = f"at most {' or '.join(map(str, caps))} loads overlap" if caps else "any number of loads overlap"
    return {"times": last, "cap": cap}


def _curve(results: Results, workload: str, config: Mapping[str, float | None]) -> Curve | None:
    accelerator = results.experiment.accelerator
    step = STEPS.get(("textbook", accelerator.model))
    load_ms, cap = config.get("load_ms"), config.get("overlapping_loads")
    if step is None or load_ms is None:
        return None
    batch_size = int(config.get("batch_size") or 1)
    points = []
    for key, loader in results.experiment.loaders.items():
        workers = loader.params.get(_WORKERS_KEY)
        rows = [row for row in results.rows if (row.workload, row.loader) == (workload, key)]
        point = _point(int(workers), rows, batch_size) if workers else None
        points += [point] if point else []
    if not points:
        return None
    compute_s = step.seconds_per_sample * batch_size * accelerator.time_scale
    by_workers = tuple(sorted(points, key=lambda point: point.workers))
    return Curve(float(load_ms) / 1e3, compute_s, None if cap is None else int(cap), by_workers)


def _point(workers: int, rows: Iterable[EpochRow], batch_size: int) -> _Point | None:
    whole = [row for row in rows if row.duration_s and row.samples]
    shown = [row for row in whole if row.is_valid] or whole
    shown = [row for row in shown if row.epoch > 1] or shown
    if not shown:
        return None
    return _Point(
        workers,
        -(-shown[0].samples // batch_size),
        tuple(1 - row.stall_s / row.duration_s for row in shown),
        tuple(row.duration_s for row in shown),
        all(row.is_valid for row in shown),
    )


def _shortest_first(results: Results) -> Sequence[Curve]:
    return sorted(make_curves(results), key=lambda curve: curve.load_s)


def _book(spec: Textbook, name: str) -> dict[int, float]:
    return {int(workers): low(value) for workers, value in published_table(f"{spec.values}/{name}").items()}


def _draw_output(spec: Textbook, curve: Curve) -> Figure:
    """Draw utilisation and wall time, the textbook's beside ours."""
    figure = make_sheet((10.0, 4.4), {"w_pad": 0.1, "h_pad": 0.08, "wspace": 0.06})
    left, right = figure.subplots(1, 2)
    places, book_s = curve.places, {workers: ms / 1e3 for workers, ms in _book(spec, "wall_ms").items()}
    book = {workers: 100 * share for workers, share in _book(spec, "utilisation").items()}
    ours = [(point, 100 * value) for point in curve.points for value in point.utilisation]
    _draw_panel(left, places, book, ours, "{:.1f} %", book_above=True)
    left.set_ylim(0, 114)
    left.set_yticks(range(0, 101, 20))
    left.yaxis.set_major_formatter(lambda value, _: f"{value:.0f} %")
    times = f"loads of {1e3 * curve.load_s:g} ms, steps of {1e3 * curve.compute_s:g} ms (emulated)"
    left.set_title(f"Utilisation: {times}", pad=10)
    ours = [(point, value) for point in curve.points for value in point.wall_s]
    _draw_panel(right, places, book_s, ours, "{:.2f} s", book_above=False)
    right.set_ylim(0, 1.18 * max(right.get_ylim()[1], *book_s.values()))
    right.yaxis.set_major_formatter(lambda value, _: f"{value:g} s")
    right.set_title("Wall time of 200 steps" if curve.points[0].steps == 200 else "Wall time of an epoch", pad=10)
    if curve.knee in places:
        left.axvline(places[curve.knee], color=GRID, linewidth=6, zorder=0)
        text = f"⌈t_load / t_compute⌉ = ⌈{curve.ratio}⌉ = {curve.knee}"
        write_note(left, text, (places[curve.knee], 3), (6, 0), coordinates="data", fontsize=8, color=MUTED)
    for axes in (left, right):
        axes.set_xlabel("workers")
    handles, labels = left.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=2)
    return figure


def _draw_panel(
    axes: Axes,
    places: Mapping[int, int],
    book: Mapping[int, float],
    ours: Sequence[tuple[_Point, float]],
    label: str,
    *,
    book_above: bool,
) -> None:
    known = {float(places[workers]): value for workers, value in book.items() if workers in places}
    axes.plot(
        list(known),
        list(known.values()),
        color=MUTED,
        linewidth=1.4,
        linestyle=_DASHED,
        marker="D",
        markersize=7,
        markerfacecolor=SURFACE,
        label="textbook, output 8.5.1",
        zorder=2,
    )
    for place, value in known.items():
        _write(axes, known, place, label.format(value), MUTED, above=book_above)
    frame = pd.DataFrame([(places[point.workers], value) for point, value in ours], columns=["place", "value"])
    _draw_medians(axes, frame, INK, 1.4, 5, (3.2, 0.35), label="measured, real workers", legend=False)
    trusted = {places[point.workers]: point.trusted for point, _ in ours}
    medians = compute_medians(frame, "value", by="place")
    for place, value in medians.items():
        valid = trusted[int(place)]
        text = label.format(value) + ("" if valid else " †")
        _write(axes, medians, place, text, INK if valid else BAD, above=not book_above)
    axes.set_xticks(list(places.values()), [str(workers) for workers in places])
    axes.set_xlim(-0.7, len(places) - 0.5)
    axes.set_ylabel("")


def _draw_medians(
    axes: Axes, frame: pd.DataFrame, colour: str, width: float, size: float, dot: tuple[float, float], **style: object
) -> None:
    """Draw a line through the medians of `value` by `place`, and every value as a dot of a size and an opacity."""
    median_line = {"estimator": "median", "errorbar": None, "marker": "o", "markersize": size, "zorder": 3, **style}
    sns.lineplot(frame, x="place", y="value", color=colour, linewidth=width, ax=axes, **median_line)
    axes.plot(frame["place"], frame["value"], "o", color=colour, markersize=dot[0], alpha=dot[1], zorder=3)


def _write(axes: Axes, values: Mapping[float, float], place: float, text: str, colour: str, *, above: bool) -> None:
    """Write a value above or below its mark, on the side from which the line to the next mark leads away."""
    rise = values.get(place + 1, values[place]) - values[place]
    slope = 0 if abs(rise) < _STEEP * max(values.values()) else 1 if rise > 0 else -1
    side = slope * (-1 if above else 1)
    style = {"ha": {-1: "right", 0: "center", 1: "left"}[side], "fontsize": 8, "color": colour}
    write_note(axes, text, (place, values[place]), (5 * side, 8 if above else -16), coordinates="data", **style)


def _table_of_output(spec: Textbook, curve: Curve) -> FigureTable:
    share, wall_ms = _book(spec, "utilisation"), _book(spec, "wall_ms")
    rows = [
        (
            f"{point.label}{'' if point.trusted else ' †'}",
            f"{100 * share[point.workers]:.1f} %" if point.workers in share else UNKNOWN,
            f"{100 * curve.predicted(point.workers).utilisation:.1f} %",
            f"{100 * median(point.utilisation):.1f} %",
            f"{wall_ms[point.workers]:.0f} ms" if point.workers in wall_ms else UNKNOWN,
            f"{1e3 * median(point.wall_s):.0f} ms",
        )
        for point in curve.points
    ]
    return FigureTable(("workers", "textbook", "model", "measured", "textbook's wall", "measured wall"), tuple(rows))


def _draw_exercise(found: Sequence[Curve]) -> Figure:
    """Draw a panel for every length of a load."""
    figure = make_sheet((3.6 * max(2, len(found)), 4.2), {"w_pad": 0.08, "h_pad": 0.08, "wspace": 0.03})
    panels = figure.subplots(1, len(found), sharey=True, squeeze=False)[0]
    for axes, curve, colour in zip(panels, found, _COLOURS * len(found), strict=False):
        _draw_capped(axes, curve, colour)
    dashed = {"color": MUTED, "marker": "D", "markerfacecolor": SURFACE, "linestyle": _DASHED}
    handles = [
        Line2D([], [], color=INK, marker="o", markersize=5, linewidth=1.4, label="measured, real workers"),
        Line2D([], [], label="model with the cap", **dashed),  # type: ignore[arg-type]
        Line2D([], [], color=FAINT, linewidth=1.2, linestyle=_DOTTED, label="model without it"),
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=3)
    return figure


def _draw_capped(axes: Axes, curve: Curve, colour: str) -> None:
    places = curve.places
    at = list(places.values())
    uncapped, capped = (
        [100 * curve.predicted(workers, capped=capped).utilisation for workers in places] for capped in (False, True)
    )
    axes.plot(at, uncapped, zorder=2, color=FAINT, linestyle=_DOTTED, linewidth=1.2)
    model = {"color": MUTED, "linestyle": _DASHED, "linewidth": 1.4, "marker": "D", "markersize": 7}
    axes.plot(at, capped, zorder=2, markerfacecolor=SURFACE, **model)  # type: ignore[arg-type]
    values = [(places[point.workers], 100 * value) for point in curve.points for value in point.utilisation]
    _draw_medians(axes, pd.DataFrame(values, columns=["place", "value"]), colour, 1.6, 5.5, (3, 0.4))
    for point in curve.points:
        used = 100 * median(point.utilisation)
        style = {"ha": "center", "fontsize": 8, "color": INK if point.trusted else BAD}
        text = f"{used:.0f} %" + ("" if point.trusted else " †")
        write_note(axes, text, (places[point.workers], used), (0, -16), coordinates="data", **style)
    axes.set_title(f"load {1e3 * curve.load_s:g} ms, step {1e3 * curve.compute_s:g} ms", pad=22)
    text = f"⌈{curve.ratio}⌉ = {curve.knee} worker{'' if curve.knee == 1 else 's'} would hide it"
    text += f"; {curve.cap} loads overlap" if curve.cap is not None and curve.cap < curve.knee else ""
    write_note(axes, text, (0, 1), (0, 8), fontsize=8.5, color=MUTED)
    axes.set_xticks(at, [str(workers) for workers in places])
    axes.set_xlim(-0.5, len(places) - 0.5)
    axes.set_ylim(0, 108)
    axes.set_yticks(range(0, 101, 20))
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:.0f} %")
    axes.set_xlabel("workers")
    axes.set_ylabel("accelerator utilisation")


def _table_of_exercise(found: Sequence[Curve]) -> FigureTable | None:
    """Return measured utilisation by workers and load, the model's in brackets."""
    labels = {point.workers: point.label for curve in found for point in curve.points}
    rows = []
    for curve in found:
        cells = {
            point.workers: f"{100 * median(point.utilisation):.1f} % "
            f"({100 * curve.predicted(point.workers).utilisation:.1f}){'' if point.trusted else ' †'}"
            for point in curve.points
        }
        name = f"load of {1e3 * curve.load_s:g} ms, ratio {curve.ratio}"
        rows.append((name, *(cells.get(count, "") for count in sorted(labels))))
    heads = (labels[count] for count in sorted(labels))
    return FigureTable(("measured (model)", *heads), tuple(rows)) if rows else None
