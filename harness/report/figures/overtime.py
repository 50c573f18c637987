"""What cells did over time, in even windows: MB/s, the share of time in a step, CPU and GPU use, disk reads."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt
import pandas as pd

from harness.report.folder import Cell, Results
from harness.report.measurements import base_of, stored
from harness.results.epochs import epoch_edges

__all__ = ["Course", "courses", "window_s"]

_Array = npt.NDArray[np.float64]
_WINDOWS_S: Final = (0.25, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0)
"""In the least of them a cell's resources are looked at once."""
_MOST_WINDOWS: Final = 48


@dataclass(frozen=True, slots=True)
class Course:
    """The epochs of one cell, one after the other; what passed between them is left out.

    Every array has shape (n,), a value a window; NaN is unknown.
    """

    at_s: _Array
    """Middles of the windows, in s since the first epoch began."""
    width_s: _Array
    mb_per_s: _Array
    """A batch counts evenly over the time from the end of the step before it to the end of its own."""
    stepping: _Array
    """Share of the time in which a step ran, 0 to 1."""
    cpu_util: _Array
    """Of the host, 0 to 1."""
    gpu_util: _Array
    """Of the cell's board as NVML tells it, 0 to 1."""
    disk_mb_per_s: _Array
    """Read from the host's disks."""
    epoch_ends_s: tuple[float, ...]
    """Since the first epoch began."""
    trusted: bool
    """Whether every epoch is valid."""

    @property
    def duration_s(self) -> float:
        """How long the epochs took together."""
        return float(self.width_s.sum())

    @property
    def has_board(self) -> bool:
        """Whether NVML told the use of a board."""
        return not bool(np.isnan(self.gpu_util).all())

    @property
    def accelerator_util(self) -> _Array:
        """Use of the accelerator: NVML's where there is a board, else the share of time in a step."""
        return self.gpu_util if self.has_board else self.stepping

    def line(self, values: _Array) -> tuple[_Array, _Array]:
        """Return the points of a line through one of its arrays, from its beginning to its end."""
        at = np.concatenate([[0.0], self.at_s, [self.duration_s]])
        return at, np.concatenate([values[:1], values, values[-1:]])

    def mean(self, values: _Array) -> float | None:
        """Return the mean of one of its arrays over time; None where it is unknown."""
        mean = float((values * self.width_s).sum() / self.duration_s)
        return None if np.isnan(mean) else mean


def courses(results: Results, workload: str) -> dict[str, Course]:
    """Return a course a loader, by its section: of its first repeat whose epochs are valid, else of its first.

    All are cut into windows of `window_s` of the longest. Loaders of which no epoch ended are left out.
    """
    chosen: dict[str, tuple[Cell, bool]] = {}
    for cell in results.cells:
        rows = [row for row in results.rows if row.cell_id == cell.cell_id]
        if cell.workload != workload or cell.state != "done" or not rows:
            continue
        base, valid = base_of(results, cell.loader), all(row.is_valid for row in rows)
        if base not in chosen or (valid and not chosen[base][1]):
            chosen[base] = (cell, valid)
    tracks = {base: _track(results.folder / "cells" / cell.cell_id) for base, (cell, _) in chosen.items()}
    known = {base: track for base, track in tracks.items() if track is not None}
    width = window_s(max((track.duration_s for track in known.values()), default=0.0))
    order = list(dict.fromkeys(base_of(results, loader) for loader in results.loaders))
    return {base: _course(known[base], width, trusted=chosen[base][1]) for base in order if base in known}


def window_s(duration_s: float) -> float:
    """Return the width of the windows into which so many seconds are cut."""
    return next((width for width in _WINDOWS_S if duration_s <= _MOST_WINDOWS * width), _WINDOWS_S[-1])


@dataclass(frozen=True, slots=True)
class _Track:
    """How much of something was done up to a time: knots of lines that only rise, s since the first epoch began."""

    duration_s: float
    epoch_ends_s: tuple[float, ...]
    megabytes: tuple[_Array, _Array]
    step_s: tuple[_Array, _Array]
    cpu_s: tuple[_Array, _Array] | None
    gpu_s: tuple[_Array, _Array] | None
    disk_mb: tuple[_Array, _Array] | None


def _course(track: _Track, width: float, *, trusted: bool) -> Course:
    edges = np.append(np.arange(0.0, track.duration_s, width), track.duration_s)
    if len(edges) > 2 and edges[-1] - edges[-2] < width / 2:
        edges = np.delete(edges, -2)

    def rate(knots: tuple[_Array, _Array] | None) -> _Array:
        if knots is None:
            return np.full(len(edges) - 1, np.nan)
        rates: _Array = np.diff(np.interp(edges, *knots)) / np.diff(edges)
        return rates

    return Course(
        at_s=(edges[1:] + edges[:-1]) / 2,
        width_s=np.diff(edges),
        mb_per_s=rate(track.megabytes),
        stepping=rate(track.step_s),
        cpu_util=rate(track.cpu_s),
        gpu_util=rate(track.gpu_s),
        disk_mb_per_s=rate(track.disk_mb),
        epoch_ends_s=track.epoch_ends_s,
        trusted=trusted,
    )


@lru_cache(maxsize=64)
def _track(home: Path) -> _Track | None:
    """Read a cell; None where it stored no batches or no events."""
    batches, events, seen = (stored(home / f"{name}.parquet") for name in ("batches", "events", "resources"))
    if batches is None or events is None:
        return None
    told = ({**json.loads(one["values"]), **one} for one in events.to_dict("records"))
    began_s, spans = 0.0, []
    for epoch, (start, end) in epoch_edges(told).items():
        part = batches[batches["epoch"] == epoch].sort_values("step")
        spans.append(_Span(part, began_s, float(end["duration_ns"]) / 1e9, int(start["utc_ns"])))
        began_s += spans[-1].duration_s
    if not spans:
        return None
    return _Track(
        began_s,
        tuple(span.began_s + span.duration_s for span in spans),
        megabytes=_joined(span.megabytes() for span in spans),
        step_s=_joined(span.step_s() for span in spans),
        cpu_s=_used(spans, seen, "cpu_util"),
        gpu_s=_used(spans, seen, "gpu_util"),
        disk_mb=_used(spans, _with_disk_rate(seen), "disk_mb_per_s"),
    )


@dataclass(frozen=True, slots=True)
class _Span:
    """One epoch."""

    batches: pd.DataFrame
    began_s: float
    duration_s: float
    start_utc_ns: int

    def megabytes(self) -> tuple[_Array, _Array]:
        return self._knots(self._ends(), self.batches["bytes"].to_numpy(np.float64) / 1e6)

    def step_s(self) -> tuple[_Array, _Array]:
        ends, steps = self._ends(), self.batches["step_s"].to_numpy(np.float64)
        at = np.stack([ends - steps, ends], axis=1).ravel()
        return self._knots(at, np.stack([np.zeros_like(steps), steps], axis=1).ravel())

    def used(self, seen: pd.DataFrame, name: str) -> tuple[_Array, _Array]:
        """Return the integral of a share or rate that stands in every row for the time since the row before."""
        at = (seen["utc_ns"].to_numpy(np.int64) - self.start_utc_ns) / 1e9
        within = np.clip(at, 0.0, self.duration_s)
        return self._knots(self.began_s + within, np.diff(within, prepend=0.0) * seen[name].to_numpy(np.float64))

    def _ends(self) -> _Array:
        took: _Array = (self.batches["wait_s"] + self.batches["step_s"]).to_numpy(np.float64)
        return self.began_s + np.cumsum(took)

    def _knots(self, at: _Array, amounts: _Array) -> tuple[_Array, _Array]:
        edges = self.began_s, self.began_s + self.duration_s
        return np.concatenate([edges[:1], at, edges[1:]]), np.concatenate([[0.0], amounts, [0.0]])


def _used(spans: Iterable[_Span], seen: pd.DataFrame | None, name: str) -> tuple[_Array, _Array] | None:
    known = None if seen is None else seen[seen[name].notna()]
    return None if known is None or known.empty else _joined(span.used(known, name) for span in spans)


def _with_disk_rate(seen: pd.DataFrame | None) -> pd.DataFrame | None:
    """Return what was seen with MB read from disks per second since the row before, `disk_mb_per_s`."""
    if seen is None:
        return None
    return seen.assign(disk_mb_per_s=1e3 * seen["disk_read_bytes"].diff() / seen["utc_ns"].diff())


def _joined(parts: Iterable[tuple[_Array, _Array]]) -> tuple[_Array, _Array]:
    """Return the knots of all epochs, the amounts summed up."""
    at, amounts = (np.concatenate(each) for each in zip(*parts, strict=True))
    return at, np.cumsum(amounts)
