"""What cells did over time, in even windows: MB/s by connection, time in a step, CPU and GPU use, disk reads."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pandas as pd

from harness.cell.events import CellEvent
from harness.report.measurements import find_base, first_rank, read_stored
from harness.results.cells import CellResult
from harness.results.edges import find_epoch_edges
from harness.results.reader import Results
from loaders.shared.options import as_number

_Array: TypeAlias = npt.NDArray[np.float64]
_Points: TypeAlias = tuple[_Array, _Array]
"""Times and values."""
_WINDOWS_S: Final = (0.25, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0)
"""The smallest is the interval in which a cell's resources are sampled."""
_MAX_WINDOWS: Final = 48
_LEVELS: Final = {"memory_mb": "pss_bytes", "gpu_memory_mb": "gpu_mem_bytes"}
"""Columns of resources.parquet by the field of Timeline."""
_ARRIVED: Final = "loader.arrived"
_TRANSIENT: Final = (0.1, 0.5)
"""Least and greatest share of the time in which the prefetch fills; later values are in the numbers."""


@dataclass(frozen=True)
class Timeline:
    """The epochs of one cell, one after the other, without the time between them, cut into windows.

    Times are in s since the first epoch began. Every array over the windows has shape (n,); NaN is unknown.
    """

    duration_s: float
    """How long the epochs took together."""
    epoch_ends_s: tuple[float, ...]
    done: Mapping[str, _Points]
    """By name of a rate (`rate`): times, and how much was done until then."""
    memory_mb: _Points
    """Of the cell's processes, what they share counted once: when it was looked at, and how much it was; both empty
    where it never was."""
    gpu_memory_mb: _Points
    """The same of memory in use on the cell's board."""
    batches: _Points
    """When each batch was used up, and the time since the batch before it."""
    arrived: pd.DataFrame
    """Columns `at_s`, `connection` (a name over all ranks) and `bytes`."""
    window_s: float = _WINDOWS_S[0]
    """Width of the windows."""
    trusted: bool = True
    """Whether every epoch is valid."""
    is_bound: bool = False
    """Whether the loader reads nothing in an epoch, and bounds the others."""
    transient_s: float = 0.0
    """How long the prefetch fills."""

    @cached_property
    def _edges_s(self) -> _Array:
        edges = np.append(np.arange(0.0, self.duration_s, self.window_s), self.duration_s)
        is_short = len(edges) > 2 and edges[-1] - edges[-2] < self.window_s / 2
        return np.delete(edges, -2) if is_short else edges

    @property
    def at_s(self) -> _Array:
        """Middles of the windows."""
        middles: _Array = (self._edges_s[1:] + self._edges_s[:-1]) / 2
        return middles

    @property
    def width_s(self) -> _Array:
        """Widths of the windows."""
        return np.diff(self._edges_s)

    def rate(self, name: str) -> _Array:
        """Return a rate by window.

        It is `mb_per_s` (a batch counts evenly over the time from the end of the step before it to the end of its own),
        `stepping` (share of the time in which a step ran), `cpu_util` of the host, `gpu_util` of the cell's board by
        NVML (shares are 0 to 1), or `disk_mb_per_s`, read from the host's disks.
        """
        if name not in self.done:
            return np.full(len(self._edges_s) - 1, np.nan)
        rates: _Array = np.diff(np.interp(self._edges_s, *self.done[name])) / self.width_s
        return rates

    @cached_property
    def connections_mb_per_s(self) -> _Array:
        """Of each connection; shape (connections, windows), (0, windows) where the loader does not report them."""
        edges = self._edges_s
        place = np.clip(np.searchsorted(edges, self.arrived["at_s"], "right") - 1, 0, len(edges) - 2)
        connection, names = pd.factorize(self.arrived["connection"])
        found = np.zeros((len(names), len(edges) - 1))
        np.add.at(found, (connection, place), self.arrived["bytes"].to_numpy(np.float64) / 1e6)
        rates: _Array = found / self.width_s
        return rates

    @property
    def has_board(self) -> bool:
        """Whether NVML gave the use of a board."""
        return not bool(np.isnan(self.rate("gpu_util")).all())

    @property
    def accelerator_util(self) -> _Array:
        """Use of the accelerator: NVML's where there is a board, else the share of time in a step."""
        return self.rate("gpu_util" if self.has_board else "stepping")

    @property
    def settled_batch_s(self) -> _Array:
        """The times between batches after the transient."""
        at, batch_s = self.batches
        later: _Array = batch_s[at > self.transient_s]
        return later if len(later) else batch_s

    @property
    def settled_connections(self) -> _Array:
        """MB/s of each connection after the transient, without the last window, in which the epoch ends."""
        inside = self.at_s > self.transient_s
        inside[-1:] = False
        found: _Array = self.connections_mb_per_s[:, inside]
        return found

    def line(self, values: _Array) -> _Points:
        """Return the points of a line through values by window, from its beginning to its end."""
        at = np.concatenate([[0.0], self.at_s, [self.duration_s]])
        return at, np.concatenate([values[:1], values, values[-1:]])

    def mean(self, values: _Array) -> float | None:
        """Return the mean of values by window over time; None where it is unknown."""
        mean = float((values * self.width_s).sum() / self.width_s.sum())
        return None if np.isnan(mean) else mean


def make_timelines(results: Results, workload: str, *, last: bool = False) -> dict[str, Timeline]:
    """Return a timeline a loader, by its section, of all epochs of a cell or of its last one.

    The cell is one of the regime of `choose_regime` where there is one, and of these the first one whose epochs are
    valid. All are cut into windows of `window_s` of the longest, last epochs into those of their own length. Loaders of
    which no epoch ended are left out.
    """
    chosen: dict[str, tuple[tuple[bool, bool], CellResult]] = {}
    for cell in results.cells:
        rows = [row for row in results.rows if row.cell_id == cell.cell_id]
        if cell.workload != workload or cell.state != "done" or not rows:
            continue
        counted = [max(rows, key=lambda row: row.epoch)] if last else rows
        rank = (cell.regime == choose_regime(results), all(row.is_valid for row in counted))
        base = find_base(results, cell.loader)
        if base not in chosen or rank > chosen[base][0]:
            chosen[base] = (rank, cell)
    read = {base: _read_timeline(results.folder / "cells" / cell.cell_id, last) for base, (_, cell) in chosen.items()}
    known = {base: one for base, one in read.items() if one is not None}
    longest_s = max((one.duration_s for one in known.values()), default=0.0)
    order = dict.fromkeys(find_base(results, loader) for loader in results.loaders)
    bounds = {find_base(results, loader) for loader in results.bounds}
    return {
        base: replace(
            known[base],
            window_s=window_s(known[base].duration_s if last else longest_s),
            trusted=chosen[base][0][1],
            is_bound=base in bounds,
            transient_s=_find_transient(results.experiment.loaders[chosen[base][1].loader].params, known[base]),
        )
        for base in order
        if base in known
    }


def choose_regime(results: Results) -> str:
    """Return the regime that is drawn: the one with unequal paths, or where there is none the most distant one."""
    regimes = results.experiment.regimes
    return max(results.regimes, key=lambda key: (bool(regimes[key].paths), regimes[key].rtt_ms))


def _find_transient(params: Mapping[str, object], one: Timeline) -> float:
    """Return when the prefetch is full; one that grows has `slow_start` batches, and one more after each as many."""
    step, depth = (as_number(params.get(name)) or 0 for name in ("slow_start", "prefetch_batches"))
    full, at_s = int(step * (depth - step)), one.batches[0]
    filled_s = float(at_s[min(full, len(at_s)) - 1]) if full > 0 and len(at_s) else 0.0
    least, most = (share * one.duration_s for share in _TRANSIENT)
    return min(max(filled_s, least), most)


def list_readers(timelines: Mapping[str, Timeline]) -> dict[str, Timeline]:
    """Return the timelines of loaders that read."""
    return {loader: one for loader, one in timelines.items() if not one.is_bound}


def window_s(duration_s: float) -> float:
    """Return the width of the windows into which so many seconds are cut."""
    return next((width for width in _WINDOWS_S if duration_s <= _MAX_WINDOWS * width), _WINDOWS_S[-1])


@lru_cache(maxsize=64)
def _read_timeline(home: Path, last: bool) -> Timeline | None:
    """Read a cell, or its last epoch, in the smallest windows; None where it stored no batches or no events."""
    batches, events, seen = (read_stored(home / f"{name}.parquet") for name in ("batches", "events", "resources"))
    if batches is None or events is None:
        return None
    if seen is not None:
        seen = seen.assign(disk_mb_per_s=1e3 * seen["disk_read_bytes"].diff() / seen["utc_ns"].diff())
    began_s, ends_s = 0.0, []
    found: dict[str, list[_Points]] = {}
    told = [{**json.loads(one["values"]), **{str(key): one[key] for key in one}} for one in events.to_dict("records")]
    edges = find_epoch_edges(told)
    edges = {max(edges): edges[max(edges)]} if last and edges else edges
    arrived: list[tuple[float, int, float]] = []
    # Looked at after each epoch, however seldom the sampler did.
    afterwards = {one["epoch"]: one["pss_bytes"] for one in told if one["event"] == "memory" and one["pss_bytes"]}
    for epoch, (start, end) in edges.items():
        start_ns, duration_s = int(start["utc_ns"]), float(end["duration_ns"]) / 1e9
        ends_s.append(began_s + duration_s)
        steps = first_rank(batches[batches["epoch"] == epoch]).sort_values("step")
        batch_s = (steps["wait_s"] + steps["step_s"]).to_numpy(np.float64)
        found.setdefault("batches", []).append((began_s + np.cumsum(batch_s), batch_s))
        for one in told:
            if one["event"] == _ARRIVED and one["epoch"] == epoch:
                at_s = began_s + (one["utc_ns"] - start_ns) / 1e9
                arrived.append((at_s, (one.get("rank") or 0) * 1_000_000 + one["connection"], one["bytes"]))
        amounts = _amounts(steps)
        for name in ("cpu_util", "gpu_util", "disk_mb_per_s"):
            known = None if seen is None else seen[seen[name].notna()]
            if known is not None and len(known):
                amounts[name] = _integral(known, name, start_ns, duration_s)
        for name, (at, amount) in amounts.items():
            knots = np.concatenate([[began_s], began_s + at, [ends_s[-1]]])
            found.setdefault(name, []).append((knots, np.concatenate([[0.0], amount, [0.0]])))
        for name, column in _LEVELS.items():
            at, level = _levels(seen, column, start, end)
            if column == "pss_bytes" and epoch in afterwards:
                at, level = np.append(at, duration_s), np.append(level, afterwards[epoch] / 1e6)
            found.setdefault(name, []).append((began_s + at, level))
        began_s = ends_s[-1]
    if not ends_s:
        return None
    joined = {name: _join(parts) for name, parts in found.items()}
    memory_mb, gpu_memory_mb, at_batches = (joined.pop(name) for name in (*_LEVELS, "batches"))
    return Timeline(
        duration_s=began_s,
        epoch_ends_s=tuple(ends_s),
        done={name: (at, np.cumsum(amount)) for name, (at, amount) in joined.items()},
        memory_mb=memory_mb,
        gpu_memory_mb=gpu_memory_mb,
        batches=at_batches,
        arrived=pd.DataFrame(arrived, columns=["at_s", "connection", "bytes"]),
    )


def _join(parts: Sequence[_Points]) -> _Points:
    return np.concatenate([at for at, _ in parts]), np.concatenate([values for _, values in parts])


def _levels(seen: pd.DataFrame | None, column: str, start: CellEvent, end: CellEvent) -> _Points:
    """Return when in an epoch, in s since it began, a number of bytes was seen, and how many MB these were."""
    if seen is None or column not in seen:
        return np.empty(0), np.empty(0)
    known = seen[seen[column].notna() & seen["utc_ns"].between(start["utc_ns"], end["utc_ns"])]
    at_s = (known["utc_ns"].to_numpy(np.int64) - int(start["utc_ns"])) / 1e9
    return at_s, known[column].to_numpy(np.float64) / 1e6


def _amounts(batches: pd.DataFrame) -> dict[str, _Points]:
    """Return times in s since an epoch began, and the amounts since the time before, by name of a rate."""
    steps = batches["step_s"].to_numpy(np.float64)
    ends = np.cumsum((batches["wait_s"] + batches["step_s"]).to_numpy(np.float64))
    edges = np.stack([ends - steps, ends], axis=1).ravel()
    return {
        "mb_per_s": (ends, batches["bytes"].to_numpy(np.float64) / 1e6),
        "stepping": (edges, np.stack([np.zeros_like(steps), steps], axis=1).ravel()),
    }


def _integral(seen: pd.DataFrame, name: str, start_ns: int, duration_s: float) -> _Points:
    """Return the integral of a share or rate that stands in every row for the time since the row before."""
    within = np.clip((seen["utc_ns"].to_numpy(np.int64) - start_ns) / 1e9, 0.0, duration_s)
    return within, np.diff(within, prepend=0.0) * seen[name].to_numpy(np.float64)
