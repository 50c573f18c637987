"""Plotter of how evenly data comes: seconds between batches over an epoch, and MB/s of each connection over time.

It draws the last epoch of each loader's first repeat with a valid one, in the regime with unequal paths, or where there
is none in the most distant one.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pandas as pd
from matplotlib.figure import Figure

from harness.report.figures.definition import FigureTable, Prefetch
from harness.report.figures.marks import make_sheet, say, write_under_title
from harness.report.figures.style import BAD, FAINT, INK, choose_colour
from harness.report.figures.timeline import window_s
from harness.report.labels import UNKNOWN, regime_labels, seconds, significant, spell
from harness.report.measurements import find_base, first_rank, read_stored
from harness.report.papers import find_table, low
from harness.results.cells import CellResult
from harness.results.edges import find_epoch_edges
from harness.results.reader import Results
from loaders.shared.options import as_number

_ARRIVED: Final = "loader.arrived"
_TRANSIENT: Final = (0.1, 0.5)
"""Least and greatest share of an epoch's time in which the prefetch fills; later values are in the numbers."""
_SHORTEST_S: Final = 1e-4
"""The least time between batches that is drawn; batches that wait come in less."""
_Array = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class _Epoch:
    """One epoch of a loader."""

    loader: str
    colour: str
    trusted: bool
    duration_s: float
    transient_s: float
    """How long the prefetch fills, since the epoch began."""
    batch_at_s: _Array
    """When each batch was used up, since the epoch began; shape (batches,)."""
    batch_s: _Array
    """Time since the batch before it; shape (batches,)."""
    nbytes: float
    at_s: _Array
    """Middles of windows, since the epoch began; shape (windows,)."""
    mb_per_s: _Array
    """Of each connection; shape (connections, windows), without connections where the loader does not report them."""

    @property
    def settled_s(self) -> _Array:
        """The batch times after the transient."""
        later: _Array = self.batch_s[self.batch_at_s > self.transient_s]
        return later if len(later) else self.batch_s

    @property
    def total(self) -> _Array:
        """MB/s of all connections after the transient, without the last window, in which the epoch ends."""
        inside = self.at_s > self.transient_s
        inside[-1:] = False
        total: _Array = self.mb_per_s.sum(axis=0)[inside]
        return total


def draw(spec: Prefetch, results: Results, heading: str) -> Figure | None:
    """Draw a panel a loader; None when no epoch was measured."""
    epochs = _find_epochs(results)
    if not epochs:
        return None
    return (_draw_batches if spec.panels == "batches" else _draw_connections)(epochs, heading)


def words(spec: Prefetch, results: Results) -> Mapping[str, object]:
    """Return `regime`, a label of the regime that is drawn, and `marks`, what marks mean."""
    epochs = _find_epochs(results)
    untrusted = any(not one.trusted for one in epochs)
    return {
        "regime": regime_labels(results)[_choose_regime(results)],
        "marks": "A loader marked † has no valid row behind it." if untrusted else "",
    }


def table(spec: Prefetch, results: Results) -> FigureTable | None:
    """Return batch times, or throughput over all connections and of each, by loader."""
    rows = [
        _row_of_batches(one) if spec.panels == "batches" else _row_of_connections(one) for one in _find_epochs(results)
    ]
    if spec.panels == "batches":
        heads = ("Loader", "batches", "median", "99th percentile", "longest", "MB/s")
    else:
        heads = ("Loader", "connections", "MB/s of all", "least and most", "MB/s of the slowest", "of the fastest")
    theirs = _rows_of_paper(spec) if rows else []
    dim = frozenset(range(len(rows), len(rows) + len(theirs)))
    return FigureTable(heads, (*rows, *theirs), dim) if rows else None


def _rows_of_paper(spec: Prefetch) -> list[tuple[str, ...]]:
    """Return the longest time between batches, or MB/s of all connections or the range of them, by order."""
    rows: list[tuple[str, ...]] = []
    for order, value in (find_table(spec.values) if spec.values else {}).items():
        ends = value if isinstance(value, tuple) else (low(value),)
        if spec.panels == "batches":
            cells = (UNKNOWN, UNKNOWN, UNKNOWN, seconds(ends[-1]), UNKNOWN)
        else:
            text = " to ".join(significant(end) for end in ends)
            cells = (UNKNOWN, *((text, UNKNOWN) if len(ends) == 1 else (UNKNOWN, text)), UNKNOWN, UNKNOWN)
        rows.append((f"paper, {order.replace('_', ' ')}", *cells))
    return rows


def _row_of_batches(one: _Epoch) -> tuple[str, ...]:
    later = one.settled_s
    times = (np.median(later), np.percentile(later, 99), later.max())
    rate = significant(one.nbytes / 1e6 / one.duration_s)
    return (_name(one), str(len(one.batch_s)), *(seconds(float(time)) for time in times), rate)


def _row_of_connections(one: _Epoch) -> tuple[str, ...]:
    if not len(one.mb_per_s) or not len(one.total):
        return (_name(one), *[UNKNOWN] * 5)
    each = one.mb_per_s.mean(axis=1)
    ends = f"{significant(float(one.total.min()))} to {significant(float(one.total.max()))}"
    numbers = (one.total.mean(), each.min(), each.max())
    mean, slowest, fastest = (significant(float(number)) for number in numbers)
    return _name(one), str(len(each)), mean, ends, slowest, fastest


def _name(one: _Epoch) -> str:
    return spell(one.loader) + ("" if one.trusted else " †")


def _choose_regime(results: Results) -> str:
    regimes = results.experiment.regimes
    return max(results.regimes, key=lambda key: (bool(regimes[key].paths), regimes[key].rtt_ms))


def _find_epochs(results: Results) -> list[_Epoch]:
    chosen: dict[str, tuple[CellResult, bool]] = {}
    for cell in results.cells:
        rows = [row for row in results.rows if row.cell_id == cell.cell_id]
        if cell.state != "done" or not rows or cell.regime != _choose_regime(results):
            continue
        valid = max(rows, key=lambda row: row.epoch).is_valid
        if cell.loader in results.readers and (cell.loader not in chosen or (valid and not chosen[cell.loader][1])):
            chosen[cell.loader] = (cell, valid)
    found = (_read_epoch(results, *chosen[loader]) for loader in results.loaders if loader in chosen)
    return [one for one in found if one is not None]


def _read_epoch(results: Results, cell: CellResult, trusted: bool) -> _Epoch | None:
    """Return the last epoch of a cell; None where it stored no batches or no events."""
    home = results.folder / "cells" / cell.cell_id
    batches, events = (read_stored(home / f"{name}.parquet") for name in ("batches", "events"))
    if batches is None or events is None:
        return None
    records = [{**json.loads(one["values"]), **one} for one in events.to_dict("records")]
    edges = find_epoch_edges([{str(key): value for key, value in one.items()} for one in records])
    if not edges:
        return None
    epoch = max(edges)
    start, end = edges[epoch]
    duration_s = float(end["duration_ns"]) / 1e9
    steps = first_rank(batches[batches["epoch"] == epoch]).sort_values("step")
    batch_s = (steps["wait_s"] + steps["step_s"]).to_numpy(np.float64)
    arrived = [one for one in records if one["event"] == _ARRIVED and one["epoch"] == epoch]
    batch_at_s = np.cumsum(batch_s)
    at_s, mb_per_s = _sum_windows(arrived, int(start["utc_ns"]), duration_s)
    return _Epoch(
        loader=cell.loader,
        colour=choose_colour(find_base(results, cell.loader)),
        trusted=trusted,
        duration_s=duration_s,
        transient_s=_find_transient(results.experiment.loaders[cell.loader].params, batch_at_s, duration_s),
        batch_at_s=batch_at_s,
        batch_s=batch_s,
        nbytes=float(steps["bytes"].sum()),
        at_s=at_s,
        mb_per_s=mb_per_s,
    )


def _find_transient(params: Mapping[str, object], batch_at_s: _Array, duration_s: float) -> float:
    """Return when the prefetch is full; one that grows has `slow_start` batches, and one more after each as many."""
    step, depth = (as_number(params.get(name)) or 0 for name in ("slow_start", "prefetch_batches"))
    full = int(step * (depth - step))
    filled_s = float(batch_at_s[min(full, len(batch_at_s)) - 1]) if full > 0 and len(batch_at_s) else 0.0
    least, most = (share * duration_s for share in _TRANSIENT)
    return min(max(filled_s, least), most)


def _sum_windows(arrived: Sequence[Mapping[str, Any]], start_ns: int, duration_s: float) -> tuple[_Array, _Array]:
    """Return the middles of windows, and the MB/s of each connection in them."""
    windows = max(1, round(duration_s / window_s(duration_s)))
    width = duration_s / windows
    middles: _Array = (np.arange(windows, dtype=np.float64) + 0.5) * width
    frame = pd.DataFrame(arrived, columns=["utc_ns", "rank", "connection", "bytes"])
    if frame.empty:
        return middles, np.zeros((0, windows))
    place = ((frame["utc_ns"] - start_ns) / 1e9 // width).astype("int64").clip(0, windows - 1).to_numpy()
    connection, names = pd.factorize(frame["rank"].fillna(0) * 1_000_000 + frame["connection"])
    found = np.zeros((len(names), windows))
    np.add.at(found, (connection, place), frame["bytes"].to_numpy(np.float64) / 1e6)
    return middles, found / width


def _draw_batches(epochs: Sequence[_Epoch], heading: str) -> Figure:
    figure = make_sheet((max(7.0, 4.2 * len(epochs)), 4.0), {"w_pad": 0.1, "h_pad": 0.08, "wspace": 0.03}, heading)
    every = figure.subplots(1, len(epochs), sharey=True, squeeze=False)[0]
    for axes, one in zip(every, epochs, strict=True):
        axes.plot(one.batch_at_s, one.batch_s, color=one.colour, linewidth=0.8, marker="o", markersize=2.4)
        axes.set_yscale("log")
        later = one.settled_s
        text = ", ".join(
            f"{name} {_milliseconds(value)}" for name, value in (("median", np.median(later)), ("longest", later.max()))
        )
        axes.axvspan(0, one.transient_s, color=FAINT, alpha=0.15, linewidth=0)
        axes.set_title(_name(one), pad=20, color=INK if one.trusted else BAD)
        write_under_title(axes, text)
        axes.set_xlabel("seconds of the epoch")
        axes.set_xlim(0, None)
    every[0].set_ylim(max(_SHORTEST_S, every[0].get_ylim()[0]), None)
    every[0].yaxis.set_major_formatter(lambda value, _: _milliseconds(value))
    every[0].set_ylabel("between one batch and the next")
    return figure


def _milliseconds(value: float) -> str:
    return f"{significant(float(value), 2)} s" if value >= 1 else f"{significant(1e3 * float(value), 2)} ms"


def _draw_connections(epochs: Sequence[_Epoch], heading: str) -> Figure:
    size = (max(7.0, 4.2 * len(epochs)), 5.6)
    figure = make_sheet(size, {"w_pad": 0.1, "h_pad": 0.08, "wspace": 0.03, "hspace": 0.04}, heading)
    every = figure.subplots(2, len(epochs), sharey="row", sharex="col", squeeze=False, height_ratios=[1.0, 1.2])
    for (above, below), one in zip(every.T, epochs, strict=True):
        above.set_title(_name(one), pad=20, color=INK if one.trusted else BAD)
        below.set_xlabel("seconds of the epoch")
        for axes in (above, below):
            axes.axvspan(0, one.transient_s, color=FAINT, alpha=0.15, linewidth=0)
        if not len(one.mb_per_s):
            say(below, "the loader does not report its connections")
            continue
        total = one.mb_per_s.sum(axis=0)
        above.step(one.at_s, total, where="mid", color=one.colour, linewidth=1.6)
        above.fill_between(one.at_s, total, step="mid", color=one.colour, alpha=0.15, linewidth=0)
        if len(one.total):
            write_under_title(above, f"{len(one.mb_per_s)} connections, {significant(float(one.total.mean()))} MB/s")
        for values in one.mb_per_s:
            below.plot(one.at_s, values, color=one.colour, linewidth=1.0, alpha=0.75)
    for axes in every.ravel():
        axes.set_ylim(0, None)
        axes.set_xlim(0, None)
    every[0][0].set_ylabel("MB/s of all connections")
    every[1][0].set_ylabel("MB/s of each connection")
    return figure
