"""How slow samples are spread over the batches of an epoch, as figure 11 of the MinatoLoader paper looks at it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow.parquet as pq

from harness.results.reader import Results

_SLOW_PERCENTILE: Final = 75.0
"""Above it a sample is slow (MinatoLoader, section 4.2)."""

_Ints = npt.NDArray[np.int64]
_Batches = list[_Ints]


@dataclass(frozen=True, slots=True)
class Composition:
    """How many slow samples, and how many in all, every batch of an epoch had, in order; both of shape (batches,)."""

    slow: _Ints
    samples: _Ints

    @property
    def figures(self) -> dict[str, float]:
        """`slow_share`, `slow_batch_std` and `slow_first_half` (harness.report.claims.metrics)."""
        figures = {
            "slow_share": float((self.slow / self.samples).mean()),
            "slow_batch_std": float(self.slow[self.samples == self.samples.max()].std()),
        }
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
    for workload in results.workloads:
        epochs: dict[tuple[str, int], _Batches] = {}
        times: dict[int, list[float]] = {}
        for cell in results.cells:
            if cell.workload == workload and cell.state == "done":
                _read(results.folder / "cells" / cell.cell_id / "batches.parquet", cell.cell_id, epochs, times)
        if not times:
            continue
        usual = {sample: float(np.median(each)) for sample, each in times.items()}
        limit = float(np.percentile(list(usual.values()), _SLOW_PERCENTILE))
        slow = np.array([sample for sample, seconds in usual.items() if seconds > limit], np.int64)
        found |= {key: measure_composition(batches, slow) for key, batches in epochs.items()}
    return found


def measure_composition(batches: _Batches, slow: _Ints) -> Composition:
    """Return how the samples `slow` are spread, from the ids of an epoch's batches in order."""
    return Composition(
        np.array([np.isin(ids, slow).sum() for ids in batches], np.int64),
        np.array([len(ids) for ids in batches], np.int64),
    )


def _read(path: Path, cell_id: str, epochs: dict[tuple[str, int], _Batches], times: dict[int, list[float]]) -> None:
    if not path.exists():
        return
    table = pq.read_table(path)
    for record in table.select([name for name in ("epoch", "ids", "work_s") if name in table.column_names]).to_pylist():
        ids = np.array(record["ids"], np.int64)
        if len(ids):
            epochs.setdefault((cell_id, record["epoch"]), []).append(ids)
        for sample, seconds in zip(record["ids"], record.get("work_s") or (), strict=False):
            if seconds is not None:
                times.setdefault(sample, []).append(seconds)
