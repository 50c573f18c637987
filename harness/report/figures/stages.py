"""Plotter of the stages of training: seconds and joules by loader and distance, and the share that I/O has of both.

Workloads are the stages, each of which contains those before it. The share is that of the last stage but one in the
last: of reading and preprocessing in a training epoch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from harness.report.figures.by_distance import draw_stack, write_above
from harness.report.figures.definition import FigureTable, Stages
from harness.report.figures.marks import make_sheet
from harness.report.figures.style import (
    DOMAIN_COLOURS,
    ESTIMATE_HATCH,
    FAINT,
    GRID,
    INK,
    MUTED,
    SURFACE,
    choose_colour,
)
from harness.report.intervals import Ratio
from harness.report.labels import UNKNOWN, percent, regime_labels, significant, spell
from harness.report.measurements import find_base
from harness.report.papers import find_table, low
from harness.report.summary import Group, Stat, compute_median, compute_ratio, find, summarise
from harness.results.epoch_row import DOMAINS
from harness.results.reader import Results

_WIDTH: Final = 0.27
_SHADES: Final = (FAINT, MUTED, INK)
"""Of the stages' seconds."""
_SAME_RTT: Final = 0.05
"""Share of the paper's RTT within which a regime equals its own."""


@dataclass(frozen=True, slots=True)
class _Place:
    """One loader in one regime."""

    loader: str
    regime: str
    x: int
    """Place of the regime on the axis."""
    stages: tuple[Group | None, ...]

    @property
    def share_j(self) -> Ratio | None:
        """Joules of the last stage but one over those of the last."""
        return compute_ratio(self.stages[-2], self.stages[-1], lambda row: row.total_j)

    @property
    def share_s(self) -> Ratio | None:
        """The same of seconds."""
        return compute_ratio(self.stages[-2], self.stages[-1])

    @property
    def trusted(self) -> bool:
        return all(group is not None and group.trusted for group in self.stages)

    def joules_per(self, stage: int, unit: str, scale: float = 1.0) -> float | None:
        """Return the joules of a stage per so many bytes or samples of the epoch."""
        group = self.stages[stage]
        if group is None or group.total_j is None:
            return None
        count = compute_median(group.rows, lambda row: getattr(row, unit))
        return group.total_j.median * scale / count if count else None


def draw(spec: Stages, results: Results, heading: str) -> Figure | None:
    """Draw a column a loader, of seconds above joules, and one of shares; None when no epoch was measured."""
    places = _places(spec, results)
    groups = [group for place in places for group in place.stages if group is not None and group.measured]
    if not groups:
        return None
    loaders = list(dict.fromkeys(place.loader for place in places))
    size = (3.4 * len(loaders) + 3.6, 6.2)
    figure = make_sheet(size, {"w_pad": 0.1, "h_pad": 0.08, "wspace": 0.05, "hspace": 0.04}, heading)
    every = figure.subplots(2, len(loaders) + 1, squeeze=False, sharex=True)
    for (above, below), loader in zip(every.T, loaders, strict=False):
        here = [place for place in places if place.loader == loader]
        _draw_seconds(above, here)
        _draw_joules(below, here)
        above.set_title(spell(loader), pad=9)
    for row in every[:, :-1]:
        top = max(axes.get_ylim()[1] for axes in row)
        for axes in row:
            axes.set_ylim(0, 1.05 * top)
    every[0][0].set_ylabel("seconds per epoch")
    every[1][0].set_ylabel("joules per epoch")
    for axes, name, quantity in zip(every[:, -1], ("share_s", "share_j"), ("time", "energy"), strict=True):
        _draw_shares(axes, results, places, name, f"{spec.values}/{quantity}")
        axes.set_title(f"Share of I/O in {quantity}", pad=9)
    labels = regime_labels(results)
    for axes in every[-1]:
        axes.set_xticks(range(len(results.regimes)), [labels[regime] for regime in results.regimes])
    figure.legend(
        handles=_handles(spec, results, groups, loaders), loc="outside lower center", ncols=6, handlelength=1.6
    )
    return figure


def words(spec: Stages, results: Results) -> Mapping[str, str]:
    """Return `marks`, what the marks of the figure mean."""
    groups = [group for place in _places(spec, results) for group in place.stages if group is not None]
    marks = []
    if any(group.estimated for group in groups):
        marks.append("Hatched joules are estimates, not measurements, and so are the shares of energy.")
    if any(group.measured and not group.trusted for group in groups):
        marks.append("A value marked † has no valid row behind it.")
    return {"marks": " ".join(marks)}


def table(spec: Stages, results: Results) -> FigureTable | None:
    """Return joules by GB and sample of each stage, and the shares of I/O, beside the paper's."""
    places = [place for place in _places(spec, results) if any(place.stages)]
    if not places:
        return None
    labels = regime_labels(results)
    estimated = any(group.estimated for place in places for group in place.stages if group is not None)
    est = " est." if estimated else ""
    first, *later = map(spell, spec.stages)
    stages = (first, *(f"+ {stage}" for stage in later))
    heads = ("I/O energy", *(f"{per}{est} {stage}" for per in ("J/GB", "mJ/sample") for stage in stages))
    heads += (f"share of joules{est}", "share of time")
    rows = [
        (
            f"{spell(place.loader)}, {labels[place.regime]}" + ("" if place.trusted else " †"),
            *(_written(place.joules_per(stage, "bytes", 1e9)) for stage in range(len(spec.stages))),
            *(_written(place.joules_per(stage, "samples", 1e3)) for stage in range(len(spec.stages))),
            _written_share(place.share_j),
            _written_share(place.share_s),
        )
        for place in places
    ]
    ours = len(rows)
    for regime in results.regimes:
        known = [_published(results, regime, f"{spec.values}/{quantity}") for quantity in ("energy", "time")]
        if any(value is not None for value in known):
            unknown = [UNKNOWN] * (2 * len(spec.stages))
            rows.append((f"paper, {labels[regime]}", *unknown, *map(percent, known)))
    return FigureTable(heads, tuple(rows), frozenset(range(ours, len(rows))))


def _written(value: float | None) -> str:
    return UNKNOWN if value is None else significant(value)


def _written_share(share: Ratio | None) -> str:
    return percent(None if share is None else share.value)


def _places(spec: Stages, results: Results) -> list[_Place]:
    groups = summarise(results)
    return [
        _Place(
            loader,
            regime,
            results.regimes.index(regime),
            tuple(find(groups, stage, regime, loader) for stage in spec.stages),
        )
        for loader in results.readers
        for regime in results.regimes_of(loader)
    ]


def _published(results: Results, regime: str, path: str) -> float | None:
    """Return the paper's value at the round trip of a regime; None where it has none."""
    rtt_ms = results.experiment.regimes[regime].rtt_ms
    values = {float(key): low(value) for key, value in find_table(path).items()}
    return next((value for key, value in values.items() if abs(rtt_ms - key) <= _SAME_RTT * key), None)


def _offset(stage: int, place: _Place) -> float:
    return (stage - (len(place.stages) - 1) / 2) * _WIDTH


def _draw_seconds(axes: Axes, places: Sequence[_Place]) -> None:
    for place in places:
        for stage, group in enumerate(place.stages):
            if group is not None and group.time_s is not None:
                at = place.x + _offset(stage, place)
                axes.bar(at, group.time_s.median, _WIDTH, color=_SHADES[stage % 3], edgecolor=SURFACE, linewidth=0.6)
                axes.plot([at] * len(group.time_s.values), group.time_s.values, ".", color=INK, markersize=3)
        _write_last(axes, place, [group.time_s if group else None for group in place.stages])


def _draw_joules(axes: Axes, places: Sequence[_Place]) -> None:
    for place in places:
        for stage, group in enumerate(place.stages):
            if group is not None and group.total_j is not None:
                at = place.x + _offset(stage, place)
                draw_stack(axes, at, group.domain_j, group.estimated, faded=not group.trusted, width=_WIDTH)
        _write_last(axes, place, [group.total_j if group else None for group in place.stages])


def _write_last(axes: Axes, place: _Place, stats: Sequence[Stat | None]) -> None:
    """Write the value of the last stage above its bar, and above the one before it, which it would run into."""
    if (last := stats[-1]) is not None:
        top = max(stat.median for stat in stats[-2:] if stat is not None)
        at = place.x + _offset(len(stats) - 1, place)
        write_above(axes, at, top, significant(last.median), valid=place.trusted)


def _draw_shares(axes: Axes, results: Results, places: Sequence[_Place], name: str, path: str) -> None:
    for loader in dict.fromkeys(place.loader for place in places):
        here = [place for place in places if place.loader == loader]
        shares = {place.x: getattr(place, name) for place in here}
        points = [(x, share.value) for x, share in shares.items() if share is not None]
        colour = choose_colour(find_base(results, loader))
        if points:
            axes.plot(*zip(*points, strict=True), marker="o", markersize=5, color=colour, linewidth=1.4)
        for x, share in shares.items():
            if share is not None and share.interval is not None:
                axes.vlines(x, share.interval.low, share.interval.high, color=colour, linewidth=1.0)
    theirs = [(x, _published(results, regime, path)) for x, regime in enumerate(results.regimes)]
    known = [(x, value) for x, value in theirs if value is not None]
    if known:
        axes.plot(*zip(*known, strict=True), "D--", color=MUTED, markerfacecolor=SURFACE, linewidth=1.2)
    axes.set_ylim(0, max(1.08, axes.get_ylim()[1]))
    axes.yaxis.set_major_formatter(lambda value, _: f"{100 * value:.0f} %")
    axes.axhline(1.0, color=GRID, linewidth=1.2, zorder=1)


def _handles(spec: Stages, results: Results, groups: Sequence[Group], loaders: Sequence[str]) -> list[Patch | Line2D]:
    handles: list[Patch | Line2D] = [
        Patch(facecolor=_SHADES[place % 3], label=spell(stage)) for place, stage in enumerate(spec.stages)
    ]
    handles += [
        Patch(facecolor=DOMAIN_COLOURS[domain], label=f"{domain.upper()} joules")
        for domain in DOMAINS
        if any(domain in group.domain_j for group in groups)
    ]
    if any(group.estimated for group in groups):
        handles.append(Patch(facecolor=FAINT, edgecolor=SURFACE, hatch=ESTIMATE_HATCH, label="hatched: estimate"))
    handles += [
        Line2D([], [], color=choose_colour(find_base(results, loader)), marker="o", label=spell(loader))
        for loader in loaders
    ]
    paper = {"color": MUTED, "marker": "D", "markerfacecolor": SURFACE, "linestyle": "--"}
    return [*handles, Line2D([], [], label="EMLIO paper", **paper)]  # type: ignore[arg-type]
