"""Plotter of learning: the loss over steps or seeds, and how slow samples are spread over batches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import Any, Final

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from harness.report.claims.composition import Composition, measure_compositions
from harness.report.figures.definition import Learning
from harness.report.figures.marks import average_window, make_loader_handles, make_sheet, say, write_note
from harness.report.figures.style import INK, MUTED, choose_colour
from harness.report.intervals import Paired, compare_pairs
from harness.report.labels import UNKNOWN, percent, seconds, significant, spell
from harness.report.measurements import find_base, first_rank, read_stored
from harness.report.papers import Tree, low
from harness.report.papers import find_table as published_table
from harness.results.reader import Results
from joulefeed.table import Table

_WINDOWS: Final = 12
"""Running means are over this part of a training's steps."""
_SLOW_SHARE: Final = 0.25
_LABELS: Final = (
    ("iteration", "loss"),
    ("seconds of training", "loss"),
    ("slow samples in a batch", "share of batches"),
    ("iteration", "share of slow samples"),
)
_SEED_STEP: Final = 0.16
"""Between the points of two loaders, in seeds."""
_COLUMNS: Final = ("workload", "base", "cell_id", "repeat", "epoch", "iteration", "at_s", "loss", "ids")
_Spread = Mapping[tuple[str, str], list[Composition]]


def draw(spec: Learning, results: Results, heading: str) -> Figure | None:
    """Draw the figure; None when no cell ended, or of seeds when nothing was trained."""
    if spec.panels == "seeds":
        return _draw_seeds(results, heading)
    return _draw_iterations(results, heading, [1] if spec.panels == "time" else range(len(_LABELS)))


def table(spec: Learning, results: Results) -> Table | None:
    """Return losses and what goes with them; None when no cell ended, or of seeds when nothing was trained."""
    return _table_of_seeds(results) if spec.panels == "seeds" else _table_of_iterations(spec, results)


def words(spec: Learning, results: Results) -> Mapping[str, str]:
    """Return `comparisons`, how loaders differ over the seeds, and `shares`, the paper's of slow samples."""
    if spec.panels == "seeds":
        return {"comparisons": "; ".join(_comparison_texts(results))}
    if spec.panels == "time":
        return {"windows": str(_WINDOWS)}
    shares = "; ".join(
        f"{spell(workload)} " + ", ".join(f"{low(value):g} through {spell(loader)}" for loader, value in found.items())
        for workload, found in published_table(f"{spec.values}/share").items()
        if isinstance(found, Mapping)
    )
    return {"windows": str(_WINDOWS), "shares": shares}


def _draw_iterations(results: Results, heading: str, rows: Sequence[int]) -> Figure | None:
    """Draw a column a workload."""
    frame, spread = _steps(results), _spread(results)
    workloads = [key for key in results.workloads if (frame["workload"] == key).any()]
    if not workloads:
        return None
    size = (max(6.0 if len(rows) > 1 else 8.4, 5.3 * len(workloads)), 0.6 + (2.4 if len(rows) > 1 else 4.0) * len(rows))
    figure = make_sheet(size, {"w_pad": 0.1, "h_pad": 0.07, "wspace": 0.05, "hspace": 0.04}, heading)
    panels = figure.subplots(len(rows), len(workloads), squeeze=False)
    for column, workload in enumerate(workloads):
        here = frame[frame["workload"] == workload]
        found = {base: spread.get((workload, base), []) for base in dict.fromkeys(here["base"])}
        losses = [partial(_draw_losses, frame=here, over=over) for over in ("iteration", "at_s")]
        draws = [*losses, partial(_draw_batches, found=found), partial(_draw_shares, found=found)]
        for row, axes in zip(rows, panels[:, column], strict=True):
            draws[row](axes)
            axes.set_xlabel(_LABELS[row][0])
            axes.set_ylabel("" if column else _LABELS[row][1])
        panels[0][column].set_title(spell(workload), pad=9)
    figure.legend(handles=make_loader_handles(list(dict.fromkeys(frame["base"]))), loc="outside lower left", ncols=4)
    return figure


def _table_of_iterations(spec: Learning, results: Results) -> Table | None:
    """Return losses, times and, beside those of the paper, compositions by workload and loader."""
    is_composed = spec.panels == "iterations"
    shares, times = (published_table(f"{spec.values}/{name}") if is_composed else {} for name in ("share", "time_s"))
    frame, spread = _steps(results), _spread(results)
    rows = []
    for (workload, base), here in frame.groupby(["workload", "base"], sort=False):
        found = spread.get((str(workload), str(base)), [])
        figures = pd.DataFrame([one.figures for one in found]).mean()
        last = here.loc[here["epoch"] == here["epoch"].max(), "loss"]
        share, time_s = (_value(known, str(workload), str(base)) for known in (shares, times))
        rows.append(
            (
                f"{spell(str(workload))}, {spell(str(base))}",
                UNKNOWN if last.isna().all() else significant(float(last.mean())),
                seconds(float(here.groupby("cell_id")["at_s"].max().median())),
                *(_known(figures, name) for name in ("slow_batch_std", "slow_first_half")),
                UNKNOWN if share is None else f"{share:g}",
                UNKNOWN if time_s is None else f"{time_s / 3600:.1f} h",
            )
        )
    columns = (
        *("Workload and loader", "loss, last epoch", "training", "deviation of slow samples over batches"),
        *("of the slow in the first half", "slow share in the paper", "training there"),
    )
    shown = len(columns) if is_composed else 3
    return Table(columns[:shown], tuple(row[:shown] for row in rows)) if rows else None


def _value(values: Mapping[str, Tree], workload: str, loader: str) -> float | None:
    found = values.get(workload)
    known = found.get(loader) if isinstance(found, Mapping) else None
    return None if known is None else low(known)


def _spread(results: Results) -> _Spread:
    every = measure_compositions(results)
    found: dict[tuple[str, str], list[Composition]] = {}
    for cell in results.cells:
        if cell.loader in results.bounds:
            continue
        epochs = sorted((epoch, one) for (cell_id, epoch), one in every.items() if cell_id == cell.cell_id)
        found.setdefault((cell.workload, find_base(results, cell.loader)), []).extend(one for _, one in epochs)
    return found


def _draw_losses(axes: Axes, frame: pd.DataFrame, over: str) -> None:
    if frame["loss"].isna().all():
        say(axes, "no loss: nothing was trained")
        axes.set_yticks([])
        return
    for place, (base, part) in enumerate(frame.groupby("base", sort=False)):
        colour = choose_colour(str(base))
        for _, cell in part.groupby("cell_id", sort=False):
            axes.plot(cell[over], cell["loss"], color=colour, linewidth=0.6, alpha=0.28)
            mean = average_window(cell["loss"], len(cell) // _WINDOWS)
            axes.plot(cell[over], mean, color=colour, zorder=3, **_arm_line(place))
    axes.set_xlim(left=0)
    axes.set_ylim(0, 1.05 * float(frame["loss"].quantile(0.99)))


def _draw_batches(axes: Axes, found: Mapping[str, list[Composition]]) -> None:
    most = max((int(one.samples.max()) for epochs in found.values() for one in epochs), default=0)
    if not most:
        say(axes, "no loader measured times")
        axes.set_yticks([])
        return
    known = {base: epochs for base, epochs in found.items() if epochs}
    width = 0.8 / len(known)
    for place, (base, epochs) in enumerate(known.items()):
        slow = np.concatenate([one.slow[one.samples == most] for one in epochs])
        shares = np.bincount(slow, minlength=most + 1) / len(slow)
        at = np.arange(most + 1) + (place - (len(known) - 1) / 2) * width
        bars = axes.bar(at, 100 * shares, 0.94 * width, color=choose_colour(base))
        axes.bar_label(bars, [f"{100 * share:.0f}" for share in shares], padding=2, fontsize=8, color=MUTED)
    axes.set_xticks(range(most + 1))
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:.0f} %")
    axes.margins(y=0.12)


def _draw_shares(axes: Axes, found: Mapping[str, list[Composition]]) -> None:
    for place, (base, epochs) in enumerate(found.items()):
        if epochs:
            shares = pd.Series(np.concatenate([one.slow / one.samples for one in epochs]))
            mean = average_window(shares, len(shares) // _WINDOWS)
            axes.plot(np.arange(1, len(mean) + 1), mean, color=choose_colour(base), **_arm_line(place))
    axes.axhline(_SLOW_SHARE, color=INK, linewidth=0.9, linestyle=(0, (1, 2)))
    axes.set_xlim(left=0)
    axes.set_ylim(0, 0.62)


def _known(figures: pd.Series[float], name: str) -> str:
    return significant(float(figures[name])) if name in figures else UNKNOWN


def _draw_seeds(results: Results, heading: str) -> Figure | None:
    """Draw the loss by epoch, and the last epoch's by seed, a row a workload."""
    frame = _losses(results)
    workloads = list(dict.fromkeys(frame["workload"]))
    if not workloads:
        return None
    size = (10.0, 0.8 + 3.6 * len(workloads))
    figure = make_sheet(size, {"w_pad": 0.1, "h_pad": 0.08, "wspace": 0.05}, heading)
    for (left, right), workload in zip(figure.subplots(len(workloads), 2, squeeze=False), workloads, strict=True):
        here = frame[frame["workload"] == workload]
        left.set_title(f"{spell(workload)}: mean loss of an epoch", pad=9)
        _draw_loss_by_epoch(left, here)
        right.set_title("of the last epoch, by seed", pad=9)
        _draw_loss_by_seed(right, here)
    figure.legend(handles=make_loader_handles(list(dict.fromkeys(frame["base"]))), loc="outside lower left", ncols=4)
    return figure


def _table_of_seeds(results: Results) -> Table | None:
    """Return means and deviations over the seeds by loader, and the differences with their interval and verdict."""
    rows: list[tuple[str, ...]] = []
    for workload in dict.fromkeys(_losses(results)["workload"]):
        last = _last(results, str(workload))
        for base, losses in last.items():
            values = pd.Series(losses)
            numbers = significant(float(values.mean()), 4), significant(float(values.std()), 2), str(len(values))
            rows.append((f"{spell(str(workload))}, {spell(base)}", *numbers, ""))
        for first, second, one in _comparisons(last):
            interval = f"± {significant(one.half_width, 2)}"
            rows.append(
                (f"{spell(second)} − {spell(first)}", _plus(one.difference), interval, str(one.pairs), _verdict(one))
            )
    columns = ("Loss, last epoch", "mean", "deviation", "seeds", "verdict")
    return Table(columns, tuple(rows)) if rows else None


def _comparison_texts(results: Results) -> list[str]:
    return [
        f"{spell(second)} differs from {spell(first)} by {_signed(one)}; {percent(_same(results, first, second))} of "
        "the batches hold the same samples through both"
        for workload in dict.fromkeys(_losses(results)["workload"])
        for first, second, one in _comparisons(_last(results, str(workload)))
    ]


def _losses(results: Results) -> pd.DataFrame:
    """Return the mean loss of every epoch that was trained."""
    known = _steps(results).dropna(subset=["loss"]).sort_values(["repeat", "epoch"], kind="stable")
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
    frame = _steps(results)
    place = ["workload", "repeat", "iteration"]
    arms = (frame.loc[frame["base"] == base, [*place, "ids"]] for base in (first, second))
    both = next(arms).merge(next(arms), on=place)
    return float((both["ids_x"] == both["ids_y"]).mean()) if len(both) else None


def _comparisons(last: dict[str, dict[int, float]]) -> list[tuple[str, str, Paired]]:
    found = ((first, second, compare_pairs(last[first], last[second])) for first, second in pairwise(last))
    return [(first, second, one) for first, second, one in found if one is not None]


def _draw_loss_by_epoch(axes: Axes, frame: pd.DataFrame) -> None:
    for place, (base, part) in enumerate(frame.groupby("base", sort=False)):
        colour = choose_colour(str(base))
        for _, seed in part.groupby("repeat"):
            axes.plot(seed["epoch"], seed["loss"], color=colour, linewidth=0.7, alpha=0.3)
        mean = part.groupby("epoch")["loss"].mean()
        axes.plot(mean.index, mean, color=colour, zorder=3, **_arm_line(place))
    axes.set_xlabel("epoch")
    axes.set_ylim(0, 1.08 * float(frame["loss"].max()))


def _draw_loss_by_seed(axes: Axes, frame: pd.DataFrame) -> None:
    last = frame[frame["epoch"] == frame["epoch"].max()]
    bases = list(dict.fromkeys(last["base"]))
    for place, base in enumerate(bases):
        part, colour = last[last["base"] == base], choose_colour(base)
        beside = _SEED_STEP * (place - (len(bases) - 1) / 2)
        axes.scatter(part["repeat"] + beside, part["loss"], s=34, color=colour, zorder=3)
        axes.axhline(float(part["loss"].mean()), color=colour, **_arm_line(place))
    axes.set_xticks(sorted(last["repeat"].unique()))
    axes.set_xlabel("seed")
    low, high = float(last["loss"].min()), float(last["loss"].max())
    room = 0.25 * (high - low) or 0.1 * high
    axes.set_ylim(low - room, high + room)
    write_note(axes, "not from 0", (0, 0), (4, 4), fontsize=8, color=INK)


def _plus(value: float) -> str:
    return ("+" if value >= 0 else "−") + significant(abs(value), 2)


def _verdict(one: Paired) -> str:
    if one.within_noise:
        return "within noise"
    share = significant(abs(one.difference) / one.first_std, 2) if one.first_std else "∞"
    return f"more than noise: {share} of the deviation over seeds"


def _signed(one: Paired) -> str:
    percents = [100 * part / one.first_mean for part in (abs(one.difference), one.half_width)]
    share = f"{percents[0]:.1f} ± {percents[1]:.1f} %"
    return f"{_plus(one.difference)} ± {significant(one.half_width, 2)} ({share}), {_verdict(one)}"


def _steps(results: Results) -> pd.DataFrame:
    """Return a row for every step of every cell that ended, in order.

    Columns: `workload`, `base` (the loader's section), `cell_id`, `repeat`, `epoch`, `iteration` (from 1, over all
    epochs), `at_s` (end of the step in s of training, epochs one after another), `loss` (NaN where nothing is trained),
    `ids` (a frozenset, of the batch's samples).
    """
    parts = []
    for cell in results.cells:
        if cell.loader in results.bounds:
            continue
        batches = (
            read_stored(results.folder / "cells" / cell.cell_id / "batches.parquet") if cell.state == "done" else None
        )
        if batches is None or not {"wait_s", "step_s", "loss", "ids"} <= set(batches.columns):
            continue
        ordered = first_rank(batches).sort_values(["epoch", "step"])
        parts.append(
            pd.DataFrame(
                {
                    "workload": cell.workload,
                    "base": find_base(results, cell.loader),
                    "cell_id": cell.cell_id,
                    "repeat": cell.repeat,
                    "epoch": ordered["epoch"].to_numpy(),
                    "iteration": range(1, len(ordered) + 1),
                    "at_s": (ordered["wait_s"] + ordered["step_s"]).cumsum().to_numpy(),
                    "loss": ordered["loss"].astype("float64").to_numpy(),
                    "ids": [frozenset(ids) for ids in ordered["ids"]],
                }
            )
        )
    return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame(columns=list(_COLUMNS))


def _arm_line(place: int) -> dict[str, Any]:
    """Return how the line of a loader is drawn: the first shows below the others, which are dashed."""
    return {"linewidth": 1.6, "linestyle": (0, (4, 3))} if place else {"linewidth": 3.4, "alpha": 0.55}
