"""What the batches of an epoch say: how slow samples are spread (MinatoLoader, figure 11), and whether reordered."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import pandas as pd

from harness.report.measurements import find_base, first_rank, read_stored, work
from harness.results.cells import CellResult
from harness.results.reader import Results

_SLOW_QUANTILE: Final = 0.75
"""Above it a sample is slow (MinatoLoader, section 4.2)."""

_Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Composition:
    """How many slow samples, and how many in all, every batch of an epoch had, in order; both of shape (batches,)."""

    slow: _Ints
    samples: _Ints

    @property
    def figures(self) -> dict[str, float]:
        """`slow_batch_std` and `slow_first_half` (harness.report.claims.metrics)."""
        figures = {"slow_batch_std": float(self.slow[self.samples == self.samples.max()].std())}
        if total := self.slow.sum():
            # The batch in the middle of an odd number belongs to both halves, half of it to each.
            weights = np.clip(len(self.slow) / 2 - np.arange(len(self.slow)), 0.0, 1.0)
            figures["slow_first_half"] = float((self.slow * weights).sum() / total)
        return figures


def measure_compositions(results: Results) -> Mapping[tuple[str, int], Composition]:
    """Return the composition of the batches of every epoch, by (cell id, epoch).

    A sample is slow whose preprocessing takes, in the median of all its epochs in the run, longer than that of three
    quarters of the workload's samples. Epochs of loaders that do not report these times are counted by the others'
    samples. A workload of which no loader reports them has no composition.
    """
    found: dict[tuple[str, int], Composition] = {}
    times = work(results)
    for workload in results.workloads:
        usual = times[times["workload"] == workload].groupby("sample")["work_s"].median()
        slow = usual.index[usual > usual.quantile(_SLOW_QUANTILE)].to_numpy(np.int64)
        for cell in results.cells if len(usual) else ():
            if cell.workload == workload:
                for epoch, batches in _read_batches(results, cell).items():
                    found[cell.cell_id, epoch] = measure_composition(batches, slow)
    return found


def measure_reordering(results: Results) -> Mapping[tuple[str, int], float]:
    """Return the share of batches that have other samples than PyTorch's same batch, by (cell id, epoch).

    Compared is the epoch of the same number through `pytorch`, of the cell's workload, regime and repeat, and so of
    its seed. What has no such epoch, and PyTorch's own epochs, are left out.
    """
    cells = {cell.cell_id: cell for cell in results.cells}
    plain = {
        (cell.workload, cell.regime, cell.repeat): _read_batches(results, cell)
        for cell in cells.values()
        if find_base(results, cell.loader) == "pytorch"
    }
    found: dict[tuple[str, int], float] = {}
    for cell in cells.values():
        theirs = plain.get((cell.workload, cell.regime, cell.repeat), {})
        if not theirs or find_base(results, cell.loader) == "pytorch":
            continue
        for epoch, batches in _read_batches(results, cell).items():
            if len(theirs.get(epoch, ())) == len(batches):
                pairs = zip(batches, theirs[epoch], strict=True)
                found[cell.cell_id, epoch] = float(np.mean([set(one) != set(other) for one, other in pairs]))
    return found


def measure_losses(results: Results) -> Mapping[tuple[str, int], float]:
    """Return the mean loss over the time until the shortest epoch of its number has ended, by (cell id, epoch).

    Compared are the epochs of a workload in a regime. Until the end of its first step an epoch has that step's loss.
    Epochs in which nothing was trained are left out.
    """
    epochs: dict[tuple[str, str, int], dict[str, pd.DataFrame]] = {}
    for cell in results.cells:
        for epoch, batches in _read_epochs(results, cell):
            if not batches["loss"].isna().any():
                ordered = first_rank(batches).sort_values("step")
                ordered["end_s"] = (ordered["wait_s"] + ordered["step_s"]).cumsum()
                epochs.setdefault((cell.workload, cell.regime, epoch), {})[cell.cell_id] = ordered
    found: dict[tuple[str, int], float] = {}
    for (_, _, epoch), cells in epochs.items():
        until_s = min(steps["end_s"].max() for steps in cells.values())
        for cell_id, steps in cells.items():
            # Each loss holds from the end of its step to the end of the next.
            lasts_s = np.diff(np.minimum([0.0, *steps["end_s"].iloc[1:], math.inf], until_s))
            found[cell_id, epoch] = float((steps["loss"] * lasts_s).sum() / until_s)
    return found


def _read_epochs(results: Results, cell: CellResult) -> Iterator[tuple[int, pd.DataFrame]]:
    """Yield the batches of a cell's epochs; none of a cell that has not ended."""
    done = cell.state == "done"
    batches = read_stored(results.folder / "cells" / cell.cell_id / "batches.parquet") if done else None
    if batches is not None:
        yield from ((int(str(epoch)), part) for epoch, part in batches.groupby("epoch"))


def _read_batches(results: Results, cell: CellResult) -> Mapping[int, Sequence[_Ints]]:
    """Return the ids of a cell's batches, in order, by epoch; none of a cell that has not ended."""
    every = {
        epoch: [np.asarray(each, np.int64) for each in batches["ids"] if len(each)]
        for epoch, batches in _read_epochs(results, cell)
    }
    return {epoch: full for epoch, full in every.items() if full}


def measure_composition(batches: Sequence[_Ints], slow: _Ints) -> Composition:
    """Return how the samples `slow` are spread, from the ids of an epoch's batches in order."""
    return Composition(
        np.array([np.isin(ids, slow).sum() for ids in batches], np.int64),
        np.array([len(ids) for ids in batches], np.int64),
    )
