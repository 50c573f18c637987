"""Plotter of throughput by loader and distance as a share of a bound, a paper's beside ours, and of joules by GB."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.patheffects import withStroke

from harness.report.figures.by_distance import draw_stack, write_above
from harness.report.figures.definition import FigureTable, Throughput
from harness.report.figures.marks import make_sheet, say
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
from harness.report.labels import UNKNOWN, percent, regime_labels, rtt, significant, spell
from harness.report.measurements import find_base
from harness.report.papers import Tree, find_values, low, read_paper
from harness.report.summary import Group, compute_median, compute_ratio, find, summarise
from harness.results.epoch_row import DOMAINS
from harness.results.reader import Results

_MB_PER_GBIT: Final = 125.0
_SAME_RTT: Final = 0.05
_TOP: Final = 1.35
"""Share at which the axis ends: local reads can be many times as fast as a link."""
_TALL: Final = 0.22
"""Share of the axis from which a bar has room for its rate."""
_OUTLIER: Final = 3.0
"""Times the median above which joules are cut off."""
_APART: Final = 1.0
"""Between the bars of two loaders, in bars."""
_BOUND: Final[Mapping[str, Any]] = {"linestyle": (0, (4, 2)), "linewidth": 1.0, "color": MUTED, "zorder": 1}


@dataclass(frozen=True, slots=True)
class _Bar:
    """One loader in one regime."""

    loader: str
    regime: str
    """Its key, or of a paper's bar its round trip."""
    x: float
    tint: float
    """Of the loader's colour, 0 the nearest regime to 1 the farthest."""
    colour: str
    share: float | None
    """Of the bound."""
    group: Group | None = None


def draw(spec: Throughput, results: Results, heading: str) -> Figure | None:
    """Draw the figure for the run's first workload; None when no epoch was measured."""
    ours = _our_bars(spec, results)
    if not any(bar.group and bar.group.measured for bar in ours):
        return None
    theirs = _paper_bars(spec, results)
    figure = make_sheet((12.5, 7.2), {"w_pad": 0.1, "h_pad": 0.1, "wspace": 0.03, "hspace": 0.05}, heading)
    widths = [max(len(ours), 4), max(len(theirs), 4)] if theirs else [1.0]
    every = figure.subplots(2, len(widths), squeeze=False, width_ratios=widths, height_ratios=[1.15, 1.0])
    _draw_shares(every[0][0], ours, [_rate(spec, results, bar.group) for bar in ours])
    title = f"{results.name}: {spell(_workload(results))}, share of {_bound_name(spec)}; in bars {_unit(spec)}"
    every[0][0].set_title(title, pad=20)
    _draw_joules(every[1][0], ours)
    _name_bars((every[0][0], every[1][0]), ours, regime_labels(results))
    if theirs:
        paper = read_paper(spec.values.partition("/")[0]).name
        _draw_shares(every[0][1], theirs, [_paper_rate(spec, bar) for bar in theirs])
        every[0][1].set_title(f"{paper} paper{'; in bars MB/s' if spec.link else ''}", pad=20, color=MUTED)
        say(every[1][1], "the paper has no joules")
        every[1][1].set_yticks([])
        _name_bars((every[0][1], every[1][1]), theirs, {bar.regime: _paper_label(bar.regime) for bar in theirs})
    figure.legend(handles=_handles(spec, ours), loc="outside lower center", ncols=6, handlelength=1.8)
    return figure


def words(spec: Throughput, results: Results) -> Mapping[str, object]:
    """Return `marks`, what marks mean, and `bounds`, the bound in numbers."""
    groups = [bar.group for bar in _our_bars(spec, results) if bar.group is not None]
    marks = []
    if any(group.estimated for group in groups):
        marks.append("Hatched joules are estimates, not measurements.")
    if any(group.measured and not group.trusted for group in groups):
        marks.append("A value marked † has no valid row behind it.")
    return {"marks": " ".join(marks), "bounds": _describe_bounds(spec, results)}


def table(spec: Throughput, results: Results) -> FigureTable | None:
    """Return throughput, share of the bound and J/GB by loader and regime, the paper's rows below."""
    groups, labels = summarise(results), regime_labels(results)
    ours = {(bar.loader, bar.regime): bar for bar in _our_bars(spec, results)}
    if not any(bar.group for bar in ours.values()):
        return None
    rows = []
    for loader in results.loaders:
        here = [find(groups, _workload(results), regime, loader) for regime in results.regimes]
        rates = [
            _written(_rate(spec, results, group), ours.get((loader, group.regime if group else ""))) for group in here
        ]
        joules = [_joules_per_gb(group) if loader in results.readers else None for group in here]
        rows.append((spell(loader), *rates, *(UNKNOWN if one is None else significant(one) for one in joules)))
    count = len(rows)
    for loader in _paper_loaders(spec):
        known = {regime: _find_paper(spec, results, loader, regime) for regime in results.regimes}
        if any(value is not None for value in known.values()):
            cells = [UNKNOWN if value is None else _paper_cell(spec, value) for value in known.values()]
            rows.append((f"paper, {spell(loader)}", *cells, *[UNKNOWN] * len(known)))
    estimated = any(bar.group and bar.group.estimated for bar in ours.values())
    heads = [f"{_unit(spec)}, {labels[regime]}" for regime in results.regimes]
    heads += [f"J/GB{' est.' if estimated else ''}, {labels[regime]}" for regime in results.regimes]
    return FigureTable(("Loader", *heads), tuple(rows), frozenset(range(count, len(rows))))


def _written(rate: float | None, bar: _Bar | None) -> str:
    if rate is None:
        return UNKNOWN
    share = "" if bar is None or bar.share is None else f" ({percent(bar.share)})"
    valid = "" if bar is None or bar.group is None or bar.group.trusted else " †"
    return f"{significant(rate)}{share}{valid}"


def _paper_cell(spec: Throughput, value: float) -> str:
    return f"{significant(value)} ({percent(value / low(spec.link))})" if spec.link else f"({percent(value)})"


def _workload(results: Results) -> str:
    return next(iter(results.workloads), "")


def _bound_name(spec: Throughput) -> str:
    return "the link's rate" if spec.share_of == "link" else "a fixed batch's throughput"


def _unit(spec: Throughput) -> str:
    return "MB/s" if spec.share_of == "link" else "samples/s"


def _our_bars(spec: Throughput, results: Results) -> list[_Bar]:
    groups, workload = summarise(results), _workload(results)
    bars: list[_Bar] = []
    x = 0.0
    for loader in results.readers:
        for regime in results.regimes_of(loader):
            step = results.regimes.index(regime)
            group = find(groups, workload, regime, loader)
            tint = step / max(1, len(results.regimes) - 1)
            colour = choose_colour(find_base(results, loader))
            bars.append(_Bar(loader, regime, x, tint, colour, _share(spec, results, groups, group), group))
            x += 1
        x += _APART
    return bars


def _share(spec: Throughput, results: Results, groups: Sequence[Group], group: Group | None) -> float | None:
    """Return the throughput of a group over the bound; None where either is unknown."""
    if group is None:
        return None
    if spec.share_of == "link":
        link = _link_mb_per_s(results, group.regime)
        return None if link is None or group.mb_per_s is None else group.mb_per_s / link
    ratio = compute_ratio(group, _find_fixed(results, groups), lambda row: row.samples_per_s)
    return None if ratio is None else ratio.value


def _link_mb_per_s(results: Results, regime: str) -> float | None:
    """Return the rate of a regime's link; of local files that of the run's first link."""
    rates = [results.experiment.regimes[key].rate_gbit for key in (regime, *results.regimes)]
    return next((rate * _MB_PER_GBIT for rate in rates if rate is not None), None)


def _rate(spec: Throughput, results: Results, group: Group | None) -> float | None:
    if group is None or spec.share_of == "link":
        return None if group is None else group.mb_per_s
    return compute_median(group.rows, lambda row: row.samples_per_s)


def _describe_bounds(spec: Throughput, results: Results) -> str:
    if spec.share_of == "link":
        rates = dict.fromkeys(_link_mb_per_s(results, regime) for regime in results.regimes)
        return ", ".join(f"{rate:g} MB/s" for rate in rates if rate is not None)
    rate = _rate(spec, results, _find_fixed(results, summarise(results)))
    return "unknown" if rate is None else f"{significant(rate)} samples/s"


def _find_fixed(results: Results, groups: Sequence[Group]) -> Group | None:
    """Return the loader that reads nothing in an epoch: its rate is the same in every regime, so it runs in one."""
    found = (find(groups, _workload(results), regime, next(iter(results.bounds), None)) for regime in results.regimes)
    return next((group for group in found if group is not None and group.measured), None)


def _paper_loaders(spec: Throughput) -> Mapping[str, Mapping[str, Tree]]:
    """Return the paper's values by loader and round trip; empty without any."""
    found = find_values(spec.values) if spec.values else {}
    assert isinstance(found, Mapping)
    return {loader: values for loader, values in found.items() if isinstance(values, Mapping)}


def _find_paper(spec: Throughput, results: Results, loader: str, regime: str) -> float | None:
    """Return the paper's value of a loader at the round trip of a regime; None where it has none."""
    rtt_ms = results.experiment.regimes[regime].rtt_ms
    values = {float(key): low(value) for key, value in _paper_loaders(spec).get(loader, {}).items()}
    return next((value for key, value in values.items() if abs(rtt_ms - key) <= _SAME_RTT * key), None)


def _paper_bars(spec: Throughput, results: Results) -> list[_Bar]:
    """Return the paper's loaders, those of this run in its order and then the others."""
    known = _paper_loaders(spec)
    loaders = [loader for loader in results.loaders if loader in known]
    loaders += [loader for loader in known if loader not in loaders]
    distances = sorted({float(key) for values in known.values() for key in values})
    bars: list[_Bar] = []
    x = 0.0
    for loader in loaders:
        for key, value in known[loader].items():
            share = low(value) / (low(spec.link) if spec.link else 1.0)
            tint = distances.index(float(key)) / max(1, len(distances) - 1)
            bars.append(_Bar(loader, key, x, tint, choose_colour(loader), share))
            x += 1
        x += _APART
    return bars


def _paper_rate(spec: Throughput, bar: _Bar) -> float | None:
    return None if bar.share is None or not spec.link else bar.share * low(spec.link)


def _paper_label(key: str) -> str:
    return "local" if float(key) == 0 else rtt(float(key))


def _draw_shares(axes: Axes, bars: Sequence[_Bar], rates: Sequence[float | None]) -> None:
    """Draw a bar for each share with its per cent above, and the rate in it, or above both where the bar is short."""
    top = min(_TOP, 1.12 * max([1.0, *(bar.share for bar in bars if bar.share is not None)]))
    for bar, rate in zip(bars, rates, strict=True):
        if bar.share is None:
            text = "failed" if bar.group is not None and bar.group.failed else "not run"
            write_above(axes, bar.x, 0, text, colour=MUTED)
            continue
        valid = bar.group is None or bar.group.trusted
        shown = min(bar.share, 0.9 * top)
        axes.bar(bar.x, shown, 0.92, color=_tinted(bar), edgecolor=SURFACE, linewidth=0.6)
        text = percent(bar.share).removesuffix(" %") + (" ↑" if shown < bar.share else "")
        write_above(axes, bar.x, shown, text, valid=valid)
        axes.texts[-1].set_path_effects([withStroke(linewidth=2.5, foreground=SURFACE)])  # the bound's line may pass it
        if rate is not None:
            inside = shown > _TALL * top
            axes.annotate(
                significant(rate),
                (bar.x, 0 if inside else shown),
                xytext=(0, 4 if inside else 19),
                textcoords="offset points",
                rotation=90,
                ha="center",
                va="bottom",
                fontsize=8,
                color=_ink(bar) if inside else MUTED,
            )
    axes.axhline(1.0, **_BOUND)
    axes.set_ylim(0, top)
    axes.yaxis.set_major_formatter(lambda value, _: f"{100 * value:.0f} %")


def _draw_joules(axes: Axes, bars: Sequence[_Bar]) -> None:
    """Draw the joules by GB, stacked by domain; one that is many times the others' is cut off, its value above it."""
    axes.set_ylabel("kJ per GB")
    known = [(bar, bar.group, total) for bar in bars if bar.group and (total := _joules_per_gb(bar.group)) is not None]
    if not known:
        say(axes, "neither sensor nor estimate: joules are unknown")
        axes.set_yticks([])
        return
    totals = sorted(total / 1e3 for _, _, total in known)
    top = 1.18 * min(totals[-1], _OUTLIER * totals[len(totals) // 2])
    for bar, group, total in known:
        shown = min(1.0, 0.9 * top / (total / 1e3))
        gigabytes = (compute_median(group.rows, lambda row: row.bytes) or 0.0) / 1e9
        parts = {domain: shown * joules / gigabytes / 1e3 for domain, joules in group.domain_j.items()}
        draw_stack(axes, bar.x, parts, group.estimated, faded=not group.trusted, width=0.92)
        text = significant(total / 1e3, 2) + (" ↑" if shown < 1 else "")
        write_above(axes, bar.x, shown * total / 1e3, text, valid=group.trusted)
    axes.set_ylim(0, top)


def _joules_per_gb(group: Group | None) -> float | None:
    if group is None or group.total_j is None:
        return None
    nbytes = compute_median(group.rows, lambda row: row.bytes)
    return group.total_j.median / (nbytes / 1e9) if nbytes else None


def _tinted(bar: _Bar) -> tuple[float, ...]:
    """Return the loader's colour, lighter for near regimes and for rows that are not valid."""
    strength = (0.45 + 0.55 * bar.tint) * (1.0 if bar.group is None or bar.group.trusted else 0.55)
    return tuple(1 - (1 - part) * strength for part in to_rgb(bar.colour))


def _ink(bar: _Bar) -> str:
    red, green, blue = _tinted(bar)
    return SURFACE if 0.299 * red + 0.587 * green + 0.114 * blue < 0.5 else INK  # luma of ITU-R BT.601


def _name_bars(column: Sequence[Axes], bars: Sequence[_Bar], labels: Mapping[str, str]) -> None:
    ticks = [labels[bar.regime].replace(", ", "\n").replace(" ms", "\nms") for bar in bars]
    for axes in column:
        axes.set_xticks([bar.x for bar in bars], ticks)
        axes.set_xlim(min(bar.x for bar in bars) - 1, max(bar.x for bar in bars) + 1)
    for loader, colour in {bar.loader: bar.colour for bar in bars}.items():
        places = [bar.x for bar in bars if bar.loader == loader]
        column[0].annotate(
            spell(loader),
            (sum(places) / len(places), 1.0),
            xycoords=("data", "axes fraction"),
            xytext=(0, 3),
            textcoords="offset points",
            ha="center",
            fontweight="bold",
            fontsize=8.5,
            color=colour,
        )


def _handles(spec: Throughput, bars: Sequence[_Bar]) -> list[Patch | Line2D]:
    groups = [bar.group for bar in bars if bar.group is not None]
    handles: list[Patch | Line2D] = [Line2D([], [], label=_bound_name(spec), **_BOUND)]
    handles += [
        Patch(facecolor=DOMAIN_COLOURS[domain], label=f"{domain.upper()} joules")
        for domain in DOMAINS
        if any(domain in group.domain_j for group in groups)
    ]
    if any(group.estimated for group in groups):
        handles.append(Patch(facecolor=FAINT, edgecolor=SURFACE, hatch=ESTIMATE_HATCH, label="hatched: estimate"))
    handles.append(Patch(facecolor=GRID, label="lighter: nearer"))
    return handles
