"""Plotter of MinatoLoader's figure 12: training time by the share of slow samples, and PyTorch's over the others'."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Picture

from harness.report.figures.definition import Figure, FigureTable
from harness.report.figures.marks import (
    compute_medians,
    draw_sweep,
    make_sheet,
    note_invalid,
    say,
    write_note,
    write_value,
)
from harness.report.figures.style import FAINT, INK, MUTED, choose_colour
from harness.report.labels import UNKNOWN, factor, ratio, seconds, spell
from harness.report.measurements import compare_frames, epochs, mark_settled, trusted, work
from harness.report.papers import low
from harness.results.reader import Results

_BASELINE, _OURS = "pytorch", "sample_aware"
_BETWEEN: Final = (25, 75)
"""Per cent of slow samples within which the paper's text gives a value."""


def draw(spec: Figure, results: Results, heading: str) -> Picture | None:
    """Draw seconds per epoch over the share of slow samples, and PyTorch's over the others'; None without epochs."""
    frame = _by_share(results)
    if frame.empty:
        return None
    figure = make_sheet((12.5, 4.6), {"w_pad": 0.12, "h_pad": 0.1, "wspace": 0.1}, heading)
    left, right = figure.subplots(1, 2)
    draw_sweep(left, frame, "duration_s")
    left.set_title("Time of an epoch", pad=9)
    left.set_ylabel("seconds per epoch")
    note_invalid(left, frame)
    _draw_factors(right, frame, _bounds_s(results), low(spec.values))
    for axes in (left, right):
        axes.set_xlabel("slow samples, % of all")
        axes.margins(x=0.04)
    return figure


def table(spec: Figure, results: Results) -> FigureTable | None:
    """Return seconds per epoch by loader and share, and how many times as fast as PyTorch the others are."""
    frame = _by_share(results)
    if frame.empty:
        return None
    shares = [float(share) for share in sorted(frame["setting"].unique())]
    by_base = frame.groupby("base", sort=False)
    by_loader: dict[str, Mapping[float, float]] = {}
    bases = {spell(str(base)): str(base) for base, _ in by_base}
    by_loader |= {spell(str(base)): compute_medians(part, "duration_s") for base, part in by_base}
    by_loader["no worker ever waits"] = _bounds_s(results)
    rows = [(f"{name}, seconds", *(seconds(times.get(at)) for at in shares)) for name, times in by_loader.items()]
    theirs = by_loader.pop(spell(_BASELINE), {})
    for name, times in by_loader.items():
        head = f"{spell(_BASELINE)} over {name}"
        if name in bases:
            parts = [(_at(frame, _BASELINE, at), _at(frame, bases[name], at)) for at in shares]
            rows.append((head, *(ratio(compare_frames(*part)) for part in parts)))
        else:
            bounds = {at: theirs[at] / times[at] for at in shares if at in theirs and at in times}
            rows.append((head, *(factor(bounds.get(at)) for at in shares)))
    rows = [row for row in rows if set(row[1:]) != {UNKNOWN}]
    return FigureTable(("Time of an epoch", *(f"{at:g} % slow" for at in shares)), tuple(rows))


def _by_share(results: Results) -> pd.DataFrame:
    """Return the trusted epochs that started no worker, with the share of slow samples in per cent as `setting`."""
    workloads = results.experiment.workloads.items()
    shares = {key: 100 * float(one.params["heavy_share"]) for key, one in workloads if "heavy_share" in one.params}
    frame = trusted(epochs(results))
    frame = frame[mark_settled(frame) & frame["workload"].isin(list(shares)) & ~frame["loader"].isin(results.bounds)]
    return frame.assign(setting=frame["workload"].map(shares).astype("float64"))


def _bounds_s(results: Results) -> Mapping[float, float]:
    """Return what an epoch takes if no worker ever waits, by share: the time of all samples over the workers."""
    baseline = results.experiment.loaders.get(_BASELINE)
    workers = 0 if baseline is None else int(baseline.params.get("num_workers") or 0)
    times = work(results)
    if not workers or times.empty:
        return {}
    frame = _by_share(results)
    times = times.merge(frame.loc[frame["base"] == _BASELINE, ["cell_id", "epoch", "setting"]], on=["cell_id", "epoch"])
    totals = times.groupby(["setting", "cell_id", "epoch"])["work_s"].sum().groupby("setting").median()
    return {float(at): float(total_s) / workers for at, total_s in totals.items()}  # type: ignore[arg-type]


def _at(frame: pd.DataFrame, base: str, setting: float) -> pd.DataFrame:
    return frame[(frame["base"] == base) & (frame["setting"] == setting)]


def _draw_factors(axes: Axes, frame: pd.DataFrame, bounds_s: Mapping[float, float], paper: float) -> None:
    axes.set_title("Times as fast as PyTorch's DataLoader", pad=9)
    axes.set_ylabel("PyTorch's time over the loader's")
    theirs = compute_medians(frame[frame["base"] == _BASELINE], "duration_s")
    others = frame[(frame["base"] != _BASELINE) & frame["setting"].isin(list(theirs))]
    if others.empty:
        say(axes, "not measured")
        return
    others = others.assign(factor=others["setting"].map(theirs) / others["duration_s"])
    draw_sweep(axes, others, "factor", names=False)
    axes.axhline(1.0, color=choose_colour(_BASELINE), linewidth=1.2, zorder=1)
    most = {at: theirs[at] / bound_s for at, bound_s in sorted(bounds_s.items()) if at in theirs}
    label = "no worker ever waits: the most that as many workers can reach"
    axes.plot(list(most), list(most.values()), color=INK, linewidth=1.2, linestyle=(0, (6, 3)), label=label)
    for at, median in compute_medians(others[others["base"] == _OURS], "factor").items():
        text = ratio(compare_frames(_at(frame, _BASELINE, at), _at(frame, _OURS, at)))
        write_value(axes, at, max(median, most.get(at, 0.0)), text, size=8.5, colour=choose_colour(_OURS))
    axes.plot(_BETWEEN, [paper] * 2, color=FAINT, linewidth=2.2)
    text, place = f"paper: MinatoLoader, which adds workers, up to {paper:g}×", (sum(_BETWEEN) / 2, paper)
    write_note(axes, text, place, (0, -5), coordinates="data", ha="center", va="top", fontsize=8.5, color=MUTED)
    axes.set_ylim(0, max(axes.get_ylim()[1], 1.15 * paper))
    if most:
        axes.figure.legend(loc="outside lower right")
