"""The same model through two loaders over several seeds: whether it learns the same."""

from __future__ import annotations

from itertools import pairwise

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine

from harness.report.figures.lines import loader_handles
from harness.report.figures.losses import arm_line, steps
from harness.report.figures.palette import INK, MUTED, loader_colour
from harness.report.figures.tables import FigureTable
from harness.report.folder import Results
from harness.report.labels import accelerators, percent, significant, spell
from harness.report.paired import Paired, paired

__all__ = ["caption", "draw", "table"]

_APART = 0.16
"""Between the points of two loaders, in seeds."""


def draw(results: Results) -> Figure | None:
    """Draw the loss by epoch, and the last epoch's by seed, a row a workload; None when nothing was trained."""
    frame = _losses(results)
    workloads = list(dict.fromkeys(frame["workload"]))
    if not workloads:
        return None
    layout = ConstrainedLayoutEngine(w_pad=0.1, h_pad=0.08, wspace=0.05)
    figure = Figure(figsize=(10.0, 0.8 + 3.6 * len(workloads)), layout=layout)
    figure.suptitle(f"{results.name}; {accelerators(results)}", x=0.01, ha="left", fontsize=8.5, color=MUTED)
    for (left, right), workload in zip(figure.subplots(len(workloads), 2, squeeze=False), workloads, strict=True):
        here = frame[frame["workload"] == workload]
        left.set_title(f"{spell(workload)}: mean loss of an epoch", pad=9)
        _draw_epochs(left, here)
        right.set_title("of the last epoch, by seed", pad=9)
        _draw_seeds(right, here)
    figure.legend(handles=loader_handles(list(dict.fromkeys(frame["base"]))), loc="outside lower left", ncols=4)
    return figure


def caption(results: Results) -> str:
    """Return how to read the figure."""
    said = [
        f"{spell(second)} differs from {spell(first)} by {_signed(one)}; {percent(_same(results, first, second))} of "
        "the batches hold the same samples through both"
        for workload in dict.fromkeys(_losses(results)["workload"])
        for first, second, one in _comparisons(_last(results, str(workload)))
    ]
    return (
        "Every seed is one of weights, order and augmentation, the same for each loader: a faint line and a pair of "
        "points. Bold and dashed: means over the seeds. Differences are taken seed by seed, with the 95 % interval of "
        f"Student's t; one that holds 0 is within noise. {'; '.join(said)}."
    )


def table(results: Results) -> FigureTable | None:
    """Return means and deviations over the seeds by loader, and the differences with their interval and verdict."""
    rows: list[tuple[str, ...]] = []
    for workload in dict.fromkeys(_losses(results)["workload"]):
        last = _last(results, str(workload))
        for base, losses in last.items():
            values = pd.Series(losses)
            told = significant(float(values.mean()), 4), significant(float(values.std()), 2), str(len(values))
            rows.append((f"{spell(str(workload))}, {spell(base)}", *told, ""))
        for first, second, one in _comparisons(last):
            interval = f"± {significant(one.half_width, 2)}"
            rows.append(
                (f"{spell(second)} − {spell(first)}", _plus(one.difference), interval, str(one.pairs), _verdict(one))
            )
    columns = ("Loss, last epoch", "mean", "deviation", "seeds", "verdict")
    return FigureTable(columns, tuple(rows)) if rows else None


def _losses(results: Results) -> pd.DataFrame:
    """Return the mean loss of every epoch that was trained."""
    known = steps(results).dropna(subset=["loss"]).sort_values(["repeat", "epoch"], kind="stable")
    means: pd.Series[float] = known.groupby(["workload", "base", "repeat", "epoch"], sort=False)["loss"].mean()
    return means.reset_index()


def _last(results: Results, workload: str) -> dict[str, dict[int, float]]:
    """Return the loss of the last epoch by loader, in the config's order, and repeat."""
    frame = _losses(results)
    frame = frame[(frame["workload"] == workload) & (frame["epoch"] == frame["epoch"].max())]
    return {
        loader: {int(row.repeat): float(row.loss) for row in frame[frame["base"] == loader].itertuples()}
        for loader in results.loaders
        if (frame["base"] == loader).any()
    }


def _same(results: Results, first: str, second: str) -> float | None:
    """Return the share of batches that hold the same samples through two loaders, by seed and place in the training."""
    frame = steps(results)
    place = ["workload", "repeat", "iteration"]
    arms = (frame.loc[frame["base"] == base, [*place, "ids"]] for base in (first, second))
    both = next(arms).merge(next(arms), on=place)
    return float((both["ids_x"] == both["ids_y"]).mean()) if len(both) else None


def _comparisons(last: dict[str, dict[int, float]]) -> list[tuple[str, str, Paired]]:
    found = ((first, second, paired(last[first], last[second])) for first, second in pairwise(last))
    return [(first, second, one) for first, second, one in found if one is not None]


def _draw_epochs(axes: Axes, frame: pd.DataFrame) -> None:
    for place, (base, part) in enumerate(frame.groupby("base", sort=False)):
        colour = loader_colour(str(base))
        for _, seed in part.groupby("repeat"):
            axes.plot(seed["epoch"], seed["loss"], color=colour, linewidth=0.7, alpha=0.3)
        mean = part.groupby("epoch")["loss"].mean()
        axes.plot(mean.index, mean, color=colour, zorder=3, **arm_line(place))
    axes.set_xlabel("epoch")
    axes.set_ylim(0, 1.08 * float(frame["loss"].max()))


def _draw_seeds(axes: Axes, frame: pd.DataFrame) -> None:
    last = frame[frame["epoch"] == frame["epoch"].max()]
    bases = list(dict.fromkeys(last["base"]))
    for place, base in enumerate(bases):
        part, colour = last[last["base"] == base], loader_colour(base)
        beside = _APART * (place - (len(bases) - 1) / 2)
        axes.scatter(part["repeat"] + beside, part["loss"], s=34, color=colour, zorder=3)
        axes.axhline(float(part["loss"].mean()), color=colour, **arm_line(place))
    axes.set_xticks(sorted(last["repeat"].unique()))
    axes.set_xlabel("seed")
    low, high = float(last["loss"].min()), float(last["loss"].max())
    room = 0.25 * (high - low) or 0.1 * high
    axes.set_ylim(low - room, high + room)
    axes.annotate(
        "not from 0", (0, 0), xycoords="axes fraction", xytext=(4, 4), textcoords="offset points", fontsize=8, color=INK
    )


def _plus(value: float) -> str:
    return ("+" if value >= 0 else "−") + significant(abs(value), 2)


def _verdict(one: Paired) -> str:
    if one.within_noise:
        return "within noise"
    share = significant(abs(one.difference) / one.first_std, 2) if one.first_std else "∞"
    return f"more than noise: {share} of the deviation over seeds"


def _signed(one: Paired) -> str:
    percents = [100 * part / one.first_mean for part in (abs(one.difference), one.half_width)]
    told = f"{percents[0]:.1f} ± {percents[1]:.1f} %"
    return f"{_plus(one.difference)} ± {significant(one.half_width, 2)} ({told}), {_verdict(one)}"
