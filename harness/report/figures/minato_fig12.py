"""MinatoLoader's figure 12: training time by the share of slow samples."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine

from harness.report.figures.lines import draw_sweep, invalid_note
from harness.report.figures.palette import FAINT, INK, MUTED, loader_colour
from harness.report.figures.tables import FigureTable
from harness.report.folder import Results
from harness.report.labels import UNKNOWN, accelerators, factor, seconds, spell
from harness.report.measurements import epochs, settled, trusted, work
from harness.report.published_loaders import MINATO, MINATO_FIG12_MOST

__all__ = ["caption", "draw", "table"]

_BASELINE, _OURS = "pytorch", "sample_aware"
_BETWEEN = (25, 75)
"""Per cent of slow samples within which the paper's text gives a value."""


def draw(results: Results) -> Figure | None:
    """Draw seconds per epoch over the share of slow samples, and PyTorch's over the others'; None without epochs."""
    frame = _by_share(results)
    if frame.empty:
        return None
    layout = ConstrainedLayoutEngine(w_pad=0.12, h_pad=0.1, wspace=0.1)
    figure = Figure(figsize=(11.0, 4.4), layout=layout)
    figure.suptitle(f"{results.name}; {accelerators(results)}", x=0.01, ha="left", fontsize=8.5, color=MUTED)
    left, right = figure.subplots(1, 2)
    draw_sweep(left, frame, "duration_s")
    left.set_title("Time of an epoch", pad=9)
    left.set_ylabel("seconds per epoch", color=MUTED)
    invalid_note(left, frame)
    _draw_factors(right, frame, _bounds_s(results))
    for axes in (left, right):
        axes.set_xlabel("slow samples, % of all", color=MUTED)
        axes.margins(x=0.04)
    return figure


def caption(results: Results) -> str:
    """Return how to read the figure."""
    return (
        "Points are epochs, without a cell's first, which starts the workers; lines join medians. Right: how many "
        "times as fast as PyTorch's DataLoader each loader is. Dashed: as fast as any loader of as many workers can "
        "be, whose workers never wait: what the samples took in all steps, over the number of workers. Every loader "
        "has the same steps and as many workers here; in the paper DALI's steps last a tenth of the others', and "
        f"MinatoLoader adds workers. Its text gives one value ({MINATO}, section 5.6 and figure 12): at 25 to 75 % "
        f"slow samples MinatoLoader is up to {MINATO_FIG12_MOST:g} times as fast as the others. At 0 and 100 % it is "
        "like PyTorch's DataLoader and Pecan there."
    )


def table(results: Results) -> FigureTable | None:
    """Return seconds per epoch by loader and share, and how many times as fast as PyTorch the others are."""
    frame = _by_share(results)
    if frame.empty:
        return None
    shares = [float(share) for share in sorted(frame["setting"].unique())]
    by_loader = {spell(base): _medians(part) for base, part in _parts(frame)}
    by_loader["no worker ever waits"] = _bounds_s(results)
    rows = [(f"{name}, seconds", *(seconds(times.get(at)) for at in shares)) for name, times in by_loader.items()]
    theirs = by_loader.pop(spell(_BASELINE), {})
    for name, times in by_loader.items():
        ratios = {at: theirs[at] / times[at] for at in shares if at in theirs and at in times}
        rows.append((f"{spell(_BASELINE)} over {name}", *(factor(ratios.get(at)) for at in shares)))
    rows = [row for row in rows if set(row[1:]) != {UNKNOWN}]
    return FigureTable(("Time of an epoch", *(f"{at:g} % slow" for at in shares)), tuple(rows))


def _by_share(results: Results) -> pd.DataFrame:
    """Return the trusted epochs that started no worker, with the share of slow samples in per cent as `setting`."""
    sections = results.config.get("workloads") or {}
    shares = {key: 100 * float(section["heavy_share"]) for key, section in sections.items() if "heavy_share" in section}
    frame = trusted(epochs(results))
    frame = frame[settled(frame) & frame["workload"].isin(list(shares))]
    return frame.assign(setting=frame["workload"].map(shares).astype("float64"))


def _parts(frame: pd.DataFrame) -> list[tuple[str, pd.DataFrame]]:
    return [(str(base), part) for base, part in frame.groupby("base", sort=False)]


def _medians(part: pd.DataFrame) -> Mapping[float, float]:
    medians = part.groupby("setting")["duration_s"].median()
    return {float(at): float(time_s) for at, time_s in medians.items()}  # type: ignore[arg-type]


def _bounds_s(results: Results) -> Mapping[float, float]:
    """Return what an epoch takes if no worker ever waits, by share: the time of all samples over the workers."""
    variant = results.variants.get(_BASELINE)
    workers = 0 if variant is None else int(variant.section.get("num_workers") or 0)
    told = work(results)
    if not workers or told.empty:
        return {}
    frame = _by_share(results)
    told = told.merge(frame.loc[frame["base"] == _BASELINE, ["cell_id", "epoch", "setting"]], on=["cell_id", "epoch"])
    totals = told.groupby(["setting", "cell_id", "epoch"])["work_s"].sum().groupby("setting").median()
    return {float(at): float(total_s) / workers for at, total_s in totals.items()}  # type: ignore[arg-type]


def _draw_factors(axes: Axes, frame: pd.DataFrame, bounds_s: Mapping[float, float]) -> None:
    axes.set_title("Times as fast as PyTorch's DataLoader", pad=9)
    axes.set_ylabel("PyTorch's time over the loader's", color=MUTED)
    theirs = _medians(frame[frame["base"] == _BASELINE])
    others = frame[(frame["base"] != _BASELINE) & frame["setting"].isin(list(theirs))]
    if others.empty:
        axes.text(0.5, 0.5, "not measured", transform=axes.transAxes, ha="center", color=MUTED)
        return
    others = others.assign(factor=others["setting"].map(theirs) / others["duration_s"])
    draw_sweep(axes, others, "factor", names=False)
    axes.axhline(1.0, color=loader_colour(_BASELINE), linewidth=1.2, zorder=1)
    most = {at: theirs[at] / bound_s for at, bound_s in sorted(bounds_s.items()) if at in theirs}
    label = "no worker ever waits: the most that as many workers can reach"
    axes.plot(list(most), list(most.values()), color=INK, linewidth=1.2, linestyle=(0, (6, 3)), label=label)
    for at, ratio in others[others["base"] == _OURS].groupby("setting")["factor"].median().items():
        axes.annotate(
            factor(float(ratio)),
            (float(at), max(float(ratio), most.get(float(at), 0.0))),  # type: ignore[arg-type]
            xytext=(0, 7),
            textcoords="offset points",
            ha="center",
            fontsize=8.5,
            color=loader_colour(_OURS),
        )
    axes.plot(_BETWEEN, [MINATO_FIG12_MOST] * 2, color=FAINT, linewidth=2.2)
    axes.annotate(
        f"paper: MinatoLoader, which adds workers, up to {MINATO_FIG12_MOST:g}×",
        (sum(_BETWEEN) / 2, MINATO_FIG12_MOST),
        xytext=(0, -5),
        textcoords="offset points",
        ha="center",
        va="top",
        fontsize=8.5,
        color=MUTED,
    )
    axes.set_ylim(0, max(axes.get_ylim()[1], 1.15 * MINATO_FIG12_MOST))
    if most:
        axes.legend(loc="lower left")
