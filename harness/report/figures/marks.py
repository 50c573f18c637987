"""Marks that figures share: the sheet, notes, lines over a sweep, legends."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.lines import Line2D
from matplotlib.text import Annotation
from matplotlib.transforms import offset_copy

from harness.report.figures.style import BAD, MUTED, SURFACE, choose_colour
from harness.report.labels import significant, spell

_APART: Final = 0.07
"""Smallest distance between names at the lines' ends, as a share of the highest line."""


def make_sheet(size: tuple[float, float], pad: Mapping[str, Any], heading: str = "") -> Figure:
    """Return an empty figure of so many inches, with a line above its panels."""
    figure = Figure(figsize=size, layout=ConstrainedLayoutEngine(**pad))
    if heading:
        figure.suptitle(heading, x=0.01, ha="left", fontsize=8.5, color=MUTED)
    return figure


def write_note(
    axes: Axes,
    text: str,
    at: tuple[float, float],
    offset: tuple[float, float] = (0, 0),
    *,
    coordinates: str | tuple[str, str] = "axes fraction",
    **style: Any,
) -> Annotation:
    """Write text at a place of a panel, moved by so many points."""
    return axes.annotate(text, at, xycoords=coordinates, xytext=offset, textcoords="offset points", **style)


def write_under_title(axes: Axes, text: str) -> None:
    """Write a line between a panel and its title; it may reach over the gap to the next panel."""
    write_note(axes, text, (0, 1), (0, 6), color=MUTED).set_in_layout(False)


def write_right_title(axes: Axes, text: str, pad: float, size: float = 8.5) -> None:
    """Write a line at the right of a panel's title."""
    axes.set_title(text, loc="right", pad=pad, color=MUTED, fontweight="normal", fontsize=size)


def say(axes: Axes, text: str) -> None:
    """Write text into an empty panel."""
    axes.text(0.5, 0.5, text, transform=axes.transAxes, ha="center", color=MUTED)


def write_label(axes: Axes, x: float, y: float, text: str, *, below: bool = False, colour: str = MUTED) -> None:
    """Write a value above or below a point; lines that pass it are hidden behind it."""
    style: dict[str, Any] = {"coordinates": "data", "ha": "center", "fontsize": 8, "color": colour}
    style["bbox"] = {"facecolor": SURFACE, "edgecolor": "none", "alpha": 0.7, "pad": 0.5}
    write_note(axes, text, (x, y), (0, -15 if below else 7), **style)


def average_window(values: pd.Series[float], width: int) -> pd.Series[float]:
    """Return running means over `width` values about each, fewer at the ends."""
    return values.rolling(max(1, width), center=True, min_periods=1).mean()


def compute_medians(frame: pd.DataFrame, measure: str, by: str = "setting") -> dict[float, float]:
    """Return the medians of a measure by a column of numbers."""
    medians: pd.Series[float] = frame.groupby(by)[measure].median()
    return dict(zip(medians.index.to_numpy("float64").tolist(), medians.tolist(), strict=True))


def draw_sweep(axes: Axes, frame: pd.DataFrame, measure: str, *, names: bool = True) -> None:
    """Draw `measure` over `setting` for every `base` of a frame of trusted epochs, its name at the line's end.

    Rows that no validity rule passed are hollow.
    """
    known = frame.dropna(subset=[measure, "setting"])
    if known.empty:
        say(axes, "not measured")
        return
    bases = list(dict.fromkeys(known["base"]))
    palette = {base: choose_colour(base) for base in bases}
    medians = known.groupby(["base", "setting"], sort=False)[measure].median().reset_index()
    sns.lineplot(medians, x="setting", y=measure, hue="base", palette=palette, linewidth=1.8, legend=False, ax=axes)
    for base, part in known.groupby("base", sort=False):
        draw_points(axes, part, measure, palette[str(base)])
    if names:
        _name_lines(axes, medians, measure, palette)
    axes.set_ylim(0, 1.12 * float(known[measure].max()))
    tick_settings(axes, sorted(known["setting"].unique()))


def draw_points(axes: Axes, frame: pd.DataFrame, measure: str, colour: str) -> None:
    """Draw a point a row, hollow where no validity rule passed it."""
    face = [colour if valid else SURFACE for valid in frame["valid"]]
    axes.scatter(frame["setting"], frame[measure], s=26, c=face, edgecolors=colour, linewidths=1.0, zorder=3)


def tick_settings(axes: Axes, settings: Sequence[float]) -> None:
    """Put a tick at every setting, on a logarithmic axis where they double."""
    if len(settings) > 2 and 0 < 4 * settings[0] <= settings[-1]:
        axes.set_xscale("log", base=2)
        axes.minorticks_off()
    axes.set_xticks(settings, [f"{setting:g}" for setting in settings])


def make_loader_handles(bases: Sequence[str]) -> list[Line2D]:
    """Return a legend entry a loader."""
    return [
        Line2D([], [], color=choose_colour(base), marker="o", markersize=5, linewidth=1.8, label=spell(base))
        for base in bases
    ]


def note_invalid(axes: Axes, frame: pd.DataFrame) -> None:
    """Write that hollow points broke a validity rule, where there are any."""
    if not frame.empty and not frame["valid"].all():
        write_note(axes, "hollow: no valid row", (1, 0), (0, 4), ha="right", fontsize=8, color=BAD)


def _name_lines(axes: Axes, medians: pd.DataFrame, measure: str, palette: dict[str, str]) -> None:
    """Write each loader's name and last value at the end of its line, apart from one another."""
    ends = medians.loc[medians.groupby("base", sort=False)["setting"].idxmax()].sort_values(measure)
    top = float(medians[measure].max())
    places = _apart([float(value) / top for value in ends[measure]])
    beside = offset_copy(axes.transData, axes.get_figure(root=True), x=7, y=0, units="points")
    for end, place in zip(ends.itertuples(), places, strict=True):
        axes.text(
            float(str(end.setting)),
            place * top,
            f"{spell(str(end.base))}  {significant(float(getattr(end, measure)))}",
            transform=beside,
            va="center",
            color=palette[str(end.base)],
            fontweight="bold",
            fontsize=8.5,
        )
    axes.tick_params(axis="x", colors=MUTED)


def _apart(values: Sequence[float]) -> list[float]:
    """Return rising values moved apart by `_APART` where they are closer, each crowd about its own middle."""
    crowds: list[list[float]] = []
    for value in values:
        crowds.append([value])
        while len(crowds) > 1 and _middle(crowds[-1]) - _middle(crowds[-2]) < _reach(crowds[-1]) + _reach(crowds[-2]):
            last = crowds.pop()
            crowds[-1] += last
    return [_middle(crowd) + _APART * (n - (len(crowd) - 1) / 2) for crowd in crowds for n in range(len(crowd))]


def _middle(crowd: Sequence[float]) -> float:
    return sum(crowd) / len(crowd)


def _reach(crowd: Sequence[float]) -> float:
    return _APART * len(crowd) / 2
