"""MinatoLoader's figure 2: preprocessing times of 25 samples chosen at random."""

from __future__ import annotations

import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine

from harness.report.figures.palette import BAD, MUTED
from harness.report.folder import Results
from harness.report.labels import significant, spell
from harness.report.measurements import work
from harness.report.published_loaders import MINATO, MINATO_FIG2

__all__ = ["caption", "draw"]

SAMPLES = 25
_BAR = "#3b78b8"


def draw(results: Results) -> Figure | None:
    """Draw a panel a workload; None where no loader told any time."""
    frame = work(results)
    workloads = [key for key in results.workloads if (frame["workload"] == key).any()]
    if not workloads:
        return None
    layout = ConstrainedLayoutEngine(w_pad=0.1, h_pad=0.08, wspace=0.05)
    figure = Figure(figsize=(max(6.0, 5.4 * len(workloads)), 3.7), layout=layout)
    panels = figure.subplots(1, len(workloads), squeeze=False)[0]
    for axes, workload in zip(panels, workloads, strict=True):
        _draw_samples(axes, results, workload, frame[frame["workload"] == workload])
    panels[0].set_ylabel("preprocessing time (ms)")
    return figure


def caption(results: Results) -> str:
    """Return how to read the figure."""
    return (
        f"{SAMPLES} samples of an epoch, chosen by the experiment's seed, in the order in which they were trained on; "
        "dashed: the mean over all samples. Beside each title, what the text of the paper gives for the same workload "
        f"on its machine: {MINATO}, figure 2 and section 3.1."
    )


def _draw_samples(axes: Axes, results: Results, workload: str, times: pd.DataFrame) -> None:
    times = times.assign(ms=1e3 * times["work_s"]).reset_index(drop=True)
    first = times[(times["cell_id"] == times["cell_id"].iloc[0]) & (times["epoch"] == times["epoch"].iloc[0])]
    chosen = first.sample(min(SAMPLES, len(first)), random_state=int(results.config.get("seed") or 0)).sort_index()
    sns.barplot(
        x=[str(sample) for sample in chosen["sample"]], y=chosen["ms"].to_numpy(), color=_BAR, width=0.72, ax=axes
    )
    mean = float(times["ms"].mean())
    axes.axhline(mean, color=BAD, linestyle=(0, (5, 3)), linewidth=1.3)
    axes.annotate(
        f"mean {significant(mean)} ms",
        (1.0, mean),
        xycoords=("axes fraction", "data"),
        xytext=(-2, 4),
        textcoords="offset points",
        ha="right",
        va="bottom",
        fontsize=8.5,
        color=BAD,
    )
    axes.set_title(spell(workload), pad=9)
    if workload in MINATO_FIG2:
        paper, low, high = MINATO_FIG2[workload]
        said = f"paper: mean {_time(paper)}, from {_time(low)} to {_time(high)}"
        axes.set_title(said, loc="right", pad=9, color=MUTED, fontweight="normal", fontsize=8.5)
    axes.set_xlabel("sample")
    axes.tick_params(axis="x", labelrotation=90, labelsize=7.5)
    axes.set_ylim(0, 1.12 * float(chosen["ms"].max()))


def _time(ms: float) -> str:
    return f"{ms:g} ms" if ms < 1000 else f"{ms / 1e3:g} s"
