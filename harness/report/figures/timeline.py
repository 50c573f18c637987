"""What cells did over time, in even windows: MB/s by connection, time in a step, CPU and GPU use, disk reads."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt
import pandas as pd

from harness.cell.events import CellEvent
from harness.report.measurements import find_base, first_rank, read_stored
from harness.results.cells import CellResult
from harness.results.edges import find_epoch_edges
from harness.results.reader import Results
from loaders.shared.options import as_number

_Array = npt.NDArray[np.float64]
_WINDOWS_S: Final = (0.25, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0)
"""The smallest is the interval in which a cell's resources are sampled."""
_MAX_WINDOWS: Final = 48
_LEVELS: Final = {"memory_mb": "pss_bytes", "gpu_memory_mb": "gpu_mem_bytes"}
"""Columns of resources.parquet by the field of Timeline."""
_ARRIVED: Final = "loader.arrived"
_TRANSIENT: Final = (0.1, 0.5)
"""Least and greatest share of the time in which the prefetch fills; later values are in the numbers."""


@dataclass(frozen=True, slots=True)
class Timeline:
    """The epochs of one cell, one after the other, without the time between them.

    Every array has shape (n,), a value a window; NaN is unknown. Those of memory have a value a look.
    """

    at_s: _Array
    """Middles of the windows, in s since the first epoch began."""
    width_s: _Array
    epoch_ends_s: tuple[float, ...]
    """Since the first epoch began."""
    trusted: bool
    """Whether every epoch is valid."""
    is_bound: bool
    """Whether the loader reads nothing in an epoch, and bounds the others."""
    mb_per_s: _Array
    """A batch counts evenly over the time from the end of the step before it to the end of its own."""
    stepping: _Array
    """Share of the time in which a step ran, 0 to 1."""
    cpu_util: _Array
    """Of the host, 0 to 1."""
    gpu_util: _Array
    """Of the cell's board, by NVML, 0 to 1."""
    disk_mb_per_s: _Array
    """Read from the host's disks."""
    memory_mb: tuple[_Array, _Array]
    """Of the cell's processes, what they share counted once: when it was looked at, in s since the first epoch began,
    and how much it was; both empty where it never was."""
    gpu_memory_mb: tuple[_Array, _Array]
    """The same of memory in use on the cell's board."""
    batches: tuple[_Array, _Array]
    """When each batch was used up, in s since the first epoch began, and the time since the batch before it."""
    connections_mb_per_s: _Array
    """Of each connection; shape (connections, windows), without connections where the loader does not report them."""
    transient_s: float
    """How long the prefetch fills, in s since the first epoch began."""

    @property
    def duration_s(self) -> float:
        """How long the epochs took together."""
        return float(self.width_s.sum())

    @property
    def has_board(self) -> bool:
        """Whether NVML gave the use of a board."""
        return not bool(np.isnan(self.gpu_util).all())

    @property
    def accelerator_util(self) -> _Array:
        """Use of the accelerator: NVML's where there is a board, else the share of time in a step."""
        return self.gpu_util if self.has_board else self.stepping

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

    def line(self, values: _Array) -> tuple[_Array, _Array]:
        """Return the points of a line through one of its arrays, from its beginning to its end."""
        at = np.concatenate([[0.0], self.at_s, [self.duration_s]])
        return at, np.concatenate([values[:1], values, values[-1:]])

    def mean(self, values: _Array) -> float | None:
        """Return the mean of one of its arrays over time; None where it is unknown."""
        mean = float((values * self.width_s).sum() / self.duration_s)
        return None if np.isnan(mean) else mean


@dataclass(frozen=True, slots=True)
class _Track:
    """How much a cell had done up to a time, as knots of lines that only rise; s since the first epoch began."""

    duration_s: float
    epoch_ends_s: tuple[float, ...]
    done: Mapping[str, tuple[_Array, _Array]]
    """By the field of Timeline that is its rate: times and amounts."""
    levels: Mapping[str, tuple[_Array, _Array]]
    """By the field of Timeline: times, and how much memory was in use then."""
    batches: tuple[_Array, _Array]
    """As in Timeline."""
    arrived: pd.DataFrame
    """Columns `at_s`, `connection` (a name over all ranks) and `bytes`."""


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
    tracks = {base: _track(results.folder / "cells" / cell.cell_id, last) for base, (_, cell) in chosen.items()}
    known = {base: track for base, track in tracks.items() if track is not None}
    width = window_s(max((track.duration_s for track in known.values()), default=0.0))
    order = dict.fromkeys(find_base(results, loader) for loader in results.loaders)
    bounds = {find_base(results, loader) for loader in results.bounds}
    return {
        base: _timeline(
            known[base],
            window_s(known[base].duration_s) if last else width,
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


def _find_transient(params: Mapping[str, object], track: _Track) -> float:
    """Return when the prefetch is full; one that grows has `slow_start` batches, and one more after each as many."""
    step, depth = (as_number(params.get(name)) or 0 for name in ("slow_start", "prefetch_batches"))
    full, at_s = int(step * (depth - step)), track.batches[0]
    filled_s = float(at_s[min(full, len(at_s)) - 1]) if full > 0 and len(at_s) else 0.0
    least, most = (share * track.duration_s for share in _TRANSIENT)
    return min(max(filled_s, least), most)


def list_readers(timelines: Mapping[str, Timeline]) -> dict[str, Timeline]:
    """Return the timelines of loaders that read."""
    return {loader: one for loader, one in timelines.items() if not one.is_bound}


def window_s(duration_s: float) -> float:
    """Return the width of the windows into which so many seconds are cut."""
    return next((width for width in _WINDOWS_S if duration_s <= _MAX_WINDOWS * width), _WINDOWS_S[-1])


def _timeline(track: _Track, width: float, *, trusted: bool, is_bound: bool, transient_s: float) -> Timeline:
    edges = np.append(np.arange(0.0, track.duration_s, width), track.duration_s)
    if len(edges) > 2 and edges[-1] - edges[-2] < width / 2:
        edges = np.delete(edges, -2)

    def rate(name: str) -> _Array:
        if name not in track.done:
            return np.full(len(edges) - 1, np.nan)
        rates: _Array = np.diff(np.interp(edges, *track.done[name])) / np.diff(edges)
        return rates

    never = (np.empty(0), np.empty(0))
    names = ("mb_per_s", "stepping", "cpu_util", "gpu_util", "disk_mb_per_s")
    middles = (edges[1:] + edges[:-1]) / 2
    memory_mb, gpu_memory_mb = (track.levels.get(name, never) for name in _LEVELS)
    return Timeline(
        at_s=middles,
        width_s=np.diff(edges),
        epoch_ends_s=track.epoch_ends_s,
        trusted=trusted,
        is_bound=is_bound,
        memory_mb=memory_mb,
        gpu_memory_mb=gpu_memory_mb,
        batches=track.batches,
        connections_mb_per_s=_sum_connections(track.arrived, edges),
        transient_s=transient_s,
        **{name: rate(name) for name in names},
    )


def _sum_connections(arrived: pd.DataFrame, edges: _Array) -> _Array:
    place = np.clip(np.searchsorted(edges, arrived["at_s"], "right") - 1, 0, len(edges) - 2)
    connection, names = pd.factorize(arrived["connection"])
    found = np.zeros((len(names), len(edges) - 1))
    np.add.at(found, (connection, place), arrived["bytes"].to_numpy(np.float64) / 1e6)
    rates: _Array = found / np.diff(edges)
    return rates


@lru_cache(maxsize=64)
def _track(home: Path, last: bool) -> _Track | None:
    """Read a cell, or its last epoch; None where it stored no batches or no events."""
    batches, events, seen = (read_stored(home / f"{name}.parquet") for name in ("batches", "events", "resources"))
    if batches is None or events is None:
        return None
    if seen is not None:
        seen = seen.assign(disk_mb_per_s=1e3 * seen["disk_read_bytes"].diff() / seen["utc_ns"].diff())
    began_s, ends_s = 0.0, []
    found: dict[str, list[tuple[_Array, _Array]]] = {}
    levels: dict[str, list[tuple[_Array, _Array]]] = {}
    records = events.to_dict("records")
    told = [{**json.loads(one["values"]), **{str(key): one[key] for key in one}} for one in records]
    edges = find_epoch_edges(told)
    edges = {max(edges): edges[max(edges)]} if last and edges else edges
    arrived: list[tuple[float, int, float]] = []
    ends: list[tuple[_Array, _Array]] = []
    # Looked at after each epoch, however seldom the sampler did.
    afterwards = {one["epoch"]: one["pss_bytes"] for one in told if one["event"] == "memory" and one["pss_bytes"]}
    for epoch, (start, end) in edges.items():
        ends_s.append(began_s + float(end["duration_ns"]) / 1e9)
        steps = first_rank(batches[batches["epoch"] == epoch]).sort_values("step")
        batch_s = (steps["wait_s"] + steps["step_s"]).to_numpy(np.float64)
        ends.append((began_s + np.cumsum(batch_s), batch_s))
        for one in told:
            if one["event"] == _ARRIVED and one["epoch"] == epoch:
                at_s = began_s + (one["utc_ns"] - int(start["utc_ns"])) / 1e9
                arrived.append((at_s, (one.get("rank") or 0) * 1_000_000 + one["connection"], one["bytes"]))
        amounts = _amounts(steps)
        for name in ("cpu_util", "gpu_util", "disk_mb_per_s"):
            known = None if seen is None else seen[seen[name].notna()]
            if known is not None and len(known):
                amounts[name] = _integral(known, name, int(start["utc_ns"]), ends_s[-1] - began_s)
        for name, column in _LEVELS.items():
            at, level = _levels(seen, column, start, end)
            if column == "pss_bytes" and epoch in afterwards:
                at, level = np.append(at, ends_s[-1] - began_s), np.append(level, afterwards[epoch] / 1e6)
            if len(at):
                levels.setdefault(name, []).append((began_s + at, level))
        for name, (at, amount) in amounts.items():
            knots = np.concatenate([[began_s], began_s + at, [ends_s[-1]]])
            found.setdefault(name, []).append((knots, np.concatenate([[0.0], amount, [0.0]])))
        began_s = ends_s[-1]
    if not ends_s:
        return None
    done = {name: [np.concatenate(each) for each in zip(*parts, strict=True)] for name, parts in found.items()}
    return _Track(
        began_s,
        tuple(ends_s),
        {name: (at, np.cumsum(amount)) for name, (at, amount) in done.items()},
        {name: tuple(np.concatenate(each) for each in zip(*parts, strict=True)) for name, parts in levels.items()},  # type: ignore[misc]
        (np.concatenate([at for at, _ in ends]), np.concatenate([batch for _, batch in ends])),
        pd.DataFrame(arrived, columns=["at_s", "connection", "bytes"]),
    )


def _levels(seen: pd.DataFrame | None, column: str, start: CellEvent, end: CellEvent) -> tuple[_Array, _Array]:
    """Return when in an epoch, in s since it began, a number of bytes was seen, and how many MB these were."""
    if seen is None or column not in seen:
        return np.empty(0), np.empty(0)
    known = seen[seen[column].notna() & seen["utc_ns"].between(start["utc_ns"], end["utc_ns"])]
    at_s = (known["utc_ns"].to_numpy(np.int64) - int(start["utc_ns"])) / 1e9
    return at_s, known[column].to_numpy(np.float64) / 1e6


def _amounts(batches: pd.DataFrame) -> dict[str, tuple[_Array, _Array]]:
    """Return times in s since an epoch began, and the amounts since the time before, by field of Timeline."""
    steps = batches["step_s"].to_numpy(np.float64)
    ends = np.cumsum((batches["wait_s"] + batches["step_s"]).to_numpy(np.float64))
    edges = np.stack([ends - steps, ends], axis=1).ravel()
    return {
        "mb_per_s": (ends, batches["bytes"].to_numpy(np.float64) / 1e6),
        "stepping": (edges, np.stack([np.zeros_like(steps), steps], axis=1).ravel()),
    }


def _integral(seen: pd.DataFrame, name: str, start_ns: int, duration_s: float) -> tuple[_Array, _Array]:
    """Return the integral of a share or rate that stands in every row for the time since the row before."""
    within = np.clip((seen["utc_ns"].to_numpy(np.int64) - start_ns) / 1e9, 0.0, duration_s)
    return within, np.diff(within, prepend=0.0) * seen[name].to_numpy(np.float64)
