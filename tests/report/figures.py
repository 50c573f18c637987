"""What figures are drawn from, as a cell stores it, and what they show."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.text import Text

from harness.cell.events import save_events
from harness.report.figures import find_figure, make_figure_tables
from harness.results.reader import read_results

SECOND_NS = 10**9


def store_cell(
    home: Path,
    waits_s: Sequence[float],
    steps_s: Sequence[float],
    *,
    epochs: Sequence[int] = (1, 2),
    megabytes: float = 3.0,
    cpu: Callable[[float], float] = lambda at_s: 0.5,
    gpu_util: float = math.nan,
    disk_mb_per_s: float = 4.0,
    connections: int = 0,
    **columns: Sequence[Any],
) -> None:
    """Write the batches, events and resources of a cell whose epochs lie 100 s apart and have these batches.

    `cpu` is the host's use by seconds of an epoch. Each connection brings an equal part of every batch. `columns` are
    further ones of the batches.
    """
    duration_s = sum(waits_s) + sum(steps_s)
    batches: list[dict[str, Any]] = []
    events: list[dict[str, Any]] = []
    seen = []
    for epoch in epochs:
        start = 1_764_000_000 * SECOND_NS + 100 * epoch * SECOND_NS
        end = start + round(duration_s * SECOND_NS)
        events.append({"event": "epoch_start", "utc_ns": start, "epoch": epoch})
        events.append({"event": "epoch_end", "utc_ns": end, "epoch": epoch, "duration_ns": end - start})
        at = start
        for step, (wait, took) in enumerate(zip(waits_s, steps_s, strict=True)):
            known = {"epoch": epoch, "step": step, "wait_s": wait, "step_s": took, "bytes": round(megabytes * 1e6)}
            batches.append({**known, **{name: values[step] for name, values in columns.items()}})
            at += round((wait + took) * SECOND_NS)
            for connection in range(connections):
                arrived = {"event": "loader.arrived", "utc_ns": at - 1, "epoch": epoch, "connection": connection}
                events.append({**arrived, "bytes": round(megabytes * 1e6) // connections})
        # Between epochs the host does what is no part of training.
        for tick in range(-8, round(4 * duration_s) + 8):
            used = cpu(tick / 4 - 0.125) if 0 <= tick / 4 - 0.125 <= duration_s else 1.0
            known = {"utc_ns": start + tick * SECOND_NS // 4, "cpu_util": used, "gpu_util": gpu_util}
            seen.append({**known, "disk_read_bytes": round((tick + 8) * disk_mb_per_s * 250_000)})
    pd.DataFrame(batches).to_parquet(home / "batches.parquet")
    save_events([{"mono_ns": event["utc_ns"], **event} for event in events], home / "events.parquet")
    pd.DataFrame(seen).to_parquet(home / "resources.parquet")


def drawn_text(folder: Path, name: str) -> str:
    """Return every text of a figure; nothing is saved, which would take most of a test's time."""
    drawn = find_figure(name).draw(read_results(folder))
    assert drawn is not None
    return " ".join(text.get_text() for text in drawn.findobj(Text))


def rows_of(folder: Path) -> dict[str, tuple[str, ...]]:
    """Return the cells of the table of a run's only figure, by the first one of each row."""
    (table,) = make_figure_tables(read_results(folder))
    return {row[0]: row[1:] for row in table.rows}
