"""A figure as a YAML of conf/figure has it, checked. docs/figures.md describes the keys."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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

    known = {
        *EPOCH_COLUMNS,
        *make_schema(EpochMetrics).names,
        "utilisation",
        "ms_per_sample",
        "cpu_ms_per_sample",
        "first_batch_from_start_s",
    }
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


class Bars(Figure):
    """Bars by loader and distance: seconds, joules, throughput over a bound; `values` are a paper's."""

    measures: Sequence[Literal["seconds", "joules", "slowdown", "share_of_link", "share_of_fixed", "joules_per_gb"]] = (
        Field(min_length=1)
    )
    """A row of panels each. slowdown: against the nearest distance, where `values` is a figure by loader and distance.
    The bound of a share is the rate of the run's link, or the throughput of the loader that reads nothing."""
    stages: Sequence[str] = ()
    """Workloads, each of which contains those before it: a bar each. Beside, what share those before the last have."""
    link: Annotated[str, AfterValidator(_values)] = ""
    """The id of the MB/s of the paper's link, of which its values are shares; empty where they are shares already."""
    table: Sequence[Literal["rate", "share", "joules_per_gb", "joules_per_sample", "io_share"]] = ()
    """Columns of the table by loader and distance; without any there is no table."""

    @property
    def by_distance(self) -> bool:
        """Whether it is a figure by loader and distance."""
        return "slowdown" in self.measures

    @property
    def share_of(self) -> str:
        """The bound of the throughput: link, fixed, or empty without one."""
        return next((measure.removeprefix("share_of_") for measure in self.measures if "share_of" in measure), "")


_Dimension = Literal["workload", "loader", "measure"]


class Lines(Figure):
    """Measures over the seconds of training, in a grid of panels."""

    measures: Sequence[
        Literal["use", "mb_per_s", "disk_mb_per_s", "memory", "batch_s", "all_connections", "connections"]
    ] = Field(min_length=1)
    """use: of accelerator and CPU. batch_s: between batches. Connections are those that a loader reports."""
    down: Sequence[_Dimension] = ()
    """What rows of panels are of. Loaders that neither `down` nor `across` names have a line each in every panel."""
    across: Sequence[_Dimension] = ()
    """What columns of panels are of."""
    panel_width: float = 5.2
    """In inches."""
    panel_height: float = 2.4
    last: bool = False
    """Whether only the last epoch of a cell is drawn."""
    beside: bool = False
    """Whether seconds per epoch and preprocessing times by file size are drawn beside the panels."""
    names: Mapping[str, str] = {}
    """What stands in brackets behind a loader's name."""
    levels: Annotated[str, AfterValidator(_values)] = ""
    """The id of a paper's mean use of the accelerator, drawn dashed."""
    table: Mapping[str, str]
    """Heads and what stands below them: a column of harness.report.figures.lines_table, or the id of a paper's value
    with its unit; `mean` before it is for the row over all workloads."""
    only: str = ""
    """The workload/loader that the paper's value is of."""
    paper_row: Sequence[str] = ()
    """The table's row of the paper, below that one."""
    paper_rows: Annotated[str, AfterValidator(_values)] = ""
    """The id of a paper's values that have a row each at the end of the table."""
    paper_columns: Sequence[str] = ()
    """The heads of the columns in which they stand: a number in the first, a range in the last."""


class Panel(Section):
    """One measure over the sweep. Its title, notes and bound's note are templates, which may use a model's words."""

    metric: Annotated[str, AfterValidator(_metric)]
    """A column of harness.report.measurements.epochs, `utilisation` (the step's share of an epoch, the wait for the
    first batch included), `cpu_ms_per_sample` or `first_batch_from_start_s`."""
    y: str
    """The axis' name."""
    title: _Template = ""
    note: _Template = ""
    """A line below the title."""
    bound_note: _Template = ""
    """Text behind the bound's value."""
    scale: float = 1.0
    """Factor before drawing, such as 1e-9 for GB."""
    over: str = ""
    """A loader: drawn is how many times the others' value its median at the same setting is."""
    paper: Annotated[str, AfterValidator(_values)] = ""
    """The id of a paper's values by setting, or of one for all settings, that are drawn in the panel."""
    paper_scale: float = 1.0
    paper_note: _Template = ""
    """Text at a value for all settings."""
    labelled: bool = False
    """Whether medians are written at the points."""
    text: str = ""
    """How a value is written, such as "{:.0f} ms"; without, by the metric."""
    row: str = ""
    """What stands behind a loader's name in a table of settings."""
    top: float = 0.0
    """The end of the axis; 0 for what the values need."""


NO_WAIT: Final = "no_wait"
"""A bound: the time of an epoch in which no worker ever waits."""


class Sweep(Figure):
    """Measures over the setting of swept loaders."""

    x: str
    """The axis' name."""
    panels: Sequence[Panel] = Field(min_length=1)
    by: Literal["metric", "workload", "loader", "regime"] = "metric"
    """Panels: one a metric and one of the paper, one a workload, one a loader and workload, or one a regime, with the
    law of far files: round trips of a file by one reader, times the round trip, over the readers."""
    readers: Annotated[str, AfterValidator(_values)] = ""
    """By regime: the id of the readers by loader at which the paper's round trips a file, which are `values`, stand."""
    across: int = Field(default=2, ge=1)
    """Panels side by side."""
    setting: str = ""
    """A number of the workloads' config that is the setting, in place of that of swept loaders."""
    setting_scale: float = 1.0
    epochs: Literal["all", "later", "first", "training"] = "all"
    """Which count: all, those after a cell's first, the one with the first batch, or all of a cell together."""
    bound: str = ""
    """The loader whose value is a line across the first panel, its upper bound if it is the fixed batch; no_wait: what
    an epoch takes without waiting."""
    bound_name: str = ""
    """Its entry in the legend."""
    model: bool = False
    """Whether a textbook's model of loading that overlaps training stands beside `utilisation`."""
    model_name: str = ""
    """The entry of the paper's values in the legend."""
    table: Literal["loaders", "settings", "workloads"] = "settings"
    """Rows: a loader in one setting, a panel's loaders over the settings, or a workload and setting over loaders."""
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

    panels: Literal["iterations", "seeds", "time"]


class Distribution(Figure):
    """Preprocessing times of samples."""

    panels: Literal["samples", "summary"]


_FAMILIES: Final[Mapping[str, type[Figure]]] = {
    "bars": Bars,
    "lines": Lines,
    "sweep": Sweep,
    "distribution": Distribution,
    "learning": Learning,
}


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
