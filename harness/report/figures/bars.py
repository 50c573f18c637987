"""Plotter of bars by loader and distance: a row a measure, this run on the left and a paper on the right.

Each measure has a panel of its own: on two scales over the same bars the eye compares heights that have nothing to do
with each other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from textwrap import fill as wrap
from typing import Any, Final

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from harness.report.distance import find_at_rtt
from harness.report.figures.bar_values import (
    BarValue,
    LoaderBar,
    compute_joules_per,
    compute_rate,
    compute_share,
    describe_bounds,
    find_fixed,
    find_joule_scale,
    make_bars,
    make_paper_bars,
    read_values,
)
from harness.report.figures.definition import Bars
from harness.report.figures.marks import make_sheet, say, write_note, write_right_title
from harness.report.figures.style import (
    BAD,
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
from harness.report.labels import MODEL_CHECK, UNKNOWN, megabytes, percent, regime_labels, significant, spell
from harness.report.measurements import find_base
from harness.report.papers import find_published, find_table, read_paper
from harness.report.summary import LoaderGroup, compute_joule_ratio, compute_median, compute_ratio
from harness.results.epoch_row import DOMAINS
from harness.results.reader import Results
from joulefeed.table import Table

_TITLE_CHARACTERS: Final = 10.0
"""That fit into an inch of a panel."""
_HIGHEST_SHARE: Final = 1.35
"""Share of a bound at which the axis ends: local reads can be many times as fast as a link."""
_TALL: Final = 0.22
"""Share of the axis from which a bar has room for a text in it."""
_OUTLIER: Final = 3.0
"""Times the median above which joules by GB are cut off."""
_ROOM: Final = 0.12
"""Share of the axis that a text above a bar takes."""
_BOUND: Final[Mapping[str, Any]] = {"linestyle": (0, (4, 2)), "linewidth": 1.0, "color": MUTED, "zorder": 1}
_FIRST: Final[Mapping[str, Any]] = {"linestyle": "none", "marker": "x", "markersize": 5, "color": MUTED, "zorder": 4}
_PAPER: Final[Mapping[str, Any]] = {"color": MUTED, "marker": "D", "markerfacecolor": SURFACE}
_AXIS_NAMES: Final = {
    "seconds": "seconds per epoch",
    "joules": "joules per epoch",
    "slowdown": "times the nearest distance",
    "share_of_link": "share of the link's rate\nin bars: MB/s",
    "share_of_fixed": "share of a fixed batch's rate\nin bars: samples/s",
    "joules_per_gb": "kJ per GB",
}


def draw(spec: Bars, results: Results, heading: str) -> Figure | None:
    """Draw a row of panels a measure, and the shares of I/O beside; None when no epoch was measured."""
    ours, theirs = make_bars(spec, results), make_paper_bars(spec, results)
    if not any(bar.group and bar.group.measured for bar in ours):
        return None
    measures = spec.measures if len(results.regimes) > 1 else [one for one in spec.measures if one != "slowdown"]
    columns = [ours, theirs] if theirs else [ours]
    limits = [_find_limits(bars) for bars in columns]
    widths = [right - left for left, right in limits]
    widths += [max(4.0, 0.4 * widths[0])] if spec.stages else []
    width = min(16.0, max(10.0, 0.45 * (len(ours) + len(theirs)) + 3.6))
    figure = make_sheet((width, 0.9 + 2.4 * len(measures)), {"w_pad": 0.1, "h_pad": 0.06, "hspace": 0.04})
    axes = figure.subplots(len(measures), len(widths), squeeze=False, width_ratios=widths)
    for column, bars in enumerate(columns):
        for row, measure in enumerate(measures):
            _draw_measure(axes[row][column], spec, results, measure, bars)
        _name_bars(axes[:, column], bars, limits[column], paper=column > 0)
    _write_titles(spec, results, axes[0], [width * one / sum(widths) for one in widths], bool(theirs))
    if spec.stages:
        for panel, quantity in zip(axes[:, 1], ("time", "energy"), strict=True):
            _draw_shares(panel, spec, results, quantity)
    figure.legend(handles=_make_handles(spec, results, ours, theirs), loc="outside lower center", ncols=7)
    return figure


def words(spec: Bars, results: Results) -> Mapping[str, object]:
    """Return `reading`, what stands where, `marks`, what the marks mean, and `bounds`, the bound in numbers."""
    groups = [bar.group for bar in make_bars(spec, results) if bar.group is not None]
    theirs = make_paper_bars(spec, results)
    entry = find_published(spec.values)
    source = f"{read_paper(spec.values.partition('/')[0]).citation}, {entry.at}"
    above = "the time of an epoch (points are repeats, bars are medians); below, its joules, stacked by domain"
    above += ", and its slowdown."
    reading = f"Above, {above} {source}, has no numbers in its text, so none stand beside ours."
    if entry.value:
        reading = f"Left, this run: above, {above} Right, what the text of the paper gives: {source}."
    estimates = "Hatched joules are estimates, not measurements" + (
        ", and so are the shares of energy" if spec.stages else ""
    )
    marks = {
        "Crosses are first epochs, which are in no median and no ratio.": any(one.first_s for one in groups)
        and spec.by_distance,
        f"{estimates}.": any(one.estimated for one in groups),
        "Joules are without those of the emulated board, which are its published power over the epoch's time.": any(
            map(_has_emulated, groups)
        ),
        "A value marked † has no valid row behind it.": any(one.measured and not one.trusted for one in groups),
        "Datasets and machines differ, so compare the slowdowns, not seconds or joules.": bool(
            spec.by_distance and theirs and len(results.regimes) > 1
        ),
    }
    told = " ".join(mark for mark, holds in marks.items() if holds)
    return {"reading": reading, "marks": told, "bounds": describe_bounds(spec, results) if not spec.stages else ""}


def table(spec: Bars, results: Results) -> Table | None:
    """Return a row a loader and distance, the paper's rows below; None without columns or measured epochs."""
    ours = make_bars(spec, results)
    if not spec.table or not any(bar.group and bar.group.measured for bar in ours):
        return None
    est = " est." if any(bar.group and bar.group.estimated for bar in ours) else ""
    by_place: dict[tuple[str, str], list[LoaderBar]] = {}
    for bar in ours:
        by_place.setdefault((bar.loader, bar.label), []).append(bar)
    columns = _make_columns(spec, results, est)
    rows = []
    for (loader, label), bars in by_place.items():
        if any(bar.group for bar in bars):
            valid = "" if all(bar.group is not None and bar.group.trusted for bar in bars) else " †"
            name = f"{spell(loader)}, {label}{valid}"
            rows.append((name, *(cell(bars) for _, cell in columns)))
    fixed = find_fixed(spec, results) if "rate" in spec.table else None
    if fixed is not None and spec.share_of == "fixed":
        median = compute_median(fixed.rows, lambda row: row.samples_per_s)
        rows.append((spell(fixed.loader), _write(median), *[UNKNOWN] * (len(columns) - 1)))
    theirs = _make_paper_rows(spec, results, columns)
    dim = frozenset(range(len(rows), len(rows) + len(theirs)))
    return Table(("Loader", *(head for head, _ in columns)), (*rows, *theirs), dim=dim)


_Columns = Sequence[tuple[str, Callable[[Sequence[LoaderBar]], str]]]


def _make_columns(spec: Bars, results: Results, est: str) -> _Columns:
    """Return heads and what makes their cells of the bars of a loader at a distance, one bar a stage."""
    fixed = find_fixed(spec, results)
    stages = [f"+ {spell(stage)}" if place else spell(stage) for place, stage in enumerate(spec.stages)] or [""]

    def by_stage(head: str, unit: str, scale: float) -> _Columns:
        def make(place: int) -> Callable[[Sequence[LoaderBar]], str]:
            return lambda bars: _write(compute_joules_per(bars[place].group, unit, scale))

        return [(f"{head}{est} {stage}".strip(), make(place)) for place, stage in enumerate(stages)]

    known: dict[str, _Columns] = {
        "rate": [
            ("MB/s" if spec.share_of == "link" else "samples/s", lambda bars: _write(compute_rate(spec, bars[0])))
        ],
        "share": [("of the bound", lambda bars: percent(compute_share(spec, results, bars[0], fixed)))],
        "joules_per_gb": by_stage("J/GB", "bytes", 1e9),
        "joules_per_sample": by_stage("mJ/sample", "samples", 1e3),
        "io_share": [
            (f"share of joules{est}", lambda bars: _write_share(_compare_stages(bars, "energy"))),
            ("share of time", lambda bars: _write_share(_compare_stages(bars, "time"))),
        ],
    }
    return [column for name in spec.table for column in known[name]]


def _make_paper_rows(spec: Bars, results: Results, columns: _Columns) -> list[tuple[str, ...]]:
    if not spec.stages:
        return [
            (f"paper, {spell(bar.loader)}, {bar.label}", *(cell([bar]) for _, cell in columns))
            for bar in make_paper_bars(spec, results)
        ]
    rows = []
    for regime, label in regime_labels(results).items():
        known = [_find_paper_share(spec, results, regime, quantity) for quantity in ("energy", "time")]
        if any(value is not None for value in known):
            rows.append((f"paper, {label}", *[UNKNOWN] * (len(columns) - 2), *map(percent, known)))
    return rows


def _write(value: float | None) -> str:
    return UNKNOWN if value is None else significant(value)


def _write_share(share: Ratio | None) -> str:
    return percent(None if share is None else share.value)


def _compare_stages(bars: Sequence[LoaderBar], quantity: str) -> Ratio | None:
    """Return the last stage but one over the last, in energy or time: the share of reading and preprocessing."""
    above, below = bars[-2].group, bars[-1].group
    return compute_joule_ratio(above, below) if quantity == "energy" else compute_ratio(above, below)


def _find_paper_share(spec: Bars, results: Results, regime: str, quantity: str) -> float | None:
    return find_at_rtt(find_table(f"{spec.values}/{quantity}"), results.experiment.regimes[regime].rtt_ms)


def _find_limits(bars: Sequence[LoaderBar]) -> tuple[float, float]:
    """Return the axis' limits; few bars get room at the sides instead of fat bars."""
    side = max(0.85, (6.0 - bars[-1].x) / 2)
    return bars[0].x - side, bars[-1].x + side


def _write_titles(spec: Bars, results: Results, axes: Sequence[Axes], inches: Sequence[float], has_paper: bool) -> None:
    entry, paper = find_published(spec.values), read_paper(spec.values.partition("/")[0]).name
    title = f"{results.name}: {_describe_conditions(spec, results)}"
    axes[0].set_title(wrap(title, int(_TITLE_CHARACTERS * inches[0])) if has_paper else title, pad=24)
    if has_paper:
        title = f"{paper} paper" + (f": {entry.conditions}" if entry.conditions else "")
        axes[1].set_title(wrap(title, int(_TITLE_CHARACTERS * inches[-1])), pad=24, color=MUTED)
    elif not entry.value:
        write_right_title(axes[0], f"{paper} paper, {entry.at.rpartition(' and ')[2]}: its text gives no numbers", 24)


def _describe_conditions(spec: Bars, results: Results) -> str:
    rows = [row for bar in make_bars(spec, results) if bar.group for row in bar.group.rows]
    samples, size = compute_median(rows, lambda row: row.samples), compute_median(rows, lambda row: row.bytes)
    placement = {"half": "half of them local", "sharded": "half of them on each of two nodes"}
    accelerators = dict.fromkeys(_shorten(cell.accelerator) for cell in results.cells if cell.accelerator)
    streams = results.streams if spec.by_distance and not find_published(spec.values).value else None
    parts = [
        MODEL_CHECK if results.model_checks else "",
        f"{samples:.0f} images" if samples else "",
        megabytes(size) if size else "",
        placement.get(results.experiment.placement, ""),
        "" if streams is None else f"{streams} stream{'' if streams == 1 else 's'}",
        *accelerators,
    ]
    return ", ".join(filter(None, parts))


def _shorten(accelerator: str) -> str:
    """Write "emulated: A100" as "emulated A100", and of "cuda: NVIDIA H200" the name alone."""
    kind, _, name = accelerator.partition(": ")
    return f"{kind} {name}" if kind == "emulated" else name or kind


def _draw_measure(axes: Axes, spec: Bars, results: Results, measure: str, bars: Sequence[LoaderBar]) -> None:
    """Draw a bar for each value, with its text above, in a panel that is cut off above outliers."""
    values = read_values(spec, results, measure, bars)
    known = [(bar, value) for bar, value in zip(bars, values, strict=True) if value is not None]
    is_kilo = measure == "joules" and find_joule_scale(bars) > 1
    name = "kJ per epoch" if is_kilo else _AXIS_NAMES[measure]
    is_partial = measure.startswith("joules") and any(_has_emulated(bar.group) for bar in bars)
    axes.set_ylabel(f"{name}\nwithout the emulated board" if is_partial else name)
    if not known:
        is_paper = bars[0].rtt_ms is not None
        say(axes, "the paper has no joules" if is_paper else "neither sensor nor estimate: joules are unknown")
        axes.set_yticks([])
        return
    highest = [max([one.height + one.whisker[1], *one.points, *one.firsts]) for _, one in known]
    top = 1.2 * max(highest)
    if measure == "joules_per_gb":
        top = 1.18 * min(max(highest), _OUTLIER * sorted(highest)[len(highest) // 2])
    if measure.startswith("share"):
        top = min(_HIGHEST_SHARE, 1.12 * max(1.0, *highest))
        axes.axhline(1.0, **_BOUND)
        axes.yaxis.set_major_formatter(lambda value, _: f"{100 * value:.0f} %")
    axes.set_ylim(0, top)
    axes.locator_params(axis="y", nbins=5)
    last = spec.stages and len(spec.stages) - 1
    for bar, value in zip(bars, values, strict=True):
        if value is None:
            _say_absent(axes, bar)
        else:
            _draw_bar(axes, bar, value, top, named=not spec.stages or bar.stage == last)
    if measure == "seconds":
        bound = find_fixed(spec, results)
        if bound is not None and bound.time_s and results.readers and bars[0].rtt_ms is None:
            axes.axhline(bound.time_s.median, **_BOUND)


def _has_emulated(group: LoaderGroup | None) -> bool:
    return group is not None and any("gpu" in row.estimated for row in group.rows)


def _say_absent(axes: Axes, bar: LoaderBar) -> None:
    """Write why there is no bar where no epoch was measured; an empty place would pass for 0."""
    if bar.group is not None and bar.group.time_s is not None:
        return
    absent = "failed" if bar.group and bar.group.failed else "not run"
    text, colour = (absent, BAD) if bar.rtt_ms is None else ("not\ngiven", MUTED)
    _write_above(axes, bar.x, 0, text, colour)


def _draw_bar(axes: Axes, bar: LoaderBar, value: BarValue, top: float, *, named: bool) -> None:
    height = min(value.height, 0.9 * top)
    edge: dict[str, Any] = {"edgecolor": SURFACE, "linewidth": 0.6}
    if value.parts:
        shown = {domain: part * height / value.height for domain, part in value.parts.items()}
        draw_stack(axes, bar.x, shown, value.estimated, faded=not bar.valid, width=bar.width)
    else:
        axes.bar(bar.x, height, bar.width, color=bar.colour, **edge)
    if any(value.whisker):
        down, up = value.whisker
        axes.errorbar(bar.x, height, yerr=[[down], [up]], color=INK, capsize=2.5, linewidth=1)
    if len(value.points) > 1 or not bar.valid:
        face = INK if bar.valid else SURFACE
        dots: dict[str, Any] = {
            "marker": "o",
            "markersize": 3.4,
            "markerfacecolor": face,
            "markeredgecolor": INK,
            "markeredgewidth": 0.7,
        }
        axes.plot([bar.x] * len(value.points), value.points, linestyle="none", zorder=3, **dots)
    axes.plot([bar.x] * len(value.firsts), value.firsts, **_FIRST)
    if not named:
        return
    above = max([height + value.whisker[1], *value.points])
    for first in sorted(value.firsts):
        above = first if above <= first < above + _ROOM * top else above
    text = value.text + (" ↑" if height < value.height else "") + ("" if bar.valid else " †")
    _write_above(axes, bar.x, above, text, INK if bar.valid and bar.rtt_ms is None else MUTED if bar.valid else BAD)
    if value.inside:
        _write_inside(axes, bar, value.inside, height, is_tall=height > _TALL * top)


def _write_above(axes: Axes, x: float, y: float, text: str, colour: str) -> None:
    style = {"ha": "center", "va": "bottom", "fontsize": 8, "color": colour}
    # The line of a bound may pass the text.
    box = {"facecolor": SURFACE, "edgecolor": "none", "alpha": 0.8, "pad": 0.5}
    write_note(axes, text, (x, y), (0, 4), coordinates="data", bbox=box, **style)


def _write_inside(axes: Axes, bar: LoaderBar, text: str, height: float, *, is_tall: bool) -> None:
    red, green, blue = bar.colour
    is_dark = 0.299 * red + 0.587 * green + 0.114 * blue < 0.5  # luma of ITU-R BT.601
    place, offset = ((bar.x, 0.0), (0, 4)) if is_tall else ((bar.x, height), (0, 19))
    colour = MUTED if not is_tall else SURFACE if is_dark else INK
    style = {"rotation": 90, "ha": "center", "va": "bottom", "fontsize": 8, "color": colour}
    write_note(axes, text, place, offset, coordinates="data", **style)


def draw_stack(
    axes: Axes, x: float, parts: Mapping[str, float], estimated: frozenset[str], *, faded: bool, width: float
) -> None:
    """Draw one bar of joules stacked by domain; estimated domains are hatched."""
    base = 0.0
    for domain in (domain for domain in DOMAINS if domain in parts):
        hatch, alpha = ESTIMATE_HATCH if domain in estimated else None, 0.45 if faded else 1.0
        style: dict[str, Any] = {
            "color": DOMAIN_COLOURS[domain],
            "hatch": hatch,
            "alpha": alpha,
            "edgecolor": SURFACE,
            "linewidth": 0.6,
        }
        axes.bar(x, parts[domain], width, bottom=base, **style)
        base += parts[domain]


def _name_bars(column: Any, bars: Sequence[LoaderBar], limits: tuple[float, float], *, paper: bool) -> None:
    """Write distances below each panel, and loaders above the first one."""
    places: dict[tuple[str, str], list[float]] = {}
    for bar in bars:
        places.setdefault((bar.loader, bar.label), []).append(bar.x)
    middles = {key: sum(each) / len(each) for key, each in places.items()}
    dense = len(middles) > 8
    ticks = [label.replace(", ", "\n").replace(" ms", "\nms" if dense else " ms") for _, label in middles]
    for axes in column:
        axes.set_xticks(list(middles.values()), ticks)
        axes.set_xlim(*limits)
    for loader in dict.fromkeys(bar.loader for bar in bars):
        here = [at for (of, _), at in middles.items() if of == loader]
        name = "EMLIO" if paper and loader == "streaming" else spell(loader)
        place, style = (sum(here) / len(here), 1.0), {"ha": "center", "va": "bottom", "fontweight": "bold"}
        write_note(column[0], name, place, (0, 4), coordinates=("data", "axes fraction"), **style)


def _draw_shares(axes: Axes, spec: Bars, results: Results, quantity: str) -> None:
    """Draw the share of reading and preprocessing by loader and distance, the paper's dashed."""
    axes.set_title(f"Share of I/O in {quantity}", pad=9)
    bars, labels = make_bars(spec, results), regime_labels(results)
    for loader in results.readers:
        colour, points = choose_colour(find_base(results, loader)), {}
        for x, regime in enumerate(results.regimes):
            here = [bar for bar in bars if (bar.loader, bar.label) == (loader, labels[regime])]
            share = _compare_stages(here, quantity) if here else None
            if share is not None:
                points[x] = share.value
                if share.interval is not None:
                    axes.vlines(x, share.interval.low, share.interval.high, color=colour, linewidth=1.0)
        axes.plot(list(points), list(points.values()), marker="o", markersize=5, color=colour, linewidth=1.4)
    theirs = {x: _find_paper_share(spec, results, regime, quantity) for x, regime in enumerate(results.regimes)}
    known = {x: value for x, value in theirs.items() if value is not None}
    axes.plot(list(known), list(known.values()), linestyle="--", linewidth=1.2, **_PAPER)
    axes.set_ylim(0, max(1.08, axes.get_ylim()[1]))
    axes.yaxis.set_major_formatter(lambda value, _: f"{100 * value:.0f} %")
    axes.axhline(1.0, color=GRID, linewidth=1.2, zorder=1)
    axes.set_xticks(range(len(results.regimes)), [labels[regime] for regime in results.regimes])


def _make_handles(
    spec: Bars, results: Results, ours: Sequence[LoaderBar], theirs: Sequence[LoaderBar]
) -> list[Patch | Line2D]:
    groups = [bar.group for bar in ours if bar.group is not None]
    domains = {domain for group in groups for domain in group.domain_j}
    if "joules" in spec.measures:
        values = read_values(spec, results, "joules", theirs)
        domains |= {domain for value in values if value for domain in value.parts}
    shades = {bar.stage: bar.colour for bar in ours if bar.valid}
    shown: list[Any] = [shades.get(place, INK) for place in range(len(spec.stages))]
    stages = zip(spec.stages, shown, strict=True)
    handles: list[Patch | Line2D] = [Patch(facecolor=colour, label=spell(stage)) for stage, colour in stages]
    handles += [
        Patch(facecolor=DOMAIN_COLOURS[one], label=f"{one.upper()} joules") for one in DOMAINS if one in domains
    ]
    if any(group.estimated for group in groups):
        label = "hatched: estimate, not measured"
        handles.append(Patch(facecolor=FAINT, edgecolor=SURFACE, hatch=ESTIMATE_HATCH, label=label))
    if spec.by_distance and any(group.first_s for group in groups):
        handles.append(Line2D([], [], label="first epoch", **_FIRST))
    handles += _make_bound_handle(spec, find_fixed(spec, results))
    if any(group.measured and not group.trusted for group in groups):
        hollow: dict[str, Any] = {"color": INK, "marker": "o", "linestyle": "none", "markerfacecolor": SURFACE}
        handles.append(Line2D([], [], label="† no valid row", **hollow))
    if spec.stages:
        colours = {loader: choose_colour(find_base(results, loader)) for loader in results.readers}
        handles += [Line2D([], [], color=colour, marker="o", label=spell(loader)) for loader, colour in colours.items()]
        handles.append(Line2D([], [], linestyle="--", label="the paper", **_PAPER))
    return handles


def _make_bound_handle(spec: Bars, fixed: LoaderGroup | None) -> list[Line2D]:
    if "seconds" in spec.measures and fixed is not None and fixed.time_s:
        return [Line2D([], [], label=f"fixed batch, the bound: {significant(fixed.time_s.median)} s", **_BOUND)]
    names = {"link": "the link's rate", "fixed": "a fixed batch's throughput"}
    return [Line2D([], [], label=names[spec.share_of], **_BOUND)] if spec.share_of else []
