"""A figure as a YAML of conf/figure has it, checked. docs/figures.md describes the keys."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final, Literal

import yaml
from jinja2 import Environment, TemplateSyntaxError
from pydantic import AfterValidator, Field

from harness import config
from harness.config.validation import Section
from harness.errors import ResultsError
from harness.report.papers import find_published, find_values, parse_model
from harness.results.files import refuse_damage


@dataclass(frozen=True, slots=True)
class FigureTable:
    """The table beside a picture. The first column is words, the others are numbers."""

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    dim: frozenset[int] = frozenset()
    """Rows of a paper, not of this run."""


def _template(text: str) -> str:
    try:
        Environment(autoescape=True).parse(text)
    except TemplateSyntaxError as error:
        raise ValueError(f"a Jinja template ({error})") from error
    return text


_Template = Annotated[str, AfterValidator(_template)]


def _metric(name: str) -> str:
    from harness.report.measurements import EPOCH_COLUMNS
    from harness.results.epoch_row import make_schema
    from harness.results.metrics import EpochMetrics

    known = {*EPOCH_COLUMNS, *make_schema(EpochMetrics).names, "cpu_ms_per_sample", "first_batch_from_start_s"}
    if name not in known:
        raise ValueError(f"one of {', '.join(sorted(known))}")
    return name


def _values(path: str) -> str:
    try:
        if path:
            find_values(path) if path.count("/") > 1 else find_published(path)
    except ResultsError as error:
        raise ValueError(f"a published value ({error})") from error
    return path


class Figure(Section):
    """What every figure has."""

    title: str
    """What it shows; the picture's label for readers who do not see it."""
    family: str
    """The plotter: a module of harness.report.figures."""
    caption: _Template
    """How to read it: a Jinja template over the words that the plotter offers, and over published values."""
    heading: _Template = "{{ name }}; {{ accelerators }}"
    """A template for the line above the panels."""
    values: Annotated[str, AfterValidator(_values)] = ""
    """The id of the paper values drawn beside ours, such as minato/fig7."""


class ByDistance(Figure):
    """Seconds and joules per epoch by loader and regime."""


class OverTime(Figure):
    """A measure over the seconds of training."""

    panels: Literal["stack", "grid", "metrics", "lines", "memory"]
    """One below the other by workload and loader, a grid of both, loaders by metric, or a line a loader: of throughput,
    or of memory."""
    table: Mapping[str, str]
    """Heads and what stands below them: loader, time, mb_per_s, accelerator, cpu, disk_read, memory, memory_growth,
    gpu_memory, correlation, lead, or the id of a paper's value with its unit; `mean` before it is for the row over all
    workloads."""
    only: str = ""
    """The workload/loader that the paper's value is of."""
    paper_row: Sequence[str] = ()
    """The table's row of the paper, below that one."""


class Panel(Section):
    """One measure over the sweep."""

    metric: Annotated[str, AfterValidator(_metric)]
    """A column of harness.report.measurements.epochs, `cpu_ms_per_sample` or `first_batch_from_start_s`."""
    y: str
    """The axis' name."""
    title: _Template = ""
    note: _Template = ""
    """A line below the title."""
    bound_note: _Template = ""
    """Text behind the bound's value."""
    scale: float = 1.0
    """Factor before drawing, such as 1e-9 for GB."""


class Sweep(Figure):
    """Measures over the setting of swept loaders."""

    x: str
    """The axis' name."""
    panels: Sequence[Panel] = Field(min_length=1)
    by: Literal["metric", "workload", "loader"] = "metric"
    """Panels: one a metric and one of the paper, one a workload, or one a loader and workload with values at points."""
    epochs: Literal["all", "later", "first", "training"] = "all"
    """Which count: all, those after a cell's first, the one with the first batch, or all of a cell together."""
    bound: str = ""
    """The loader whose value is the upper bound of the first panel's."""
    table: Literal["loaders", "settings", "workloads"] = "settings"
    """Rows: a loader in one setting, a loader over its settings, or a workload and setting over loaders."""
    corner: str
    """The table's first head."""
    columns: Mapping[str, str] = {}
    """Heads and measures of a table of loaders; `first` before a measure is for a cell's first epoch."""
    head: str = "{:g}"
    """How a setting is written in the head of a table of settings."""
    gain: str = ""
    """In a table of settings, the head of what the best setting gains over the first."""


class Learning(Figure):
    """The loss of a training, and the slow samples in its batches."""

    panels: Literal["iterations", "seeds"]


class Distribution(Figure):
    """Preprocessing times of samples."""

    panels: Literal["samples", "summary"]


class Textbook(Figure):
    """Utilisation by number of workers beside a textbook's model."""

    panels: Literal["output", "exercise"]


class Stages(Figure):
    """Seconds and joules of the stages of training, and the share that those before the last have."""

    stages: Sequence[str] = Field(min_length=2)
    """Workloads, each of which contains those before it."""


class Throughput(Figure):
    """Throughput by loader and distance as a share of a bound, and joules by GB; `values` are a paper's."""

    share_of: Literal["link", "fixed"]
    """The bound: the rate of the run's link, or the throughput of the loader that reads nothing in an epoch."""
    link: Annotated[str, AfterValidator(_values)] = ""
    """The id of the MB/s of the paper's link, of which its values are shares; empty where they are shares already."""


class Prefetch(Figure):
    """How evenly data comes through each loader, in one regime."""

    panels: Literal["batches", "connections"]
    """Seconds between batches over an epoch, or MB/s of each connection and of all over time."""


BY_DISTANCE: Final = "by_distance"
_FAMILIES: Final[Mapping[str, type[Figure]]] = {
    BY_DISTANCE: ByDistance,
    "over_time": OverTime,
    "sweep": Sweep,
    "learning": Learning,
    "distribution": Distribution,
    "textbook": Textbook,
    "stages": Stages,
    "throughput": Throughput,
    "prefetch": Prefetch,
    "minato_fig3": Figure,
    "minato_fig12": Figure,
}
"""What a plotter's figures have. The last two draw one figure each."""


def list_packaged() -> Mapping[str, Path]:
    """Return this project's figures by id.

    The folder is not named figures: Hydra would take `figures=[...]` on a command line for a choice in that group.
    """
    return config.list_packaged("figure")


def read_figure(path: Path) -> Figure:
    """Read a figure. Raises ResultsError naming the file and the key that is wrong."""
    with refuse_damage(path, "docs/figures.md describes the keys"):
        stored = yaml.safe_load(path.read_text(encoding="utf-8"))
    family = stored.get("family") if isinstance(stored, Mapping) else None
    if family not in _FAMILIES:
        raise ResultsError(f"{path}: family={family!r}: expected one of {', '.join(_FAMILIES)}")
    return parse_model(path, _FAMILIES[str(family)], stored)
