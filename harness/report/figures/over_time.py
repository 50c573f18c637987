"""Plotter of a measure over the seconds of training: throughput, disk reads, and CPU and accelerator use."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from harness.report.figures.definition import FigureTable, OverTime
from harness.report.figures.marks import make_sheet, write_right_title, write_under_title
from harness.report.figures.style import BAD, DOMAIN_COLOURS, FAINT, INK, choose_colour
from harness.report.figures.timeline import Timeline, list_readers, make_timelines, window_s
from harness.report.intervals import Ratio
from harness.report.labels import UNKNOWN, megabytes, percent, ratio, seconds, significant, spell
from harness.report.measurements import compare_frames, epochs, mark_settled, trusted
from harness.report.papers import Tree, find_values, high, low
from harness.results.reader import Results

_ACCELERATOR, _CPU = DOMAIN_COLOURS["gpu"], DOMAIN_COLOURS["cpu"]
_PAPER: Final = (0, (5, 3))
_INVALID: Final = (0, (1, 1.5))
_OURS: Final = "sample_aware"
"""The section of the loader whose throughput is compared with the others'."""
_Array = npt.NDArray[np.float64]
_Found = Mapping[str, Mapping[str, Timeline]]
"""Timelines by workload and loader."""
_Leads = Mapping[tuple[str, str], Ratio | None]
"""Throughput of the sample-aware loader over that of another one, by workload and loader."""


def draw(spec: OverTime, results: Results, heading: str) -> Figure | None:
    """Draw the figure; None when no epoch was measured."""
    found = _found(spec, results)
    if spec.panels not in ("lines", "memory"):
        found = {workload: list_readers(here) for workload, here in found.items() if list_readers(here)}
    if not found:
        return None
    if spec.panels == "lines":
        return _lines(spec, found, heading, _find_leads(results))
    return {"stack": _stack, "grid": _grid, "metrics": _metrics, "memory": _memory}[spec.panels](spec, found, heading)


def words(spec: OverTime, results: Results) -> Mapping[str, str]:
    """Return `windows`, which says what a point of the lines is."""
    widths = sorted({window_s(one.duration_s) for one in _every(_found(spec, results))})
    width = f"{widths[0]:g}" if len(widths) == 1 else f"{widths[0]:g} to {widths[-1]:g}" if widths else "0.5"
    return {"windows": f"Means over windows of {width} s; epochs follow one another without the time between them."}


def table(spec: OverTime, results: Results) -> FigureTable | None:
    """Return a row a workload and loader, the paper's row, and of a grid a row a loader over all workloads."""
    found, leads = _found(spec, results), _find_leads(results)
    rows: list[tuple[str, ...]] = []
    dim: set[int] = set()
    for workload, here in found.items():
        for loader in here:
            rows.append(tuple(_cell(column, workload, loader, here, leads) for column in spec.table.values()))
            if spec.paper_row and spec.only == f"{workload}/{loader}":
                dim.add(len(rows))
                rows.append(tuple(_published(text, "", loader) if "/" in text else text for text in spec.paper_row))
    if spec.panels == "grid" and len(found) > 1:
        for loader in dict.fromkeys(loader for here in found.values() for loader in here):
            every = [here[loader] for here in found.values() if loader in here]
            rows.append(tuple(_mean_cell(column, loader, every) for column in spec.table.values()))
    return FigureTable(tuple(spec.table), tuple(rows), frozenset(dim)) if rows else None


def _found(spec: OverTime, results: Results) -> _Found:
    workloads = results.workloads[:1] if spec.panels == "metrics" else results.workloads
    every = {workload: make_timelines(results, workload) for workload in workloads}
    return {workload: here for workload, here in every.items() if here}


def _every(found: _Found) -> list[Timeline]:
    return [one for here in found.values() for one in here.values()]


def _stack(spec: OverTime, found: _Found, heading: str) -> Figure:
    pairs = [(workload, loader) for workload, here in found.items() for loader in here]
    figure = make_sheet((10.0, 0.75 + 3.0 * len(pairs)), {"w_pad": 0.1, "h_pad": 0.08, "hspace": 0.06}, heading)
    panels = figure.subplots(len(pairs), 1, squeeze=False)[:, 0]
    for axes, (workload, loader) in zip(panels, pairs, strict=True):
        _draw_use(axes, found[workload][loader], _level(spec, workload, loader))
        axes.set_title(f"{spell(workload)} fed by {spell(loader)}", pad=9)
        axes.set_ylabel("use")
    panels[-1].set_xlabel("seconds of training")
    handles = _use_handles(_every(found), paper=any(_level(spec, *pair) is not None for pair in pairs))
    panels[0].legend(handles=handles, loc="lower right", bbox_to_anchor=(1.0, 1.0), ncols=4, borderaxespad=0.3)
    return figure


def _grid(_spec: OverTime, found: _Found, heading: str) -> Figure:
    loaders = list(dict.fromkeys(loader for here in found.values() for loader in here))
    size = (max(8.0, 3.4 * len(loaders)), 0.8 + 1.9 * len(found))
    figure = make_sheet(size, {"w_pad": 0.08, "h_pad": 0.08, "wspace": 0.03, "hspace": 0.04}, heading)
    panels = figure.subplots(len(found), len(loaders), squeeze=False, sharey=True)
    for place, (workload, here) in enumerate(found.items()):
        longest = max(one.duration_s for one in here.values())
        for axes, loader in zip(panels[place], loaders, strict=True):
            if loader == loaders[0]:
                axes.set_ylabel(spell(workload), color=INK, fontweight="bold")
            if loader not in here:
                axes.set_axis_off()
                continue
            one = here[loader]
            _draw_use(axes, one)
            axes.set_xlim(0, longest)
            axes.set_title(spell(loader) if place == 0 else " ", pad=20 if place == 0 else 4)
            means = percent(one.mean(one.accelerator_util)), percent(one.mean(one.cpu_util))
            write_under_title(axes, f"accelerator {means[0]}, CPU {means[1]}")
    for axes in panels[-1]:
        axes.set_xlabel("seconds of training")
    figure.legend(handles=_use_handles(_every(found)), loc="outside lower left", ncols=3)
    return figure


def _metrics(spec: OverTime, found: _Found, heading: str) -> Figure:
    ((workload, here),) = found.items()
    pad = {"w_pad": 0.08, "h_pad": 0.08, "wspace": 0.03, "hspace": 0.05}
    figure = make_sheet((11.0, 0.9 + 1.95 * len(here)), pad, heading)
    panels = figure.subplots(len(here), 3, squeeze=False, width_ratios=[1.3, 1.0, 1.0])
    longest = max(one.duration_s for one in here.values())
    rates: dict[str, Callable[[Timeline], _Array]] = {
        "MB/s trained on": lambda one: one.mb_per_s,
        "MB/s read from disk": lambda one: one.disk_mb_per_s,
    }
    for place, (row, (loader, one)) in enumerate(zip(panels, here.items(), strict=True)):
        _draw_use(row[0], one, _level(spec, workload, loader))
        row[0].set_title(spell(loader), pad=7)
        use = percent(one.mean(one.accelerator_util))
        write_right_title(row[0], f"{seconds(one.duration_s)}; accelerator {use}", pad=7, size=8)
        for axes, (title, rate) in zip(row[1:], rates.items(), strict=True):
            _draw_rate(axes, loader, one, rate(one), _top([rate(other) for other in here.values()]))
            if place == 0:
                axes.set_title(title, pad=7)
        for axes in row:
            axes.set_xlim(0, 1.02 * longest)
    for axes in panels[-1]:
        axes.set_xlabel("seconds of training")
    figure.legend(handles=_use_handles(here.values(), paper=True), loc="outside lower left", ncols=4)
    return figure


def _lines(spec: OverTime, found: _Found, heading: str, leads: _Leads) -> Figure:
    columns = min(2, len(found))
    lines = -(-len(found) // columns)
    size = (max(6.0, 5.6 * columns), 0.6 + 2.9 * lines)
    figure = make_sheet(size, {"w_pad": 0.1, "h_pad": 0.1, "wspace": 0.04, "hspace": 0.05}, heading)
    panels = figure.subplots(lines, columns, squeeze=False).ravel()
    for axes, (workload, here) in zip(panels, found.items(), strict=False):
        _draw_lines(axes, here)
        axes.set_title(spell(workload), pad=32)
        if compared := _compared(spec, workload, here, leads):
            write_under_title(axes, compared)
        if not all(one.trusted for one in here.values()):
            axes.text(1, 0.03, "dotted: no valid row", transform=axes.transAxes, ha="right", fontsize=8, color=BAD)
    for axes in panels[len(found) :]:
        axes.set_axis_off()
    loaders = {loader: one.is_bound for here in found.values() for loader, one in here.items()}
    handles = [
        Line2D([], [], color=INK, linewidth=1.1, linestyle=_PAPER, label=f"{spell(loader)}: the bound")
        if is_bound
        else Line2D([], [], color=choose_colour(loader), linewidth=1.8, label=spell(loader))
        for loader, is_bound in loaders.items()
    ]
    figure.legend(handles=handles, loc="outside lower left", ncols=4)
    return figure


def _memory(_spec: OverTime, found: _Found, heading: str) -> Figure:
    size = (8.5, 0.8 + 2.9 * len(found))
    figure = make_sheet(size, {"w_pad": 0.1, "h_pad": 0.1, "hspace": 0.05}, heading)
    panels = figure.subplots(len(found), 1, squeeze=False)[:, 0]
    boards = False
    for axes, (workload, here) in zip(panels, found.items(), strict=True):
        _draw_memory(axes, here)
        boards |= any(len(one.gpu_memory_mb[0]) > 0 for one in here.values())
        axes.set_title(spell(workload), pad=9)
        axes.set_ylabel("memory, GB")
    panels[-1].set_xlabel("seconds of training")
    loaders = dict.fromkeys(loader for here in found.values() for loader in here)
    handles = [Line2D([], [], color=choose_colour(loader), linewidth=1.8, label=spell(loader)) for loader in loaders]
    if boards:
        handles.append(Line2D([], [], color=INK, linewidth=1.2, linestyle=_PAPER, label="of the GPU"))
    figure.legend(handles=handles, loc="outside lower left", ncols=6)
    return figure


def _draw_memory(axes: Axes, here: Mapping[str, Timeline]) -> None:
    """Draw the memory of cells, and that of their boards dashed; ends of epochs are dots on the lines."""
    for loader, one in here.items():
        colour = choose_colour(loader)
        for (at, values), style in ((one.memory_mb, "-"), (one.gpu_memory_mb, _PAPER)):
            if len(at):
                axes.plot(at, values / 1e3, color=colour, linestyle=style, linewidth=1.6)
                levels = np.interp(one.epoch_ends_s, at, values / 1e3)
                axes.plot(one.epoch_ends_s, levels, linestyle="none", marker="o", markersize=3.5, color=colour)
    axes.set_xlim(0, 1.02 * max(one.duration_s for one in here.values()))
    axes.set_ylim(0, 1.12 * max(axes.get_ylim()[1] / 1.05, 0.001))
    if not all(one.trusted for one in here.values()):
        axes.text(1, 0.03, "† not all rows are valid", transform=axes.transAxes, ha="right", fontsize=8, color=BAD)


def _draw_use(axes: Axes, one: Timeline, paper: float | None = None) -> None:
    """Draw both uses in per cent over seconds; `paper` is the paper's mean use of the accelerator, 0 to 1."""
    busy = one.line(100 * one.accelerator_util)
    axes.plot(*one.line(100 * one.cpu_util), color=_CPU, linewidth=1.2, zorder=2)
    axes.plot(*busy, color=_ACCELERATOR, linewidth=1.7, zorder=3)
    axes.fill_between(*busy, color=_ACCELERATOR, alpha=0.14, linewidth=0)
    if paper is not None:
        axes.axhline(100 * paper, color=INK, linestyle=_PAPER, linewidth=1.1)
    _mark_epochs(axes, one)
    axes.set_ylim(0, 104)
    axes.set_yticks([0, 50, 100], ["0 %", "50 %", "100 %"])
    axes.set_xlim(0, one.duration_s)
    if not one.trusted:
        axes.text(1, 0.04, "† no valid row", transform=axes.transAxes, ha="right", fontsize=8, color=BAD)


def _mark_epochs(axes: Axes, one: Timeline) -> None:
    for end in one.epoch_ends_s[:-1]:
        axes.axvline(end, color=FAINT, linewidth=0.8, linestyle=":", zorder=1)


def _draw_rate(axes: Axes, loader: str, one: Timeline, values: _Array, top: float) -> None:
    colour = choose_colour(loader)
    axes.plot(one.at_s, values, color=colour, linewidth=1.5)
    axes.fill_between(one.at_s, values, color=colour, alpha=0.14, linewidth=0)
    _mark_epochs(axes, one)
    mean = one.mean(values)
    if mean is not None:
        axes.hlines(mean, 0, one.duration_s, color=INK, linewidth=0.9, linestyle=(0, (1, 2)))
        write_right_title(axes, f"mean {significant(mean)}", pad=7, size=8)
    axes.set_ylim(0, top)


def _draw_lines(axes: Axes, here: Mapping[str, Timeline]) -> None:
    for one in here.values():
        if one.is_bound:
            axes.axhline(one.mean(one.mb_per_s) or 0.0, color=INK, linestyle=_PAPER, linewidth=1.1)
    for loader, one in list_readers(here).items():
        style, colour, wider = "-" if one.trusted else _INVALID, choose_colour(loader), loader == _OURS
        axes.plot(*one.line(one.mb_per_s), color=colour, linestyle=style, linewidth=1.5 + 0.5 * wider)
        axes.axvline(one.duration_s, color=colour, linewidth=1.2 + 0.4 * wider, zorder=1)
    axes.set_xlim(0, 1.02 * max(one.duration_s for one in here.values()))
    axes.set_ylim(0, 1.08 * max(float(one.mb_per_s.max()) for one in here.values()))
    axes.set_xlabel("seconds of training")
    axes.set_ylabel("MB/s")


def _use_handles(found: Iterable[Timeline], *, paper: bool = False) -> list[Line2D]:
    board = any(one.has_board for one in found)
    handles = [
        Line2D([], [], color=_ACCELERATOR, linewidth=1.7, label="GPU (NVML)" if board else "accelerator: in a step"),
        Line2D([], [], color=_CPU, linewidth=1.2, label="CPU of the host"),
        Line2D([], [], color=FAINT, linewidth=0.8, linestyle=":", label="an epoch ends"),
    ]
    if paper:
        handles.append(Line2D([], [], color=INK, linewidth=1.1, linestyle=_PAPER, label="the paper's mean GPU use"))
    return handles


def _top(values: Sequence[_Array]) -> float:
    known = np.concatenate(values)
    known = known[np.isfinite(known)]
    return 1.1 * float(known.max()) if len(known) and known.max() > 0 else 1.0


def _compared(spec: OverTime, workload: str, here: Mapping[str, Timeline], leads: _Leads) -> str:
    """Return the sample-aware loader's throughput over that of the others, below it the paper's, if it has any."""
    others = [loader for loader in list_readers(here) if loader != _OURS]
    if _OURS not in here or not others:
        return ""
    published = {loader: _published(f"{spec.values} ×", workload, loader) for loader in others if spec.values}
    paper = {loader: text for loader, text in published.items() if text != UNKNOWN}
    ours = ", ".join(f"{ratio(leads.get((workload, loader)))} {spell(loader)}" for loader in paper or others)
    theirs = ", ".join(f"{text} {spell(loader)}" for loader, text in paper.items())
    return f"sample-aware: {ours}" + (f"\nin the paper: {theirs}" if theirs else "")


def _find_leads(results: Results) -> _Leads:
    """Compare the settled epochs of all repeats with those of the sample-aware loader, which read the same bytes."""
    frame = trusted(epochs(results))
    settled = frame[mark_settled(frame)]
    leads: dict[tuple[str, str], Ratio | None] = {}
    for workload, here in settled.groupby("workload"):
        ours = here[here["base"] == _OURS]
        for base, part in here.groupby("base"):
            if base not in (_OURS, *results.bounds):
                leads[str(workload), str(base)] = compare_frames(part, ours)
    return leads


def _correlation(one: Timeline) -> str:
    """Return the correlation of both uses over the windows; unknown for constant ones."""
    pair = np.stack([one.accelerator_util, one.cpu_util])
    known = pair[:, ~np.isnan(pair).any(axis=0)]
    if known.shape[1] < 3 or not known.std(axis=1).all():
        return UNKNOWN
    return significant(float(np.atleast_2d(np.corrcoef(known))[0, 1]), 2)


def _disk_read(one: Timeline) -> str:
    read = one.mean(one.disk_mb_per_s)
    return UNKNOWN if read is None else megabytes(1e6 * read * one.duration_s)


def _most(seen: tuple[_Array, _Array]) -> str:
    return megabytes(1e6 * float(seen[1].max())) if len(seen[1]) else UNKNOWN


def _growth(one: Timeline) -> str:
    """Return by how much memory grew from the end of the first epoch to that of the last."""
    if len(one.epoch_ends_s) < 2 or not len(one.memory_mb[0]):
        return UNKNOWN
    first, *_, last = np.interp(one.epoch_ends_s, *one.memory_mb)
    return ("" if last >= first else "−") + megabytes(1e6 * abs(float(last - first)))


_CELLS: Final[Mapping[str, Callable[[Timeline], str]]] = {
    "time": lambda one: seconds(one.duration_s),
    "mb_per_s": lambda one: significant(one.mean(one.mb_per_s) or 0.0),
    "accelerator": lambda one: percent(one.mean(one.accelerator_util)),
    "cpu": lambda one: percent(one.mean(one.cpu_util)),
    "disk_read": _disk_read,
    "memory": lambda one: _most(one.memory_mb),
    "memory_growth": _growth,
    "gpu_memory": lambda one: _most(one.gpu_memory_mb),
    "correlation": _correlation,
}


def _cell(column: str, workload: str, loader: str, here: Mapping[str, Timeline], leads: _Leads) -> str:
    if column in _CELLS:
        return _CELLS[column](here[loader])
    if column == "lead":
        return ratio(leads.get((workload, loader)))
    if column in ("loader", "workload, loader"):
        return spell(loader) if column == "loader" else f"{spell(workload)}, {spell(loader)}"
    return UNKNOWN if column.startswith("mean ") else _published(column, workload, loader)


def _mean_cell(column: str, loader: str, every: Sequence[Timeline]) -> str:
    """Return the mean over workloads of the means over time; unknown where one is."""
    if column == "workload, loader":
        return f"over {len(every)} workloads, {spell(loader)}"
    if column.startswith("mean "):
        return _published(column.removeprefix("mean "), "", loader)
    uses = [one.mean(one.accelerator_util if column == "accelerator" else one.cpu_util) for one in every]
    known = [use for use in uses if use is not None]
    return percent(sum(known) / len(known)) if len(known) == len(uses) else UNKNOWN


def _published(column: str, workload: str, loader: str) -> str:
    """Return a paper's value for a workload and loader; `column` is its id and its unit, s, % or ×."""
    path, _, unit = column.partition(" ")
    found: Tree | None = find_values(path)
    for key in (workload, loader):
        found = found.get(key, found if key == workload else None) if isinstance(found, Mapping) else found
    if found is None or isinstance(found, Mapping):
        return UNKNOWN
    if unit == "%":
        return f"{100 * low(found):g} %"
    if unit == "s":
        return f"≈ {low(found):g} s"
    return f"{low(found):g}×" if low(found) == high(found) else f"{low(found):g} to {high(found):g}×"


def _level(spec: OverTime, workload: str, loader: str) -> float | None:
    """Return the paper's use of the accelerator for a panel, 0 to 1; None where it has none."""
    if not spec.values or (spec.only and spec.only != f"{workload}/{loader}"):
        return None
    found = find_values(spec.values)
    found = found.get(loader, {}) if isinstance(found, Mapping) else found
    return None if isinstance(found, Mapping) else low(found)
