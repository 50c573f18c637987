"""SPDL's Table 2: how long a loader takes to its first batch, by concurrency."""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine

from harness.report.figures.lines import draw_sweep, invalid_note, tick_settings
from harness.report.figures.palette import MUTED, SURFACE
from harness.report.figures.tables import FigureTable
from harness.report.folder import Results
from harness.report.labels import UNKNOWN, significant, spell
from harness.report.measurements import epochs, trusted
from harness.report.published_loaders import SPDL, SPDL_FIRST_BATCH_S

__all__ = ["caption", "draw", "table"]


def draw(results: Results) -> Figure | None:
    """Draw seconds to the first batch, the paper's in a panel of their own; None when no sweep was measured."""
    frame = _first_batches(results)
    if frame.empty:
        return None
    layout = ConstrainedLayoutEngine(w_pad=0.12, h_pad=0.08, wspace=0.1)
    figure = Figure(figsize=(10.5, 4.0), layout=layout)
    left, right = figure.subplots(1, 2, width_ratios=[1.35, 1.0])
    draw_sweep(left, frame, "first_s")
    left.set_title(f"{results.name}: time to the first batch", pad=9)
    left.set_ylabel("seconds from making the loader on")
    invalid_note(left, frame)
    for loader, known in SPDL_FIRST_BATCH_S.items():
        right.plot(list(known), list(known.values()), "D--", color=MUTED, markerfacecolor=SURFACE, linewidth=1.4)
        for workers, time_s in known.items():
            right.annotate(
                f"{time_s:g}", (workers, time_s), xytext=(-7, 4), textcoords="offset points", ha="right", color=MUTED
            )
        right.set_title(f"SPDL paper: {spell(loader)}, ImageNet", pad=9, color=MUTED)
        tick_settings(right, list(known))
        right.set_ylim(0, 1.15 * max(known.values()))
        right.margins(x=0.14)
    for axes in (left, right):
        axes.set_xlabel("concurrency: worker processes or threads")
    return figure


def caption(results: Results) -> str:
    """Return how to read the figure."""
    return (
        "From the call that makes the loader to the first batch of its first epoch, in a process that has imported "
        "all it needs and has read a few samples through another loader. Points are cells, lines join medians. Right: "
        f"{SPDL}, Table 2, where torchvision's list of 1.3 million paths is copied to every worker; the list is "
        "shorter here, so compare how the time grows with workers, not the seconds."
    )


def table(results: Results) -> FigureTable | None:
    """Return the paper's table with ours above it."""
    frame = _first_batches(results)
    if frame.empty:
        return None
    theirs = {setting for known in SPDL_FIRST_BATCH_S.values() for setting in known}
    settings = sorted({*map(int, frame["setting"]), *theirs})
    medians = frame.groupby(["base", "setting"], sort=False)["first_s"].median()
    rows = [
        (spell(str(base)), *(_cell(medians.get((base, float(setting)))) for setting in settings))
        for base in dict.fromkeys(frame["base"])
    ]
    ours = len(rows)
    rows += [
        (f"{spell(loader)}, paper", *(_cell(known.get(setting)) for setting in settings))
        for loader, known in SPDL_FIRST_BATCH_S.items()
    ]
    columns = ("Seconds to first batch", *map(str, settings))
    return FigureTable(columns, tuple(rows), frozenset(range(ours, len(rows))))


def _first_batches(results: Results) -> pd.DataFrame:
    frame = epochs(results)
    frame = trusted(frame[frame["loader_made_s"].notna() & frame["setting"].notna()])
    return frame.assign(first_s=frame["loader_made_s"] + frame["first_batch_s"])


def _cell(value: float | None) -> str:
    return UNKNOWN if value is None else significant(float(value))
