"""Loaders by distance: which figure of the EMLIO paper a run asks, and how much slower a loader is far away."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, TypeVar

from harness.report.intervals import Ratio
from harness.report.labels import factor, regime_labels, span, spell, write_ratio
from harness.report.papers import Tree, find_published, high, low, read_paper
from harness.report.summary import LoaderGroup, compute_ratio, find
from harness.results.reader import Results
from joulefeed.table import Table, TableCell, TableColumn

T = TypeVar("T")

_PAPER: Final = "emlio"
_SAME_RTT: Final = 0.05
"""Share of the paper's RTT within which a regime equals its own."""


@dataclass(frozen=True, slots=True)
class PaperFigure:
    """One figure of the paper in numbers; the paper's own loader stands under streaming."""

    id: str
    """Of the figure that draws it: emlio_fig5."""
    name: str
    """As the paper counts it: figure 5."""
    citation: str
    conditions: str
    workload: str
    """The workload that the values are of."""
    epoch_s: Mapping[str, Mapping[float, float]]
    """Seconds per epoch by loader and RTT in ms, 0 being local disk; empty where the text gives none."""
    energy_kj: Mapping[str, Mapping[float, Mapping[str, Tree]]]
    """Energy per epoch by loader, RTT in ms and domain, as far as the text gives it; the rest is in the plot alone."""

    @property
    def rtt_ms(self) -> tuple[float, ...]:
        """Round-trip times of the values in ms; 0 is local disk."""
        return tuple(dict.fromkeys(rtt for values in self.epoch_s.values() for rtt in values))

    def matching_rtt_ms(self, results: Results, regime: str) -> float | None:
        """Return the paper's regime that equals a run's; None when it has none.

        The paper's links have neither loss, jitter nor unequal paths, so no regime of it equals a disturbed one.
        """
        here = results.experiment.regimes[regime]
        if here.loss_pct or here.jitter_ms or here.paths:
            return None
        if here.is_local:
            return 0.0 if 0.0 in self.rtt_ms else None
        return next((known for known in self.rtt_ms if known and abs(here.rtt_ms - known) <= _SAME_RTT * known), None)


@dataclass(frozen=True, slots=True)
class Slowdown:
    """One loader in one regime against the same loader in the nearest one."""

    loader: str
    regime: str
    near: str
    """The nearest regime, the one that counts as 1."""
    ours: Ratio | None
    """Ratio of the medians; None when either is missing."""
    paper: float | None
    """The same ratio of the paper's figure; None where the paper has no such loader or regime."""


@lru_cache(maxsize=8)
def read_paper_figure(path: str) -> PaperFigure:
    """Return a figure of conf/papers, such as "emlio/fig5". Raises ResultsError where there is none."""
    entry, name = find_published(path), path.partition("/")[0]
    parts: Mapping[str, Tree] = entry.value if isinstance(entry.value, Mapping) else {}
    return PaperFigure(
        id=path.replace("/", "_"),
        name=entry.at.rpartition(" and ")[2],
        citation=f"{read_paper(name).citation}, {entry.at}",
        conditions=entry.conditions,
        workload=entry.workload,
        epoch_s={loader: _by_rtt(low, values) for loader, values in _keys(parts.get("epoch_s")).items()},
        energy_kj={loader: _by_rtt(_keys, values) for loader, values in _keys(parts.get("energy_kj")).items()},
    )


def find_at_rtt(values: Mapping[str, Tree], rtt_ms: float) -> float | None:
    """Return a paper's value at a round trip, from values by round trip in ms; None where it has none."""
    return next(
        (low(value) for key, value in values.items() if abs(rtt_ms - float(key)) <= _SAME_RTT * float(key)), None
    )


def choose_figure(results: Results) -> PaperFigure:
    """Return the paper's figure that asks what a run asks, from where its data lies, its samples and its model."""
    experiment = results.experiment
    if experiment.placement in ("half", "sharded"):
        name = "fig10"
    elif experiment.dataset is not None and experiment.dataset.target.endswith(".Synthetic"):
        name = "fig7" if results.streams == 1 else "fig8"
    elif experiment.dataset is not None and experiment.dataset.params.get("mean_kb", 0) > 150:  # kB, as COCO's
        name = "fig6"
    else:
        name = "fig9" if "vgg19" in results.workloads and "resnet50" not in results.workloads else "fig5"
    return read_paper_figure(f"{_PAPER}/{name}")


def compare_distances(results: Results, groups: Sequence[LoaderGroup], workload: str) -> tuple[Slowdown, ...]:
    """Return the slowdowns of one workload, for every loader that reads and every regime but the nearest."""
    near, theirs = results.regimes[0], choose_figure(results)
    epoch_s = theirs.epoch_s if workload == theirs.workload else {}
    rtts = {regime: theirs.matching_rtt_ms(results, regime) for regime in results.regimes}
    found = []
    for loader in results.readers:
        times = {regime: epoch_s.get(loader, {}).get(-1.0 if rtt is None else rtt) for regime, rtt in rtts.items()}
        for far in results.regimes[1:]:
            at_near, at_far = (find(groups, workload, regime, loader) for regime in (near, far))
            first, last = times[near], times[far]
            paper = last / first if first and last else None
            found.append(Slowdown(loader, far, near, compute_ratio(at_far, at_near), paper))
    return tuple(found)


def make_distance_table(results: Results, groups: Sequence[LoaderGroup], workload: str) -> Table | None:
    """Return the slowdowns by loader and regime, a paper's beside them; None where nothing is known."""
    found, labels = compare_distances(results, groups, workload), regime_labels(results)
    if not any(one.ours is not None for one in found):
        return None
    has_paper = any(one.paper is not None for one in found)
    columns: list[TableColumn | str] = [TableColumn(f"epoch against {labels[found[0].near]}", left=True)]
    for regime in results.regimes[1:]:
        columns += [labels[regime], TableColumn("95\u00a0%", optional=1), *(["paper"] if has_paper else [])]
    rows: list[list[TableCell | str]] = []
    for loader in results.readers:
        row: list[TableCell | str] = [spell(loader)]
        for ours, paper in ((one.ours, one.paper) for one in found if one.loader == loader):
            is_weak = ours is None or ours.is_noise or not ours.trusted
            row += [TableCell(write_ratio(ours), "dim" if is_weak else ""), TableCell(span(ours), "dim")]
            row += [TableCell(factor(paper), "dim")] if has_paper else []
        rows.append(row)
    return Table(columns, rows)


def _keys(value: Tree | None) -> Mapping[str, Tree]:
    return value if isinstance(value, Mapping) else {}


def _by_rtt(read: Callable[[Tree], T], values: Tree) -> dict[float, T]:
    return {float(rtt_ms): read(value) for rtt_ms, value in _keys(values).items()}


def sum_kj(energy: Mapping[str, Tree]) -> tuple[float, float]:
    """Return the least and the greatest total that the text allows, in kJ, over the domains it names."""
    return sum(low(one) for one in energy.values()), sum(high(one) for one in energy.values())
