"""The loss of every step through a cell, over iterations and over time."""

from __future__ import annotations

from typing import Any

import pandas as pd

from harness.report.folder import Results
from harness.report.measurements import base_of, stored

__all__ = ["arm_line", "smooth", "steps"]


def steps(results: Results) -> pd.DataFrame:
    """Return a row for every step of every cell that ended, in order.

    Columns: `workload`, `base` (the loader's section), `cell_id`, `repeat`, `epoch`, `iteration` (from 1, over all
    epochs), `at_s` (end of the step in s of training, epochs one after another), `loss` (NaN where nothing is trained),
    `ids` (a frozenset, of the batch's samples).
    """
    parts = []
    for cell in results.cells:
        batches = stored(results.folder / "cells" / cell.cell_id / "batches.parquet") if cell.state == "done" else None
        if batches is None or not {"wait_s", "step_s", "loss", "ids"} <= set(batches.columns):
            continue
        ordered = batches.sort_values(["epoch", "step"])
        parts.append(
            pd.DataFrame(
                {
                    "workload": cell.workload,
                    "base": base_of(results, cell.loader),
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
    return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame(columns=_COLUMNS)


def smooth(values: pd.Series[float], width: int) -> pd.Series[float]:
    """Return running means over `width` steps about each, fewer at the ends."""
    return values.rolling(max(1, width), center=True, min_periods=1).mean()


def arm_line(place: int) -> dict[str, Any]:
    """Return how the line of a loader is drawn: the first is seen below the others, which are dashed."""
    return {"linewidth": 1.6, "linestyle": (0, (4, 3))} if place else {"linewidth": 3.4, "alpha": 0.55}


_COLUMNS = ["workload", "base", "cell_id", "repeat", "epoch", "iteration", "at_s", "loss", "ids"]
