"""The table beside lines over time, and the texts of their panels: means, ranges and comparisons of timelines."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeAlias

import numpy as np
import pandas as pd

from harness.report.figures.definition import Lines
from harness.report.figures.timeline import Timeline, list_readers, make_timelines
from harness.report.labels import UNKNOWN, factor, megabytes, percent, ratio, seconds, significant, spell
from harness.report.measurements import compare_frames, epochs, mark_settled, trusted, work
from harness.report.papers import Tree, find_table, find_values, high, low
from harness.results.reader import Results
from joulefeed.table import Table

_OURS: Final = "sample_aware"
"""The section of the loader whose throughput is compared with the others'."""
_BASELINE: Final = "pytorch"
LoaderLines: TypeAlias = Mapping[str, Mapping[str, Timeline]]
"""Timelines by workload and loader."""


def find_timelines(spec: Lines, results: Results) -> LoaderLines:
    """Return the timelines of the workloads that the figure shows: of all, or of the first one."""
    workloads = results.workloads if "workload" in (*spec.down, *spec.across) else results.workloads[:1]
    every = {workload: make_timelines(results, workload, last=spec.last) for workload in workloads}
    if spec.last:
        every = {workload: list_readers(here) for workload, here in every.items()}
    return {workload: here for workload, here in every.items() if here}


def name_loader(spec: Lines, loader: str, one: Timeline | None = None) -> str:
    """Return how a loader is named, with what the figure says of it, and † where no valid row is behind it."""
    said = f" ({spec.names[loader]})" if loader in spec.names else ""
    return spell(loader) + said + (" †" if spec.last and one is not None and not one.trusted else "")


def describe(
    spec: Lines, results: Results, workload: str, loader: str, measure: str, here: Mapping[str, Timeline]
) -> str:
    """Return the line below the title of a panel."""
    if not loader:
        return _compare(spec, workload, here, read_settled(results, workload)) if measure == "mb_per_s" else ""
    one = here[loader]
    if measure == "use":
        accelerator, cpu = (percent(one.mean(use)) for use in (one.accelerator_util, one.rate("cpu_util")))
        return f"accelerator {accelerator}, CPU {cpu}; {seconds(one.duration_s)}"
    if measure == "batch_s":
        later = one.settled_batch_s
        return f"median {write_milliseconds(np.median(later))}, longest {write_milliseconds(later.max())}"
    if measure in ("connections", "all_connections"):
        known = one.settled_connections
        if measure == "connections" or not known.size:
            return ""
        return f"{len(known)} connections, {significant(float(known.sum(axis=0).mean()))} MB/s"
    mean = one.mean(one.rate(measure))
    return "" if mean is None else f"mean {significant(mean)} MB/s"


def write_milliseconds(value: Any) -> str:
    """Write a duration given in s, in ms below a second."""
    return f"{significant(float(value), 2)} s" if value >= 1 else f"{significant(1e3 * float(value), 2)} ms"


def read_settled(results: Results, workload: str) -> pd.DataFrame:
    """Return the trusted epochs of a workload that started no worker, of loaders that read."""
    frame = trusted(epochs(results))
    return frame[(frame["workload"] == workload) & mark_settled(frame) & ~frame["loader"].isin(results.bounds)]


def table(spec: Lines, results: Results) -> Table | None:
    """Return a row a workload and loader, the paper's rows, and a row a loader over all workloads."""
    found = find_timelines(spec, results)
    if "loader" in (*spec.down, *spec.across) and not spec.last:
        found = {workload: list_readers(here) for workload, here in found.items() if list_readers(here)}
    rows: list[tuple[str, ...]] = []
    dim: set[int] = set()
    for workload, here in found.items():
        frame = read_settled(results, workload)
        for loader in here:
            cells = _Cells(spec, results, workload, loader, here, frame)
            rows.append(tuple(cells.write(column) for column in spec.table.values()))
            if spec.paper_row and spec.only == f"{workload}/{loader}":
                dim.add(len(rows))
                rows.append(tuple(_publish(text, "", loader) if "/" in text else text for text in spec.paper_row))
    if len(found) > 1 and any(column.startswith("mean ") for column in spec.table.values()):
        for loader in dict.fromkeys(loader for here in found.values() for loader in here):
            every = [here[loader] for here in found.values() if loader in here]
            rows.append(tuple(_write_mean(column, loader, every) for column in spec.table.values()))
    for name, value in (find_table(spec.paper_rows) if spec.paper_rows and rows else {}).items():
        dim.add(len(rows))
        rows.append((f"paper, {name.replace('_', ' ')}", *_write_paper(spec, value)))
    return Table(tuple(spec.table), tuple(rows), dim=frozenset(dim)) if rows else None


def _write_paper(spec: Lines, value: Tree) -> list[str]:
    """Return the cells of a paper's row behind its name: a number in the first of its columns, a range in the last."""
    ends = value if isinstance(value, tuple) else (low(value),)
    column = spec.paper_columns[-1 if len(ends) > 1 else 0]
    text = seconds(ends[-1]) if spec.table[column].startswith("batch_") else " to ".join(map(significant, ends))
    return [text if head == column else UNKNOWN for head in [*spec.table][1:]]


class _Cells:
    """The cells of a row of one workload and loader."""

    def __init__(
        self,
        spec: Lines,
        results: Results,
        workload: str,
        loader: str,
        here: Mapping[str, Timeline],
        frame: pd.DataFrame,
    ) -> None:
        self._spec, self._results, self._workload, self._loader = spec, results, workload, loader
        self._here, self._frame, self._one = here, frame, here[loader]

    def write(self, column: str) -> str:
        """Return the text of a column: of the loader's timeline, of its settled epochs, or of a paper."""
        if column in _CELLS:
            return _CELLS[column](self._one)
        of_epochs: dict[str, Callable[[], str]] = {
            "loader": lambda: name_loader(self._spec, self._loader, self._one),
            "workload, loader": lambda: f"{spell(self._workload)}, {spell(self._loader)}",
            "lead": lambda: UNKNOWN if self._loader == _OURS else self._compare(self._loader, _OURS),
            "epoch": self._write_epoch,
            "pytorch_over": lambda: self._compare(_BASELINE, self._loader),
            "busier": self._write_busier,
            "transforming": lambda: percent(self._find_transforming()),
        }
        if column in of_epochs:
            return of_epochs[column]()
        return UNKNOWN if column.startswith("mean ") else _publish(column, self._workload, self._loader)

    def _of(self, loader: str) -> pd.DataFrame:
        return self._frame[self._frame["base"] == loader]

    def _compare(self, above: str, below: str) -> str:
        return ratio(compare_frames(self._of(above), self._of(below)))

    def _write_epoch(self) -> str:
        times = self._of(self._loader)["duration_s"]
        return seconds(float(times.median())) if len(times) else UNKNOWN

    def _write_busier(self) -> str:
        """Return the loader's mean use of the accelerator over PyTorch's."""
        theirs = self._here.get(_BASELINE)
        pair = [None if one is None else one.mean(one.accelerator_util) for one in (self._one, theirs)]
        return factor(pair[0] / pair[1]) if pair[0] and pair[1] else UNKNOWN

    def _find_transforming(self) -> float | None:
        """Return the share of the workers' time that transforms took; None where the loader does not measure it."""
        mine = self._of(self._loader)[["cell_id", "epoch", "loader", "duration_s"]]
        times = work(self._results).merge(mine, on=["cell_id", "epoch"])
        if times.empty:
            return None
        workers = self._results.experiment.loaders[str(times["loader"].iloc[0])].params.get("num_workers")
        epoch = times.groupby(["cell_id", "epoch"]).agg(work_s=("work_s", "sum"), duration_s=("duration_s", "first"))
        share = float((epoch["work_s"] / epoch["duration_s"]).median())
        return share / workers if isinstance(workers, int) and workers else None


def _write_mean(column: str, loader: str, every: Sequence[Timeline]) -> str:
    """Return the mean over workloads of the means over time; unknown where one is."""
    if column == "workload, loader":
        return f"over {len(every)} workloads, {spell(loader)}"
    if column.startswith("mean "):
        return _publish(column.removeprefix("mean "), "", loader)
    uses = [one.mean(one.accelerator_util if column == "accelerator" else one.rate("cpu_util")) for one in every]
    known = [use for use in uses if use is not None]
    return percent(sum(known) / len(known)) if len(known) == len(uses) else UNKNOWN


def _publish(column: str, workload: str, loader: str) -> str:
    """Return a paper's value for a workload and loader; `column` is its id and its unit, s, % or ×."""
    path, _, unit = column.partition(" ")
    found: Tree | None = find_values(path)
    for key in (workload, loader):
        found = found.get(key, found if key == workload else None) if isinstance(found, Mapping) else found
    if found is None or isinstance(found, Mapping):
        return UNKNOWN
    if unit == "%":
        return f"{100 * low(found):g} %"
    if unit == "s":
        return f"≈ {low(found):g} s"
    return f"{low(found):g}×" if low(found) == high(found) else f"{low(found):g} to {high(found):g}×"


def _compare(spec: Lines, workload: str, here: Mapping[str, Timeline], frame: pd.DataFrame) -> str:
    """Return the sample-aware loader's throughput over that of the others, below it the paper's, if it has any.

    The settled epochs of all repeats are compared; they read the same bytes.
    """
    others = [loader for loader in list_readers(here) if loader != _OURS]
    if _OURS not in here or not others:
        return ""
    published = {loader: _publish(f"{spec.values} ×", workload, loader) for loader in others if spec.values}
    paper = {loader: text for loader, text in published.items() if text != UNKNOWN}
    by_loader = {loader: frame[frame["base"] == loader] for loader in (_OURS, *others)}
    leads = {loader: ratio(compare_frames(by_loader[loader], by_loader[_OURS])) for loader in paper or others}
    ours = ", ".join(f"{lead} {spell(loader)}" for loader, lead in leads.items())
    theirs = ", ".join(f"{text} {spell(loader)}" for loader, text in paper.items())
    return f"sample-aware: {ours}" + (f"\nin the paper: {theirs}" if theirs else "")


def _correlate(one: Timeline) -> str:
    """Return the correlation of both uses over the windows; unknown for constant ones."""
    pair = np.stack([one.accelerator_util, one.rate("cpu_util")])
    known = pair[:, ~np.isnan(pair).any(axis=0)]
    if known.shape[1] < 3 or not known.std(axis=1).all():
        return UNKNOWN
    return significant(float(np.atleast_2d(np.corrcoef(known))[0, 1]), 2)


def _write_disk_reads(one: Timeline) -> str:
    read = one.mean(one.rate("disk_mb_per_s"))
    return UNKNOWN if read is None else megabytes(1e6 * read * one.duration_s)


def _write_most(seen: tuple[Any, Any]) -> str:
    return megabytes(1e6 * float(seen[1].max())) if len(seen[1]) else UNKNOWN


def _write_growth(one: Timeline) -> str:
    """Return by how much memory grew from the end of the first epoch to that of the last."""
    if len(one.epoch_ends_s) < 2 or not len(one.memory_mb[0]):
        return UNKNOWN
    first, *_, last = np.interp(one.epoch_ends_s, *one.memory_mb)
    return ("" if last >= first else "−") + megabytes(1e6 * abs(float(last - first)))


def _write_fluctuation(one: Timeline) -> str:
    """Return the deviation of the accelerator's use from window to window."""
    values = one.accelerator_util
    return percent(None if np.isnan(values).any() else float(values.std()))


def _write_batches(read: Callable[[Any], Any]) -> Callable[[Timeline], str]:
    return lambda one: seconds(float(read(one.settled_batch_s)))


def _write_connections(read: Callable[[Any], Any]) -> Callable[[Timeline], str]:
    """Return what writes a number, or the ends of a range, of the settled MB/s by connection and window."""

    def write(one: Timeline) -> str:
        known = one.settled_connections
        return " to ".join(significant(float(end)) for end in np.atleast_1d(read(known))) if known.size else UNKNOWN

    return write


_CELLS: Final[Mapping[str, Callable[[Timeline], str]]] = {
    "time": lambda one: seconds(one.duration_s),
    "mb_per_s": lambda one: significant(one.mean(one.rate("mb_per_s")) or 0.0),
    "accelerator": lambda one: percent(one.mean(one.accelerator_util)),
    "cpu": lambda one: percent(one.mean(one.rate("cpu_util"))),
    "fluctuation": _write_fluctuation,
    "disk_read": _write_disk_reads,
    "memory": lambda one: _write_most(one.memory_mb),
    "memory_growth": _write_growth,
    "gpu_memory": lambda one: _write_most(one.gpu_memory_mb),
    "correlation": _correlate,
    "batches": lambda one: str(len(one.batches[0])),
    "batch_p50": _write_batches(np.median),
    "batch_p99": _write_batches(lambda times: np.percentile(times, 99)),
    "batch_max": _write_batches(np.max),
    "connections": lambda one: str(len(one.connections_mb_per_s)) if len(one.connections_mb_per_s) else UNKNOWN,
    "all_mean": _write_connections(lambda rates: rates.sum(axis=0).mean()),
    "all_range": _write_connections(lambda rates: (rates.sum(axis=0).min(), rates.sum(axis=0).max())),
    "slowest": _write_connections(lambda rates: rates.mean(axis=1).min()),
    "fastest": _write_connections(lambda rates: rates.mean(axis=1).max()),
}
"""Columns that are of one timeline."""
